"""The watch of `kvtop demo`: the real one, on the simulated box, its cards and its host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvtop.clock import SystemClock
from kvtop.config import Server, Settings
from kvtop.live.endpoint import Surroundings
from kvtop.live.factories import Factories, ServerLike, real
from kvtop.live.watch import Watch
from kvtop.model.view import BoxView
from kvtop.readings import Scrape, ServerFacts, SourceDown
from kvtop.sim.hardware import SimGpus, SimHost
from kvtop.sim.tapped import Tapped
from kvtop.sim.thread import BoxThread


@dataclass
class PastFirst:
    """A server source that hands over the box's warm past before it asks the box itself."""

    thread: BoxThread
    real: ServerLike
    live: int = 0
    """Answers of the box that could be read."""
    _past: list[Scrape] | None = None

    @property
    def pending(self) -> bool:
        """Part of the past is still to be told."""
        return self._past is None or bool(self._past)

    @property
    def doing(self) -> str:
        return self.real.doing

    async def scrape(self) -> Scrape | SourceDown:
        if self._past is None:
            self._past = await asyncio.to_thread(self.thread.past)
            self._past.reverse()
        if self._past:
            return self._past.pop()
        answer = await self.real.scrape()
        self.live += not isinstance(answer, SourceDown)
        return answer

    async def facts(self) -> ServerFacts | SourceDown:
        return await self.real.facts()

    async def aclose(self) -> None:
        await self.real.aclose()


class DemoWatch(Watch):
    """Says nothing while the box's past is being told (about half a second), then what any watch says."""

    def __init__(self, thread: BoxThread, url: str, settings: Settings, tapped: Tapped | None = None) -> None:
        """`tapped`: what the box records of its agents."""
        self.sources: list[PastFirst] = []
        super().__init__(settings, [url], demo=True, factories=self._simulated(thread, settings, tapped))
        self._before = super().view(settings.window)

    @property
    def telling(self) -> bool:
        """Part of the past is still to be told."""
        return not self.sources or any(source.pending for source in self.sources)

    def _simulated(self, thread: BoxThread, settings: Settings, tapped: Tapped | None) -> Factories:
        box = thread.box
        sources = real(settings, SystemClock())

        def server(given: str, configured: Server | None) -> ServerLike:
            self.sources.append(PastFirst(thread, sources.server(given, configured)))
            return self.sources[-1]

        return replace(
            sources,
            server=server,
            gpu=lambda: SimGpus(box.scenario.spec, lambda: box.vitals),
            host=lambda: SimHost(box.scenario.spec, lambda: box.vitals, lambda: box.port),
            kv_places=None,
            profiles=None,  # the user's own servers are not the box's
            given=lambda turn, verdict: None,
            captures=lambda: tapped,  # the user's own turns are not the box's
            # looked for again and again while no time passes, they would keep the past from being told
            taps=lambda: () if self.telling else sources.taps(),
            recorded_since=lambda: tapped.since if tapped is not None else None,
        )

    def _surroundings(self) -> Surroundings:
        return replace(super()._surroundings(), sleep=self._rest)

    async def _rest(self, seconds: float) -> None:
        # The box does not wait for the clock while its past is told; each step still lets the screen be drawn.
        await asyncio.sleep(0 if self.sources and self.telling else seconds)

    async def run(self, changed: Callable[[], None]) -> None:
        """As the real one, without a word before the past has been told."""

        def told() -> None:
            if not self.telling:
                changed()

        await super().run(told)

    def view(self, window_key: str, selected: int = 0, engine: str | None = None) -> BoxView:
        """The box as it is known now; as it was before the first answer while the past is told."""
        return self._before if self.telling else super().view(window_key, selected, engine)
