"""GET and POST over one kept connection: h11 for the protocol, asyncio for the bytes.

Why not httpx: docs/architecture.md. This knows in which phase a try failed, never follows a redirect, never asks a
proxy, and never holds more than the cap in memory.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import socket
import ssl
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import h11

from kvtop import __version__
from kvtop.errors import printable
from kvtop.readings import State
from kvtop.sources.url import Endpoint

_CHUNK = 1 << 18


class HttpFailure(Exception):
    """No answer that could be used: which state that is, and why."""

    def __init__(self, state: State, cause: str, status: int | None = None) -> None:
        super().__init__(cause)
        self.state = state
        self.cause = cause
        self.status = status


class _Dropped(Exception):
    """The connection ended before the first byte of an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `body` is decoded and no longer than the cap."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    """Lower-case names; of a repeated name the last."""
    body: bytes = field(repr=False)


def authorization(endpoint: Endpoint, key: str | None) -> tuple[tuple[str, str], ...]:
    """The header that carries the API key, else the URL's user and password. Raises HttpFailure for a key that no
    header can carry."""
    key = (key or "").strip()
    if key:
        if not (key.isascii() and key.isprintable()):
            raise HttpFailure(State.UNAUTHORIZED, "the configured API key holds characters that no header can carry")
        return (("Authorization", f"Bearer {key}"),)
    if endpoint.userinfo:
        return (("Authorization", f"Basic {base64.b64encode(endpoint.userinfo.encode()).decode()}"),)
    return ()


@dataclass(frozen=True, slots=True)
class _Ask:
    """One request, as it goes out."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(default=b"", repr=False)
    repeatable: bool = True
    """Asking twice does no more than asking once."""


