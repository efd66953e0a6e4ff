"""An agent that talks to a real server and keeps the books: what each `usage` said, to compare with the counters."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx
import pytest

from kvtop.model.box import Window
from kvtop.readings import Scrape, SourceDown, State
from kvtop.sources.vllm import VllmSource

Message = dict[str, Any]

BLOCK_BYTES_A_TOKEN = 512
"""KV of the tiny model: 2 layers x K and V x 2 heads x 32 values of 2 bytes."""


@dataclass(frozen=True)
class Server:
    url: str
    pid: int


@dataclass(frozen=True)
class Usage:
    """What one response said of itself."""

    prompt: int
    cached: int
    completion: int

    @property
    def computed(self) -> int:
        return self.prompt - self.cached


@dataclass
class Book:
    """The sum of some usages."""

    rows: list[Usage] = field(default_factory=list)

    @property
    def prompt(self) -> int:
        return sum(row.prompt for row in self.rows)

    @property
    def cached(self) -> int:
        return sum(row.cached for row in self.rows)

    @property
    def computed(self) -> int:
        return self.prompt - self.cached

    @property
    def completion(self) -> int:
        return sum(row.completion for row in self.rows)


def _tool(name: str, says: str, **properties: tuple[str, str]) -> dict[str, Any]:
    schema = {key: {"type": kind, "description": text} for key, (kind, text) in properties.items()}
    parameters = {"type": "object", "properties": schema, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": says, "parameters": parameters}}


TOOLS = [
    _tool(
        "read_file",
        "Read part of a file and return numbered lines.",
        path=("string", "Where the file is, from the root of the project."),
        first=("integer", "The first line, counted from 1."),
        count=("integer", "How many lines."),
    ),
    _tool(
        "edit_file",
        "Replace one exact text in a file by another.",
        path=("string", "Where the file is."),
        old=("string", "The text to replace; it must stand there once."),
        new=("string", "The text to put there."),
    ),
    _tool(
        "run",
        "Run a command in the project's shell and return what it printed.",
        command=("string", "The command line."),
        seconds=("number", "How long it may take."),
    ),
    _tool("search", "Find lines that match a pattern.", pattern=("string", "A pattern."), folder=("string", "Where.")),
]

SYSTEM = "You are a programmer who works in small steps and tests each of them.\n" + "\n".join(
    f"{n}. {rule}"
    for n, rule in enumerate(
        [
            "Read a file before you change it.",
            "Say what a command printed, word for word.",
            "Prefer a small change to a rewrite.",
            "Write a test for each mistake that you mend.",
            "Ask before you add a dependency.",
        ]
        * 6,
        1,
    )
)

STEP = """def step_{n}(value):
    '''Take step {n} and return what is left of the value.'''
    return value * {n} % {m}
"""

TEXT = "\n".join(STEP.format(n=n, m=n + 7) for n in range(400))


def shuffled(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same tools with the keys of their schemas in another order, as a gateway with hashed maps sends them."""
    tools = copy.deepcopy(tools)
    for tool in tools:
        schema = tool["function"]["parameters"]
        schema["properties"] = dict(reversed(schema["properties"].items()))
        tool["function"]["parameters"] = dict(reversed(schema.items()))
    return tools


def opening(who: str = "", task: str = "Find out why step_7 gives the wrong result, and mend it.") -> list[Message]:
    return [{"role": "system", "content": who + SYSTEM}, {"role": "user", "content": task}]


