"""The table of actions: what can be done, by which key, on which screen. One table for all that speaks of keys.

Bindings, the footer, the help screen, the command palette and docs/keys.md are made from ACTIONS; nothing else knows
a key. `[keys]` of config.toml gives actions other keys: `resolve` refuses what would make another action or the way
out unreachable, and says so by name.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from textual.binding import Binding, BindingType
from textual.keys import KEY_ALIASES, Keys

from kvtop.config import located
from kvtop.errors import Problem, keyless
from kvtop.ui.draw import cells

DASHBOARD, TURN, DIFF, RAW, TAP, HISTORY, HELP, NO_SERVER = (
    "dashboard", "turn", "diff", "raw", "tap", "history", "help", "no-server",
)  # fmt: skip
SCREENS: dict[str, str] = {
    DASHBOARD: "Dashboard",
    TURN: "Turn",
    DIFF: "Diff",
    RAW: "Raw bodies",
    TAP: "Tap",
    HISTORY: "History",
    HELP: "Help",
    NO_SERVER: "No server",
}
"""Every screen that has keys of its own, and its name in help."""

_EVERY = frozenset(SCREENS)
_DASHBOARD = frozenset({DASHBOARD})
_TURN = frozenset({TURN})
_DIFF = frozenset({DIFF})
_HISTORY = frozenset({HISTORY})
_LONG = frozenset({DASHBOARD, TURN, DIFF, RAW, TAP, HELP})


@dataclass(frozen=True)
class Action:
    """Something a user can do."""

    id: str
    """Its name in config.toml, and the id of its bindings."""
    keys: tuple[str, ...]
    """Textual's names, the one shown first."""
    label: str
    """One or two words for the footer."""
    help: str
    """What it does, for help, palette and docs. Neighbours of one text are one line of help."""
    screens: frozenset[str] = _EVERY
    do: str = ""
    """Textual's action string; empty: the id with underscores, on the screen itself."""
    group: str = ""
    """Heading in help."""
    footer: int = 0
    """Place in the queue for footer room: the higher stays longer; 0 is never in the footer."""

    @property
    def action(self) -> str:
        return self.do or self.id.replace("-", "_")


def _panel(number: int, name: str, title: str) -> Action:
    return Action(
        f"panel-{name}",
        (str(number),),
        title,
        f"show or hide {title}",
        frozenset({DASHBOARD}),
        f"panel('{name}')",
        "Panels",
    )


def _cause(n: int) -> Action:
    return Action(f"cause-{n}", (str(n),), f"cause {n}", "to where a cause stands", _DIFF, f"cause({n})", "Diff")


ACTIONS: tuple[Action, ...] = (
    Action("turn", ("enter",), "turn", "open the chosen turn", _DASHBOARD, group="Turns", footer=100),
    Action("diff", ("d",), "diff", "its prompt against the one before it: what differs, why, what it cost",
           _DASHBOARD | _TURN, group="Turns", footer=96),
    Action("up", ("up", "k"), "up", "choose a turn or an agent; scrolls text; in history the quantity", group="Turns"),
    Action("down", ("down", "j"), "down", "choose a turn or an agent; scrolls text; in history the quantity",
           group="Turns"),
    Action("page-up", ("pageup",), "page up", "a screenful up or down", _LONG, group="Turns"),
    Action("page-down", ("pagedown",), "page down", "a screenful up or down", _LONG, group="Turns"),
    Action("first", ("home",), "first", "to the top, to the end", _LONG, group="Turns"),
    Action("last", ("end",), "last", "to the top, to the end", _LONG, group="Turns"),
    Action("next-turn", ("n",), "older", "the next older turn, the next newer one", _TURN, group="Turn",
           footer=80),
    Action("previous-turn", ("N",), "newer", "the next older turn, the next newer one", _TURN, group="Turn",
           footer=70),
    Action("copy-fix", ("c",), "copy fix", "what to do about it, to the clipboard", _TURN, group="Turn", footer=72),
    Action("raw", ("v",), "bodies", "request and answer, JSON indented", _TURN, group="Turn", footer=75),
    Action("other-body", ("v", "tab"), "other", "from the request to the answer, and back", frozenset({RAW}),
           group="Turn", footer=80),
    Action("next-change", ("n",), "next change", "the next difference", _DIFF, group="Diff", footer=90),
    Action("side", ("s",), "side or unified", "both prompts beside each other, or in one text", _DIFF, group="Diff",
           footer=85),
    Action("tokens", ("x",), "text or tokens", "text, or each token told apart", _DIFF, group="Diff", footer=80),
    Action("previous-change", ("N",), "previous", "the difference before", _DIFF, group="Diff",
           footer=70),
    *(_cause(n) for n in range(1, 10)),
    Action("fold", ("enter",), "unfold", "open the folds in view; where there is none, fold all again", _DIFF,
           group="Diff", footer=62),
    Action("start-tap", ("s", "enter"), "start", "start a tap to the chosen server", frozenset({TAP}), group="Tap",
           footer=90),
    Action("stop-tap", ("x",), "stop", "end the tap; asks once", frozenset({TAP}), group="Tap", footer=80),
    Action("shorter", ("left",), "shorter", "a shorter, a longer span of time", _HISTORY, group="History"),
    Action("longer", ("right",), "longer", "a shorter, a longer span of time", _HISTORY, group="History"),
    Action("give-url", ("u",), "give a URL", "watch the server at a URL", frozenset({NO_SERVER}), group="No server",
           footer=90),
    Action("other-url", ("u",), "other URL", "another URL for one that you gave and that never answered", _DASHBOARD,
           group="Everywhere", footer=98),
    Action("demo", ("D",), "demo", "look at a simulated box", frozenset({NO_SERVER}), group="No server", footer=80),
    Action("tap", ("t",), "tap", "the capture tap: what goes through it, start, stop, how to point an agent at it",
           _DASHBOARD, group="Turns", footer=57),
    Action("window", ("w",), "window", "the next window: 10 s, 1 min, 5 min, 1 hour, since start", _DASHBOARD,
           group="Panels", footer=90),
    Action("history", ("h",), "history", "what was: up to 24 hours, full screen", _DASHBOARD, group="Panels",
           footer=50),
    Action("filter", ("slash",), "filter", "show only some turns: slow new>10k cached<50", _DASHBOARD, group="Turns",
           footer=40),
    Action("freeze", ("space",), "freeze",
           "hold the numbers still; reading goes on; another window, server or engine ends it", _DASHBOARD,
           group="Panels", footer=30),
    Action("export", ("e",), "export", "write the screen as SVG and its numbers as JSON", do="app.export",
           group="Everywhere", footer=20),
    _panel(1, "cache", "Cache"),
    _panel(2, "offload", "Offload"),
    _panel(3, "queue", "Queue"),
    _panel(4, "ttft", "TTFT"),
    _panel(5, "gpu", "GPU"),
    _panel(6, "turns", "Turns"),
    Action("next-server", ("tab",), "server", "the next server or engine", _DASHBOARD, group="Panels", footer=55),
    Action("theme", ("T",), "theme", "the next theme", do="app.next_theme", group="Everywhere"),
    Action("palette", ("ctrl+p",), "palette", "everything by name", do="app.command_palette", group="Everywhere"),
    Action("back", ("escape", "backspace"), "back", "go back, close", do="app.back", group="Everywhere"),
    Action("help", ("question_mark",), "help", "keys, signs and what the figures mean", do="app.help",
           group="Everywhere", footer=95),
    Action("quit", ("q", "ctrl+c"), "quit", "leave; vLLM goes on", do="app.quit", group="Everywhere", footer=60),
)  # fmt: skip
"""In the order of footer and help."""