class HttpClient:
    """Requests to one endpoint, one at a time, over a connection that is kept while the server keeps it."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, max_bytes: int) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._lock = asyncio.Lock()
        self._link: _Link | None = None
        self._tls: ssl.SSLContext | None = None
        self.connections = 0
        """Connections opened so far: a new one may mean a new server."""
        self.speaks = False
        """It has answered in HTTP before, here or somebody else: no other scheme is to be tried."""

    async def get(self, path: str, headers: Sequence[tuple[str, str]] = ()) -> Answer:
        """One answer, whole, within the timeout counted from the first step to the last byte. Raises HttpFailure."""
        return await self._ask(_Ask("GET", path, tuple(headers)))

    async def post(
        self, path: str, body: bytes, headers: Sequence[tuple[str, str]] = (), *, repeatable: bool = False
    ) -> Answer:
        """The same for a POST of JSON. Raises HttpFailure.

        A kept connection may be closed by the server at the moment it is used again. A `repeatable` request is then
        sent once more; one that is not gets a new connection from the start, so that it is never sent twice.
        """
        kind = ("Content-Type", "application/json")
        return await self._ask(_Ask("POST", path, (kind, *headers), body, repeatable))

    async def _ask(self, ask: _Ask) -> Answer:
        async with self._lock:
            progress = _Progress()
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await self._once(ask, progress)
            except TimeoutError:
                self._drop()
                raise HttpFailure(State.TIMEOUT, progress.late(self._timeout_s)) from None
            except BaseException:
                # A cancelled or failed exchange leaves the connection in the middle of an answer.
                self._drop()
                raise
            self.speaks = True
            return answer

    async def aclose(self) -> None:
        self._drop()
        await asyncio.sleep(0)  # an aborted transport closes its socket in the loop's next round

    def _drop(self) -> None:
        if self._link is not None:
            self._link.abort()
            self._link = None

    async def _once(self, ask: _Ask, progress: _Progress) -> Answer:
        if self._link is not None and self._link.usable and ask.repeatable:
            try:
                return await self._exchange(self._link, ask, progress)
            except _Dropped:
                # A server may close an idle connection at the moment it is used again: that is no failure.
                self._drop()
        self._drop()
        progress.phase = "connect"
        self._link = await self._connect()
        try:
            return await self._exchange(self._link, ask, progress)
        except _Dropped:
            hint = "" if self._endpoint.tls or self.speaks else " (does it want https?)"
            raise HttpFailure(State.HTTP_ERROR, f"closes the connection without an answer{hint}") from None

    async def _connect(self) -> _Link:
        end = self._endpoint
        if end.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        failure: OSError | None = None
        for family, address in await _resolve(end.host, end.port):
            try:
                reader, writer = await asyncio.open_connection(
                    address, end.port, family=family, ssl=self._tls, server_hostname=end.host if end.tls else None
                )
            except OSError as error:
                failure = error
                continue
            self.connections += 1
            return _Link(reader, writer)
        raise _connect_failure(failure, end)

    async def _exchange(self, link: _Link, ask: _Ask, progress: _Progress) -> Answer:
        end = self._endpoint
        length = (("Content-Length", str(len(ask.body))),) if ask.method != "GET" else ()
        request = h11.Request(
            method=ask.method,
            target=f"{end.base}{ask.path}",
            headers=[
                ("Host", end.authority),
                ("User-Agent", f"kvtop/{__version__}"),
                ("Accept-Encoding", "identity"),
                *length,
                *ask.headers,
            ],
        )
        progress.phase = "answer"
        try:
            link.send(request, ask.body)
            head = await link.head()
            fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
            progress.phase = "body"
            body = await self._body(link, fields, progress)
        except h11.RemoteProtocolError as error:
            raise _not_http(link, error, progress.bytes) from None
        except (OSError, EOFError):
            if not link.first:
                raise _Dropped from None
            raise _broke_off(progress.bytes) from None
        link.next_cycle()
        return Answer(head.status_code, fields, body)

    async def _body(self, link: _Link, fields: Mapping[str, str], progress: _Progress) -> bytes:
        coding = fields.get("content-encoding", "identity").strip().lower()
        unpack = None
        if coding in ("gzip", "x-gzip", "deflate"):
            unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)
        elif coding not in ("", "identity"):
            raise HttpFailure(State.HTTP_ERROR, f"answers in '{printable(coding, 20)}', which was not asked for")
        announced = fields.get("content-length", "")
        if announced.isdecimal() and len(announced) > 18:  # more digits than int() takes, perhaps
            raise self._too_large("far more was announced")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            raise self._too_large(f"{int(announced):,} bytes announced")
        parts: list[bytes] = []
        size = 0
        while (data := await link.data()) is not None:
            progress.bytes += len(data)
            if unpack is not None:
                try:
                    data = unpack.decompress(data, self._max_bytes - size + 1)
                except zlib.error:
                    raise HttpFailure(State.HTTP_ERROR, f"says '{coding}' and sends something else") from None
            size += len(data)
            if size > self._max_bytes or progress.bytes > self._max_bytes:
                raise self._too_large("unpacked" if unpack is not None else "and more was coming")
            parts.append(data)
        if unpack is not None and progress.bytes and not unpack.eof:
            raise HttpFailure(State.HTTP_ERROR, f"its packed answer broke off after {progress.bytes:,} bytes")
        return b"".join(parts)

    def _too_large(self, how: str) -> HttpFailure:
        return HttpFailure(State.TOO_LARGE, f"the answer is over {self._max_bytes:,} bytes ({how}) and was dropped")


class _Progress:
    """How far a try got: what a timeout says."""

    def __init__(self) -> None:
        self.phase = "answer"
        self.bytes = 0

    def late(self, timeout_s: float) -> str:
        limit = f"{timeout_s:g} s"
        if self.phase == "connect":
            return f"no connection within {limit}"
        if self.phase == "answer":
            return f"takes the connection, but gives no answer within {limit}"
        return f"the answer was not complete after {limit} ({self.bytes:,} bytes so far)"


class _Link:
    """One connection and the state of its protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)
        self.first = b""
        """The first bytes of the answer that is being read."""

    @property
    def usable(self) -> bool:
        return self._http.our_state is h11.IDLE and not self._reader.at_eof() and not self._writer.is_closing()

    def abort(self) -> None:
        # What is left unread must not be waited for.
        self._writer.transport.abort()

    def send(self, request: h11.Request, body: bytes) -> None:
        self.first = b""
        parts = [self._http.send(request), body and self._http.send(h11.Data(data=body))]
        self._writer.write(b"".join(filter(None, [*parts, self._http.send(h11.EndOfMessage())])))

    async def head(self) -> h11.Response:
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise EOFError

    async def data(self) -> bytes | None:
        """The next piece of the body; None at its end."""
        event = await self._event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            return None
        raise EOFError

    def next_cycle(self) -> None:
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(_CHUNK)
            if not data and not self.first:
                raise EOFError
            self.first = self.first or data[:8]
            self._http.receive_data(data)
        return event


