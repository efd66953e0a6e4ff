"""What triage costs beside the server that counts the tokens: a conversation of 120,000 tokens, three causes at once.

`benchmarks/triage.py [--url URL]`: with a URL the tokens are that of that server; without one a stand-in splits
words, whose time is told apart. Each figure is the median of a few runs in one process.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

from kvtop.capture.api.canonical import encode
from kvtop.capture.turn import Route
from kvtop.triage.changes import compare
from kvtop.triage.differ import Cache, Counted, Sent, diverge
from kvtop.triage.hunks import hunks
from kvtop.triage.ids import common, pack
from kvtop.triage.judge import causes_of, read
from kvtop.triage.prompt import Prompt
from kvtop.triage.render import render

ROUNDS = 7
TOKENS = 120_000
WORD = re.compile(r"\s?\w{1,6}|[^\w\s]|\s")


class Stand:
    """Words as tokens. `spent_s`: what it took itself."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self.asked = 0
        self._ids: dict[str, int] = {}
        self._words: list[str] = []

    def _encode(self, prompt: Prompt) -> bytes:
        began = time.perf_counter()
        out = []
        for word in WORD.findall(render(prompt).text):
            if word not in self._ids:
                self._ids[word] = len(self._words)
                self._words.append(word)
            out.append(self._ids[word])
        ids = pack(out)
        self.spent_s += time.perf_counter() - began
        self.asked += 1
        return ids

    async def counted(self, sent: Sent) -> Counted:
        return Counted(self._encode(sent.prompt), "server_tokens", True)

    async def of(self, prompt: Prompt) -> bytes:
        return self._encode(prompt)

    async def again(self, sent: Sent) -> bytes:
        return self._encode(sent.prompt)

    async def text(self, ids: bytes, first: int, last: int) -> tuple[str, int]:
        return "", 0

    async def pieces(self, sent: Sent, ids: bytes) -> list[str] | None:
        return []


def body(turns: int, *, clock: str, turned: bool, cleared: bool) -> bytes:
    """A chat request of an agent."""
    schema: dict[str, Any] = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(12)}}
    other = dict(reversed(schema.items()))
    tools = [
        {"type": "function", "function": {"name": f"tool_{i}", "description": f"does the {i}th thing " * 20,
         "parameters": other if turned and i == 4 else schema}}
        for i in range(24)
    ]  # fmt: skip
    head = f"You help. It is {clock}.\n" + "rule of work. " * 900
    messages: list[dict[str, Any]] = [{"role": "system", "content": head}]
    for i in range(turns):
        call = {"name": "tool_1", "arguments": f'{{"p1": "{i}"}}'}
        text = "[Old tool result content cleared]" if cleared and i == 2 else f"line {i} of the output. " * 110
        messages += [
            {"role": "user", "content": f"step {i}: please go on with file number {i}"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": f"call_{i}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call_{i}", "content": text},
        ]
    return encode({"model": "m", "messages": messages, "tools": tools})


def sized() -> int:
    """Turns that make about TOKENS tokens of the stand-in's."""
    one = len(WORD.findall(render(read(body(20, clock="10:01:02", turned=False, cleared=False), Route.CHAT)).text))
    two = len(WORD.findall(render(read(body(40, clock="10:01:02", turned=False, cleared=False), Route.CHAT)).text))
    return 20 + max(0, round((TOKENS - one) / ((two - one) / 20)))


def median_ms(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a vLLM server whose tokens are counted, with room for the prompt")
    args = parser.parse_args()
    turns = sized()
    old = body(turns, clock="10:01:02", turned=False, cleared=False)
    new = body(turns + 1, clock="10:02:09", turned=True, cleared=True)
    sent = [
        Sent(name=str(i), route=Route.CHAT, prompt=read(raw, Route.CHAT), body=raw) for i, raw in enumerate((old, new))
    ]
    asyncio.run(_measure(sent[0], sent[1], args.url))


async def _measure(old: Sent, new: Sent, url: str | None) -> None:
    stand = Stand()
    ids = [(await stand.counted(one)).ids for one in (old, new)]
    print(f"{len(ids[0]) // 4:,} and {len(ids[1]) // 4:,} tokens, {len(old.body) / 1e3:.0f} kB")
    edited = ids[1][:400_000] + b"\xff\xff\xff\x7f" + ids[1][400_004:]
    print(f"first difference, ids at hand  {median_ms(lambda: common(ids[1], edited)):8.2f} ms")
    both = median_ms(lambda: [read(one.body, Route.CHAT) for one in (old, new)])
    print(f"two requests read              {both:8.2f} ms")
    print(f"every change and cause         {median_ms(lambda: causes_of(compare(old.prompt, new.prompt))):8.2f} ms")
    print(f"stretches for the diff screen  {median_ms(lambda: hunks(*ids)):8.2f} ms")
    own, calls = [], 0
    for _ in range(ROUNDS):
        stand = Stand()
        began = time.perf_counter()
        found = await diverge(old, new, stand, Cache(unit=16))
        own.append(1000 * (time.perf_counter() - began - stand.spent_s))
        calls = stand.asked
    kinds = ", ".join(f"{cause.kind} {cause.lost_tokens:,}" for cause in found.diff.causes)
    print(f"divergence with prices         {statistics.median(own):8.2f} ms beside {calls} prompts tokenised: {kinds}")
    if url is not None:
        from kvtop.triage.asked import Asked
        from kvtop.triage.tokens import Tokenizer

        server = Asked(Tokenizer(url))
        try:
            began = time.perf_counter()
            found = await diverge(old, new, server, Cache(unit=16))
            took = time.perf_counter() - began
            tokens = found.diff.tokens
            print(f"the same with {server.url}: {tokens.old:,} tokens, {took:.2f} s in all, {server.calls} requests")
        finally:
            await server.aclose()


if __name__ == "__main__":
    main()