PANELS = tuple(a.id for a in ACTIONS if a.id.startswith("panel-"))
CAUSES = tuple(a.id for a in ACTIONS if a.id.startswith("cause-"))
OF_THE_DIFF = frozenset(a.id for a in ACTIONS if a.group == "Diff")

ALWAYS: dict[str, tuple[str, ...]] = {"back": ("escape",), "quit": ("ctrl+c",)}
"""Keys that stay with their action whatever config.toml says: there is always a way back and a way out."""

_RESERVED = {
    "escape": "always goes back",
    "ctrl+c": "always quits",
    "ctrl+q": "always quits",
    "ctrl+z": "always stops kvtop till the shell's fg",
    **{str(n): "belongs to the panels and causes" for n in range(10)},
}
_MODIFIERS = {"ctrl", "alt", "shift", "super", "hyper", "meta"}
_SAME = {
    **{alias: key for key, aliases in KEY_ALIASES.items() for alias in aliases if key != "ctrl+at"},
    "ctrl+left_square_bracket": "escape",
    "return": "enter",
}
"""What a terminal cannot tell from another key: ctrl+i is tab, ctrl+m is enter."""
_NAMED = {k.value for k in Keys if "+" not in k.value and not k.value.startswith("<")}
_SHOWN = {
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "escape": "esc",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "backspace": "bksp",
}


def key_name(text: str) -> str | None:
    """Textual's name of a key as a user writes it (`?`, `ctrl+w`, `f5`, `question_mark`); None: no such key."""
    text = text.strip()
    if len(text) > 40:
        return None
    if text == "+" or text.endswith("++"):
        text = text[:-1] + "plus"
    *modifiers, base = text.split("+")
    modifiers = [m.lower() for m in modifiers]
    if len(set(modifiers)) < len(modifiers) or not _MODIFIERS.issuperset(modifiers):
        return None
    if len(base) == 1 and not base.isspace():
        if not base.isprintable():
            return None
        if modifiers == ["shift"] and base.isalpha():
            return None  # a terminal sends the capital letter instead
        name = _key_of(base)
        if modifiers and name.isalpha() and len(name) == 1:
            name = name.lower()
    else:
        name = base.lower()
        if name not in _NAMED and _char(name) is None:
            return None
    order = [m for m in ("alt", "ctrl", "shift", "super", "hyper", "meta") if m in modifiers]
    full = "+".join([*order, name])
    return _SAME.get(full, full)


def _char(name: str) -> str | None:
    """The character that a long key name such as `question_mark` stands for."""
    plain = {"slash": "/", "backslash": "\\", "at": "@", "minus": "-", "plus": "+", "underscore": "_"}
    if name in plain:
        return plain[name]
    try:
        found = unicodedata.lookup(name.replace("_", " "))
    except KeyError:
        return None
    return found if len(found) == 1 and found.isprintable() and _key_of(found) == name else None


def _key_of(char: str) -> str:
    """Textual's name of a printable character."""
    return "comma" if char == "," else next(iter(Binding.make_bindings([Binding(char, "")]))).key


def key_display(key: str) -> str:
    """A key as it is shown: `?`, `esc`, `↑`, `ctrl+w`."""
    *modifiers, base = key.split("+")
    shown = _SHOWN.get(base) or (base if base in _NAMED else None) or _char(base) or base
    return "+".join([*modifiers, shown])


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
                items.append(Footer(key_display(a.keys[0]), a.label, a.footer))
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