async def _resolve(host: str, port: int) -> list[tuple[int, str]]:
    """Addresses of a name, in the resolver's order.

    In a daemon thread: a resolver that hangs must not hold up the exit.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [(family, host)]
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[tuple[int, str]]] = loop.create_future()

    def settle(addresses: list[tuple[int, str]] | None, error: OSError | UnicodeError | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(addresses or [])

    def ask() -> None:
        addresses = None
        problem: OSError | UnicodeError | None = None
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys((int(row[0]), str(row[4][0])) for row in rows))
        except (OSError, UnicodeError) as error:
            problem = error
        # A closed loop has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, addresses, problem)

    threading.Thread(target=ask, name="kvtop-resolve", daemon=True).start()
    try:
        return await found
    except socket.gaierror as error:
        name = printable(host, 60)
        if error.errno == socket.EAI_AGAIN:
            raise HttpFailure(State.DNS_ERROR, f"the name server does not answer for '{name}'") from None
        raise HttpFailure(State.DNS_ERROR, f"no address is known for the name '{name}'") from None
    except (OSError, UnicodeError):
        raise HttpFailure(State.DNS_ERROR, f"'{printable(host, 60)}' is no host name") from None


def _connect_failure(error: OSError | None, end: Endpoint) -> HttpFailure:
    if isinstance(error, ssl.SSLCertVerificationError):
        return HttpFailure(
            State.TLS_ERROR,
            f"its certificate is not accepted: {printable(error.verify_message, 80)}; "
            "SSL_CERT_FILE may name the authority that signed it",
        )
    if isinstance(error, ssl.SSLError):
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return HttpFailure(State.TLS_ERROR, f"does not speak TLS: try http://{end.authority}{end.base}")
        return HttpFailure(State.TLS_ERROR, f"TLS failed: {printable((error.reason or str(error)).lower(), 60)}")
    if isinstance(error, ConnectionRefusedError):
        return HttpFailure(State.REFUSED, f"nothing listens on {end.authority}")
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        what = "closes the connection during the TLS handshake" if end.tls else "closes the connection at once"
        return HttpFailure(State.TLS_ERROR if end.tls else State.HTTP_ERROR, what)
    if isinstance(error, TimeoutError):
        return HttpFailure(State.TIMEOUT, "no connection: the machine does not answer")
    if error is not None and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN):
        return HttpFailure(State.REFUSED, f"no route to {end.authority}")
    why = (error.strerror if error is not None else None) or "no address"
    return HttpFailure(State.REFUSED, f"no connection to {end.authority}: {printable(why, 60)}")


def _broke_off(size: int) -> HttpFailure:
    return HttpFailure(State.HTTP_ERROR, f"closes the connection in the middle of its answer, after {size:,} bytes")


def _not_http(link: _Link, error: h11.RemoteProtocolError, size: int) -> HttpFailure:
    if link.first[:2] == b"\x15\x03":
        return HttpFailure(State.TLS_ERROR, "speaks TLS: try https://")
    if link.first[:5] != b"HTTP/"[: len(link.first)]:
        return HttpFailure(State.NOT_VLLM, "answers, but not in HTTP")
    if "closed connection" in str(error):
        return _broke_off(size)
    return HttpFailure(State.HTTP_ERROR, "its answer breaks the rules of HTTP")
