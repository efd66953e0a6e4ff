"""Conversations through a tap, and what `kvtop why` and `kvtop diff` say of their turns."""

from __future__ import annotations

import asyncio
import copy
import json
import subprocess
import time
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import httpx
from vllm_agent import TOOLS, Message, Usage, opening, tool_turn
from vllm_tap import Tap

from kvtop.capture.turn import Captured

WHY = {
    "turn", "verdict", "reason", "candidates", "sentence", "evidence", "rules_out", "expected_cached_tokens",
    "cached_tokens", "expected_because", "tokens", "phases", "diff", "fix",
}  # fmt: skip
DIFF = {
    "old", "new", "method", "exact", "tokens", "match_unit_tokens", "cached_tokens", "expected_cached_tokens",
    "first_difference", "causes", "append_only", "notes",
}  # fmt: skip
TASK = "Find out why step_7 gives the wrong result, and mend it."
TOKENS = {"old", "new", "common", "reusable", "lost", "reread"}
FIRST = {"token", "byte", "section", "pointer", "old", "new"}
CAUSE = {"kind", "pointer", "section", "values", "lost_tokens", "lost_s", "who", "says", "fix", "seen"}

RUNNING = "vllm:num_requests_running", (("engine", "0"), ("model_name", "tiny"))
WAITING = "vllm:num_requests_waiting", (("engine", "0"), ("model_name", "tiny"))
"""Of a scrape's values."""


