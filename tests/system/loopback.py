"""A tiny HTTP server whose every byte a test decides."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

Handler = Callable[["Exchange"], Awaitable[None]]

METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 1.0
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 100.0
"""


class Exchange:
    """One request: what was asked, and ways to answer."""

    def __init__(
        self, method: str, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.writer = writer

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, body: bytes = b"", status: int = 200, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def forever(self) -> None:
        """Say nothing until the client goes away."""
        await self.writer.wait_closed()

    def close(self) -> None:
        self.writer.close()


class Loopback:
    """The running server: its address, and what it was asked."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: list[Exchange] = []
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [exchange.path for exchange in self.requests]


@contextlib.asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[Loopback]:
    """Serve `handler` on a free loopback port."""
    box = Loopback()
    tasks: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        box.connections += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
                while not writer.is_closing():
                    head = (await reader.readuntil(b"\r\n\r\n")).decode()
                    first, *rest = head.strip().split("\r\n")
                    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in rest)}
                    body = await reader.readexactly(int(headers.get("content-length", "0")))
                    method, path, _ = first.split()
                    exchange = Exchange(method, path, headers, body, writer)
                    box.requests.append(exchange)
                    await handler(exchange)
        finally:
            writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(converse(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    box.port = server.sockets[0].getsockname()[1]
    try:
        yield box
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets the aborted transports close


def routes(table: dict[str, bytes | int]) -> Handler:
    """A handler from a table: a body is answered with 200, a number is a status; anything else is 404."""

    async def handle(exchange: Exchange) -> None:
        what = table.get(exchange.path, 404)
        if isinstance(what, int):
            await exchange.reply(status=what)
        else:
            await exchange.reply(what)

    return handle


def vllm(**changes: bytes | int) -> Handler:
    """A well vLLM, with changes: `metrics=503`, `v1_models=b"..."`, `health=...`, `version=...`, `is_sleeping=...`."""
    table: dict[str, bytes | int] = {
        "/metrics": METRICS,
        "/health": b"",
        "/version": b'{"version":"0.32.0"}',
        "/v1/models": b'{"data":[{"id":"tiny","owned_by":"vllm","max_model_len":32768}]}',
    }
    for name, what in changes.items():
        table["/v1/models" if name == "v1_models" else f"/{name}"] = what
    return routes(table)
