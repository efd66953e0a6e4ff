"""Help: made from the key table, scrolls where it must, fits where it can."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from textual import events

from kvtop import __version__
from kvtop.live.profile_view import Attached
from kvtop.model.view import WINDOWS
from kvtop.profiles.running.progress import WORDS
from kvtop.profiles.running.record import State
from kvtop.profiles.standing import Standing
from kvtop.ui import keys, legend
from kvtop.ui.draw import width
from kvtop.ui.keys import ACTIONS, Keymap, resolve
from kvtop.ui.numbers import flow
from kvtop.ui.profiles import words as profile_words
from kvtop.ui.screens.help import HelpScreen, page

from .page_app import NOON, PageApp, shown
from .profile_box import ATTACHED, BROKEN, NOW, known


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("w", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("came_from", [keys.DASHBOARD, keys.PROFILES])
def test_everything_is_said_at_every_width(w: int, came_from: str) -> None:
    lines = page(Keymap(), came_from, w)
    assert max(width(line) for line in lines) <= w
    said = ["".join(text for text, _ in line) for line in lines]
    joined = "\n".join(said)
    for a in ACTIONS:
        if a.id not in (*keys.PANELS, *keys.CAUSES):
            assert a.help.split()[0] in joined
            assert keys.key_display(a.keys[0]) in joined
    of_profiles = came_from == keys.PROFILES
    for panel, figures in (*legend.FIGURES, *(legend.OF_PROFILES if of_profiles else ())):
        assert f"Figures: {panel}" in joined
        for name, _ in figures:
            assert name in joined
    for name, _ in (*legend.CHIPS, *legend.FILTER):
        assert name in joined
    for _, meaning in (*legend.SIGNS, *(legend.MARKS if of_profiles else ())):
        assert meaning.split()[0] in joined
    assert "? cannot tell" in joined
    assert __version__ in joined
    assert "…" not in joined


def test_meanings_are_whole_in_one_column() -> None:
    said = words(" ".join("".join(t for t, _ in line) for line in page(Keymap(), keys.PROFILES, 80)))
    for _, figures in (*legend.FIGURES, *legend.OF_PROFILES):
        for _, meaning in figures:
            assert words(meaning) in said
    for a in ACTIONS:
        if a.id not in keys.PANELS:
            assert words(a.help) in said


def test_the_keys_of_the_screen_it_came_from_stand_first() -> None:
    def first(came_from: str) -> str:
        return next("".join(t for t, _ in line).strip() for line in page(Keymap(), came_from, 80))

    assert first(keys.DASHBOARD) == "Turns"
    assert first(keys.PROFILES) == "Profiles" and first(keys.LOG) == "Log"
    said = ["".join(t for t, _ in line).strip() for line in page(Keymap(), keys.NO_SERVER, 80)]
    assert said.index("No server") < said.index("Panels")


def test_on_the_page_of_profiles_its_own_marks_states_and_figures_stand_first() -> None:
    said = ["".join(t for t, _ in line).strip() for line in page(Keymap(), keys.PROFILES, 80)]
    at = [said.index(f"{name}") for name in ("Profiles", "Marks and states of profiles", "Figures: Profiles",
                                              "Figures: Start", "Figures: Log", "Turns", "Figures: Cache")]  # fmt: skip
    assert at == sorted(at)
    for other in (keys.LOG, keys.CHECK, keys.COMMAND):
        said = ["".join(t for t, _ in line).strip() for line in page(Keymap(), other, 80)]
        assert said.index("Marks and states of profiles") < said.index("Figures: Cache")


def test_every_mark_and_state_of_a_profile_is_explained() -> None:
    explained = "\n".join("".join(text for text, _ in sign) + meaning for sign, meaning in legend.MARKS)
    rows = [Standing(known("a"), state) for state in get_args(State)]
    rows += [Standing(known("a"), "foreign"), BROKEN, ATTACHED]
    asked = [None, Attached(True, "", NOW), Attached(False, "", NOW)]
    for row in rows:
        for one in asked if row is ATTACHED else asked[:1]:
            assert profile_words.mark(row, one)[0] in explained
            assert profile_words.state_word(row, one)[0] in explained


def test_every_stage_of_a_start_is_explained() -> None:
    names = {name for _, figures in legend.OF_PROFILES for name, _ in figures}
    said = " ".join(f"{name} {text}" for _, figures in legend.OF_PROFILES for name, text in figures)
    assert all(words in names or words in said for words in WORDS.values())


def test_remapped_keys_are_shown() -> None:
    keymap, _ = resolve({"window": "ctrl+w", "panel-cache": "2", "panel-offload": "1"})
    said = "\n".join("".join(t for t, _ in line) for line in page(keymap, keys.DASHBOARD, 80))
    assert re.search(r"ctrl\+w +the next window", said)
    assert "2 1 3 4 5 6" in said


def test_help_and_the_offload_panel_agree_on_units() -> None:
    said = next(text for panel, rows in legend.FIGURES if panel == "Offload" for name, text in rows if "store" in name)
    assert "/s for 10 s and /h for the others" in said
    for key, _, _ in WINDOWS:
        assert flow(3e6, key).endswith("/s" if key == "10s" else "/h")


async def test_it_fits_on_a_large_screen() -> None:
    app = PageApp(HelpScreen(Keymap(), now=lambda: NOON))
    async with app.run_test(size=(200, 99)) as pilot:
        await pilot.pause()
        rows = shown(app)
        assert rows[0].endswith(f"kvtop {__version__}")
        assert any("docs/themes.md" in row for row in rows)


async def test_it_scrolls_at_80x24() -> None:
    app = PageApp(HelpScreen(Keymap(), now=lambda: NOON))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        top = shown(app)
        assert re.search(r"1–22 of \d+ lines$", top[0])
        await pilot.press("down")
        assert shown(app)[1:20] == top[2:21]
        await pilot.press("up", "pagedown")
        assert re.search(r"22–43 of \d+ lines$", shown(app)[0])
        await pilot.press("end")
        last = shown(app)
        total = re.search(r"–(\d+) of (\d+) lines$", last[0])
        assert total
        assert total[1] == total[2]
        await pilot.press("pagedown", "j")
        assert shown(app) == last, "there is nothing under the end"
        await pilot.press("home")
        assert shown(app) == top
        await pilot.press("k")
        assert shown(app) == top


async def test_the_wheel_scrolls_and_a_resize_is_survived() -> None:
    app = PageApp(HelpScreen(Keymap(), now=lambda: NOON))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot._post_mouse_events([events.MouseScrollDown], "#body")
        assert re.search(r"4–25 of", shown(app)[0])
        await pilot.press("end")
        await pilot.resize_terminal(200, 99)
        await pilot.pause()
        assert "Turns" in shown(app)[1]
        await pilot.resize_terminal(40, 15)
        await pilot.pause()
        assert len(shown(app)) == 15


async def test_escape_goes_back() -> None:
    app = PageApp(HelpScreen(Keymap(), now=lambda: NOON))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("escape")
        await pilot.pause()
        assert app.done == ["back"]
        assert not isinstance(app.screen, HelpScreen)


@pytest.mark.parametrize(
    "theme", ["kvtop-dark", "kvtop-light", "kvtop-16", "kvtop-colorblind", "kvtop-light-colorblind"]
)
async def test_every_theme_can_draw_it(theme: str) -> None:
    app = PageApp(HelpScreen(Keymap(), now=lambda: NOON), theme)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert app.theme == theme
        await pilot.press("T")
        await pilot.pause()
        assert app.theme != theme
        assert "Help" in shown(app)[0]


def test_no_key_stands_twice_under_no_server() -> None:
    keys_of = [key for a in ACTIONS if a.group == "No server" for key in a.keys]
    assert sorted(keys_of) == ["D", "u"]