class Talk:
    """An agent that talks to a URL, streamed. `route`: chat or messages."""

    def __init__(self, url: str, who: str, route: str = "chat", task: str = TASK) -> None:
        self.messages: list[Message] = opening(who, task)
        """As the chat route has them."""
        self.tools = copy.deepcopy(TOOLS)
        self.more: dict[str, Any] = {}
        """What goes with every request."""
        self.steps = 0
        self._route = route
        self._http = httpx.AsyncClient(base_url=url, timeout=120.0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._http.aclose()

    async def next(self, **more: Any) -> Usage:
        """The next turn: a tool's answer is appended, as an agent does."""
        self.messages = [*self.messages, *tool_turn(self.steps)]
        self.steps += 1
        return await self.again(**more)

    async def again(self, **more: Any) -> Usage:
        """The messages as they are."""
        return await self.ask(self.messages, self.tools, **more)

    def edit(self, index: int, content: str) -> None:
        """Another content of an earlier message."""
        self.messages = copy.deepcopy(self.messages)
        self.messages[index]["content"] = content

    async def ask(self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **more: Any) -> Usage:
        """Any request. One token is generated: the ids of a longer reply would not be known."""
        body = {"model": "tiny", "temperature": 0, "max_tokens": 1, "stream": True} | self.more | more
        if self._route == "messages":
            return await self.send("/v1/messages", body | as_messages(messages, tools))
        body |= {"messages": messages, "ignore_eos": True, "stream_options": {"include_usage": True}}
        return await self.send("/v1/chat/completions", body | ({"tools": tools} if tools else {}))

    async def send(self, path: str, body: dict[str, Any]) -> Usage:
        """Read to the end."""
        told: dict[str, Any] = {}
        async with self._http.stream("POST", path, json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    told = json.loads(line[6:]).get("usage") or told
        return usage_of(told)


def as_messages(messages: list[Message], tools: list[dict[str, Any]] | None) -> dict[str, Any]:
    """What a client of the messages route makes of it: the system prompt apart, calls and results in blocks, and a
    cache_control that moves on to the newest block on every turn."""
    turns: list[Message] = []
    for one in messages[1:]:
        blocks: list[dict[str, Any]] = []
        if one["role"] == "tool":
            blocks.append({"type": "tool_result", "tool_use_id": one["tool_call_id"], "content": one["content"]})
        else:
            blocks.append({"type": "text", "text": one["content"]})
        for call in one.get("tool_calls", ()):
            name, given = call["function"]["name"], json.loads(call["function"]["arguments"])
            blocks.append({"type": "tool_use", "id": call["id"], "name": name, "input": given})
        turns.append({"role": "assistant" if one["role"] == "assistant" else "user", "content": blocks})
    turns[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    known = [one["function"] for one in tools or ()]
    declared = [
        {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]} for one in known
    ]
    return {"system": messages[0]["content"], "messages": turns} | ({"tools": declared} if declared else {})


def usage_of(told: dict[str, Any]) -> Usage:
    """Of the chat and the messages route; cached is -1 where it is not told."""
    if "input_tokens" in told:
        cached, written = told.get("cache_read_input_tokens") or 0, told.get("cache_creation_input_tokens") or 0
        return Usage(told["input_tokens"] + cached + written, cached, told["output_tokens"])
    cached = (told.get("prompt_tokens_details") or {}).get("cached_tokens", -1)
    return Usage(told["prompt_tokens"], cached, told["completion_tokens"])


@dataclass(frozen=True)
class Told:
    """One turn, and what `kvtop why --json` says of it."""

    turn: Captured
    why: dict[str, Any]

    @property
    def verdict(self) -> str:
        return str(self.why["verdict"])

    @property
    def diff(self) -> dict[str, Any]:
        found: dict[str, Any] = self.why["diff"]
        return found

    @property
    def causes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.diff["causes"]
        return found

    @property
    def said(self) -> str:
        """For a failure."""
        return json.dumps(self.why, indent=1)


class Asked:
    """The turns of a tap, one after another."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._known = 0

    async def rows(self, count: int) -> list[Captured]:
        """The next turns, oldest first, once they have ended and the counters were read after that."""
        self._known += count
        return (await self._tap.captured(self._known, settled=True))[-count:]

    async def why(self, count: int) -> list[Told]:
        """What is said of the next turns."""
        rows = await self.rows(count)
        found = [await asyncio.to_thread(document, self._tap, "why", str(row.id)) for row in rows]
        return [Told(row, why) for row, why in zip(rows, found, strict=True)]


def document(tap: Tap, *arguments: str) -> dict[str, Any]:
    """The document of a command."""
    done: subprocess.CompletedProcess[str] = tap.kvtop(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def assert_contract(one: Told) -> None:
    """Keys, and numbers that have to agree with each other."""
    why, turn = one.why, one.turn
    assert set(why) == WHY
    assert set(why["phases"]) == {"queue_s", "prefill_s", "decode_s"}
    assert (why["turn"], why["cached_tokens"]) == (str(turn.id), turn.cached_tokens)
    tokens = why["tokens"]
    assert (tokens["prompt"], tokens["cached"]) == (turn.prompt_tokens, turn.cached_tokens)
    if tokens["reread"] is not None:
        assert tokens["prompt"] == tokens["cached"] + tokens["reread"] + tokens["new"]
        shares = (tokens["reread_changed"], tokens["reread_lost"], tokens["reread_unsaved"])
        assert tokens["reread"] == sum(share or 0 for share in shares)
    assert why["sentence"].startswith(f"Turn {turn.id}")
    if why["verdict"] in ("prompt_diverged", "engine_lost_cache"):
        assert why["reason"] and why["evidence"] and why["fix"], one.said
    if why["diff"] is not None:
        assert_diff(one.diff)


KEEP_ALL = {"tool_key_order", "tool_added", "volatile_text", "cache_salt_changed", "model_changed"}
"""Causes behind which the prompt still says all that it said."""


def assert_diff(diff: dict[str, Any]) -> None:
    assert set(diff) == DIFF
    tokens, unit = diff["tokens"], diff["match_unit_tokens"]
    assert set(tokens) == TOKENS
    assert tokens["lost"] == tokens["old"] - tokens["common"]
    apart = {cause["kind"] for cause in diff["causes"]} & {"cache_salt_changed", "model_changed"}
    assert tokens["reusable"] == (0 if apart else min(tokens["common"], tokens["new"] - 1) // unit * unit)
    most = min(tokens["old"], tokens["new"] - 1) // unit * unit
    again = max(0, most - tokens["reusable"])
    # What a change took out of the prompt was not read again.
    assert 0 <= tokens["reread"] <= again and tokens["reread"] % unit == 0
    if {cause["kind"] for cause in diff["causes"]} <= KEEP_ALL:
        assert tokens["reread"] >= again - unit
    assert diff["append_only"] == (not diff["causes"])
    lost = [cause["lost_tokens"] for cause in diff["causes"]]
    # Behind the others stand those for which nothing was read again.
    assert sum(one < other for one, other in pairwise(lost)) <= 1
    assert sum(lost) <= tokens["lost"] or apart
    for cause in diff["causes"]:
        assert set(cause) - {"pointer_new"} == CAUSE
        assert cause["says"] and cause["fix"]
    first = diff["first_difference"]
    assert (first is None) == diff["append_only"]
    assert first is None or set(first) == FIRST
    assert first is None or first["token"] in (None, tokens["common"])


def assert_unaccused(one: Told) -> None:
    """Nothing is blamed, and the engine gave what the law says."""
    assert_contract(one)
    assert one.verdict in ("no_fault", "new_tokens"), one.said
    assert (one.why["reason"], one.why["candidates"], one.why["fix"]) == (None, [], None), one.said
    assert one.why["expected_cached_tokens"] == one.why["cached_tokens"], one.said


def assert_begins(one: Told) -> None:
    """Of a turn that begins a conversation of an agent whose system prompt has another first line each time."""
    if one.verdict != "prompt_diverged":
        assert_unaccused(one)
        return
    assert_contract(one)
    assert one.why["reason"] == "text_edited", one.said
    assert {cause["kind"] for cause in one.diff["causes"]} <= {"text_edited", "other_conversation"}, one.said
    assert one.why["expected_cached_tokens"] == one.why["cached_tokens"], one.said


def assert_clean(one: Told) -> None:
    """The same, of a turn whose prompt goes on from one before it, or from none."""
    assert_unaccused(one)
    if one.why["diff"] is not None:
        assert (one.causes, one.diff["append_only"], one.diff["exact"]) == ([], True, True), one.said


def assert_broke(one: Told, kind: str, *values: str) -> None:
    """The prompt is blamed, for this first, and the engine is not."""
    assert_contract(one)
    assert (one.verdict, one.why["reason"]) == ("prompt_diverged", kind), one.said
    first = one.causes[0]
    assert (first["kind"], first["values"]) == (kind, list(values)), one.said
    assert one.diff["exact"] and one.diff["method"] == "server_tokens"
    assert one.why["expected_cached_tokens"] == one.why["cached_tokens"], one.said


def assert_lost(one: Told, *reasons: str) -> None:
    """The engine is blamed, for this; or, of several, none of them, and each is a candidate."""
    assert_contract(one)
    if len(reasons) == 1:
        assert (one.verdict, one.why["reason"]) == ("engine_lost_cache", reasons[0]), one.said
    else:
        assert (one.verdict, one.why["reason"]) == ("unknown", None), one.said
        assert set(reasons) <= set(one.why["candidates"]), one.said
    assert one.why["cached_tokens"] < one.why["expected_cached_tokens"], one.said


class Rendered:
    """Prompts as the server renders them."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=60.0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._http.aclose()

    async def text(self, messages: list[Message], tools: list[dict[str, Any]]) -> bytes:
        body = {"model": "tiny", "messages": messages, "tools": tools}
        ids = (await self._http.post("/tokenize", json=body)).raise_for_status().json()["tokens"]
        said = (await self._http.post("/detokenize", json={"model": "tiny", "tokens": ids})).raise_for_status()
        return str(said.json()["prompt"]).encode()


async def until_idle(url: str) -> None:
    """No request runs or waits."""
    end = time.monotonic() + 60.0
    async with httpx.AsyncClient(base_url=url, timeout=10.0) as http:
        while time.monotonic() < end:
            lines = (await http.get("/metrics")).text.splitlines()
            busy = [
                line
                for line in lines
                if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
                and float(line.rpartition(" ")[2])
            ]
            if not busy:
                return
            await asyncio.sleep(0.05)
    raise AssertionError(f"{url} does not come to rest")
