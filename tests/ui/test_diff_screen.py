"""The diff of two turns, as a person sees it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from diff_sheets import EVIL, big, of, sheet
from kvtop.errors import KvtopError
from kvtop.model.view import BoxView
from kvtop.triage.kinds import Kind
from kvtop.triage.result import Cause
from kvtop.triage.sheet import Sheet
from kvtop.ui.app import KvtopApp
from kvtop.ui.diff import layout
from kvtop.ui.diff.blocks import Block
from kvtop.ui.diff.document import Document
from kvtop.ui.diff.rows import Row, View, rows_of
from kvtop.ui.keys import Keymap
from kvtop.ui.screens.diff import DiffScreen

from . import boxes
from .page_app import NOON, PageApp, shown
from .screen import Held, text, until
from .test_captured import FakeDesk, settled

OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufe0f\ud800-\udfff]")
SIZES = [(80, 24), (120, 36), (200, 50)]


@asynccontextmanager
async def diff(
    made: Sheet, w: int = 80, h: int = 24, theme: str = "kvtop-dark"
) -> AsyncIterator[tuple[PageApp, Pilot[None]]]:
    async def load() -> Sheet:
        return made

    app = PageApp(DiffScreen(Keymap(), load, lambda: NOON, title="Turn 812", agent="opencode"), theme)
    async with app.run_test(size=(w, h)) as pilot:
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.pause()
        yield app, pilot


async def look(made: Sheet, w: int = 80, h: int = 24, *keys: str) -> list[str]:
    async with diff(made, w, h) as (app, pilot):
        for key in keys:
            await pilot.press(key)
        await pilot.pause()
        return shown(app)


def at(rows: list[str], words: str) -> int:
    return next((n for n, row in enumerate(rows) if words in row), -1)


# ---------------------------------------------------------------- as it opens
async def test_80_by_24() -> None:
    rows = await look(sheet())
    assert rows[0] == " DIFF  Turn 811 → 812: same up to token 795, reusable 512, lost 7,168 of 7,680."
    assert rows[1] == "       7,883 → 8,034 tokens · blocks of 512 · exact, rendered by the server"
    assert rows[2] == " " + "▄" * 78
    assert rows[3] == "        ▴ token 795: tools[4]"
    assert rows[4] == " Causes ────────────────────────────────────────────────────── by what they cost"
    assert rows[5] == " 1   tool_key_order  tools[4].function.parameters     4,944     86 s  gateway"
    assert rows[6] == " 2   reminder_moved  messages[20] → [26]              2,144    1.8 s  client"
    assert re.fullmatch(r" Turns 811 and 812 ─+ - 811   \+ 812   change 1 of 3, next at 905", rows[7])
    start = at(rows, "first token that differs")
    assert 10 < start < 18
    assert rows[start].startswith(" ── 795  first token that differs  - type + required ──")
    assert rows[start + 1].startswith(" 1  The keys of tools[4].function.parameters are in another order.")
    assert any(row.startswith("    795 - type") for row in rows[start:])
    assert any(row.startswith("    795 + required") for row in rows[start:])
    assert rows[23] == "n next change  s side or unified  x text or tokens  esc back  ? help    12:00:00"
    assert not any("…" in row for row in rows)


async def test_120_by_36() -> None:
    rows = await look(sheet(), 120, 36)
    assert rows[1] == "       opencode · 7,883 → 8,034 tokens · blocks of 512 · exact, rendered by the server"
    assert rows[5].endswith("86 s  gateway   Sort the keys of tool schemas")
    assert rows[6].endswith("1.8 s  client    Keep reminders where they were.")
    assert re.fullmatch(
        r" Turn 811 ─+ tools\[2\] to tools\[\d\] of 14 {4}Turn 812 ─+ change 1 of 3, next at 905", rows[7]
    )
    edge, start = at(rows, "block 1 ends here: cached up to this token"), at(rows, "first token that differs")
    assert 8 <= edge < start < 30
    pair = rows[at(rows, '- type": "object"')]
    assert '+ required": [' in pair
    assert rows[start - 1][:58].strip() == rows[start - 1][58:].strip()
    assert rows[at(rows, "the same on both sides")].count("tokens, the same on both sides") == 2
    assert "1-2 go to cause" in rows[35] and "N previous" in rows[35]


async def test_200_by_50() -> None:
    rows = await look(sheet(), 200, 50)
    assert "Sort the keys of tool schemas, or send them as they came." in rows[5]
    assert at(rows, " 2  A <system-reminder> stands in another message.") > 0
    assert rows[49].endswith("12:00:00") and "enter unfold" in rows[49]


@pytest.mark.parametrize(("w", "h"), SIZES)
async def test_words(w: int, h: int) -> None:
    rows = await look(sheet(words=True), w, h)
    head = " ".join(rows[:2])
    assert "first difference in tools[4].function.parameters." in head
    assert "compared as text" in head
    assert at(rows, "! No server was asked: words are compared, not tokens.") > 0
    assert " Causes ─" in rows[4] and rows[4].endswith("in the order of the prompt")
    assert not re.search(r"\d{3}", " ".join(rows[4:8]).replace("811", "").replace("812", ""))
    assert at(rows, "first word that differs") > 0
    assert "text or tokens" not in rows[-1]


@pytest.mark.parametrize(("w", "h"), SIZES)
async def test_appended(w: int, h: int) -> None:
    rows = await look(sheet(appended=True), w, h)
    assert "nothing before its end changed, 139 tokens are new," in rows[0]
    assert at(rows, "new from here on ▴") == 3
    assert at(rows, "none: the new prompt begins with all of the old one") == 5
    assert at(rows, "turn 811 ends here: what follows is new") > 0
    assert at(rows, "block 15 ends here: cached up to this token") > 0


async def test_the_same_prompt_and_a_salt() -> None:
    pieces = [f" {n}" for n in range(400)]
    rows = await look(of(pieces, pieces))
    assert "the prompts are the same." in rows[0]
    salt = Cause(Kind.CACHE_SALT_CHANGED, "/cache_salt", "cache_salt", "The salt is another one.", "Keep the salt.")
    rows = await look(of(pieces, pieces, salt))
    assert rows[0].endswith("the prompts are the same, and yet nothing of the old one")
    assert rows[1].startswith("       can be reused: what differs is no text.")
    assert at(rows, " 1  The salt is another one.") > 0
    assert at(rows, "    fix Keep the salt.") > 0
    assert at(await look(of([], [], salt)), " 1  The salt is another one.") > 0


async def test_what_was_appended_under_another_salt_is_no_difference_of_the_prompt() -> None:
    salt = Cause(Kind.CACHE_SALT_CHANGED, "/cache_salt", "cache_salt", "The salt is another one.", "Keep the salt.")
    pieces = [f" {n}" for n in range(400)]
    rows = await look(of(pieces, [*pieces, *(f" more {n}" for n in range(40))], salt), 120, 36)
    assert "nothing before its end changed" in rows[0] and "what differs is no text" in " ".join(rows[:2])
    assert at(rows, "first token that differs") < 0 and at(rows, "the first difference") < 0
    assert at(rows, "▴ token 400") > 0 and at(rows, "a.json ends here: what follows is new") > 0


async def test_the_left_head_names_no_part_that_only_the_new_prompt_has() -> None:
    old, new = [f" {n}" for n in range(40)], [f" more {n}" for n in range(400)]
    made = replace(of(old, [*old, *new]), sections=((0, "messages[23]"), (40, "messages[24]"), (240, "messages[25]")))
    rows = await look(made, 120, 36)
    head = rows[at(rows, " a.json ──")]
    assert "messages[23]" in head and "messages[24]" not in head and "messages[25]" not in head


async def test_a_file_against_a_file() -> None:
    rows = await look(replace(of(["a"], ["b"]), old_label="old.json", new_label="new.json"))
    assert rows[0].startswith(" DIFF  old.json → new.json: same up to token 0")
    assert at(rows, " old.json and new.json ──") == 6


# ---------------------------------------------------------------- while it is read
async def test_it_says_what_it_does_and_then_shows_it() -> None:
    made, clock = asyncio.Event(), [NOON]

    async def load() -> Sheet:
        await made.wait()
        return sheet()

    app = PageApp(DiffScreen(Keymap(), load, lambda: clock[0], title="Turn 812"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert shown(app)[0] == " DIFF  Turn 812: reads both prompts"
        assert shown(app)[23].startswith("e export  esc back  ? help")
        for key in ("n", "N", "1", "s", "x", "enter", "down", "end", "home", "pageup"):
            await pilot.press(key)
        clock[0] += 5
        await until(pilot, lambda: "reads both prompts, for 5.0 s now" in shown(app)[0])  # type: ignore[arg-type]
        made.set()
        await until(pilot, lambda: "same up to token 795" in shown(app)[0])  # type: ignore[arg-type]
        assert shown(app)[23].startswith("n next change")


async def test_why_it_cannot_be_shown() -> None:
    async def load() -> Sheet:
        raise KvtopError(f"turn 5 is not kept any more {EVIL}", "kvtop turns lists those that are")

    app = PageApp(DiffScreen(Keymap(), load, lambda: NOON, title="Turn 5"))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "cannot be shown" in shown(app)[0])  # type: ignore[arg-type]
        rows = shown(app)
        assert rows[0] == " DIFF  Turn 5: cannot be shown"
        assert rows[3].startswith(" × turn 5 is not kept any more ␛[31mred")
        assert at(rows, " kvtop turns lists those that are") > 3
        await pilot.press("n", "escape")
        assert app.done == ["back"]


async def test_a_fault_of_its_own_is_said() -> None:
    async def load() -> Sheet:
        raise ZeroDivisionError

    app = PageApp(DiffScreen(Keymap(), load, lambda: NOON))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "kvtop's own diff failed (ZeroDivisionError)" in "\n".join(shown(app)))  # type: ignore[arg-type]


# ---------------------------------------------------------------- keys
async def test_next_and_previous_change() -> None:
    async with diff(sheet()) as (app, pilot):
        seen = []
        for key in ("n", "n", "n", "n", "N", "N", "N", "N"):
            await pilot.press(key)
            await pilot.pause()
            seen.append(re.search(r"change \d of 3|appended, behind 3 changes", shown(app)[7])[0])  # type: ignore[index]
        one, two, three = (f"change {n} of 3" for n in (1, 2, 3))
        assert seen == [two, three, *["appended, behind 3 changes"] * 2, three, two, one, one]
        await pilot.press("n", "n", "down", "down", "down", "down")
        await pilot.press("N")
        await pilot.pause()
        assert "change 3 of 3" in shown(app)[7], "from within a change to its start"


async def test_a_key_goes_to_a_causes_place() -> None:
    async with diff(sheet()) as (app, pilot):
        await pilot.press("2")
        await pilot.pause()
        rows = shown(app)
        assert rows[10].startswith(" 2  A <system-reminder> stands in another message.")
        assert at(rows, "+ <system-reminder>plan mode</system-reminder>") == 12
        await pilot.press("9")  # there is none
        await pilot.press("1")
        await pilot.pause()
        assert at(shown(app), "first token that differs") == 10
        await pilot.click("#body", offset=(20, 6))
        await pilot.pause()
        assert shown(app)[10].startswith(" 2  A <system-reminder>")


@pytest.mark.parametrize(("w", "h"), [(80, 24), (120, 36)])
async def test_side_or_unified_keeps_the_place(w: int, h: int) -> None:
    async with diff(sheet(), w, h) as (app, pilot):
        wide = w >= 120
        for _ in range(2):
            assert (" Turn 811 ─" in "\n".join(shown(app))) is wide
            assert at(shown(app), "first token that differs") > 0
            await pilot.press("s")
            await pilot.pause()
            wide = not wide
        await pilot.press("n", "n", "s")
        await pilot.pause()
        assert at(shown(app), "+ <system-reminder>plan") > 0


async def test_text_or_tokens() -> None:
    async with diff(sheet()) as (app, pilot):
        await pilot.press("x")
        await pilot.pause()
        rows = shown(app)
        assert at(rows, '795 - type▏":▏ "▏object▏",▏') > at(rows, "first token that differs") > 0
        await pilot.press("x")
        await pilot.pause()
        assert "▏" not in "\n".join(shown(app))


async def test_folds_open_and_close() -> None:
    async with diff(sheet(), 80, 40) as (app, pilot):
        before = shown(app)
        assert at(before, "the same on both sides") > 0
        await pilot.press("enter")
        await pilot.pause()
        opened = shown(app)
        assert at(opened, "the same on both sides") < 0
        await pilot.press("enter")
        await pilot.pause()
        again = shown(app)
        y = at(again, "the same on both sides")
        assert y > 0
        fold = again[y].strip()
        await pilot.click("#body", offset=(20, y))
        await pilot.pause()
        assert fold not in "\n".join(shown(app))


async def test_scrolling_and_both_ends() -> None:
    async with diff(sheet()) as (app, pilot):
        opened = shown(app)[8:23]
        await pilot.press("down")
        await pilot.pause()
        assert shown(app)[8:22] == opened[1:]
        await pilot.press("pagedown", "pageup", "up")
        await pilot.pause()
        assert shown(app)[8:23] == opened
        await pilot.press("home")
        await pilot.pause()
        assert at(shown(app), "<|im_start|>system") == 8
        await pilot.press("end")
        await pilot.pause()
        assert shown(app)[22] == "  8,023 +  limits find folder search it a most<|im_end|>"
        assert "appended, behind 3 changes" in shown(app)[7]
        last = shown(app)[8:23]
        await pilot.press("down", "pagedown", "end")
        await pilot.pause()
        assert shown(app)[8:23] == last


async def test_another_size_keeps_the_place() -> None:
    async with diff(sheet()) as (app, pilot):
        await pilot.press("n", "n")
        for w, h in ((120, 36), (60, 20), (200, 50), (80, 24)):
            await pilot.resize_terminal(w, h)
            await pilot.pause()
            assert at(shown(app), "+ <system-reminder>plan") > 0, (w, h)


@pytest.mark.parametrize(("w", "h"), [(40, 15), (24, 8), (20, 5), (10, 3), (3, 2), (300, 100)])
async def test_it_survives_every_size(w: int, h: int) -> None:
    async with diff(sheet(), w, h) as (app, pilot):
        for key in ("n", "x", "s", "end", "1", "enter", "home", "pagedown"):
            await pilot.press(key)
            await pilot.pause()
            assert "could not be drawn" not in "\n".join(shown(app))


@pytest.mark.parametrize("theme", ["kvtop-dark", "kvtop-light", "kvtop-16"])
async def test_every_theme_has_its_colours(theme: str) -> None:
    async with diff(sheet(), 120, 36, theme) as (app, _):
        assert at(shown(app), "first token that differs") > 0


# ---------------------------------------------------------------- hostile text
def evil() -> Sheet:
    cause = Cause(Kind.TEXT_EDITED, EVIL, EVIL, EVIL, EVIL, pointer_new=f"/{EVIL}", seen=EVIL)
    made = of([EVIL, EVIL, "a", EVIL * 3], [EVIL, "b", "漢" * 99, EVIL], *[cause] * 11)
    made = replace(made, sections=((0, EVIL),), old_label=EVIL, new_label=EVIL)
    return replace(made, diff=replace(made.diff, notes=(EVIL, EVIL), method=EVIL))


@pytest.mark.parametrize(("w", "h"), [(40, 12), *SIZES])
async def test_hostile_words_are_shown_and_not_obeyed(w: int, h: int) -> None:
    async with diff(evil(), w, h) as (app, pilot):
        for key in ("x", "s", "1", "9", "n", "enter", "end"):
            rows = shown(app)
            for row in rows:
                assert not re.search(
                    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufe0f\ud800-\udfff]", row
                )
                assert cell_len(row) <= w
            await pilot.press(key)
            await pilot.pause()


async def test_a_line_of_a_megabyte() -> None:
    line = "x" * 1_000_000
    async with diff(of(["a", line, "b"], ["a", line, "c"])) as (app, pilot):
        assert at(shown(app), "first token that differs  - b + c") > 0
        await pilot.press("home", "enter", "pagedown", "pagedown")
        await pilot.pause()
        assert at(shown(app), "x" * 70) > 0


# ---------------------------------------------------------------- a large one
async def test_of_120_000_tokens_only_what_is_seen_is_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = big()
    laid: list[Row] = []

    def counted(doc: Document, block: Block, view: View) -> list[Row]:
        rows = rows_of(doc, block, view)
        laid.extend(rows)
        return rows

    monkeypatch.setattr(layout, "rows_of", counted)
    async with diff(made, 200, 50) as (app, pilot):
        page = app.screen
        assert isinstance(page, DiffScreen)
        await pilot.press("enter")
        for action in (page.action_page_down, page.action_last, page.action_page_up, page.action_first):
            laid.clear()
            action()
            await pilot.pause()
            assert len(laid) < 400


# ---------------------------------------------------------------- from the dashboard and the turn's page
class Comparing(FakeDesk):
    """A desk that has a sheet of one turn."""

    def __init__(self) -> None:
        super().__init__()
        self.compared: list[int] = []

    async def sheet(self, turn_id: int) -> Sheet:
        self.compared.append(turn_id)
        if self.fails:
            raise KvtopError(self.fails)
        return sheet()


class Box(Held):
    def __init__(self, view: BoxView) -> None:
        super().__init__(view)
        self.desk = Comparing()


@asynccontextmanager
async def box(w: int = 120, h: int = 36) -> AsyncIterator[tuple[KvtopApp, Pilot[str], Box]]:
    held = Box(boxes.captured())
    app = KvtopApp(held, now=lambda: boxes.NOW)
    async with app.run_test(size=(w, h), notifications=True) as pilot:
        await pilot.pause()
        yield app, pilot, held


def choose(app: KvtopApp, id: int) -> None:
    rows = app.dashboard.made.rows if app.dashboard.made else ()
    app.dashboard.choose_turn(next(turn.key for turn in rows if turn.id == id))


async def test_d_opens_it_from_the_dashboard_and_from_the_page() -> None:
    async with box() as (app, pilot, held):
        assert "enter turn  d diff" in text(app)
        choose(app, 812)
        await pilot.press("d")
        assert "Turn 811 → 812: same up to token 795" in await settled(app, pilot)
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is app.dashboard
        await pilot.press("enter")
        assert "d diff" in (await settled(app, pilot)).split("\n")[35]
        await pilot.press("d")
        assert "Turn 811 → 812: same up to token 795" in await settled(app, pilot)
        assert held.desk.compared == [812, 812]


async def test_the_footer_keeps_d_where_little_fits() -> None:
    async with box(80, 24) as (app, _, _):
        assert text(app).split("\n")[23].startswith("enter turn  d diff")
    async with box(40, 15) as (app, _, _):
        assert text(app).split("\n")[14].startswith("enter turn  d diff  w window  ? help")


async def test_a_counted_turn_has_no_prompt() -> None:
    async with box() as (app, pilot, held):
        choose(app, 77)
        await pilot.press("d")
        await until(pilot, lambda: "Its prompt was not captured" in text(app))
        assert held.desk.compared == []


async def test_why_there_is_none() -> None:
    async with box() as (app, pilot, held):
        held.desk.fails = "turn 812 is the first of its conversation"
        choose(app, 812)
        await pilot.press("d")
        screen = await settled(app, pilot)
        assert "Turn 812: cannot be shown" in screen
        assert "× turn 812 is the first of its conversation" in screen


async def test_without_a_desk_that_compares_there_is_no_such_key() -> None:
    app = KvtopApp(Held(boxes.captured()), now=lambda: boxes.NOW)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("d")
        await pilot.pause()
        assert app.screen is app.dashboard
        assert "d diff" not in text(app)


async def test_going_back_ends_the_work_of_a_diff_that_is_not_there_yet() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def load() -> Sheet:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    app = PageApp(DiffScreen(Keymap(), load, lambda: NOON, title="Turn 812"))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "reads both prompts" in shown(app)[0])  # type: ignore[arg-type]
        await until(pilot, begun.is_set)  # type: ignore[arg-type]
        await pilot.press("escape")
        await until(pilot, ended.is_set)  # type: ignore[arg-type]


async def test_a_page_that_is_left_before_its_work_begins_does_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtop.ui.screens.diff.LEFT_S", 3600.0)
    begun = 0

    async def load() -> Sheet:
        nonlocal begun
        begun += 1
        raise AssertionError

    page = DiffScreen(Keymap(), load, lambda: NOON, title="Turn 812")
    app = PageApp(page)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "reads both prompts" in shown(app)[0])  # type: ignore[arg-type]
        (work,) = (one for one in app.workers if one.name == "diff")
        await pilot.press("escape")
        await until(pilot, lambda: work.is_finished)  # type: ignore[arg-type]
    assert work.is_cancelled and begun == 0
