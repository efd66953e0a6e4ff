"""The server that a replay asks: its counters through the usual source, its API with time enough for a whole prompt."""

from __future__ import annotations

from collections.abc import Callable

from kvtop.errors import KvtopError
from kvtop.model.metrics import wanted
from kvtop.readings import Scrape, SourceDown
from kvtop.sources.http import Answer, HttpClient, HttpFailure, authorization
from kvtop.sources.url import parse
from kvtop.sources.vllm import VllmSource

MAX_BYTES = 16_000_000
TIMEOUT_S = 1800.0
"""For one prompt: the longest ones take a slow card many minutes."""


class ReplayServer:
    """`url` as typed, `key` is called for each request. Raises UsageError for a URL that is none."""

    def __init__(self, url: str, *, key: Callable[[], str | None] = lambda: None, timeout_s: float = TIMEOUT_S) -> None:
        self._endpoint = parse(url)
        self._key = key
        self.url = self._endpoint.url
        self._source = VllmSource(url, key=key, timeout_s=10.0, wanted=wanted)
        self._http = HttpClient(self._endpoint, timeout_s=timeout_s, max_bytes=MAX_BYTES)

    async def scrape(self) -> Scrape | SourceDown:
        return await self._source.scrape()

    async def post(self, path: str, body: bytes) -> Answer:
        try:
            return await self._http.post(path, body, authorization(self._endpoint, self._key()))
        except HttpFailure as failure:
            key = (self._key() or "").strip()
            cause = failure.cause.replace(key, "***") if key else failure.cause
            raise KvtopError(f"{self.url}{path}: {cause}", "see whether the server is up and try again") from None

    def failed(self, path: str, answer: Answer) -> KvtopError:
        """Without what the server says of the prompt: servers quote what they refuse."""
        if answer.status in (401, 403):
            return KvtopError(
                f"{self.url}{path} answers HTTP {answer.status}: it wants an API key",
                "set api_key_env or api_key_file for this server in config.toml",
            )
        if answer.status == 404:
            return KvtopError(
                f"{self.url}{path} answers HTTP 404: it has no such route, or no model of that name",
                "name the server that the turn was sent to",
            )
        return KvtopError(f"{self.url}{path} answers HTTP {answer.status}", "the server's log says why")

    async def aclose(self) -> None:
        await self._source.aclose()
        await self._http.aclose()
