"""One vLLM server over HTTP: /metrics, and what changes seldom (/version, /v1/models, /health, /is_sleeping).

Every way in which a server can fail has its own state and its own words. Nothing is sent but GETs. The API key goes
into the Authorization header alone, and no message, repr or log ever holds it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from itertools import islice
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec

from kvtop.clock import Clock, SystemClock
from kvtop.errors import printable
from kvtop.readings import Model, Scrape, ServerFacts, SourceDown, State
from kvtop.sources.exposition import Reader
from kvtop.sources.http import Answer, HttpClient, HttpFailure, authorization
from kvtop.sources.typed import typed
from kvtop.sources.url import parse
from kvtop.worker import Hangs, Worker

HEALTH_S = 3.0
"""Seconds between two looks at /health beside /metrics, which goes on answering with frozen gauges when the engine
dies. The web server follows about 5 s later (0.32), or never (VLLM_KEEP_ALIVE_ON_ENGINE_DEATH)."""
FROZEN_S = 2.0
"""The same while requests run and no number moves."""
IDENTITY_S = 30.0
"""How long the answer to 'is this vLLM at all?' holds for a server without vllm: series."""
_SMALL = 1_000_000
"""Cap in bytes for everything but /metrics."""
_HUGE = 1_000_000
"""A /metrics text of more bytes is read beside the loop."""
_REDIRECTS = 3
_MODELS = 64
_MAX_LENGTH = 10**12
"""Tokens; no context is longer."""

READ_S = 5.0
"""A huge text that takes longer to read is given up; no second one is begun while it lasts."""

_RUNNING = "vllm:num_requests_running"
_ACCEPT_TEXT = ("Accept", "text/plain;version=0.0.4, */*;q=0.1")


_T = TypeVar("_T")


class _Version(msgspec.Struct):
    version: str


class _Row(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    owned_by: str | None = None


class _Models(msgspec.Struct):
    data: list[msgspec.Raw]

    @property
    def rows(self) -> list[_Row]:
        """Those that name a model, without what is wrong beside the name; no more than can be shown."""
        found = (_row(raw) for raw in self.data)
        return list(islice((row for row in found if row is not None), _MODELS))


def _row(raw: msgspec.Raw) -> _Row | None:
    try:
        return msgspec.json.decode(raw, type=_Row)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    members = typed(raw, dict[str, msgspec.Raw]) or {}
    name, length, owner = (members.get(key, b"null") for key in ("id", "max_model_len", "owned_by"))
    id = typed(name, str)
    return _Row(id, typed(length, int), typed(owner, str)) if id is not None else None


class _Sleeping(msgspec.Struct):
    is_sleeping: bool


class _Unanswered(HttpFailure):
    """/health itself gave no answer."""


class VllmSource:
    """Reads one server. `url` is as typed (see `url.parse`); the attribute `url` is fit to be shown.

    `key` is called for each request and returns the API key or None. `timeout_s` counts from the first step of a
    request to its last byte. `max_bytes` caps the /metrics text, unpacked. `wanted` goes to the text's reader.
    Raises UsageError for a URL that is none.
    """

    def __init__(
        self,
        url: str,
        *,
        key: Callable[[], str | None] = lambda: None,
        timeout_s: float = 2.0,
        max_bytes: int = 16_000_000,
        wanted: Callable[[str], bool] | None = None,
        clock: Clock | None = None,
    ) -> None:
        endpoint = parse(url)
        self.url = endpoint.url
        self._endpoint = endpoint
        self._key = key
        self._clock = clock or SystemClock()
        self._reader = Reader(wanted)
        self._metrics = HttpClient(endpoint, timeout_s=timeout_s, max_bytes=max_bytes)
        self._asides = HttpClient(endpoint, timeout_s=timeout_s, max_bytes=min(_SMALL, max_bytes))
        self._worker = Worker("reader")
        self._doing = ""
        self._last: Scrape | None = None
        self._moved_at = 0.0
        self._health_at: float | None = None
        self._dead: HttpFailure | None = None
        self._identity: tuple[float, bool] | None = None
        self._no_dev_mode_on = -1
        """The connection count of `_metrics` at which /is_sleeping was 404."""

    @property
    def doing(self) -> str:
        """What a `scrape` under way waits for, in words."""
        return self._doing

    def __repr__(self) -> str:
        return f"VllmSource({self.url!r})"

    async def scrape(self) -> Scrape | SourceDown:
        """One /metrics text, or why there is none."""
        try:
            return await self._scrape()
        except HttpFailure as failure:
            return self._down(failure)

    async def facts(self) -> ServerFacts | SourceDown:
        """What changes seldom. A route that does not answer well leaves its field unknown and a line in `problems`."""
        try:
            return await self._facts()
        except HttpFailure as failure:
            return self._down(failure)

    async def probe(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET to `path`, for what a diagnosis wants to know. Raises HttpFailure."""
        answer = await self._get(self._asides, path)
        return answer.status, answer.body

    async def aclose(self) -> None:
        await self._metrics.aclose()
        await self._asides.aclose()

    def _down(self, failure: HttpFailure) -> SourceDown:
        return SourceDown(failure.state, self._discreet(failure.cause), self._clock.wall(), failure.status)

    def _discreet(self, text: str) -> str:
        """Without the API key, which a server may give back in whatever it says."""
        key = (self._key() or "").strip()
        return text.replace(key, "***") if key else text

    async def _scrape(self) -> Scrape:
        if self._dead is not None:
            await self._look_at_health()
        self._doing = "/metrics has not answered yet"
        answer = await self._get(self._metrics, "/metrics", _ACCEPT_TEXT)
        self._doing = f"reading {_megabytes(answer.body)} of /metrics"
        self._judge(answer, "/metrics")
        scrape = await self._read(answer.body)
        if not scrape.has_vllm:
            raise await self._nameless(answer, scrape)
        now = self._clock.mono()
        if self._last is None or self._last.values != scrape.values:
            self._moved_at = now
        self._last = scrape
        busy = any(value > 0 for (name, _), value in scrape.values.items() if name == _RUNNING)
        frozen = busy and now - self._moved_at >= FROZEN_S
        if self._health_at is None or now - self._health_at >= (FROZEN_S if frozen else HEALTH_S):
            # A /health that does not answer while /metrics does is no verdict.
            with contextlib.suppress(_Unanswered):
                await self._look_at_health()
        return scrape

    async def _read(self, body: bytes) -> Scrape:
        def read() -> Scrape:
            return self._reader.read(body.decode("utf-8", "replace"), at)

        at = self._clock.wall()
        if len(body) <= _HUGE:
            return read()  # a third of a millisecond, less than a thread costs
        try:
            return await self._worker.call(read, READ_S)
        except (TimeoutError, Hangs):
            why = f"/metrics of {_megabytes(body)} takes kvtop itself over {READ_S:g} s to read"
            raise HttpFailure(State.TOO_LARGE, why) from None

    async def _look_at_health(self) -> None:
        """Raise when /health says that the engine is dead."""
        self._health_at = self._clock.mono()
        self._dead = None
        try:
            answer = await self._get(self._asides, "/health")
        except HttpFailure as failure:
            raise _Unanswered(failure.state, failure.cause, failure.status) from None
        if answer.status in (500, 503):
            self._dead = HttpFailure(
                State.DEAD_ENGINE,
                f"/health answers {answer.status}: the engine died, its web server lives on; restart vLLM",
                answer.status,
            )
            raise self._dead

    async def _facts(self) -> ServerFacts:
        problems: list[str] = []
        await self._look_at_health()
        version = await self._ask("/version", _Version, problems)
        models = await self._ask("/v1/models", _Models, problems)
        if models is not None and models.data and not models.rows:
            problems.append("/v1/models: not what vLLM answers")
        sleeping = None
        if self._no_dev_mode_on != self._metrics.connections:
            answer = await self._get(self._asides, "/is_sleeping")
            if answer.status == 404:
                self._no_dev_mode_on = self._metrics.connections
            else:
                sleeping = typed(answer.body, _Sleeping) if answer.status == 200 else None
        return ServerFacts(
            version=printable(self._discreet(version.version), 60) if version else None,
            models=tuple(self._model(row) for row in (models.rows if models else ())),
            sleeping=sleeping.is_sleeping if sleeping else None,
            problems=tuple(problems),
        )

    def _model(self, row: _Row) -> Model:
        owner = printable(self._discreet(row.owned_by or ""), 60)
        return Model(printable(self._discreet(row.id)), _length(row.max_model_len), owner or None)

    async def _ask(self, path: str, kind: type[_T], problems: list[str]) -> _T | None:
        answer = await self._get(self._asides, path)
        if answer.status in (401, 403):
            problems.append(f"{path}: {self._unauthorized(answer.status)}")
            return None
        if answer.status != 200:
            problems.append(f"{path}: HTTP {answer.status}")
            return None
        found = typed(answer.body, kind)
        if found is None:
            problems.append(f"{path}: not what vLLM answers")
        return found

    async def _nameless(self, answer: Answer, scrape: Scrape) -> HttpFailure:
        """Why a text has no vllm: series: another program, or statistics that are off."""
        if await self._is_vllm(scrape.has_http):
            if scrape.truncated:
                return HttpFailure(State.HTTP_ERROR, "/metrics broke off before any vllm: series")
            return HttpFailure(State.NO_STATS, "no vllm: series: the server was started with --disable-log-stats")
        if "html" in answer.headers.get("content-type", "") or answer.body[:200].lstrip()[:1] == b"<":
            return HttpFailure(State.NOT_VLLM, "/metrics answers with a web page: another program has this port")
        if not answer.body.strip():
            return HttpFailure(State.NOT_VLLM, "/metrics answers with an empty text")
        return HttpFailure(State.NOT_VLLM, "/metrics answers, but without vllm: series: another program has this port")

    async def _is_vllm(self, has_http: bool) -> bool:
        now = self._clock.mono()
        if self._identity is not None and now - self._identity[0] < IDENTITY_S:
            return self._identity[1]
        problems: list[str] = []
        try:
            models = await self._ask("/v1/models", _Models, problems)
            if models is not None:
                verdict = any(row.owned_by == "vllm" for row in models.rows)
            else:
                # A server that wants an API key hides its models, but not its version.
                hidden = any("API key" in line for line in problems)
                verdict = hidden and has_http and await self._ask("/version", _Version, problems) is not None
        except HttpFailure:
            verdict = False
        self._identity = (now, verdict)
        return verdict

    async def _get(self, client: HttpClient, path: str, *headers: tuple[str, str]) -> Answer:
        """GET, following redirects within this server only. Raises HttpFailure."""
        for _ in range(_REDIRECTS):
            answer = await client.get(path, (*headers, *self._authorization()))
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            path = self._redirected(path, answer)
        raise HttpFailure(State.HTTP_ERROR, "redirects in a circle", answer.status)

    def _redirected(self, path: str, answer: Answer) -> str:
        """Where on this server a redirect leads; another server is not asked: it may be anywhere and gets the key."""
        location = answer.headers.get("location", "")
        try:
            parts = urlsplit(urljoin(f"{self.url}{path}", location))
            host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            host, port, parts = None, 0, urlsplit("")
        end = self._endpoint
        if (parts.scheme, host, port) == ("https" if end.tls else "http", end.host.lower(), end.port):
            if re.fullmatch(r"[!-~]+", location) and parts.path.startswith(f"{end.base}/"):
                return parts.path[len(end.base) :] + (f"?{parts.query}" if parts.query else "")
            raise HttpFailure(State.HTTP_ERROR, f"{path} redirects to a page outside this URL", answer.status)
        there = f"{parts.scheme}://{host}:{port}" if host else "nowhere"
        raise HttpFailure(
            State.HTTP_ERROR,
            f"{path} redirects to {printable(there, 80)}, which is not followed; give that URL if it is meant",
            answer.status,
        )

    def _authorization(self) -> tuple[tuple[str, str], ...]:
        return authorization(self._endpoint, self._key())

    def _unauthorized(self, status: int) -> str:
        if (self._key() or "").strip():
            return f"HTTP {status}: the configured API key is refused"
        return f"HTTP {status}: wants an API key (api_key_env or api_key_file in config.toml)"

    def _judge(self, answer: Answer, path: str) -> None:
        status = answer.status
        if status == 200:
            return
        if status in (401, 403):
            raise HttpFailure(State.UNAUTHORIZED, self._unauthorized(status), status)
        if status == 503:
            raise HttpFailure(State.DEAD_ENGINE, f"{path} answers 503: no engine behind this address", status)
        if status == 404:
            raise HttpFailure(State.HTTP_ERROR, f"HTTP 404: there is no {path} here; is this vLLM?", status)
        raise HttpFailure(State.HTTP_ERROR, f"{path} answers HTTP {status}", status)


def _megabytes(body: bytes) -> str:
    return f"{len(body) / 1e6:.0f} MB"


def _length(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 0 < tokens <= _MAX_LENGTH else None
