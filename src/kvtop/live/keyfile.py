"""A server whose API key stands in a file: the file is read beside the loop, and the key kept for a moment.

The file may lie on a network that hangs; the screen and the other servers go on then.
"""

from __future__ import annotations

from collections.abc import Callable

from kvtop.clock import Clock
from kvtop.live.factories import ServerLike
from kvtop.readings import Scrape, ServerFacts, SourceDown, State
from kvtop.worker import Caller, Hangs

KEPT_S = 2.0
"""A key is used for so long before its file is read again."""
FIRST_S = 2.0
"""Without a key nothing is asked: its file may take so long."""
AGAIN_S = 0.5
"""Later the last key is used where the file takes longer."""


class WithKeyFile:
    """`made` makes the server from the function that gives its key; `read` reads the file, and may hang."""

    def __init__(
        self,
        made: Callable[[Callable[[], str | None]], ServerLike],
        read: Callable[[], str | None],
        worker: Caller,
        clock: Clock,
    ) -> None:
        self._read, self._worker, self._clock = read, worker, clock
        self._key: str | None = None
        self._tried_at: float | None = None
        self._known = False
        """The file was read at least once, whatever was in it."""
        self._server = made(lambda: self._key)

    @property
    def doing(self) -> str:
        return self._server.doing

    async def scrape(self) -> Scrape | SourceDown:
        return await self._refresh() or await self._server.scrape()

    async def facts(self) -> ServerFacts | SourceDown:
        return await self._refresh() or await self._server.facts()

    async def aclose(self) -> None:
        await self._server.aclose()

    async def _refresh(self) -> SourceDown | None:
        """Read the file where it is time to; why nothing can be asked, where no key is known."""
        now = self._clock.mono()
        if self._tried_at is None or not 0 <= now - self._tried_at < KEPT_S:
            self._tried_at = now
            try:
                self._key = await self._worker.call(self._read, AGAIN_S if self._known else FIRST_S)
                self._known = True
            except (TimeoutError, Hangs):
                pass  # the last key holds
        if self._known:
            return None
        why = "the configured API key cannot be read: the disk or network that api_key_file is on does not answer"
        return SourceDown(State.UNAUTHORIZED, why, self._clock.wall())
