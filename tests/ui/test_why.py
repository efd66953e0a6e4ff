"""Why a turn took its time, as a person sees it: the row, the page, what is told and what is copied."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from kvtop.errors import KvtopError
from kvtop.live.verdicts import News
from kvtop.model.finding import Finding
from kvtop.model.shown_turn import Turn
from kvtop.model.view import BoxView
from kvtop.triage.kinds import Kind, Reason, Verdict, Who
from kvtop.triage.result import Cause, Diff, FirstDifference, Phases, Split, Tokens, Why
from kvtop.triage.sheet import Sheet
from kvtop.ui.app import KvtopApp

from . import boxes
from .screen import lines, text, until
from .test_captured import Box, FakeDesk, detail, settled

EVIL = "\x1b]52;c;QUFB\x07\x1b[31m[bold]red[/bold]\u202eevil\x9b\n" + "x" * 1_000_000
BROKE = "the prefix broke at token 12,622 in tools[4] (key order); 107,200 tokens were read again, 88 s"
FOUND = Finding(
    "prompt_diverged", "bad",
    ("prefix broke at 12,622 in tools[4]: key order", "broke at 12,622, tools[4]", "broke in tools[4]", "broke"),
    ("prefix broke at token 12,622 in tools[4] (key order), 107k re-read",), f"Turn 812 waited 92 s: {BROKE}",
    "tool_key_order", "sort the keys of tool schemas in the gateway", 107_200,
)  # fmt: skip
CAUSES = (
    Cause(Kind.TOOL_KEY_ORDER, "/tools/4/function/parameters", "tools[4].function.parameters", "the keys moved",
          "sort the keys of tool schemas", Who.GATEWAY, lost_tokens=105_056, lost_s=86.4,
          seen="3 of the last 41 turns"),
    Cause(Kind.REMINDER_MOVED, "/messages/118", "messages[118]", "a reminder moved", "keep reminders where they were",
          lost_tokens=2_144, lost_s=1.8, pointer_new="/messages/124"),
)  # fmt: skip
DIFF = Diff(
    "811", "812", "server_tokens", True, Tokens(119_420, 123_180, 12_622, 11_792, 106_798, 107_200), CAUSES,
    FirstDifference(
        "tools[4].function.parameters", "/tools/4", '"parameters": {"type": "object", "properties": {"path"',
        '"parameters": {"required": ["path", "old_text"]', 12_622, 50_000,
    ),
    match_unit_tokens=1_072, cached_tokens=11_792, expected_cached_tokens=11_792,
)  # fmt: skip
WHY = Why(
    "812", Verdict.PROMPT_DIVERGED, FOUND.sentence, reason="tool_key_order",
    evidence=("tools[4] “edit” has the same keys in another order; tools[0–3] are identical",
              "the server reports 11,792 cached, 11 whole units: prompt and counter agree"),
    rules_out=("a restart or a cache reset: the process start is unchanged since 02:27:04",),
    expected_cached_tokens=11_792, cached_tokens=11_792, phases=Phases(0.4, 91.6, 11.0), diff=DIFF, fix=FOUND.fix,
    reread_tokens=107_200, split=Split(123_180, 11_792, changed=107_200, lost=0, read_s=91.6),
)  # fmt: skip
LOST = Why(
    "812", Verdict.ENGINE_LOST_CACHE, "Turn 812 waited 92 s: the engine lost 107,200 tokens, evicted by turns 795–802",
    reason="evicted", evidence=("11,792 of 118,992 tokens came from the cache that should have",),
    rules_out=("a restart: no counter fell since turn 811",), expected_cached_tokens=118_992, cached_tokens=11_792,
    diff=replace(DIFF, causes=(), first=None, append_only=True), fix="More room for KV.", reread_tokens=107_200,
    split=Split(123_180, 11_792, lost=107_200, read_s=91.6),
)  # fmt: skip


class Desk(FakeDesk):
    """Tells why, when a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.whys: dict[int, Why] = {812: WHY}
        self.trouble = ""
        self.go = asyncio.Event()
        self.go.set()
        self.told: list[int] = []

    async def why(self, id: int) -> Why:
        self.told.append(id)
        await self.go.wait()
        if self.trouble:
            raise KvtopError(self.trouble)
        return self.whys[id]

    async def sheet(self, turn_id: int) -> Sheet:
        raise KvtopError("not here")


class Telling(Box):
    """A box with verdicts, and with something to say."""

    def __init__(self, view: BoxView) -> None:
        super().__init__(view)
        self.desk = Desk()
        self.desk.details[812] = detail()
        self.said: list[News] = []

    def news(self) -> tuple[News, ...]:
        told, self.said = tuple(self.said), []
        return told


