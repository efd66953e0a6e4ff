"""What kvtop's own replays asked of servers, in whichever process, read beside the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvtop.live.endpoint import Sleep
from kvtop.model.own import OwnRequest, of_server
from kvtop.worker import Caller, Hangs

LOOK_S = 0.5
READ_S = 5.0


class Replays:
    """`run` until cancelled."""

    def __init__(self, read: Callable[[], Sequence[OwnRequest]], worker: Caller, sleep: Sleep) -> None:
        self.here: tuple[OwnRequest, ...] = ()
        """Oldest first."""
        self.version = 0
        """Grows with every change."""
        self._read, self._worker, self._sleep = read, worker, sleep

    async def run(self, changed: Callable[[], None]) -> None:
        while True:
            try:
                here = tuple(await self._worker.call(self._read, READ_S))
            except (TimeoutError, Hangs):
                here = self.here
            except Exception:  # noqa: BLE001  notes that cannot be read: no replay is known
                here = ()
            if here != self.here:
                self.here = here
                self.version += 1
                changed()
            await self._sleep(LOOK_S)

    def of(self, url: str) -> tuple[OwnRequest, ...]:
        """Those that the server with this base URL was asked, oldest first."""
        return of_server(self.here, url)
