"""Keys as they are: the actions of `actions.py` under the keys that a user gave them.

Bindings, the footer, the help screen, the command palette and docs/keys.md are made from ACTIONS; nothing else knows
a key. `[keys]` of config.toml gives actions other keys: `resolve` refuses what would make another action or the way
out unreachable, and says so by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from textual.binding import Binding, BindingType

from kvtop.config import located
from kvtop.errors import Problem, keyless
from kvtop.ui.actions import (
    ACTIONS,
    ALWAYS,
    CAUSES,
    CHECK,
    COMMAND,
    DASHBOARD,
    DIFF,
    HELP,
    HISTORY,
    LOG,
    NO_SERVER,
    OF_THE_DIFF,
    PANELS,
    PROFILES,
    RAW,
    REPLAY,
    SCREENS,
    TAP,
    TURN,
    Action,
)  # fmt: skip
from kvtop.ui.draw import cells
from kvtop.ui.key_names import key_display, key_name

__all__ = [
    "ACTIONS", "ALWAYS", "CAUSES", "CHECK", "COMMAND", "DASHBOARD", "DIFF", "HELP", "HISTORY", "LOG", "NO_SERVER",
    "OF_THE_DIFF", "PANELS", "PROFILES", "RAW", "REPLAY", "SCREENS", "TAP", "TURN", "Action", "Footer", "Keymap",
    "bindings", "key_display", "key_name", "problems", "resolve",
]  # fmt: skip

_RESERVED = {
    "escape": "always goes back",
    "ctrl+c": "always quits",
    "ctrl+q": "always quits",
    "ctrl+z": "always stops kvtop till the shell's fg",
    **{str(n): "belongs to the panels and causes" for n in range(10)},
}


@dataclass(frozen=True)
class Footer:
    """A key of the footer with its label."""

    keys: str
    label: str
    rank: int

    @property
    def cells(self) -> int:
        """With the gap of two behind it."""
        return cells(self.keys) + 1 + cells(self.label) + 2


class Keymap:
    """The actions with the keys that they really have."""

    def __init__(self, actions: Iterable[Action] = ACTIONS) -> None:
        self.actions = tuple(actions)
        self._by_id = {a.id: a for a in self.actions}

    def action(self, id: str) -> Action:
        """The action of that id. KeyError where there is none."""
        return self._by_id[id]

    def shown(self, id: str) -> str:
        """The key of an action as words may name it: the first one."""
        return key_display(self._by_id[id].keys[0])

    def on(self, screen: str) -> tuple[Action, ...]:
        """The actions of a screen, in table order."""
        return tuple(a for a in self.actions if screen in a.screens)

    def overrides(self) -> dict[str, str]:
        """For `App.set_keymap`: the actions whose keys differ from the table's."""
        usual = {a.id: a.keys for a in ACTIONS}
        return {a.id: ",".join(_own(a)) for a in self.actions if a.keys != usual.get(a.id)}

    def footer(self, screen: str, room: int, hide: Collection[str] = ()) -> tuple[Footer, ...]:
        """The keys that fit into `room` cells, in table order; those of low rank give way first."""
        items = self._footer_items(screen, hide)
        keep: list[int] = []
        used = 0
        for i in sorted(range(len(items)), key=lambda i: -items[i].rank):
            if used + items[i].cells - 2 > room:
                break
            keep.append(i)
            used += items[i].cells
        return tuple(items[i] for i in sorted(keep))

    def _footer_items(self, screen: str, hide: Collection[str]) -> list[Footer]:
        items: list[Footer] = []
        for a in self.on(screen):
            if a.id in hide:
                continue
            if a.id == PANELS[0]:
                items.append(Footer(self.panels(), "panels", 10))
            if a.id == CAUSES[0]:
                items.append(Footer(self.causes(hide), "go to cause", 65))
            if screen == HISTORY and a.id in ("up", "shorter"):
                pair = ("up", "down", "quantity") if a.id == "up" else ("shorter", "longer", "span")
                items.append(Footer(f"{self.shown(pair[0])} {self.shown(pair[1])}", pair[2], 80))
            if a.footer:
                items.append(Footer(key_display(a.keys[0]), a.label, dict(a.ranks).get(screen, a.footer)))
            elif a.id == "back" and screen not in (DASHBOARD, NO_SERVER):
                items.append(Footer(key_display(a.keys[0]), a.label, 97))
        return items

    def causes(self, hide: Collection[str] = ()) -> str:
        """The keys of causes in short: `1-9` where they are the usual ones."""
        keys = [self.shown(i) for i in CAUSES if i not in hide]
        return f"1-{len(keys)}" if len(keys) > 1 and keys == list("123456789"[: len(keys)]) else " ".join(keys)

    def panels(self) -> str:
        """The panels' keys in short: `1-6` where they are the usual ones."""
        keys = [self.shown(i) for i in PANELS]
        return "1-6" if keys == list("123456") else " ".join(keys)