def box(found: Finding | None = FOUND, **more: object) -> BoxView:
    view = boxes.captured()

    def told(turn: Turn) -> Turn:
        if turn.id != 812:
            return turn
        return replace(turn, finding=found, verdict=found.verdict if found else None, **more)

    turns = tuple(told(turn) for turn in view.servers[0].turns)
    return replace(view, servers=(replace(view.servers[0], turns=turns),))


@asynccontextmanager
async def page(
    w: int = 80, h: int = 24, found: Finding | None = FOUND, why: Why = WHY, wait: bool = True, **more: object
) -> AsyncIterator[tuple[KvtopApp, Pilot[str], Telling]]:
    """The page of turn 812."""
    held = Telling(box(found, **more))
    held.desk.whys[812] = why
    app = KvtopApp(held, now=lambda: boxes.NOW)
    async with app.run_test(size=(w, h)) as pilot:
        await pilot.pause()
        app.dashboard.choose_turn(("captured", 812))
        if not wait:
            held.desk.go.clear()
        await pilot.press("enter")
        if wait:
            await settled(app, pilot)
        yield app, pilot, held


# ---------------------------------------------------------------- the row
@pytest.mark.parametrize(
    ("w", "h", "said"),
    [
        (80, 24, "× broke in tools[4]"),
        (120, 36, "× broke at 12,622, tools[4]"),
        (200, 50, "× broke at 12,622, tools[4]"),
        (300, 60, "× prefix broke at 12,622 in tools[4]: key order"),
        (60, 20, "× broke at 12,622, tools[4]"),
        (40, 15, "× broke"),
    ],
)
async def test_the_row_in_the_longest_words_that_fit(w: int, h: int, said: str) -> None:
    app = KvtopApp(Telling(box()), now=lambda: boxes.NOW)
    async with app.run_test(size=(w, h)) as pilot:
        await pilot.pause()
        app.dashboard.choose_turn(("captured", 812))
        await pilot.pause()
        row = next(row for row in lines(app) if re.match(r"[ ▸] *812 ", row))
        assert said in row
        if w >= 74:
            assert "━" * 7 in row and "10 %" in row, "cached, and what was lost"


@pytest.mark.parametrize(("w", "h"), [(120, 36), (200, 50)])
async def test_the_row_splits_the_prompt_as_its_page_does(w: int, h: int) -> None:
    app = KvtopApp(Telling(box()), now=lambda: boxes.NOW)
    async with app.run_test(size=(w, h)) as pilot:
        await pilot.pause()
        app.dashboard.choose_turn(("captured", 812))
        await pilot.pause()
        row = next(row for row in lines(app) if re.match(r"[ ▸] *812 ", row))
        assert " 4.2k " in row and "111k" not in row
        if w == 200:
            assert "cached 11.8k   lost 107k   new 4.2k" in text(app), "its preview"


@pytest.mark.parametrize(("w", "h", "said"), [(80, 24, "┄ being worked out"), (200, 50, "┄ being worked out"),
                                              (40, 15, "┄ in work")])  # fmt: skip
async def test_a_row_without_its_verdict_guesses_nothing(w: int, h: int, said: str) -> None:
    app = KvtopApp(Telling(box(None, judging=True)), now=lambda: boxes.NOW)
    async with app.run_test(size=(w, h)) as pilot:
        await pilot.pause()
        app.dashboard.choose_turn(("captured", 812))
        await pilot.pause()
        row = next(row for row in lines(app) if re.match(r"[ ▸] *812 ", row))
        assert said in row and "111k" not in row, "how much of what it read was new is not known either"


# ---------------------------------------------------------------- the page
async def test_80_by_24_says_it_all() -> None:
    async with page() as (app, _, held):
        screen = text(app)
        assert held.desk.told == [812]
        for words in (
            " SLOW  Turn 812 waited 92 s: the prefix broke at token 12,622 in tools[4] (key",
            "       order); 107,200 tokens were read again, 88 s",
            " Prompt ────────────────────── 123,180 tokens, in the order the model reads them",
            "▴ token 12,622: tools[4].function.parameters",
            " cached 11,792    lost 107,200    new 4,188",
            "prefill speed of this turn: 1,216 tok/s",
            "                tokens    share    time",
            " read before   118,992   96.6 %           111 blocks of 1,072 tokens",
            " expected       11,792    9.6 %           of this prompt, as it is",
            " cached         11,792    9.6 %           11 blocks of 1,072 tokens",
            " lost          107,200   87.0 %    88 s   had been read before",
            " new             4,188    3.4 %   3.4 s   needed anyway",
            " Causes ──────────────── by what they cost, those before it in the prompt mended",
            "tool_key_order",
            "reminder_moved",
            "105,056",
            "seen 3 of the last 41 turns",
            " fix sort the keys of tool schemas in the gateway",
            " The break ",
            " 12,622 - \"parameters\": {\"type\": \"object\"",
            " 12,622 + \"parameters\": {\"required\": [\"path\"",
            "d diff",
            "c copy fix",
        ):  # fmt: skip
            assert words in screen, words


