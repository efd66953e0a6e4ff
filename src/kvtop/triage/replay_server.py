"""The server that a replay asks: its counters through the usual source, its API with time enough for a whole prompt."""

from __future__ import annotations

from collections.abc import Callable

from kvtop.errors import KvtopError, UsageError
from kvtop.model.here import is_local
from kvtop.model.metrics import wanted
from kvtop.readings import Scrape, SourceDown
from kvtop.sources.http import Answer
from kvtop.sources.url import normalise
from kvtop.sources.vllm import VllmSource
from kvtop.triage.server import Server

TIMEOUT_S = 1800.0
"""For one prompt: the longest ones take a slow card many minutes."""


def allowed(url: str, *, remote: bool = False) -> None:
    """Raises UsageError for a server that is not this machine, unless that is wanted."""
    shown = normalise(url)
    if not remote and not is_local(shown):
        raise UsageError(f"{shown} is not this machine", "--allow-remote sends the prompts there")


class ReplayServer:
    """`url` as typed, `key` is called for each request. Raises UsageError for a URL that is none."""

    def __init__(self, url: str, *, key: Callable[[], str | None] = lambda: None, timeout_s: float = TIMEOUT_S) -> None:
        self._source = VllmSource(url, key=key, timeout_s=10.0, wanted=wanted)
        self._server = Server(url, key=key, timeout_s=timeout_s)
        self.url = self._server.url

    async def scrape(self) -> Scrape | SourceDown:
        found = await self._source.scrape()
        if isinstance(found, Scrape):
            self._server.answered()
        return found

    async def post(self, path: str, body: bytes) -> Answer:
        """Sent once: a prompt that is sent again is cached already. Raises KvtopError where there is no answer."""
        return await self._server.post(path, body, repeatable=False)

    def failed(self, path: str, answer: Answer) -> KvtopError:
        return self._server.failed(path, answer)

    async def aclose(self) -> None:
        await self._source.aclose()
        await self._server.aclose()
