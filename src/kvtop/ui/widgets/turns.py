"""The requests: in flight first, then the one that ended last. Drawn row by row: it moves several times a second."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.message import Message

from kvtop.model.account import needed
from kvtop.model.shown_turn import Turn, TurnKey
from kvtop.model.view import ServerView
from kvtop.ui.draw import SUPER, Line, clip, expected, fit, lj, meter, pick, rj, safe, wrap
from kvtop.ui.filter import misread
from kvtop.ui.numbers import DASH, counting, hms, lasted, pct, rate, short, tok, when
from kvtop.ui.profiles.stages import stage_rows
from kvtop.ui.scene import Rows, starting
from kvtop.ui.turn_words import (
    agent,
    approx,
    expected_share,
    flying,
    moment,
    read_again,
    since,
    speed,
    waited_for,
    waited_style,
)
from kvtop.ui.verdicts import verdict
from kvtop.ui.widgets import notes
from kvtop.ui.widgets.box import BoxPanel

NARROW = 61
"""Narrower than this the column heads are the title."""

EMPTY = (
    "Requests appear here: prompt, cached, new and written tokens, queue and TTFT, "
    "worked out from the counters when a request ends. None was seen yet."
)
UNREAD = "Requests are worked out from /metrics, which cannot be read: what is asked meanwhile is not known."

Column = tuple[str, int]
"""Name and width; 0: what is left. Right-aligned, but for agent, bar and verdict."""


def columns_of(w: int, engines: bool = False, captured: bool = False) -> list[Column]:
    """The columns for so many cells. First to go: took, tok/s, seconds of time, out, queue, new, agent, bar, time."""
    if w < 60:
        return [("turn", 4), ("prompt", 6), ("cached", 6), ("TTFT", 6), ("verdict", 0)]
    if captured:
        return _with_agent(w, engines)
    engine: list[Column] = [("engine", 6)] if engines and w >= 84 else []
    if w < 96:
        return [("turn", 4), ("time", 5), *engine, ("prompt", 6), ("bar", 8), ("cached", 5), ("new", 5), ("queue", 6),
                ("TTFT", 6), ("verdict", 0)]  # fmt: skip
    if w < 128:
        return [("turn", 4), ("time", 5), *engine, ("prompt", 6), ("bar", 12), ("cached", 5), ("new", 5), ("queue", 6),
                ("TTFT", 7), ("out", 5), ("tok/s", 5), ("verdict", 0)]  # fmt: skip
    return [("turn", 5), ("time", 8), *engine, ("prompt", 6), ("bar", 14), ("cached", 5), ("new", 5), ("queue", 6),
            ("TTFT", 7), ("out", 5), ("tok/s", 5), ("took", 6), ("verdict", 0)]  # fmt: skip


def _with_agent(w: int, engines: bool) -> list[Column]:
    """As `columns_of`, where turns were captured: who asked is known."""
    engine: list[Column] = [("engine", 6)] if engines and w >= 108 else []
    if w < 74:
        return [("turn", 4), ("time", 5), ("prompt", 6), ("bar", 8), ("cached", 5), ("TTFT", 6), ("verdict", 0)]
    if w < 100:
        return [("turn", 4), ("time", 5), ("agent", 8), ("prompt", 6), ("bar", 8), ("cached", 5), ("TTFT", 6),
                ("verdict", 0)]  # fmt: skip
    if w < 115:
        who = 8 if engine or w < 103 else 11
        return [("turn", 4), ("time", 5), *engine, ("agent", who), ("prompt", 6), ("bar", 8), ("cached", 5), ("new", 6),
                ("queue", 6), ("TTFT", 6), ("verdict", 0)]  # fmt: skip
    if w < 127:
        who = 11 if engine or w < 119 else 14
        return [("turn", 4), ("time", 5), *engine, ("agent", who), ("prompt", 6), ("bar", 11), ("cached", 5),
                ("new", 6), ("queue", 6), ("TTFT", 6), ("out", 5), ("verdict", 0)]  # fmt: skip
    took: list[Column] = [("took", 6)] if w >= 150 else []
    who = 11 if engine and w < 140 else 14
    return [("turn", 5), ("time", 8), *engine, ("agent", who), ("prompt", 6), ("bar", 12), ("cached", 5), ("new", 6),
            ("queue", 6), ("TTFT", 6), ("out", 5), ("tok/s", 5), *took, ("verdict", 0)]  # fmt: skip


class TurnsPanel(BoxPanel):
    """The table."""

    NUMBER, PAD = 6, 0

    class Chosen(Message):
        """A row was clicked."""

        def __init__(self, key: TurnKey, again: bool) -> None:
            super().__init__()
            self.key, self.again = key, again

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._first = 0
        self._anchor: TurnKey | None = None
        """The top row while the user has scrolled: new rows do not move what one reads."""
        self._follow: TurnKey | None = None

    # ---- what is visible
    @property
    def room(self) -> int:
        """Rows of the table that fit."""
        w, h = self.size
        return max(1, h - (1 if self._compact(w, h) else 2))

    @staticmethod
    def _compact(w: int, h: int) -> bool:
        return w < NARROW or h <= 3

    def scroll_rows(self, n: int) -> None:
        """Up (negative) or down by n rows."""
        if self.scene is None:
            return
        rows = self.scene.rows
        self._settle(self.scene.table)
        self._first = max(0, min(self._first + n, len(rows) - self.room))
        self._anchor = rows[self._first].key if self._first and rows else None
        self.redraw()

    def reveal(self, key: TurnKey | None) -> None:
        """Scroll as little as shows this row, at the next drawing."""
        self._follow = key

    def _settle(self, table: Rows) -> None:
        if (place := table.place(self._anchor)) is not None:
            self._first = place
        if (i := table.place(self._follow)) is not None:
            self._first = min(self._first, i) if i < self._first else max(self._first, i - self.room + 1)
        self._follow = None
        self._first = max(0, min(self._first, len(table.turns) - self.room))
        self._anchor = table.turns[self._first].key if self._first and table.turns else None

    # ---- words
    def heading_name(self) -> str:
        return "Start" if starting(self.server) and not (self.scene and self.scene.rows) else "Turns"

    def note(self, w: int) -> Line:
        scene, server = self.scene, self.server
        if scene is None or server is None:
            return []
        if scene.filter:
            words = clip(safe(scene.filter), 24)
            kept = f"{len(scene.rows)} of {len(server.turns)} rows"
            options = [f"{kept}: {words}, esc shows all", f"filter {words}", "filter"]
            if wrong := misread(scene.filter):
                wrong = clip(safe(wrong), 24)
                options = [f"{wrong} is no filter, esc shows all", f"{wrong} is no filter", "no filter"]
            return [(pick(options, w), "warn")]
        if not server.turns and server.start is not None:
            tap = "turns appear here when requests come"
            left = server.start.left_words
            return [(pick([*([f"{left}; {tap}"] if left else []), tap, left], w), "d")]
        if not server.turns and starting(server):
            return [(pick(self._loads_since(), w), "d")]
        return notes.of_turns(server, w)

    def _loads_since(self) -> list[str]:
        """Since when the server is on its way up, longest first."""
        process = self.scene.process if self.scene else None
        since_when = process.started_at if process is not None else None
        if since_when is None:
            since_when = self.server.state_since if self.server is not None else None
        return (
            [""]
            if since_when is None
            else [f"loads since {hms(since_when, self.at)}", f"since {hms(since_when, self.at)}", ""]
        )

    def all_lines(self, w: int, h: int) -> list[Line]:
        if self._compact(w, h):
            return self.body(w, h)
        return super().all_lines(w, h)

    def body(self, w: int, h: int) -> list[Line]:
        scene = self.scene
        if scene is None:
            return []
        if not scene.rows:
            return self._nothing(w, h)
        self._settle(scene.table)
        server = self.server
        engines = bool(server and server.engines and server.engine is None)
        visible = scene.rows[self._first : self._first + h - 1]
        cols = columns_of(w - 1, engines, captured=bool(server and server.tap and server.tap.captured))
        if server is not None and _number_cells(server) > cols[0][1]:
            cols[0] = ("turn", 6)
        gap = 1 if w - 1 < 60 else 2
        fixed = sum(width for _, width in cols) + sum(_gap(cols, i, gap) for i in range(1, len(cols)))
        cols = [(name, width or max(4, w - 1 - fixed)) for name, width in cols]
        out = [self._heads(cols, gap, self._compact(w, h + 1) and h <= self.size.height)]
        for turn in visible:
            line: Line = []
            for i, (name, width) in enumerate(cols):
                if i:
                    line.append((" " * _gap(cols, i, gap), "t"))
                line += self._cell(turn, name, width)
            if turn.key == scene.cursor:
                out.append([("▸", "bright @cursor"), *((text, f"{style} @cursor") for text, style in fit(line, w - 1))])
            else:
                out.append([(" ", "t"), *line])
        return out

    def _heads(self, cols: list[Column], gap: int, is_title: bool) -> Line:
        line: Line = [(SUPER[6] if is_title else " ", "d")]
        bar = any(name == "bar" for name, _ in cols)
        for i, (name, width) in enumerate(cols):
            if i:
                line.append((" " * _gap(cols, i, gap), "d"))
            label = {"bar": "cached", "cached": "" if bar else "cached", "verdict": "  verdict"}.get(name, name)
            left = name in ("agent", "bar", "verdict")
            line.append((label.ljust(width) if left else label.rjust(width), "d"))
        return line

    def _cell(self, turn: Turn, name: str, w: int) -> Line:
        live = flying(turn)
        if name == "turn":
            return rj(turn.name, w, "bright bold" if live else "t")
        if name == "time":
            at = moment(turn)
            return rj(when(at, self.at, w), w, "d")
        if name == "engine":
            return rj(safe(turn.engine or DASH), w, "d")
        if name == "agent":
            return lj(agent(turn, w), w, "t" if turn.captured else "d")
        if name == "prompt":
            guess = turn.estimate.prompt_tokens if turn.estimate else None
            return _tokens(turn, "prompt_tokens", turn.prompt_tokens, guess, w)
        if name == "bar":
            if turn.cached_share is not None:
                return meter([(turn.cached_share, "cached-device"), (read_again(turn), "lost")], w)
            share = expected_share(turn)
            return [(" " * w, "f")] if share is None else expected(share, w, "cached-device")
        if name == "cached":
            if turn.cached_share is None and (share := expected_share(turn)) is not None:
                return rj(f"~{pct(share)}", w, "t")
            text = approx(turn, pct(turn.cached_share), w, "cached_tokens", "prompt_tokens")
            if turn.cached_source == "metrics" and not text.startswith("~"):
                text = pick([f"~{text}", f"~{text.replace(' ', '')}"], w)
            return rj(text, w, "d" if turn.cached_share is None else "t")
        if name == "new" and turn.judging:
            return rj(DASH, w, "d")
        if name == "new":
            return _tokens(turn, "new_tokens", needed(turn), turn.estimate.new_tokens if turn.estimate else None, w)
        if name == "queue":
            return rj(approx(turn, short(turn.queue_s), w, "queue_s"), w, "warn" if turn.verdict == "queued" else "d")
        if name == "TTFT":
            return self._ttft(turn, w)
        if name == "out":
            text = approx(turn, tok(turn.completion_tokens), w, "completion_tokens")
            return rj(text, w, "d" if turn.completion_tokens is None else "t")
        if name == "tok/s":
            text = approx(turn, rate(speed(turn)), w, "completion_tokens", "decode_s")
            return rj(text, w, "d" if speed(turn) is None else "t")
        if name == "took":
            return rj(counting(since(turn, self.at)) if live else short(turn.duration_s), w, "d")
        mark, style, words = verdict(turn, self.server)
        return [(f"{mark} ", style), (pick(_imported(words) if turn.source == "import" else words, w - 2), style)]

    def _ttft(self, turn: Turn, w: int) -> Line:
        if flying(turn) and turn.ttft_s is None:
            waited = since(turn, self.at) if turn.phase != "writes" else None
            return rj(counting(waited), w, "d")
        text = waited_for(turn)
        text = pick([text, text.replace(" ", "")], w)
        return rj(text, w, waited_style(turn) if turn.waited else "d" if text == DASH else "t")

    def _nothing(self, w: int, h: int) -> list[Line]:
        """No row to show: why, and what will be here."""
        scene, server = self.scene, self.server
        assert scene is not None
        if self._compact(w, h + 1) and w < NARROW:
            none = "none yet" if server is None or server.state.good else "none is known"
            if starting(server):
                none = self._loads_since()[0]
            if scene.filter and server is not None and server.turns:
                none = f"0 of {len(server.turns)} rows"
            first: list[Line] = [[(SUPER[6], "d"), (f"{self.heading_name().lower()} ", "t bold"), (none, "d")]]
        else:
            first = []
        if scene.filter and server is not None and server.turns:
            said = "no turn fits the filter; esc shows all"
            if wrong := misread(scene.filter):
                said = f"{clip(safe(wrong), 24)} is no filter; compare like new>10k, cached<50 or ttft>=5"
            return [*first, *([(" ", "t"), *line] for line in wrap([(said, "d")], min(w - 2, 90)))][:h]
        if starting(server):
            return [*first, *self._start(w, h - len(first))]
        if server is None:
            return first
        said = EMPTY if server.state.good else UNREAD
        return [*first, *([(" ", "t"), *line] for line in wrap([(said, "d")], min(w - 2, 90)))][:h]

    def _start(self, w: int, h: int) -> list[Line]:
        """What is known of a server that is on its way up; a value that is too long ends with an ellipsis."""
        scene, server = self.scene, self.server
        assert scene is not None and server is not None
        if server.start is not None:
            return stage_rows(server.start, w)[:h]
        process, at = scene.process, self.at
        rows: list[tuple[str, str]] = []
        if process is not None:
            since_when = ""
            if process.started_at is not None:
                since_when = f", since {hms(process.started_at, at)} ({lasted(at - process.started_at)} so far)"
            rows.append(("process", f"pid {process.pid}{since_when}"))
            others = [p for p in scene.view.host.processes if p.parent == process.pid] if scene.view.host else []
            if others:
                rows.append(("its parts", ", ".join(f"{safe(p.role)} {p.pid}" for p in others)))
            if process.command:
                rows.append(("model", model_of(process.command)))
                rows.append(("command", " ".join(safe(part) for part in process.command)))
        elif server.state_since is not None:
            rows.append(("since", f"{hms(server.state_since, at)} ({lasted(at - server.state_since)} so far)"))
        if server.cause and process is None:
            rows.append(("state", safe(server.cause)))
        room = max(10, w - 12)
        out: list[Line] = []
        for name, value in rows:
            lines = wrap([(value, "t")], room)
            if len(lines) > (most := min(3, h - len(out))):
                lines = lines[:most]
                if lines:
                    lines[-1] = [(clip("".join(text for text, _ in lines[-1]) + " …", room), "t")]
            for i, line in enumerate(lines):
                out.append([(" ", "t"), ((name if not i else "").ljust(10), "d"), *line])
        return out

    # ---- mouse
    def on_click(self, event: events.Click) -> None:
        rows = self.scene.rows if self.scene else ()
        i = event.y - (1 if self._compact(*self.size) else 2) + self._first
        if event.y >= (1 if self._compact(*self.size) else 2) and 0 <= i < len(rows):
            event.stop()
            key = rows[i].key
            self.post_message(self.Chosen(key, self.scene is not None and key == self.scene.cursor))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.scroll_rows(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.scroll_rows(-3)


def _imported(words: Sequence[str]) -> list[str]:
    """Wordings that also say that nobody saw the turn pass here; where none of them fits, that is what is said."""
    return [*(f"{word}, import" for word in words if word != DASH), "import"]


def _number_cells(server: ServerView) -> int:
    """Of the longest number in the column: of all rows, so that scrolling moves no column."""
    newest = next((turn.id for turn in server.turns if turn.captured), 0)
    counted = server.turns_total + 1
    return max(len(str(newest)), len(f"m{counted}" if newest else str(counted)))


def _tokens(turn: Turn, name: str, tokens: float | None, guess: float | None, w: int) -> Line:
    """Tokens, or about how many they are."""
    if tokens is None and guess is not None:
        return rj(f"~{tok(guess)}", w, "t")
    return rj(approx(turn, tok(tokens), w, name), w, "d" if tokens is None else "t")


def model_of(command: tuple[str, ...]) -> str:
    """The model that a `vllm serve` command line names."""
    for i, part in enumerate(command):
        if part == "--model" and i + 1 < len(command):
            return safe(command[i + 1])
        if part.startswith("--model="):
            return safe(part.removeprefix("--model="))
        if part == "serve" and i + 1 < len(command) and not command[i + 1].startswith("-"):
            return safe(command[i + 1])
    return DASH


def _gap(cols: list[Column], i: int, gap: int) -> int:
    """Cells before column i: one between the bar and its number."""
    return 1 if cols[i][0] == "cached" and cols[i - 1][0] == "bar" else gap
