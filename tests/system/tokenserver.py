"""A stand-in for vLLM whose tokens are the UTF-8 bytes of the prompt, so that characters are spread over tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from loopback import Exchange

MANY = 32768


@dataclass
class TokenServer:
    """What it has and how it behaves; `sent` holds the bodies that each route was asked with."""

    version: str | None = "0.32.0"
    renders: set[str] = field(default_factory=set)
    """chat, completions, messages, responses: render routes that are open."""
    closed: int = 403
    """What the others answer."""
    older: bool = False
    """Renders answer with lists, as before 0.18."""
    merges: bool = False
    """Later system turns go into the first one; the template refuses them elsewhere."""
    refuses_system: bool = False
    shows_none: bool = True
    """Its template tells the effort `none` from others."""
    drops_tools: bool = False
    model: str = "tiny"
    sent: dict[str, list[Any]] = field(default_factory=dict)
    statuses: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """By path: answers that are no good."""

    async def __call__(self, exchange: Exchange) -> None:
        body = json.loads(exchange.body) if exchange.body else None
        self.sent.setdefault(exchange.path, []).append(body)
        if exchange.path in self.statuses:
            status, answer = self.statuses[exchange.path]
            await exchange.reply(answer, status)
            return
        status, answer_ = self._answer(exchange.path, body)
        await exchange.reply(json.dumps(answer_).encode(), status)

    def _answer(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/version" and self.version is not None:
            return 200, {"version": self.version}
        if path == "/detokenize":
            return 200, {"prompt": bytes(body["tokens"]).decode("utf-8", "replace")}
        if path.endswith("/render"):
            return self._render(path, body)
        if path in ("/tokenize", "/v1/messages/count_tokens"):
            if body.get("model") not in (None, self.model):
                return self._unknown(body)
            if path == "/tokenize":
                return self._tokenise(body)
            return 200, {"input_tokens": len(self.prompt(merged(body) if self.merges else in_place(body)))}
        return 404, {"detail": "Not Found"}

    def _unknown(self, body: Any) -> tuple[int, Any]:
        said = f"The model `{body.get('model')}` does not exist."
        return 404, {"error": {"message": said, "type": "NotFoundError", "param": "model", "code": 404}}

    def _tokenise(self, body: Any) -> tuple[int, Any]:
        if "prompt" in body:
            return 200, {"tokens": list(body["prompt"].encode()), "max_model_len": MANY}
        roles = [message.get("role") for message in body["messages"]]
        if self.refuses_system and "system" in roles[1:]:
            return 400, {"error": {"message": f"bad: {body}", "type": "BadRequestError", "code": 400}}
        return 200, {"tokens": list(self.prompt(body)), "max_model_len": MANY}

    def _render(self, path: str, body: Any) -> tuple[int, Any]:
        route = {"chat": "chat", "completions": "completions"}.get(path.split("/")[2], path.split("/")[2])
        if route not in self.renders:
            return self.closed, {"error": {"message": "Scale-out endpoints are disabled.", "code": self.closed}}
        if body.get("model") not in (None, self.model):
            return self._unknown(body)
        if route == "completions":
            ids = list(body["prompt"].encode())
            return 200, [{"prompt_token_ids": ids}] if self.older else [{"token_ids": ids}]
        chat = {"messages": [{"role": "user", "content": body["input"]}]} if route == "responses" else body
        if route == "messages":
            chat = merged(body) if self.merges else in_place(body)
        ids = list(self.prompt(chat))
        features = {"mm_hashes": {"image": ["abc"]}, "mm_placeholders": {"image": [{"offset": 3, "length": 2}]}}
        if self.older:
            return 200, [[{"role": "user", "content": "x"}], [{"prompt_token_ids": ids}]]
        return 200, {"request_id": "r", "token_ids": ids, "features": features if "image" in str(body) else None}

    def prompt(self, chat: Any) -> bytes:
        """Its chat template."""
        arguments = dict(chat.get("chat_template_kwargs") or {})
        effort = chat.get("reasoning_effort") or arguments.get("reasoning_effort")
        if effort == "none" and not self.shows_none:
            effort = "max"
        tools = chat.get("tools") or []
        if self.drops_tools and chat.get("tool_choice") == "none":
            tools = []
        text = "".join(json.dumps(tool["function"]) for tool in tools)
        for message in chat["messages"]:
            text += f"<{message['role']}>{message.get('reasoning') or ''}{message.get('content')}"
        text += f"|{effort}|{arguments.get('documents')}"
        return text.encode("utf-8", "surrogatepass")


def in_place(body: Any) -> Any:
    """A messages request with plain texts as a chat request."""
    first = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    return {"messages": first + body["messages"]}


def merged(body: Any) -> Any:
    """The same with later system turns in the first one."""
    turns = body["messages"]
    system = (body.get("system") or "") + "".join(turn["content"] for turn in turns if turn["role"] == "system")
    first = [{"role": "system", "content": system}] if system else []
    return {"messages": first + [turn for turn in turns if turn["role"] != "system"]}
