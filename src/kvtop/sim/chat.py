"""What the embedded box answers to /v1/models, /tokenize, /detokenize and /v1/chat/completions."""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from array import array
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from kvtop.sim.engine import Request
from kvtop.sim.http import Answer, Call, error_answer, json_answer
from kvtop.sim.prompt import Prompt, Prompter, parts_of
from kvtop.sim.tapped import usage
from kvtop.sim.text import IM_END, passage, pieces, spell, tokenize
from kvtop.sim.world import World

_POLL_S = 0.02


@dataclass(slots=True)
class _Turn:
    """A chat request on its way."""

    id: str
    prompt: Prompt
    reply: list[str]
    reason: str
    request: Request
    finished: asyncio.Future[Request | None]
    with_ids: bool


class Chat:
    """The OpenAI-shaped routes, served by the world's engine."""

    def __init__(self, world: World, details: bool) -> None:
        self._world = world
        self._details = details
        self._busy = 0
        self._count = 0

    @property
    def busy(self) -> bool:
        """A chat request is under way."""
        return self._busy > 0

    def models(self, created: int) -> Answer:
        """/v1/models."""
        spec = self._world.scenario.spec
        row = {
            "id": spec.model,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": spec.model,
            "parent": None,
            "max_model_len": spec.max_model_len,
            "permission": [],
        }
        return json_answer({"object": "list", "data": [row]})

    def tokenize(self, call: Call) -> Answer:
        """/tokenize, both forms: `prompt`, or `messages` with `tools`."""
        body = call.json()
        if body is None:
            return error_answer(400, "the body is not a JSON object")
        if isinstance(prompt := body.get("prompt"), str):
            ids = tokenize(prompt)
        elif isinstance(body.get("messages"), list):
            ids = array("I")
            for part in parts_of(body):
                ids.extend(part.ids)
        else:
            return error_answer(400, "neither prompt nor messages")
        most = self._world.scenario.spec.max_model_len
        names = [spell([id]) for id in ids] if body.get("return_token_strs") is True else None
        return json_answer({"count": len(ids), "max_model_len": most, "tokens": ids.tolist(), "token_strs": names})

    def detokenize(self, call: Call) -> Answer:
        """/detokenize."""
        ids = (call.json() or {}).get("tokens")
        if not isinstance(ids, list) or not all(isinstance(id, int) for id in ids):
            return error_answer(400, "no tokens")
        return json_answer({"prompt": spell(ids)})

    async def complete(self, call: Call) -> Answer:
        """/v1/chat/completions, streamed or not."""
        body = call.json()
        if body is None or not isinstance(body.get("messages"), list) or not body["messages"]:
            return error_answer(400, "the body is not a JSON object with messages")
        spec = self._world.scenario.spec
        if body.get("model", spec.model) != spec.model:
            return error_answer(404, "The model does not exist.", "NotFoundError")
        if not self._world.up:
            return error_answer(503, "the server is starting", "ServiceUnavailable")
        wanted = body.get("max_completion_tokens", body.get("max_tokens"))
        if wanted is not None and (not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1):
            return error_answer(400, "max_tokens must be at least 1")
        salt = body.get("cache_salt") or ""
        if not isinstance(salt, str):
            return error_answer(400, "cache_salt must be a string")
        prompt = Prompter(spec.block_tokens).join(parts_of(body), salt)
        room = spec.max_model_len - len(prompt.ids)
        if room < (wanted or 1):
            tokens = len(prompt.ids)
            says = f"This model's maximum context length is {spec.max_model_len} tokens; the prompt has {tokens}"
            return error_answer(400, f"{says}, and {wanted or 1} were asked for.")
        turn = self._begin(body, prompt, min(wanted or room, room), salt)
        if body.get("stream"):
            options = body.get("stream_options")
            usage = isinstance(options, Mapping) and bool(options.get("include_usage"))
            return Answer(200, content_type="text/event-stream; charset=utf-8", stream=self._stream(call, turn, usage))
        return await self._whole(call, turn)

    def _begin(self, body: Mapping[str, Any], prompt: Prompt, limit: int, salt: str) -> _Turn:
        rng = random.Random(zlib.crc32(prompt.ids.tobytes()))
        likes = rng.randint(24, 160)
        if body.get("ignore_eos"):
            likes = limit
        text = pieces(passage(rng, max(likes, 4) + 200, "I see."))
        cut = likes >= limit
        reply = text[: limit if cut else likes]
        while len(reply) < limit and cut:
            reply += text[: limit - len(reply)]
        ids = tokenize("".join(reply))
        if not cut:
            ids.append(IM_END)
        finished: asyncio.Future[Request | None] = asyncio.get_running_loop().create_future()

        def done(request: Request | None) -> None:
            if not finished.done():
                finished.set_result(request)

        reason = "length" if cut else "stop"
        request = self._world.submit(prompt, ids, reason=reason, max_tokens=limit, salt=salt, done=done)
        self._count += 1
        name = f"chatcmpl-{self._count:08x}{zlib.crc32(prompt.ids.tobytes()):08x}"
        return _Turn(name, prompt, reply, reason, request, finished, bool(body.get("return_token_ids")))

    def _head(self, turn: _Turn, kind: str) -> dict[str, Any]:
        spec = self._world.scenario.spec
        return {"id": turn.id, "object": kind, "created": int(turn.request.arrived_at), "model": spec.model}

    def _usage(self, request: Request) -> dict[str, Any]:
        return usage(request, self._world.scenario.spec.block_tokens, details=self._details)

    def _drop(self, turn: _Turn) -> None:
        """Its client has gone before the end: the engine need not go on."""
        if not turn.finished.done():
            self._world.abort(turn.request)

    async def _ended(self, call: Call, turn: _Turn) -> Request | None:
        """The finished request; None where the client hung up or the server went down."""
        while not turn.finished.done():
            if call.gone():
                return None
            await asyncio.wait([turn.finished], timeout=_POLL_S * 5)
        return turn.finished.result()

    async def _whole(self, call: Call, turn: _Turn) -> Answer:
        self._busy += 1
        try:
            request = await self._ended(call, turn)
        finally:
            self._busy -= 1
            self._drop(turn)
        if request is None:
            return error_answer(500, "EngineCore encountered an issue", "InternalServerError")
        message = {"role": "assistant", "content": "".join(turn.reply), "tool_calls": []}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": turn.reason}
        answer = self._head(turn, "chat.completion") | {"choices": [choice], "usage": self._usage(request)}
        if turn.with_ids:
            answer["prompt_token_ids"] = turn.prompt.ids.tolist()
            choice["token_ids"] = tokenize("".join(turn.reply)).tolist() + ([IM_END] if turn.reason == "stop" else [])
        return json_answer(answer)

    async def _stream(self, call: Call, turn: _Turn, usage: bool) -> AsyncGenerator[bytes, None]:
        head = self._head(turn, "chat.completion.chunk")

        def event(delta: Mapping[str, Any], reason: str | None = None, ids: list[int] | None = None) -> bytes:
            choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
            more = {} if ids is None else {"prompt_token_ids": ids}
            return b"data: " + json.dumps(head | {"choices": choices} | more).encode() + b"\n\n"

        self._busy += 1
        try:
            sent = 0
            while True:
                over = turn.finished.done()
                ready = min(turn.request.generated, len(turn.reply))
                if ready > sent or (over and not sent):
                    if not sent:
                        ids = turn.prompt.ids.tolist() if turn.with_ids else None
                        yield event({"role": "assistant", "content": ""}, ids=ids)
                    if ready > sent:
                        yield event({"content": "".join(turn.reply[sent:ready])})
                    sent = ready
                if over:
                    break
                if call.gone():
                    return
                await asyncio.wait([turn.finished], timeout=_POLL_S)
            request = turn.finished.result()
            if request is None:
                return
            yield event({}, turn.reason)
            if usage:
                yield b"data: " + json.dumps(head | {"choices": [], "usage": self._usage(request)}).encode() + b"\n\n"
            yield b"data: [DONE]\n\n"
        finally:
            self._busy -= 1
            self._drop(turn)
