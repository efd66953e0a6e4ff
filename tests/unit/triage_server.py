"""A server whose tokens are words, and whose chat template is a function of the test's choice."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kvtop.triage.differ import Counted, Sent
from kvtop.triage.ids import pack, unpack
from kvtop.triage.prompt import Prompt
from kvtop.triage.values import ordered, text_of

WORD = re.compile(r"\s|[^\s\w]|\w{1,8}")
Template = Callable[[Prompt], str]


def system_first(prompt: Prompt, *, thoughts: Callable[[Prompt, int], bool] = lambda prompt, i: True) -> str:
    """System prompt, tools, messages, and the head of the answer: as ChatML templates do."""
    out = []
    for i, message in enumerate(prompt.messages):
        role = message.get("role")
        out.append(f"<{role}>\n")
        if i == 0 and prompt.tools:
            out += [text_of(message), "\n", *(f"{ordered(tool)}\n" for tool in prompt.tools), "</system>\n"]
            continue
        if message.get("reasoning") and thoughts(prompt, i):
            out.append(f"<think>\n{message['reasoning']}\n</think>\n")
        calls = message.get("tool_calls") or []
        out += [text_of(message), *(ordered(call) for call in calls), f"</{role}>\n"]
    return "".join(out) + "<assistant>\n"


def tools_first(prompt: Prompt) -> str:
    """The same with the tools before all."""
    plain = Prompt(messages=prompt.messages, route=prompt.route)
    return "".join(f"{ordered(tool)}\n" for tool in prompt.tools) + system_first(plain)


class WordServer:
    """Counts the prompts it was asked for."""

    def __init__(self, template: Template = system_first) -> None:
        self.template = template
        self.asked = 0
        self._ids: dict[str, int] = {}
        self._words: list[str] = []

    def encode(self, text: str) -> bytes:
        out = []
        for word in WORD.findall(text):
            if word not in self._ids:
                self._ids[word] = len(self._words)
                self._words.append(word)
            out.append(self._ids[word])
        return pack(out)

    async def counted(self, sent: Sent) -> Counted:
        return Counted(self.encode(self.template(sent.prompt)), "server_tokens", True)

    async def again(self, sent: Sent) -> bytes:
        return self.encode(self.template(sent.prompt))

    async def of(self, prompt: Prompt) -> bytes:
        self.asked += 1
        return self.encode(self.template(prompt))

    async def text(self, ids: bytes, first: int, last: int) -> tuple[str, int]:
        words = [self._words[id] for id in unpack(ids)]
        return "".join(words[first:last]), len("".join(words[:first]).encode())

    async def pieces(self, sent: Sent, ids: bytes) -> list[str] | None:
        return [self._words[id] for id in unpack(ids)]


def sent(prompt: Prompt, name: str = "1", **known: Any) -> Sent:
    return Sent(name=name, route=prompt.route, prompt=prompt, body=b"", **known)
