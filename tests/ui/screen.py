"""What a person would see: the rendered text of an app under test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from textual.pilot import Pilot

from kvtop.model.shown_turn import TurnKey
from kvtop.model.view import BoxView
from kvtop.ui.app import KvtopApp


def lines(app: KvtopApp) -> list[str]:
    """The screen, row by row, as its compositor would send it to the terminal."""
    return ["".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips()]


def text(app: KvtopApp) -> str:
    return "\n".join(line.rstrip() for line in lines(app))


async def until(pilot: Pilot[str], seen: Callable[[], object]) -> None:
    """Wait until this holds."""
    for _ in range(300):
        await pilot.pause(0.02)
        if seen():
            return
    raise AssertionError(text(pilot.app))  # type: ignore[arg-type]


class Held:
    """A collector whose box changes only when a test says so."""

    def __init__(self, view: BoxView) -> None:
        self.now = view
        self.asked: list[tuple[str, int, str | None]] = []
        self.urls: list[str] = []
        self.dropped: list[str] = []
        self.seen: list[tuple[str, TurnKey]] = []
        self._changed: Callable[[], None] = lambda: None
        self.running = asyncio.Event()

    async def run(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.running.set()
        await asyncio.Event().wait()

    def view(self, window_key: str, selected: int = 0, engine: str | None = None) -> BoxView:
        self.asked.append((window_key, selected, engine))
        servers = tuple(replace(s, window_key=window_key, engine=engine) for s in self.now.servers)
        marked = tuple(
            replace(line, selected=i == selected if len(servers) > 1 else line.key == engine)
            for i, line in enumerate(self.now.lines)
        )
        return replace(self.now, servers=servers, selected=min(selected, max(0, len(servers) - 1)), lines=marked)

    def add_url(self, url: str) -> None:
        self.urls.append(url)

    def drop_url(self, url: str) -> None:
        self.dropped.append(url)

    def opened(self, url: str, turn: TurnKey) -> None:
        self.seen.append((url, turn))

    def series(self, name: str, span_s: float, columns: int, selected: int = 0) -> Sequence[float | None]:
        return [0.5] * columns

    def say(self, view: BoxView) -> None:
        """Something new."""
        self.now = view
        self._changed()
