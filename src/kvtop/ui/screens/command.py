"""What a profile runs, to the letter: its environment and its command line, secrets by where they are."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from textual.binding import BindingType

from kvtop.model.starting import LIVE
from kvtop.model.view import Sentence
from kvtop.profiles.launch import Launch
from kvtop.profiles.secret import masked_value, masked_words
from kvtop.profiles.standing import Standing
from kvtop.ui import keys
from kvtop.ui.draw import Line, cells, safe
from kvtop.ui.headline import headline
from kvtop.ui.keys import Keymap
from kvtop.ui.screens.page import Page
from kvtop.ui.widgets.panel import rule


class CommandScreen(Page):
    """As it would be run now."""

    ON = keys.COMMAND
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings(keys.COMMAND)]

    def __init__(self, keymap: Keymap, row: Standing, now: Callable[[], float]) -> None:
        super().__init__(keymap, now)
        self.standing = row

    def head(self, w: int) -> list[Line]:
        row = self.standing
        said = f"kvtop profile command {safe(row.name)} prints it for a shell."
        if self._old_command:
            said = "What runs was started before its profile was changed; a restart takes this over."
        return headline(Sentence("COMMAND", "dim", f"{safe(row.name)} by {safe(row.known.runner)}.", said), [], w)

    @property
    def _old_command(self) -> list[str]:
        """Of its server, where a restart would run something else."""
        row = self.standing
        return row.record.argv if row.record is not None and row.state in LIVE and row.changed else []

    def lines(self, w: int, h: int) -> list[Line]:
        run = self.standing.known.launch
        if run is None or not run.argv:
            return [[(" nothing is run: kvtop only watches it", "d")]]
        old = self._old_command
        note = ", ".join(
            part for part in ("as a restart runs it" if old else "", f"in {safe(run.cwd)}" if run.cwd else "") if part
        )
        out = [rule("Command", w, [(note, "d")] if note else None), *_command(masked_words(run.argv), w)]
        variables = list(environment(run))
        if variables:
            out.append(rule("Environment", w, [("on top of kvtop's own", "d")]))
            for text in variables:
                out += _rows(text, w, 0)
        if old:
            out += [rule("Runs now", w, [("as it was started", "d")]), *_command(old, w)]
        return out


def _command(argv: Sequence[str], w: int) -> list[Line]:
    out: list[Line] = []
    for i, words in enumerate(grouped(argv)):
        out += _rows(safe(" ".join(shlex.quote(word) for word in words)), w, 0 if not i else 4)
    return out


def grouped(words: Sequence[str]) -> Iterator[list[str]]:
    """The words in front of the flags, then a flag with its values each."""
    group: list[str] = []
    for word in words:
        if word.startswith("--") and group:
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def environment(run: Launch) -> Iterator[str]:
    """`NAME=value`, one a variable, in its order; secrets are named by where they are read."""
    for name, value in run.set.items():
        yield f"{safe(name)}={safe(str(masked_value(name, value)))}"
    for name, secret in run.secrets.items():
        where = f"the first line of {secret.where}" if secret.kind == "file" else f"${secret.where} of kvtop"
        yield f"{safe(name)} is read from {safe(where)}"
    for name in run.unset:
        yield f"{safe(name)} is unset"


def _rows(text: str, w: int, indent: int) -> list[Line]:
    """In rows; what a row does not hold goes on in the next one, and nothing of it is left out."""
    out: list[Line] = []
    room, row, used = max(4, w - 2 - indent), "", 0
    for char in text:
        n = cells(char)
        if used + n > room:
            out.append([(" " * (1 + indent), "t"), (row, "t")])
            row, used = "", 0
        row += char
        used += n
    return [*out, [(" " * (1 + indent), "t"), (row, "t")]]