async def test_what_does_not_fit_is_a_sign_in_the_last_row() -> None:
    async with page() as (app, pilot, _):
        await until(pilot, lambda: "↓ more" in lines(app)[-1])
        assert "n older" in lines(app)[-1] and "d diff" in lines(app)[-1]
        await pilot.press("down")
        await until(pilot, lambda: "↑↓ more" in lines(app)[-1])
        await pilot.press("end")
        await until(pilot, lambda: "↑ more" in lines(app)[-1])
        assert "↓" not in lines(app)[-1]
    async with page(200, 80) as (app, pilot, _):
        await until(pilot, lambda: "Usage" in text(app) or "As it came" in text(app))
        assert "more" not in lines(app)[-1]


async def test_200_by_50_has_the_evidence_and_the_time_beside_the_tokens() -> None:
    async with page(200, 50) as (app, _, _):
        screen = text(app)
        for words in (
            " Reuse and time ",
            "queue 400 ms   prefill 92 s   decode 11 s",
            "sort the keys of tool schemas",
            "by what they cost, those before it in the prompt mended",
            "d shows all of it",
            " Evidence ",
            "exact: counted by the server's own tokenizer",
            " shows     tools[4] “edit” has the same keys in another order; tools[0–3] are identical",
            "           the server reports 11,792 cached, 11 whole units: prompt and counter agree",
            " rules out a restart or a cache reset: the process start is unchanged since 02:27:04",
            " Request ",
            " Conversation ",
        ):  # fmt: skip
            assert words in screen, words
        assert "\n Time ─" not in screen, "once"
        row = next(row for row in screen.split("\n") if row.startswith(" read before "))
        assert "TTFT" in row or "queue" in row


@pytest.mark.parametrize(("w", "h"), [(80, 24), (116, 36), (120, 36), (200, 50)])
async def test_what_was_read_again_for_two_reasons_is_told_in_the_same_words_at_every_width(w: int, h: int) -> None:
    both = replace(WHY, split=Split(123_180, 11_792, changed=103_456, lost=3_744, read_s=91.6))
    async with page(w, h, why=both) as (app, _, _):
        rows = lines(app)
        at = next(i for i, row in enumerate(rows) if row.startswith(" lost          107,200   87.0 %"))
        words = "103,456 changed, 3,744 by the engine"
        assert words in rows[at] or rows[at + 1].startswith(f" {' ' * 11}{words}")
        assert "103,456 + 3,744" not in text(app)


@pytest.mark.parametrize(("w", "h"), [(80, 24), (120, 36), (200, 50)])
async def test_a_lost_prefix_has_no_break_and_says_what_would_have_been(w: int, h: int) -> None:
    found = Finding("engine_lost_cache", "bad", ("engine lost it: evicted", "evicted"), sentence=LOST.sentence,
                    fix="More room for KV.", reread_tokens=107_200)  # fmt: skip
    async with page(w, h, found, LOST) as (app, _, _):
        screen = text(app)
        assert "Turn 812 waited 92 s: the engine lost 107,200 tokens, evicted" in screen
        assert "read before   118,992   96.6 %" in screen and "lost          107,200" in screen
        assert " expected " not in screen, "it is the same number"
        assert "The break" not in screen and "▴" not in screen
        assert "fix More room for KV." in screen
        assert "rules out a restart: no counter fell since turn 811" in screen


async def test_while_it_is_worked_out_one_line_says_so() -> None:
    async with page(wait=False, found=None) as (app, pilot, held):
        await until(pilot, lambda: held.desk.told == [812])
        screen = text(app)
        assert "Turn 812: why it took its time is being worked out" in screen
        assert "read 111,388" in screen and "new " not in screen.replace("n new turn", "")
        assert "Why it took its time is being worked out." in screen
        assert " Time ─" in screen and "cached 11,792" in screen and "c copy fix" not in screen
        held.desk.go.set()
        held.say(box())
        await until(pilot, lambda: "107,200 tokens were read again" in text(app))
        assert "being worked out" not in text(app)
        await until(pilot, lambda: "c copy fix" in text(app))


async def test_what_cannot_be_told_is_one_quiet_line() -> None:
    async with page(wait=False, found=None) as (app, pilot, held):
        held.desk.trouble = "the server\x1b[31m does not answer"
        held.desk.go.set()
        await until(pilot, lambda: "cannot be told: the server␛[31m does not answer." in text(app))
        assert not app._notifications


