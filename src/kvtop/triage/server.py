"""A vLLM server as triage asks it: POSTs of JSON, and errors that a person can act on.

Prompts go to the server that the caller names and nowhere else: whether that one may have them (loopback, or named by
the user) is the caller's to decide. No error holds anything of a prompt, nor what a server says of one: servers quote
what they refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from kvtop.errors import KvtopError, printable
from kvtop.readings import State
from kvtop.sources.http import Answer, HttpClient, HttpFailure, authorization
from kvtop.sources.url import parse

MAX_BYTES = 64_000_000
"""Cap of an answer: the ids of several million tokens."""

CLOSED = frozenset({401, 403, 404, 405, 501})
"""What a route answers that is not there, or not open to this client."""

_FIXES = {
    State.REFUSED: "start the server, or name the one that runs",
    State.DNS_ERROR: "check the server's name",
    State.TIMEOUT: "ask again when it has less to do",
    State.DEAD_ENGINE: "restart vLLM",
    State.UNAUTHORIZED: "set api_key_env or api_key_file for this server in config.toml",
    State.TLS_ERROR: "check the URL's scheme",
}
_OTHER = "name the URL of a vLLM server"
_ITS_LOG = "the server's own log says why"

_LIMIT = re.compile(r"maximum context length is (?:only )?(\d{1,9})")
_LENGTH = re.compile(r"(?:at least|requested|contains) (?:about )?(\d{1,9}) (?:input )?tokens")


class _Error(msgspec.Struct):
    message: str = ""
    type: str = ""


class _Refusal(msgspec.Struct):
    error: _Error | None = None
    message: str = ""
    type: str = ""
    """Up to 0.10 without an object around them."""


class _Version(msgspec.Struct):
    version: str


class Server:
    """One server. `url` as typed, `key` is called for each request; the attribute `url` is fit to be shown.

    `timeout_s` counts for each call, from its first step to its last byte. Raises UsageError for a URL that is none.
    """

    def __init__(self, url: str, *, key: Callable[[], str | None] = lambda: None, timeout_s: float = 30.0) -> None:
        self._endpoint = parse(url)
        self._key = key
        self._http = HttpClient(self._endpoint, timeout_s=timeout_s, max_bytes=MAX_BYTES)
        self.url = self._endpoint.url
        self.calls = 0
        """Requests made so far."""
        self.waits = False
        """One is on its way."""

    def __repr__(self) -> str:
        return f"Server({self.url!r})"

    async def post(self, path: str, body: bytes, *, repeatable: bool = True) -> Answer:
        """The answer, whatever its status. `repeatable`: sent again where a kept connection had ended. Raises
        KvtopError where there is none."""
        self.calls += 1
        self.waits = True
        try:
            headers = authorization(self._endpoint, self._key())
            return await self._http.post(path, body, headers, repeatable=repeatable)
        except HttpFailure as failure:
            raise self._down(failure) from None
        finally:
            self.waits = False

    async def version(self) -> str | None:
        """What it says of itself; None where it does not. Raises KvtopError where it does not answer."""
        self.calls += 1
        try:
            answer = await self._http.get("/version", authorization(self._endpoint, self._key()))
        except HttpFailure as failure:
            raise self._down(failure) from None
        try:
            return printable(msgspec.json.decode(answer.body, type=_Version).version, 60)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def answered(self) -> None:
        """Somebody else asked it just now, and it answered as vLLM does."""
        self._http.speaks = True

    async def aclose(self) -> None:
        await self._http.aclose()

    def failed(self, path: str, answer: Answer) -> KvtopError:
        """The error that an answer other than 200 is."""
        status = answer.status
        refusal = _refusal(answer)
        if (limit := _LIMIT.search(refusal.message)) is not None:
            length = _LENGTH.search(refusal.message)
            counted = f"{int(length[1]):,} tokens or more" if length else "more"
            return KvtopError(
                f"{self.url}{path}: the prompt is too long: {counted}, and the server takes {int(limit[1]):,}",
                "ask a server with a larger --max-model-len",
            )
        if status == 503:
            return KvtopError(f"{self.url}{path} answers 503: no engine behind this address", "restart vLLM")
        if status in (401, 403):
            return KvtopError(f"{self.url}{path} answers {status}", _FIXES[State.UNAUTHORIZED])
        if no_such_model(answer):
            return KvtopError(
                f"{self.url}{path} has no model of that name (HTTP {status})",
                "name the server that the turn was sent to",
            )
        if status in CLOSED:
            return KvtopError(f"{self.url}: there is no {path} here (HTTP {status})", _OTHER)
        if 400 <= status < 500:
            kind = f", {refusal.type}" if re.fullmatch(r"[A-Za-z]{1,40}", refusal.type) else ""
            return KvtopError(
                f"{self.url}{path} does not take this prompt (HTTP {status}{kind})",
                "the server's own log says why; it may be of another version or model than the one that served it",
            )
        return KvtopError(f"{self.url}{path} answers HTTP {status}", _ITS_LOG)

    def not_vllm(self, path: str) -> KvtopError:
        """The error that an answer of another shape is."""
        return KvtopError(f"{self.url}{path} does not answer as vLLM does", _OTHER)

    def _down(self, failure: HttpFailure) -> KvtopError:
        key = (self._key() or "").strip()
        cause = failure.cause.replace(key, "***") if key else failure.cause
        other = _ITS_LOG if self._http.speaks and failure.state is State.HTTP_ERROR else _OTHER
        return KvtopError(f"{self.url}: {cause}", _FIXES.get(failure.state, other))


def too_long(answer: Answer) -> bool:
    """Whether a server refuses a prompt for its length."""
    return answer.status == 400 and _LIMIT.search(_refusal(answer).message) is not None


def no_such_model(answer: Answer) -> bool:
    """Whether it refuses a request for its model's name, rather than not having the route."""
    return answer.status == 404 and _refusal(answer).type == "NotFoundError"


def _refusal(answer: Answer) -> _Error:
    try:
        found = msgspec.json.decode(answer.body, type=_Refusal)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _Error()
    return found.error or _Error(found.message, found.type)
