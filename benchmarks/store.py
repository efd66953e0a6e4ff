"""How small captured request bodies become on disk, and how long writing and reading one takes.

Bodies of a coding agent, generated: 200 turns, and four harder kinds made of the same text. Each body's own zlib and
zstd in the same run stand beside the file.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import zstandard
from msgspec.structs import replace

from kvtop.capture.store.store import Store
from kvtop.capture.turn import Captured, Part, Route, TurnState

TURNS = 200
Body = dict[str, Any]


class Result(NamedTuple):
    """Of one kind of traffic."""

    name: str
    bodies: int
    raw_bytes: int
    file_bytes: int
    """With the bodies alone: no outline, no headers, no answer."""
    turn_bytes: int
    """A turn in all: its body, outline, headers, samples and an answer as a stream of 300 events."""
    zlib_bytes: int
    zstd_bytes: int
    put_ms: list[float]
    get_ms: list[float]


def words(random_: random.Random, size: int) -> str:
    """Text that compresses about as source code and prose do: some four to one."""
    made: list[str] = []
    while size > 0:
        word = random_.choice(VOCABULARY) + random_.choice((" ", " ", " ", ".\n    ", ", ", " = ", "(", "):\n        "))
        made.append(word)
        size -= len(word)
    return "".join(made)


def vocabulary() -> list[str]:
    random_ = random.Random(1)
    syllables = (
        "re",
        "con",
        "ta",
        "ble",
        "in",
        "dex",
        "er",
        "pro",
        "cess",
        "al",
        "lo",
        "ca",
        "tion",
        "de",
        "fer",
        "un",
    )
    return ["".join(random_.choices(syllables, k=random_.randint(1, 4))) for _ in range(900)]


VOCABULARY = vocabulary()


def conversation() -> list[Body]:
    """TURNS bodies, of about 38 to 770 kB: an agent with 22 tools that reads files and edits them."""
    random_ = random.Random(7)
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{i}",
                "description": words(random_, 600),
                "parameters": {
                    "type": "object",
                    "properties": {f"p{j}": {"type": "string", "description": words(random_, 80)} for j in range(4)},
                },
            },
        }
        for i in range(22)
    ]
    messages: list[Body] = [
        {"role": "system", "content": words(random_, 9_000)},
        {"role": "user", "content": words(random_, 400)},
    ]
    bodies: list[Body] = []
    for turn in range(TURNS):
        bodies.append(body(list(messages), tools))
        call = f"call_{random_.getrandbits(64):016x}"
        arguments = json.dumps({"p0": words(random_, 150)})
        messages += [
            {
                "role": "assistant",
                "content": words(random_, 200),
                "tool_calls": [
                    {"id": call, "type": "function", "function": {"name": f"tool_{turn % 22}", "arguments": arguments}}
                ],
            },
            {
                "role": "tool",
                "tool_call_id": call,
                "content": words(random_, random_.choice((300, 1_500, 3_000, 8_000))),
            },
        ]
    return bodies


def body(messages: list[Body], tools: list[Body]) -> Body:
    return {
        "model": "qwen3-coder-30b",
        "messages": messages,
        "tools": tools,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.7,
        "max_tokens": 32_000,
    }


def clock(turns: list[Body]) -> Iterator[Body]:
    for i, turn in enumerate(turns):
        system, *rest = turn["messages"]
        now = f"Now: 2026-11-30 12:{i // 60:02d}:{i % 60:02d}. "
        yield turn | {"messages": [system | {"content": now + system["content"]}, *rest]}


def cleared(turns: list[Body]) -> Iterator[Body]:
    """All tool results but the last ones are replaced by a placeholder, as they grow old."""
    for turn in turns:
        messages = list(turn["messages"])
        for i, message in enumerate(messages[:-6]):
            if message["role"] == "tool":
                messages[i] = message | {"content": "[old tool result cleared]" + message["content"][:60]}
        yield turn | {"messages": messages}


def subagents(turns: list[Body]) -> Iterator[Body]:
    """Four conversations in turn, each with a task of its own."""
    for i in range(len(turns)):
        turn = turns[i // 4]
        system, task, *rest = turn["messages"]
        yield turn | {"messages": [system, task | {"content": f"{task['content']} subagent {i % 4}"}, *rest]}


def branches(turns: list[Body]) -> Iterator[Body]:
    """Every eighth turn goes back by three and takes another way."""
    for i, turn in enumerate(turns):
        yield turn
        if i % 8 == 7:
            yield turn | {
                "messages": [*turn["messages"][:-6], {"role": "user", "content": f"No: try way {i} instead."}]
            }


KINDS: dict[str, Callable[[list[Body]], Iterator[Body]]] = {
    "growing conversation": iter,
    "clock in the system prompt": clock,
    "old tool results cleared": cleared,
    "four interleaved subagents": subagents,
    "branches": branches,
}


def outline(body: Body) -> list[Part]:
    parts = []
    for kind, element in chain((("tool", t) for t in body["tools"]), (("message", m) for m in body["messages"])):
        text = json.dumps(element).encode()
        digest = blake2b(text, digest_size=8).hexdigest()
        parts.append(
            Part(kind, len(text), digest, element.get("role", ""), element.get("function", {}).get("name", ""))
        )
    return parts


def answer(random_: random.Random) -> bytes:
    event = (
        '{{"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{{"index":0,"delta":{{"content":"{}"}}}}]}}'
    )
    return b"".join(f"data: {event.format(random_.choice(VOCABULARY))}\n\n".encode() for _ in range(300))


HEADERS = [("Host", "127.0.0.1:8001"), ("User-Agent", "opencode/1.2.3"), ("Content-Type", "application/json")]


def stored(path: Path, bodies: list[Body], texts: list[bytes], whole: bool) -> tuple[int, list[float], list[float]]:
    """Bytes of the file, ms of each put, ms of the last gets. Every body is read back and compared."""
    random_, puts, gets = random.Random(3), [], []
    with Store.open(path, write=True) as store:
        ids = []
        for made, text in zip(bodies, texts, strict=True):
            turn = Captured(started_at=time.time(), route=Route.CHAT, model="qwen3-coder-30b")
            if whole:
                turn = replace(turn, outline=outline(made), request_headers=HEADERS, response_headers=HEADERS)
            start = time.perf_counter()
            id = store.begin(turn, text)
            puts.append((time.perf_counter() - start) * 1000)
            ids.append(id)
            if whole:
                store.finish(replace(turn, id=id, state=TurnState.DONE, ended_at=time.time()), answer(random_))
        for id, text in zip(ids, texts, strict=True):
            start = time.perf_counter()
            back = store.request_body(id)
            gets.append((time.perf_counter() - start) * 1000)
            if back != text:
                raise SystemExit(f"turn {id} did not come back as it was")
    return path.stat().st_size, puts, gets[-20:]


def measure(turns: list[Body], folder: Path) -> Iterator[Result]:
    zstd = zstandard.ZstdCompressor(level=3)
    for name, kind in KINDS.items():
        bodies = list(kind(turns))
        texts = [json.dumps(made).encode() for made in bodies]
        alone, puts, gets = stored(folder / f"{name}.db", bodies, texts, whole=False)
        everything, _, _ = stored(folder / f"{name} whole.db", bodies, texts, whole=True)
        yield Result(
            name,
            len(texts),
            sum(map(len, texts)),
            alone,
            everything // len(texts),
            sum(len(zlib.compress(text)) for text in texts),
            sum(len(zstd.compress(text)) for text in texts),
            puts,
            gets,
        )


HEAD = (
    "| {bodies} generated bodies | MB | on disk, kB | times smaller | zlib of each | zstd of each | put p50, p95 "
    "| get p50 | a whole turn |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def row(r: Result) -> str:
    ratios = [r.raw_bytes / size for size in (r.file_bytes, r.zlib_bytes, r.zstd_bytes)]
    p95 = statistics.quantiles(r.put_ms, n=20)[-1]
    return (
        f"| {r.name} ({r.bodies}) | {r.raw_bytes / 1e6:.1f} | {r.file_bytes / 1e3:.0f} | **{ratios[0]:.0f}** | "
        f"{ratios[1]:.1f} | {ratios[2]:.1f} | {statistics.median(r.put_ms):.1f}, {p95:.1f} ms | "
        f"{statistics.median(r.get_ms):.1f} ms | {r.turn_bytes / 1e3:.1f} kB |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.parse_args()
    turns = conversation()
    sizes = [len(json.dumps(turns[i])) for i in (0, -1)]
    print(HEAD.format(bodies=f"{sizes[0] / 1e3:.0f} to {sizes[1] / 1e3:.0f} kB,"))
    with tempfile.TemporaryDirectory() as folder:
        for result in measure(turns, Path(folder)):
            print(row(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
