"""Everything that check says of one profile: each finding with its fix, what could not be told, sizes in every unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.binding import BindingType

from kvtop.live.profiles import Profiles
from kvtop.model.view import Sentence
from kvtop.model.words import exact, gib
from kvtop.profiles.check.sizes import Size
from kvtop.ui import keys
from kvtop.ui.draw import Line, safe, wrap
from kvtop.ui.headline import headline
from kvtop.ui.keys import Keymap
from kvtop.ui.profiles import findings, words
from kvtop.ui.screens.page import Page
from kvtop.ui.widgets.panel import rule


class CheckScreen(Page):
    """Opening it checks again, and asks vLLM for its flags where they are not known."""

    ON = keys.CHECK
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings(keys.CHECK)]

    def __init__(self, keymap: Keymap, profiles: Profiles, name: str, now: Callable[[], float]) -> None:
        super().__init__(keymap, now)
        self.profiles, self.name_of = profiles, name
        self._drawn_of: object = None

    def on_mount(self) -> None:
        self.profiles.choose(self.name_of)
        self.profiles.check_again()
        super().on_mount()
        self.set_interval(0.25, self._look_again)

    def _look_again(self) -> None:
        row = self.profiles.view.row(self.name_of)
        made_of = (self.profiles.checked, self._is_gone(), row and (row.state, row.changed))
        if made_of != self._drawn_of:
            self._drawn_of = made_of
            self.redraw()

    def _is_gone(self) -> bool:
        view = self.profiles.view
        return view.at is not None and view.row(self.name_of) is None

    def head(self, w: int) -> list[Line]:
        checked, name = self.profiles.checked, safe(self.name_of)
        if self._is_gone():
            return headline(Sentence("CHECK", "bad", f"{name}:", "its file is gone."), [], w)
        if checked is None or checked.profile != self.name_of or checked.working:
            asks = checked is not None and checked.profile == self.name_of and checked.asks_vllm
            rest = "vLLM is asked for its flags, which takes it a minute or two" if asks else ""
            return headline(Sentence("CHECK", "dim", f"{name} is being looked at{';' if rest else ''}", rest), [], w)
        if checked.report is None:
            return headline(Sentence("CHECK", "bad", f"{name}:", safe(checked.error)), [], w)
        tone = "bad" if not checked.report.ok else "warn" if checked.report.asks() else "ok"
        row = self.profiles.view.row(self.name_of)
        said = words.summary(row, checked.report)
        if checked.restart and row is not None:
            said = words.restart_note(row, checked.report.counts)[0]
        return headline(Sentence("CHECK", tone, f"{name}:", said), [], w)

    def lines(self, w: int, h: int) -> list[Line]:
        checked = self.profiles.checked
        report = checked.report if checked is not None and checked.profile == self.name_of else None
        if report is None:
            return []
        out = [rule("Findings", w)]
        for one in report.findings:
            out += findings.finding_rows(one, w)
        if not report.findings:
            out.append([(" nothing stands in the way", "d")])
        out += [rule("Memory", w), findings.memory_row(report.memory, w)]
        if report.sizes:
            out.append(rule("Sizes", w))
            out += [[(" ", "t"), *line] for size in report.sizes for line in wrap(_size(size), w - 2, 2)]
        if report.silent:
            out.append(rule("What could not be told", w, [("and for want of what", "d")]))
            for one_silent in report.silent:
                said: Line = [("– ", "d"), (one_silent.rule, "t"), (f"  lacks {safe(one_silent.lacks)}", "d")]
                out += [[(" ", "t"), *line] for line in wrap(said, w - 2, 2)]
        return out


def _size(size: Size) -> Line:
    """--kv-offloading-size: 64.0 GiB in all, 32.0 GiB a GPU, about 640,000 tokens."""
    each = f", {gib(size.per_gpu_bytes)} a GPU" if size.per_gpu_bytes != size.total_bytes else ""
    tokens = "" if size.tokens is None else f", about {exact(size.tokens)} tokens"
    return [(safe(size.flag), "t"), (f": {gib(size.total_bytes)} in all{each}{tokens}", "d")]
