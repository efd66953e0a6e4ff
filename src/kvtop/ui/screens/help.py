"""Help: the keys of every screen, the signs, and what each figure means. Made from the key table and the legend."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby

from kvtop import __version__
from kvtop.ui import keys, legend
from kvtop.ui.draw import Line, fit, wrap
from kvtop.ui.keys import Action, Keymap, key_display
from kvtop.ui.screens.page import Page
from kvtop.ui.widgets.panel import rule

GAP = 3
"""Cells between two columns."""
_COLUMN = 44
"""A column is at least so wide."""
_OF_PROFILES = (keys.PROFILES, keys.CHECK, keys.LOG, keys.COMMAND)
"""Called from these, help explains their marks and figures as well, before all others."""


class HelpScreen(Page):
    """What help says, in as many columns as fit; it scrolls where it is longer than the screen."""

    ON = keys.HELP
    BINDINGS = keys.bindings(keys.HELP)

    def __init__(self, keymap: Keymap, came_from: str = keys.DASHBOARD, now: Callable[[], float] = time.time) -> None:
        """`came_from` is the screen whose keys stand first."""
        super().__init__(keymap, now)
        self.came_from = came_from

    def above(self, first: int, last: int, total: int, w: int) -> Line:
        version = f"kvtop {__version__}"
        where = f"{first}–{last} of {total} lines" if last - first + 1 < total else version
        return rule("Help", w, [(where, "d")])

    def lines(self, w: int, h: int) -> list[Line]:
        return page(self.keymap, self.came_from, w)


def page(keymap: Keymap, came_from: str, w: int) -> list[Line]:
    """All lines of help at that width."""
    room = max(1, w - 1)
    n = max(1, min(4, (room + GAP) // (_COLUMN + GAP)))
    each = (room - GAP * (n - 1)) // n
    filter_key = keymap.shown("filter")
    profiles = [
        _signs("Marks and states of profiles", legend.MARKS, each),
        *(_meanings(f"Figures: {panel}", figures, each) for panel, figures in legend.OF_PROFILES),
    ]
    keys_ = _keys(keymap, came_from, each)
    blocks = [
        *keys_[:1],
        *(profiles if came_from in _OF_PROFILES else ()),
        *keys_[1:],
        _meanings(f"Filter ({filter_key})", legend.FILTER, each),
        _meanings("The word on top", legend.CHIPS, each),
        _signs("Signs and colours", legend.SIGNS, each),
        *(_meanings(f"Figures: {panel}", figures, each) for panel, figures in legend.FIGURES),
        _about(each),
    ]
    return [[(" ", "t"), *row] for row in _flow(blocks, n, each)]


def _entry(name: Line, name_cells: int, text: str, w: int) -> list[Line]:
    """A name in its field and its meaning beside it; under it where the field is too wide for this screen."""
    if name_cells + 12 > w:
        return [fit(name, w), *([(" " * 2, "t"), *row] for row in wrap([(text, "d")], w - 2))]
    rows = wrap([(text, "d")], w - name_cells)
    return [[*fit(name if i == 0 else [], name_cells), *row] for i, row in enumerate(rows)]


def _keys(keymap: Keymap, came_from: str, w: int) -> list[list[Line]]:
    """A block a group of actions; the groups of the screen that help was called from stand first."""
    groups: dict[str, list[Action]] = {}
    own = [a for a in keymap.actions if came_from in a.screens]
    for a in [*own, *(a for a in keymap.actions if a not in own)]:
        groups.setdefault(a.group, []).append(a)
    blocks: list[list[Line]] = []
    if came_from != keys.DASHBOARD:  # which shares most of what it has, and has its order
        alone = {a.group for a in own if a.screens == {came_from}}
        groups = dict(sorted(groups.items(), key=lambda item: item[0] not in alone))
    for group, actions in groups.items():
        block: list[Line] = [[(group, "t bold")]]
        if group == "Panels":
            block += _entry([(keymap.panels(), "t")], 13, "show or hide a panel", w)
        if group == "Diff":
            block += _entry([(keymap.causes(), "t")], 13, "to where a cause stands, by its number", w)
        plain = [a for a in actions if a.id not in (*keys.PANELS, *keys.CAUSES)]
        for text, same in groupby(plain, key=lambda a: a.help):
            names = "  ".join(key_display(k) for a in same for k in a.keys)
            block += _entry([(names, "t")], 13, text, w)
        blocks.append(block)
    return blocks


def _signs(title: str, signs: Sequence[tuple[Line, str]], w: int) -> list[Line]:
    block: list[Line] = [[(title, "t bold")]]
    for sign, meaning in signs:
        block += _entry(sign, 23, meaning, w)
    return block


def _meanings(title: str, entries: Sequence[tuple[str, str]], w: int) -> list[Line]:
    """Names with what they mean."""
    block: list[Line] = [[(title, "t bold")]]
    field = max(len(name) for name, _ in entries) + 2
    for name, meaning in entries:
        block += _entry([(name, "t")], field, meaning, w)
    return block


def _about(w: int) -> list[Line]:
    text = (
        "kvtop reads /metrics, NVML and /proc; it changes nothing and sends nothing but its polls. "
        "Keys and themes are yours: docs/keys.md, docs/themes.md."
    )
    return [[(f"kvtop {__version__}", "t bold")], *wrap([(text, "d")], w)]


def _flow(blocks: list[list[Line]], n: int, w: int) -> list[Line]:
    """Blocks in reading order over n columns, as short as that goes; an empty row stands between two blocks."""
    if n == 1:
        return _joined(blocks)
    height = max(len(b) for b in blocks)
    while len(columns := _pack(blocks, height)) > n:
        height += 1
    joined = [_joined(c) for c in columns]
    rows: list[Line] = []
    for y in range(max(len(c) for c in joined)):
        row: Line = []
        for i, column in enumerate(joined):
            cell = column[y] if y < len(column) else []
            last = i == len(joined) - 1
            row += cell if last else [*fit(cell, w), (" " * GAP, "t")]
        rows.append(row)
    return rows


def _pack(blocks: list[list[Line]], height: int) -> list[list[list[Line]]]:
    columns: list[list[list[Line]]] = [[]]
    used = 0
    for block in blocks:
        if columns[-1] and used + 1 + len(block) > height:
            columns.append([])
            used = 0
        used += len(block) + (1 if columns[-1] else 0)
        columns[-1].append(block)
    return columns


def _joined(blocks: list[list[Line]]) -> list[Line]:
    rows: list[Line] = []
    for block in blocks:
        rows += [[], *block] if rows else block
    return rows