def tool_turn(n: int, lines: int = 40) -> list[Message]:
    """What a client appends after a turn: the model's call and the tool's answer."""
    arguments = json.dumps({"path": "steps.py", "first": n * lines, "count": lines})
    call = {"id": f"call_{n}", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
    text = "\n".join(TEXT.splitlines()[n * lines : (n + 1) * lines])
    return [
        {"role": "assistant", "content": f"Step {n}: I read on.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{n}", "content": text},
    ]


class Agent:
    """Sends requests to one server and writes their usage into a book; scrapes it through kvtop's own source."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.source = VllmSource(server.url, timeout_s=10.0)
        self._http = httpx.AsyncClient(base_url=server.url, timeout=120.0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._http.aclose()
        await self.source.aclose()

    async def scrape(self) -> Scrape:
        scrape = await self.source.scrape()
        assert isinstance(scrape, Scrape), scrape
        return scrape

    async def text(self) -> str:
        """/metrics as it is."""
        return (await self._http.get("/metrics")).raise_for_status().text

    async def settled(self) -> Scrape:
        """A scrape after which no counter moves any more: nothing runs, and three texts in a row say the same."""
        same, last = 0, await self.scrape()
        async with asyncio.timeout(30):
            while same < 2:
                await asyncio.sleep(0.1)
                now = await self.scrape()
                running = sum(value for (name, _), value in now.values.items() if name == "vllm:num_requests_running")
                same = same + 1 if now.values == last.values and not running else 0
                last = now
        return last

    @staticmethod
    def _body(messages: list[Message], tools: list[dict[str, Any]] | None, more: dict[str, Any]) -> dict[str, Any]:
        body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
        return body | ({"tools": tools} if tools else {}) | more

    async def count(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> int:
        """How many tokens the server makes of a prompt. Asks /tokenize: moves no engine counter."""
        body = {"model": "tiny", "messages": messages, "add_generation_prompt": True}
        answer = await self._http.post("/tokenize", json=body | ({"tools": tools} if tools else {}))
        return int(answer.raise_for_status().json()["count"])

    async def chat(
        self, book: Book, messages: list[Message], tools: list[dict[str, Any]] | None = TOOLS, **more: Any
    ) -> Usage:
        """One whole answer, not streamed."""
        answer = await self._http.post("/v1/chat/completions", json=self._body(messages, tools, more))
        usage = _usage(answer.raise_for_status().json()["usage"])
        book.rows.append(usage)
        return usage

    async def stream(
        self, book: Book, messages: list[Message], tools: list[dict[str, Any]] | None = TOOLS, **more: Any
    ) -> Usage:
        """One whole answer, streamed; the last chunk holds its usage."""
        body = self._body(messages, tools, more | {"stream": True, "stream_options": {"include_usage": True}})
        usage = None
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    usage = json.loads(line[6:]).get("usage") or usage
        assert usage is not None
        book.rows.append(_usage(usage))
        return book.rows[-1]

    async def hang_up(self, messages: list[Message], tools: list[dict[str, Any]] | None = TOOLS) -> None:
        """Stream an answer and close the connection after its first words."""
        body = self._body(messages, tools, {"stream": True, "max_tokens": 4000})
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if '"content":"' in line and '"content":""' not in line:
                    return

    async def down(self) -> SourceDown:
        down = await self.source.scrape()
        assert isinstance(down, SourceDown), "the server answers"
        return down


def _usage(usage: dict[str, Any]) -> Usage:
    return Usage(usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"])


def assert_equal(window: Window, book: Book) -> None:
    """The window says what the responses said, token for token."""
    cached, requests = window.all.cached, window.all.requests
    assert window.state is State.UP, window.detail
    assert (cached.prompt_tokens, cached.cached_tokens) == (book.prompt, book.cached)
    assert cached.share == pytest.approx(book.cached / book.prompt)
    assert cached.by_source.computed == book.computed
    assert cached.by_source.device == book.cached
    assert (cached.by_source.host, cached.by_source.disk) == (0, 0)
    assert requests.finished.total == len(book.rows)
    assert (requests.running, requests.waiting) == (0, 0)
    assert window.all.throughput.generation_tokens == book.completion
    for phase in ("ttft", "queue", "prefill", "e2e"):
        assert getattr(window.all.latency, phase).n == len(book.rows), phase
