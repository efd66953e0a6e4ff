"""What the dashboard shows at one moment: a view of the box, and what its user has chosen. Frozen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvtop.config import Thresholds
from kvtop.model.box import EngineWindow
from kvtop.model.here import is_here, server_of
from kvtop.model.shown_turn import Turn, TurnKey
from kvtop.model.view import BoxView, ServerView
from kvtop.readings import State, VllmProcess
from kvtop.ui.filter import matches
from kvtop.ui.layout import PANELS
from kvtop.ui.numbers import lasted, span


class Rows:
    """The rows of the table and their places. The places are looked up from the top, and only as far as is needed:
    there may be thousands of rows, and mostly one looks at the first ones."""

    def __init__(self, turns: tuple[Turn, ...]) -> None:
        self.turns = turns
        self._places: dict[TurnKey, int] = {}
        self._counted: dict[int, int] = {}
        self._known = 0
        """So many rows were looked at."""

    def place(self, key: TurnKey | None) -> int | None:
        """The row of that key, or the one that has taken its place: a counted one in flight ends, and a counted one
        is found to be a captured one. None: there is no such row."""
        if key is None:
            return None
        kind, id = key
        names = [key] if kind == "captured" else [key, ("counted", id)]
        while True:
            for name in names:
                if (found := self._places.get(name)) is not None:
                    return found
            if kind != "captured" and (found := self._counted.get(id)) is not None:
                return found
            if self._known >= len(self.turns):
                return None
            self._look_on()

    def _look_on(self) -> None:
        for i in range(self._known, min(self._known + LOOK_ROWS, len(self.turns))):
            turn = self.turns[i]
            self._places.setdefault(turn.key, i)
            if turn.counted is not None:
                self._counted.setdefault(turn.counted, i)
            self._known = i + 1


LOOK_ROWS = 100
"""Rows that are looked at in one go."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One moment on the screen."""

    view: BoxView
    thresholds: Thresholds = Thresholds()
    shown: frozenset[str] = frozenset(PANELS)
    cursor: TurnKey | None = None
    filter: str = ""
    table: Rows = Rows(())
    """The turns that the filter lets through."""
    frozen_at: float | None = None
    """Unix time at which the picture was held; data go on being collected."""
    notice: str = ""
    """One line from kvtop itself: a broken configuration, a collector that failed."""

    @property
    def server(self) -> ServerView | None:
        return self.view.server

    @property
    def rows(self) -> tuple[Turn, ...]:
        return self.table.turns

    @property
    def turn(self) -> Turn | None:
        """The turn under the cursor."""
        place = self.table.place(self.cursor)
        return None if place is None else self.rows[place]

    @property
    def here(self) -> bool:
        """The chosen server runs on this machine: by its address, or because a process of this machine was seen to
        serve it."""
        server = self.server
        return server is not None and (server.pid is not None or is_here(server.url, self.view.host))

    @property
    def process(self) -> VllmProcess | None:
        """The API process of the chosen server, where it runs on this machine."""
        return server_of(self.server.url, self.view.host) if self.server is not None else None


class Chooser:
    """Gives scenes their rows; remembers the last ones, so that what did not change is not gone through again."""

    def __init__(self) -> None:
        self._of: tuple[tuple[Turn, ...], str] = ((), "")
        self._table = Rows(())
        self._fits: dict[int, bool] = {}
        """Whether a turn of the last ones fits the filter, by the object's id: `_of` keeps them alive."""

    def choose(self, made: Scene) -> Scene:
        """The scene with its rows filtered and its cursor on a row: where the chosen one has ended, on its end; where
        it is gone, on the one that stands in its place now."""
        server, words = made.server, made.filter.strip()
        turns = server.turns if server else ()
        before, table = self._table, self._table
        same_filter = words == self._of[1]
        if turns is not self._of[0] or not same_filter:
            table = Rows(self._fitting(turns, words, same_filter) if words else turns)
            self._of, self._table = (turns, words), table
        place = table.place(made.cursor)
        if place is None:
            stood = before.place(made.cursor) if same_filter else None
            place = min(stood or 0, len(table.turns) - 1)
        return replace(made, table=table, cursor=table.turns[place].key if place >= 0 else None)

    def _fitting(self, turns: tuple[Turn, ...], words: str, same_filter: bool) -> tuple[Turn, ...]:
        """Most of them are those of the last time, and need not be read again."""
        known = self._fits if same_filter else {}
        fits = {}
        for turn in turns:
            fit = known.get(id(turn))
            fits[id(turn)] = matches(turn, words) if fit is None else fit
        self._fits = fits
        return tuple(turn for turn in turns if fits[id(turn)])


# ---------------------------------------------------------------- wordings that several panels share
def second_row(server: ServerView | None) -> tuple[str, EngineWindow]:
    """(words, numbers) to compare the window with: the last hour, as much of it as was seen, or since the start."""
    if server is None:
        return "1 hour", EngineWindow()
    seen, shown = server.hour.window_s, server.window.window_s
    if server.window_key not in ("1h", "start") and seen is not None and (shown is None or seen > 1.2 * shown):
        return ("1 hour" if seen > 3_400 else span(seen)), server.hour.all
    return "start", server.life.all


def age(server: ServerView | None, at: float) -> str:
    """'12 s old' where the numbers are from before the last try, else nothing."""
    if server is None or not server.stale or server.last_good_at is None:
        return ""
    return f"{lasted(at - server.last_good_at)} old"


def nothing_yet(server: ServerView | None) -> bool:
    """No scrape of this server was ever read."""
    return server is None or server.last_good_at is None


def starting(server: ServerView | None) -> bool:
    """It is on its way up: its process lives, its numbers are not there yet."""
    return server is not None and server.state is State.LOADING
