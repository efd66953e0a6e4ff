"""Several servers, or several engines of one: a line each, above the panels of the chosen one."""

from __future__ import annotations

from textual import events
from textual.message import Message

from kvtop.model.view import EngineLine
from kvtop.model.words import short_labels
from kvtop.readings import State
from kvtop.ui.draw import Line, cells, clip, fit, ljust, pick, rj, safe, width
from kvtop.ui.keys import Keymap
from kvtop.ui.numbers import DASH, exact, lasted, pct, short
from kvtop.ui.widgets.box import BoxPanel

WORDS: dict[State, tuple[str, str]] = {
    State.UP: ("up", "d"),
    State.RESET: ("restarted", "warn"),
    State.LOADING: ("loading", "t"),
    State.SLEEPING: ("sleeping", "t"),
    State.DEAD_ENGINE: ("dead engine", "bad"),
    State.REFUSED: ("down", "bad"),
    State.TIMEOUT: ("no answer", "warn"),
    State.HTTP_ERROR: ("http error", "bad"),
    State.UNAUTHORIZED: ("unauthorized", "bad"),
    State.TLS_ERROR: ("tls error", "bad"),
    State.DNS_ERROR: ("no such host", "bad"),
    State.TOO_LARGE: ("too large", "bad"),
    State.NOT_VLLM: ("not vllm", "bad"),
    State.NO_STATS: ("no stats", "warn"),
}
STATE_W = 18
"""'unauthorized 142 s': what it is, and since when."""


class Strip(BoxPanel):
    """The lines. A click chooses."""

    class Chosen(Message):
        """A line was clicked."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, keymap: Keymap, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.keymap = keymap
        self._rows: list[int | None] = []

    def all_lines(self, w: int, h: int) -> list[Line]:
        view = self.scene.view if self.scene else None
        if view is None or not view.lines:
            return []
        if h == 1 and len(view.lines) > 1:
            return [self._tabs(view.lines, w)]
        warning: list[Line] = []
        if view.warning and h >= 2:
            warning = [fit([(" ! ", "warn"), (clip(safe(view.warning), w - 4), "warn")], w)]
        room = h - len(warning)
        first = self._window(view.lines, room)
        shown = view.lines[first : first + room]
        names = _names(view.lines)
        label_w = min(max(map(cells, names)), max(8, w - 72))
        self._rows = [first + i for i in range(len(shown))]
        hidden = len(view.lines) - len(shown)
        note = f"+{hidden} more, {self.keymap.shown('next-server')}" if hidden else ""
        rooms = [w] * (len(shown) - 1) + [w - cells(note) - 2 if note else w]
        out = [
            self._row(line, room_w, name, label_w)
            for line, room_w, name in zip(shown, rooms, names[first:], strict=False)
        ]
        if note and out:
            out[-1] = [*fit(out[-1], w - cells(note)), (note, "d")]
        return out + warning

    @staticmethod
    def _window(lines: tuple[EngineLine, ...], room: int) -> int:
        """The first line shown, so that the chosen one is."""
        chosen = next((i for i, line in enumerate(lines) if line.selected), 0)
        return max(0, min(chosen - room + 1, len(lines) - room)) if chosen >= room else 0

    @staticmethod
    def _row(line: EngineLine, w: int, name: str, label_w: int) -> Line:
        mark: Line = [("▸" if line.selected else " ", "bright")]
        mark.append((ljust(clip(name, label_w), label_w), "t bold" if line.selected else "t"))
        word, style = WORDS[line.state]
        old = line.age_s is not None and line.age_s >= 3
        seconds = (line.age_s if old else None) if line.state.good else line.state_s
        number = "d" if old or not line.state.good else "t"
        parts: list[Line] = [
            [(ljust(word if seconds is None else f"{word} {_age(seconds)}", STATE_W), style)],
            [("cached ", "d"), *rj(pct(line.share), 5, number)],
            [("run ", "d"), *rj(_n(line.running), 3, number), (" wait ", "d"), *rj(_n(line.waiting), 3, number)],
            [("TTFT ", "d"), *rj(_about(line.ttft_p50_s, 6), 6, number)],
            [("KV pool ", "d"), *rj(pct(line.kv_cache_usage_share), 5, number)],
        ]
        for part in parts:
            if width(mark) + 2 + width(part) > w:
                break
            mark += [("  ", "t"), *part]
        return mark

    def _tabs(self, lines: tuple[EngineLine, ...], w: int) -> Line:
        """One row for all: labels with their shares, from the chosen one on where not all fit."""
        self._rows = [next((i for i, line in enumerate(lines) if line.selected), 0)]
        tabs: list[Line] = []
        for line, name in zip(lines, _names(lines), strict=True):
            word, style = WORDS[line.state]
            fact = pct(line.share) if line.state.good else word
            tabs.append(
                [
                    ("▸" if line.selected else " ", "bright"),
                    (name + " ", "t bold" if line.selected else "t"),
                    (fact, "d" if line.state.good else style),
                    (" ", "t"),
                ]
            )
        chosen = self._rows[0] or 0
        out: Line = []
        for i in range(chosen, chosen + len(tabs)):
            tab = tabs[i % len(tabs)]
            if width(out) + width(tab) > w:
                rest = len(tabs) - (i - chosen)
                return [*out, (pick([f" +{rest}", ""], w - width(out)), "d")]
            out += tab
        return out

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if event.y < len(self._rows) and (index := self._rows[event.y]) is not None:
            self.post_message(self.Chosen(index))


def _names(lines: tuple[EngineLine, ...]) -> list[str]:
    return short_labels([safe(line.label) for line in lines])


def _age(seconds: float) -> str:
    """In five cells: 0 s, 42 s, 161 s, 17 m."""
    return lasted(seconds) if seconds < 119.5 else short(seconds)


def _about(seconds: float | None, w: int) -> str:
    """A quantile whose bucket has no room beside it, in w cells."""
    return DASH if seconds is None else pick([f"~{short(seconds)}", f"~{short(seconds).replace(' ', '')}"], w)


def _n(value: int | None) -> str:
    return DASH if value is None else exact(value)