async def test_a_turn_that_is_not_slow_is_worked_out_when_its_page_is_opened() -> None:
    held = Telling(box())
    held.desk.details |= {id: detail(id=id) for id in (814, 813)}
    held.desk.whys[813] = replace(WHY, turn="813")
    held.desk.whys[814] = Why("814", Verdict.NO_FAULT, "Turn 814: 98 % cached, TTFT 2.7 s; nothing to mend",
                              expected_cached_tokens=123_280, cached_tokens=123_280,
                              split=Split(126_300, 123_280, lost=0))  # fmt: skip
    app = KvtopApp(held, now=lambda: boxes.NOW)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        app.dashboard.choose_turn(("captured", 814))
        await pilot.press("enter")
        screen = await settled(app, pilot)
        assert held.desk.told == [814]
        assert "read before   123,280   97.6 %" in screen and "115 blocks of 1,072 tokens" in screen
        assert "Causes" not in screen and " OK " in screen
        await pilot.press("n")
        await settled(app, pilot)
        assert held.desk.told == [814, 813]


async def test_one_in_flight_and_one_from_the_counters_are_not_asked_about() -> None:
    held = Telling(box())
    app = KvtopApp(held, now=lambda: boxes.NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        for key in (("captured", 815), ("counted", 77)):
            app.dashboard.choose_turn(key)
            await pilot.press("enter")
            await settled(app, pilot)
            await pilot.press("escape")
        assert held.desk.told == []


async def test_an_unsure_verdict_has_a_chip_of_its_own() -> None:
    unsure = Finding("unknown", "unsure", ("evicted or still running",), sentence="Turn 812 waited 92 s: it got less")
    told = replace(LOST, verdict=Verdict.UNKNOWN, candidates=(Reason.EVICTED, Reason.STILL_RUNNING), fix=None)
    async with page(120, 36, unsure, told) as (app, _, _):
        screen = text(app)
        assert screen.startswith(" UNSURE  Turn 812 waited 92 s: it got less")
        assert "may be    evicted" in screen and "           still running" in screen


async def test_a_broken_prompt_that_was_not_slow_is_no_failure() -> None:
    async with page(slow=False, waited=False) as (app, _, _):
        assert text(app).startswith(" LOOK  Turn 812 waited 92 s:")


# ---------------------------------------------------------------- keys
async def test_the_fix_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    monkeypatch.setattr(KvtopApp, "copy_to_clipboard", lambda self, text: copied.append(text))
    async with page() as (app, pilot, held):
        await pilot.press("c")
        await pilot.pause()
        assert copied == [FOUND.fix]
        assert [note.message for note in app._notifications] == ["the fix is on its way to the clipboard"]
        held.say(box(replace(FOUND, fix="")))
        await until(pilot, lambda: "c copy fix" not in text(app))
        await pilot.press("c")
        assert copied == [FOUND.fix], "nothing to copy"


# ---------------------------------------------------------------- what is told
async def test_what_is_said_once_lies_over_the_footer_alone_without_markup() -> None:
    held = Telling(box())
    app = KvtopApp(held, now=lambda: boxes.NOW)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await held.running.wait()
        await until(pilot, lambda: "SLOW" in text(app))
        before = text(app).splitlines()
        held.said = [News("on_slow: [bold]exit code 1[/bold]", bad=True)]
        held.say(box())
        await until(pilot, lambda: "exit code 1" in text(app))
        after = text(app).splitlines()
        assert after[:-1] == before[:-1] and after[-1].rstrip().endswith("on_slow: [bold]exit code 1[/bold]")
        assert [(n.severity, n.markup) for n in app._notifications] == [("warning", False)]
        held.say(box())
        await pilot.pause()
        assert len(app._notifications) == 1


# ---------------------------------------------------------------- text from outside
@pytest.mark.parametrize(("w", "h"), [(40, 15), (80, 24), (200, 50)])
async def test_hostile_text_stays_text(w: int, h: int) -> None:
    cause = replace(CAUSES[0], section=EVIL, says=EVIL, fix=EVIL, seen=EVIL, pointer_new="/" + EVIL)
    assert DIFF.first is not None
    first = replace(DIFF.first, old=EVIL, new=EVIL, section=EVIL)
    evil = replace(
        WHY, evidence=(EVIL,), rules_out=(EVIL,), fix=EVIL,
        diff=replace(DIFF, causes=(cause,) * 12, first=first, notes=(EVIL,)),
    )  # fmt: skip
    async with page(w, h, why=evil) as (app, pilot, _):
        for _ in range(6):
            rows = lines(app)
            assert all(cell_len(row) == w for row in rows)
            assert not any(char in row for row in rows for char in "\x1b\x07\x9b\u202e\n")
            await pilot.press("pagedown")
            await pilot.pause()
