"""What the dashboard shows at one moment: a view of the box, and what its user has chosen. Frozen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvtop.config import Thresholds
from kvtop.model.box import EngineWindow
from kvtop.model.here import server_of
from kvtop.model.view import WINDOWS, BoxView, ServerView, Turn
from kvtop.readings import State, VllmProcess
from kvtop.ui.filter import matches
from kvtop.ui.layout import PANELS
from kvtop.ui.numbers import lasted, span

TurnKey = tuple[bool, int]
"""(in flight, id): what a row is known by while the table moves."""


def key_of(turn: Turn) -> TurnKey:
    return turn.state == "in_flight", turn.id


@dataclass(frozen=True, slots=True)
class Scene:
    """One moment on the screen."""

    view: BoxView
    thresholds: Thresholds = Thresholds()
    shown: frozenset[str] = frozenset(PANELS)
    cursor: TurnKey | None = None
    filter: str = ""
    rows: tuple[Turn, ...] = ()
    """The turns that the filter lets through."""
    frozen_at: float | None = None
    """Unix time at which the picture was held; data go on being collected."""
    notice: str = ""
    """One line from kvtop itself: a broken configuration, a collector that failed."""

    @property
    def server(self) -> ServerView | None:
        return self.view.server

    @property
    def turn(self) -> Turn | None:
        """The turn under the cursor."""
        return next((t for t in self.rows if key_of(t) == self.cursor), None)

    @property
    def process(self) -> VllmProcess | None:
        """The API process of the chosen server, where it runs on this machine."""
        return server_of(self.server.url, self.view.host) if self.server is not None else None


def choose(made: Scene) -> Scene:
    """The scene with its rows filtered and its cursor on a row: where a row in flight has ended, on its end."""
    server = made.server
    turns = server.turns if server else ()
    rows = tuple(t for t in turns if matches(t, made.filter)) if made.filter.strip() else turns
    keys = {key_of(t) for t in rows}
    cursor = made.cursor
    if cursor not in keys:
        ended = (False, cursor[1]) if cursor else None
        cursor = ended if ended in keys else key_of(rows[0]) if rows else None
    return replace(made, rows=rows, cursor=cursor)


# ---------------------------------------------------------------- wordings that several panels share
def window_words(server: ServerView) -> str:
    """The window as it was really seen: '5 min', or '42 s' where kvtop has not watched for so long."""
    want, words = next(((s, w) for k, s, w in WINDOWS if k == server.window_key), (None, server.window_key))
    seen = server.window.window_s
    if want is not None and seen is not None and seen < want * 0.95:
        return span(seen)
    return words


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