def bindings(screen: str | None) -> list[BindingType]:
    """The bindings of a screen's own actions, or with None those of the app, which hold on every screen.

    They carry the table's keys; `App.set_keymap(keymap.overrides())` puts the user's in their place.
    """
    out: list[BindingType] = []
    for a in ACTIONS:
        of_app = a.do.startswith("app.")
        if of_app != (screen is None) or (screen is not None and screen not in a.screens):
            continue
        out.append(Binding(",".join(_own(a)), a.action, a.label, show=False, id=a.id))
        # without an id, so that no keymap moves them; with priority, so that no input swallows the way out
        always = ALWAYS.get(a.id, ())
        out += [Binding(k, a.action, a.label, show=False, priority=k.startswith("ctrl+")) for k in always]
    return out


def _own(a: Action) -> list[str]:
    """The keys of an action that a keymap may move."""
    return [k for k in a.keys if k not in ALWAYS.get(a.id, ())]


def problems(refused: Iterable[str], file: Path | None = None) -> tuple[Problem, ...]:
    """What `resolve` refused, as problems of that file."""
    fix = "choose another: docs/keys.md lists actions and keys"
    named = ((line, line.removeprefix("[keys] ").partition(":")[0]) for line in refused)
    return located(Problem("keys", line, fix, file, place=("keys", id, 0)) for line, id in named)


def resolve(remap: Mapping[str, str]) -> tuple[Keymap, tuple[str, ...]]:
    """The keymap with the user's `[keys]`, and one line for each entry that was refused. Never raises."""
    refused: list[str] = []
    wanted: dict[str, tuple[str, ...]] = {}
    usual = {a.id: a for a in ACTIONS}
    for id, text in remap.items():
        try:
            wanted[id] = _wish(id, text, usual)
        except ValueError as error:
            refused.append(f"[keys] {keyless(id, 40)}: {error}")
    while clash := _clash(wanted):
        loser, key, other = clash
        names = f"{key_display(key)!r} is {other} already"
        refused.append(f"[keys] {loser}: {names}; {loser} keeps {_listed(usual[loser].keys)}")
        del wanted[loser]
    return Keymap(_with(wanted)), tuple(refused)


def _wish(id: str, text: str, usual: Mapping[str, Action]) -> tuple[str, ...]:
    if id not in usual:
        raise ValueError("no such action (docs/keys.md lists them)")
    keeps = f"{id} keeps {_listed(usual[id].keys)}"
    parts = [","] if text.strip() == "," else [p for p in text.split(",") if p.strip()]
    if not parts:
        raise ValueError(f"no key given; {keeps}")
    keys: list[str] = []
    for part in parts:
        key = key_name(part)
        if key is None:
            raise ValueError(f"'{keyless(part, 40)}' is no key; {keeps}")
        why = _RESERVED.get(key)
        if why and key not in ALWAYS.get(id, ()) and not (key.isdigit() and id in (*PANELS, *CAUSES)):
            raise ValueError(f"{key_display(key)!r} {why}; {keeps}")
        if key not in keys:
            keys.append(key)
    always = ALWAYS.get(id, ())
    if not set(keys) - set(always):
        raise ValueError(f"{_listed(keys)} is its key in any case; {keeps}")
    return tuple(keys + [k for k in always if k not in keys])


def _with(wanted: Mapping[str, tuple[str, ...]]) -> list[Action]:
    return [replace(a, keys=wanted[a.id]) if a.id in wanted else a for a in ACTIONS]


def _clash(wanted: Mapping[str, tuple[str, ...]]) -> tuple[str, str, str] | None:
    """(The action that has to give way, the key, who has it), of the first clash; the later entry gives way."""
    order = list(wanted)
    for a, b in combinations(_with(wanted), 2):
        both = set(a.keys) & set(b.keys)
        if both and a.screens & b.screens:
            loser, other = max((a, b), (b, a), key=lambda pair: order.index(pair[0].id) if pair[0].id in wanted else -1)
            return loser.id, min(both), other.id
    return None


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(key_display(k) for k in keys)
