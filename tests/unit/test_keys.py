"""One table of actions; whatever a user writes into [keys], every action has a key and the way out stays."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.binding import Binding

from kvtop.ui import keys
from kvtop.ui.keys import ACTIONS, ALWAYS, DASHBOARD, SCREENS, Keymap, key_display, key_name, resolve

IDS = [a.id for a in ACTIONS]
KEYS = [k for a in ACTIONS for k in a.keys] + ["?", "/", "x", "X", "f1", "ctrl+w", "ctrl+i", "ctrl+m", "ctrl+[", "7"]


def check(keymap: Keymap) -> None:
    for screen in SCREENS:
        for a, b in combinations(keymap.on(screen), 2):
            assert not set(a.keys) & set(b.keys), (screen, a.id, b.id)
    for a in keymap.actions:
        assert a.keys
    for id, always in ALWAYS.items():
        action = keymap.action(id)
        assert set(always) <= set(action.keys)
        assert action.screens == set(SCREENS)


def test_the_table_itself_is_sound() -> None:
    check(Keymap())
    assert len(set(IDS)) == len(IDS)
    for a in ACTIONS:
        assert a.help
        assert a.label
        for key in a.keys:
            assert key_name(key) == key, "keys stand in Textual's spelling"


entry = st.one_of(
    st.sampled_from(KEYS),
    st.lists(st.sampled_from(KEYS), max_size=4).map(", ".join),
    st.text(max_size=12),
    st.characters(),
)


@settings(max_examples=400, derandomize=True, deadline=None)
@given(st.dictionaries(st.one_of(st.sampled_from(IDS), st.text(max_size=8)), entry, max_size=12))
def test_any_remap_leaves_a_usable_keymap(remap: dict[str, str]) -> None:
    keymap, problems = resolve(remap)
    check(keymap)
    assert [a.id for a in keymap.actions] == IDS
    for line in problems:
        assert line.isprintable(), line
    accepted = keymap.overrides()
    assert len(problems) + len(accepted) <= len(remap)
    assert set(accepted) <= set(remap)
    for id, text in accepted.items():
        assert text, id


@pytest.mark.parametrize(
    ("written", "name", "shown"),
    [
        ("?", "question_mark", "?"),
        ("/", "slash", "/"),
        ("question_mark", "question_mark", "?"),
        ("W", "W", "W"),
        ("w", "w", "w"),
        ("ctrl+w", "ctrl+w", "ctrl+w"),
        ("Ctrl+W", "ctrl+w", "ctrl+w"),
        ("ctrl+shift+left", "ctrl+shift+left", "ctrl+shift+←"),
        ("+", "plus", "+"),
        ("ctrl++", "ctrl+plus", "ctrl++"),
        ("comma", "comma", ","),
        ("PageUp", "pageup", "pgup"),
        ("é", "é", "é"),
        ("ctrl+i", "tab", "tab"),
        ("ctrl+m", "enter", "enter"),
        ("ctrl+[", "escape", "esc"),
        ("f12", "f12", "f12"),
    ],
)
def test_key_names(written: str, name: str, shown: str) -> None:
    assert key_name(written) == name
    assert key_display(name) == shown


@pytest.mark.parametrize(
    "written", ["", " ", "foo", "shift+w", "hyper", "ctrl+ctrl+w", "meh+x", "\x1b", "newline", "ab"]
)
def test_what_is_no_key(written: str) -> None:
    assert key_name(written) is None


def test_two_actions_can_change_places() -> None:
    keymap, problems = resolve({"window": "h", "history": "w"})
    assert not problems
    assert keymap.shown("window") == "h"
    assert keymap.shown("history") == "w"


@pytest.mark.parametrize(
    ("remap", "line"),
    [
        ({"wndow": "x"}, "[keys] wndow: no such action (docs/keys.md lists them)"),
        ({"window": "foo"}, "[keys] window: 'foo' is no key; window keeps w"),
        ({"window": ""}, "[keys] window: no key given; window keeps w"),
        ({"window": "h"}, "[keys] window: 'h' is history already; window keeps w"),
        ({"window": "x, T"}, "[keys] window: 'T' is theme already; window keeps w"),
        ({"window": "escape"}, "[keys] window: 'esc' always goes back; window keeps w"),
        ({"export": "ctrl+c"}, "[keys] export: 'ctrl+c' always quits; export keeps e"),
        ({"window": "8"}, "[keys] window: '8' belongs to the panels and causes; window keeps w"),
        ({"quit": "ctrl+c"}, "[keys] quit: ctrl+c is its key in any case; quit keeps q, ctrl+c"),
        ({"freeze": "x", "window": "x"}, "[keys] window: 'x' is freeze already; window keeps w"),
    ],
)
def test_what_is_refused_is_said_by_name(remap: dict[str, str], line: str) -> None:
    _, problems = resolve(remap)
    assert problems == (line,)


def test_a_refusal_can_take_others_with_it() -> None:
    """history cannot have w, since window's own wish was refused; then it keeps h."""
    keymap, problems = resolve({"history": "w", "window": "q"})
    assert keymap.shown("window") == "w"
    assert keymap.shown("history") == "h"
    assert len(problems) == 2


def test_the_same_key_may_do_other_things_on_another_screen() -> None:
    keymap, problems = resolve({"next-turn": "w"})
    assert not problems
    assert keymap.shown("next-turn") == "w"


def test_panels_may_change_places() -> None:
    keymap, problems = resolve({"panel-cache": "2", "panel-offload": "1"})
    assert not problems
    assert keymap.panels() == "2 1 3 4 5 6"


def test_the_footer_gives_way_in_order() -> None:
    keymap = Keymap()
    seen: list[list[str]] = []
    for room in range(160, 0, -1):
        items = keymap.footer(DASHBOARD, room)
        labels = [i.label for i in items]
        assert sum(i.cells for i in items) - 2 <= room or not items
        if not seen or labels != seen[-1]:
            seen.append(labels)
    full = seen[0]
    assert full == [
        "turn", "diff", "replay", "profiles", "other URL", "tap", "window", "history", "filter", "freeze", "export",
        "panels", "server", "help", "quit",
    ]  # fmt: skip
    gone = [next(iter(set(a) - set(b))) for a, b in pairwise(seen)]
    assert gone == [
        "panels",
        "export",
        "freeze",
        "filter",
        "history",
        "server",
        "tap",
        "replay",
        "quit",
        "profiles",
        "window",
        "help",
        "diff",
        "other URL",
        "turn",
    ]


def bindings(screen: str | None) -> list[Binding]:
    return [b for b in keys.bindings(screen) if isinstance(b, Binding)]


def test_bindings_hold_the_table() -> None:
    for screen in SCREENS:
        assert {b.id for b in bindings(screen)} == {
            a.id for a in ACTIONS if screen in a.screens and not a.do.startswith("app.")
        }
    assert {b.id for b in bindings(None)} - {None} == {"export", "theme", "palette", "back", "help", "quit"}
    assert [(b.key, b.priority) for b in bindings(None) if b.id is None] == [("escape", False), ("ctrl+c", True)]
