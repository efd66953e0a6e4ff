"""HTTP/1.1 for the embedded box: one coroutine a connection, h11 for the protocol, bounded bodies, keep-alive."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import h11

MAX_BODY = 32 * 2**20
"""Bytes of a request body; a larger one is answered with 413 and the connection is closed."""
_READ = 65_536


@dataclass(slots=True)
class Call:
    """A request, read whole."""

    method: str
    path: str
    body: bytes
    gone: Callable[[], bool]
    """True once the client has hung up."""

    def json(self) -> dict[str, Any] | None:
        """The body as a JSON object, or None."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


@dataclass(slots=True)
class Answer:
    """A response: a body, or a stream of parts."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    stream: AsyncGenerator[bytes, None] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def json_answer(value: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode())


def error_answer(status: int, message: str, kind: str = "BadRequestError") -> Answer:
    """An error as vLLM words it."""
    return json_answer({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)


Handler = Callable[[Call], Awaitable[Answer]]


async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Handler) -> None:
    """Answer requests on one connection until either side closes it."""
    connection = h11.Connection(h11.SERVER)
    try:
        while await _exchange(connection, reader, writer, handle):
            connection.start_next_cycle()
    except (ConnectionError, h11.LocalProtocolError, asyncio.IncompleteReadError):
        pass  # the client left in the middle; there is nobody to tell
    except h11.RemoteProtocolError as error:
        await _refuse(connection, writer, error)
    finally:
        writer.close()


async def _refuse(connection: h11.Connection, writer: asyncio.StreamWriter, error: h11.RemoteProtocolError) -> None:
    if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    with contextlib.suppress(ConnectionError, h11.LocalProtocolError):
        await _send(connection, writer, error_answer(error.error_status_hint or 400, "bad HTTP request"), close=True)


async def _next(connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
    while True:
        event = connection.next_event()
        if event is not h11.NEED_DATA:
            return event
        if connection.they_are_waiting_for_100_continue:
            writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        connection.receive_data(await reader.read(_READ))


async def _exchange(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Handler
) -> bool:
    """One request and its answer. False: the connection is over."""
    request = await _next(connection, reader, writer)
    if not isinstance(request, h11.Request):
        return False
    body = bytearray()
    while isinstance(event := await _next(connection, reader, writer), h11.Data):
        body += event.data
        if len(body) > MAX_BODY:
            await _send(connection, writer, error_answer(413, f"the body is over {MAX_BODY} bytes"), close=True)
            return False
    if not isinstance(event, h11.EndOfMessage):
        return False
    path = request.target.decode("ascii", "replace").partition("?")[0]
    call = Call(request.method.decode("ascii"), path, bytes(body), reader.at_eof)
    await _send(connection, writer, await handle(call), head=call.method == "HEAD")
    return connection.our_state is h11.DONE and connection.their_state is h11.DONE


async def _send(
    connection: h11.Connection, writer: asyncio.StreamWriter, answer: Answer, *, head: bool = False, close: bool = False
) -> None:
    headers = [("content-type", answer.content_type), *answer.headers.items()]
    if close:
        headers.append(("connection", "close"))
    if answer.stream is None:
        headers.append(("content-length", str(len(answer.body))))
    else:
        headers.append(("transfer-encoding", "chunked"))
    out = connection.send(h11.Response(status_code=answer.status, headers=headers)) or b""
    if answer.stream is None:
        if answer.body and not head:
            out += connection.send(h11.Data(data=answer.body)) or b""
    else:
        writer.write(out)
        out = b""
        async with contextlib.aclosing(answer.stream) as stream:
            async for part in stream:
                writer.write(connection.send(h11.Data(data=part)) or b"")
                await writer.drain()
    writer.write(out + (connection.send(h11.EndOfMessage()) or b""))
    await writer.drain()
