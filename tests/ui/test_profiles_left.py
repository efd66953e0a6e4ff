"""A start or switch that fails after the page of the profiles was left: told where its user is, and offered again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvtop.live.profile_view import ProfilesView
from kvtop.live.verdicts import News
from kvtop.model.view import BoxView, Sentence
from kvtop.readings import Discovery
from kvtop.ui.app import KvtopApp
from kvtop.ui.screens.profiles import ProfilesScreen

from . import boxes
from .profile_box import CHOSEN, NOW, failed, running, starting, stopped, view
from .screen import text, until
from .test_profiles_dashboard import Box

NOBODY = BoxView(NOW, Sentence("NO SERVER", "dim", "No vLLM server found."), (), discovery=Discovery(at=NOW))
SAID = "qwen27-dflash2 did not start: OSError: no such model"
AFTER = view(stopped(), failed(CHOSEN.name, "OSError: no such model", "qwen27-2x3090"))


class Telling(Box):
    def __init__(self, now: BoxView, profiles: ProfilesView) -> None:
        super().__init__(now, profiles)
        self.said: list[News] = []

    def news(self) -> Sequence[News]:
        told, self.said = self.said, []
        return told

    def fails(self, told_there: bool = True, words: str = SAID) -> None:
        self.profiles.view = AFTER
        self.said.append(News(words, bad=True, of_profiles=True, told_there=told_there))
        self._changed()


def notes(app: KvtopApp) -> list[str]:
    return [note.message for note in app._notifications]


@pytest.mark.parametrize(
    ("box", "keys", "said"),
    [
        (boxes.healthy(), [], f"{SAID}. p leads to the profiles"),
        (NOBODY, [], f"{SAID}. p leads to the profiles"),
        (boxes.healthy(), ["question_mark"], f"{SAID}. p on the dashboard leads to the profiles"),
        (boxes.healthy(), ["h"], f"{SAID}. p on the dashboard leads to the profiles"),
        (boxes.healthy(), ["p", "question_mark"], f"{SAID}. esc leads back to the profiles"),
    ],
)
async def test_it_is_told_on_the_screen_that_is_seen(box: BoxView, keys: list[str], said: str) -> None:
    held = Telling(box, view(starting(CHOSEN.name), running()))
    app = KvtopApp(held, now=lambda: NOW)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await held.running.wait()
        first = "NO SERVER" if box is NOBODY else "q quit"
        await until(pilot, lambda: first in text(app))
        for key in keys:
            here = app.screen
            await pilot.press(key)
            await until(pilot, lambda here=here: app.screen is not here)
        held.fails()
        await until(pilot, lambda: notes(app) == [said])
        await until(pilot, lambda: "qwen27-dflash2 did not start: OSError" in text(app) and "leads" in text(app))


async def test_the_page_itself_tells_it_without_a_line_over_it() -> None:
    held = Telling(boxes.healthy(), view(starting(CHOSEN.name), running()))
    app = KvtopApp(held, now=lambda: NOW)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await held.running.wait()
        await pilot.press("p")
        await until(pilot, lambda: "qwen27-dflash2 starts" in text(app))
        held.fails()
        await until(pilot, lambda: "× OSError: no such model" in text(app))
        assert notes(app) == []
        held.fails(told_there=False, words="kvtop switches to a: what was stopped still holds memory")
        await until(pilot, lambda: notes(app) == ["kvtop switches to a: what was stopped still holds memory"])


@pytest.mark.parametrize("answer", ["y", "n", "escape"])
async def test_what_ran_before_is_offered_when_the_page_is_opened_again(answer: str) -> None:
    held = Telling(boxes.healthy(), view(running(), CHOSEN))
    app = KvtopApp(held, now=lambda: NOW)
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await held.running.wait()
        await until(pilot, lambda: "q quit" in text(app))
        held.said.append(News("a slow turn"))
        held.fails()
        await pilot.press("p")
        asked = "qwen27-dflash2 did not start: start qwen27-2x3090 again?"
        await until(pilot, lambda: asked in text(app))
        assert notes(app) == ["a slow turn"], "what was said of it lies over no question; of others it stays"
        await until(pilot, lambda: "a slow turn" in text(app) and "leads to the profiles" not in text(app))
        await pilot.press(answer)
        if answer == "y":
            await until(pilot, lambda: held.profiles.done)
        assert held.profiles.done == ([["profile", "start", "qwen27-2x3090", "--yes", "--detach"]] * (answer == "y"))
        await until(pilot, lambda: asked not in text(app))
        await pilot.press("escape", "p")
        await until(pilot, lambda: isinstance(app.screen, ProfilesScreen) and "Last start" in text(app))
        app.screen._look_again()  # type: ignore[attr-defined]
        await pilot.pause()
        if answer == "escape":
            await until(pilot, lambda: asked in text(app))
        else:
            assert asked not in text(app), "it was answered"


async def test_it_is_offered_under_a_page_that_lay_over_it_as_well() -> None:
    held = Telling(boxes.healthy(), view(running(), CHOSEN))
    app = KvtopApp(held, now=lambda: NOW)
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await held.running.wait()
        await pilot.press("p")
        await until(pilot, lambda: "▸● qwen27-2x3090" in text(app))
        await pilot.press("v")
        await until(pilot, lambda: "COMMAND" in text(app))
        held.fails()
        await pilot.press("escape")
        await until(pilot, lambda: "did not start: start qwen27-2x3090 again?" in text(app))
