"""Every verdict in the words of a row, of the sentence on top and of the chip."""

from __future__ import annotations

import dataclasses
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from kvtop.capture.turn import Captured, Route, TurnState
from kvtop.model import sentence
from kvtop.model.downs import Around
from kvtop.model.finding import Finding
from kvtop.model.shown_turn import Turn
from kvtop.model.view import ServerView, TapView
from kvtop.readings import State
from kvtop.triage.in_a_row import finding
from kvtop.triage.kinds import Because, Kind, Reason, Varies, Verdict, Who
from kvtop.triage.result import Cause, Diff, FirstDifference, Phases, Split, Tokens, Why
from kvtop.triage.words import cause as words_of
from kvtop.ui.draw import pick
from kvtop.ui.verdicts import verdict

NOW = 1_795_953_600.0
EVIL = "\x1b]52;c;AAAA\x07\x1b[31m[bold]red[/]\u202eevil\nnext\ud800"
TURN = Captured(
    id=812, state=TurnState.DONE, upstream="http://127.0.0.1:8000", route=Route.CHAT, started_at=NOW - 150,
    first_token_at=NOW - 58, ended_at=NOW - 38, prompt_tokens=123_180, cached_tokens=11_792, completion_tokens=63,
)  # fmt: skip


def cause(kind: Kind = Kind.TOOL_KEY_ORDER, who: Who = Who.CLIENT) -> Cause:
    where = "tools[4].function.parameters"
    return Cause(kind, "/tools/4/function/parameters", where, "the keys stand in another order", "sort them", who)


def diff(*causes: Cause, token: int | None = 12_622, section: str = "tools[4].function.parameters") -> Diff:
    first = FirstDifference(section, "/tools/4", "old", "new", token)
    return Diff("811", "812", "server_tokens", True, Tokens(), causes, first)


def why(kind: Verdict, **more: object) -> Why:
    return Why("812", kind, "Turn 812 waited 92 s: as the test says", **more)  # type: ignore[arg-type]


BROKE = why(
    Verdict.PROMPT_DIVERGED, reason="tool_key_order", diff=diff(cause()), reread_tokens=107_200, fix="sort the keys"
)
CASES: dict[str, tuple[Why, str, tuple[str, ...], str, str]] = {
    # verdict -> tone, cells, the longest clause, chip
    "broke": (
        BROKE, "bad",
        ("prefix broke at 12,622 in tools[4]: key order", "key order in tools[4]", "broke in tools[4]", "key order",
         "broke"),
        "prefix broke at token 12,622 in tools[4] (key order), 107k re-read", "SLOW",
    ),
    "broke, no tokens": (
        dataclasses.replace(BROKE, diff=diff(cause(), token=None), reread_tokens=None), "bad",
        ("prefix broke in tools[4]: key order", "key order in tools[4]", "broke in tools[4]", "key order", "broke"),
        "prefix broke in tools[4] (key order)", "SLOW",
    ),
    "broke, nobody knows where": (
        dataclasses.replace(BROKE, diff=None, reason=None), "bad", ("broke",), "prefix broke, 107k re-read", "SLOW",
    ),
    "salt": (
        dataclasses.replace(BROKE, diff=diff(cause(Kind.CACHE_SALT_CHANGED)), reason="cache_salt_changed"), "bad",
        ("another cache salt, 107k re-read", "another cache salt", "another salt"),
        "it was sent with another cache salt than the turn before, 107k re-read", "SLOW",
    ),
    "by design": (
        dataclasses.replace(BROKE, diff=diff(cause(Kind.COMPACTION, Who.NOBODY)), reason="compaction"), "ok",
        ("compacted, by design, 107k re-read", "compacted, 107k re-read", "compacted"),
        "its history was compacted, by design, 107k re-read", "SLOW",
    ),
    "evicted": (
        why(Verdict.ENGINE_LOST_CACHE, reason="evicted", reread_tokens=40_000, how="evicted by turns 795–802"), "bad",
        ("engine lost it: evicted", "evicted"),
        "the engine lost it, evicted by turns 795–802; the prompt is unchanged", "SLOW",
    ),
    "behind one that is by design": (
        dataclasses.replace(
            BROKE, reason="tool_key_order",
            diff=diff(cause(Kind.ROLLED_BACK, Who.NOBODY), cause(), section="messages[9].content"),
        ),
        "bad",
        ("prefix broke in tools[4]: key order", "key order in tools[4]", "broke in tools[4]", "key order", "broke"),
        "prefix broke in tools[4] (key order), 107k re-read", "SLOW",
    ),
    "still running": (
        why(Verdict.ENGINE_LOST_CACHE, reason="still_running", reread_tokens=40_000,
            how="turn 811 was still writing when it came"),
        "bad", ("not cached: turn before still ran", "still running"),
        "40.0k were not in the cache: turn 811 was still writing when it came", "SLOW",
    ),
    "wrong number": (
        why(Verdict.ENGINE_LOST_CACHE, reason="metric_wrong", how="its first token came as if it had it"), "warn",
        ("cached tokens told wrong", "wrong number"), "its first token came as if it had it", "SLOW",
    ),
    "queued": (
        why(Verdict.QUEUED, phases=Phases(7.4, 84.0, 20.0), behind=811), "warn",
        ("queued 7.4 s behind turn 811", "queued 7.4 s", "queued"), "queued 7.4 s behind turn 811", "SLOW",
    ),
    "queued, for how long nobody told": (
        why(Verdict.QUEUED, behind=811), "warn", ("queued behind turn 811", "queued"), "queued behind turn 811",
        "SLOW",
    ),
    "new": (
        why(Verdict.NEW_TOKENS), "ok",
        ("111k new tokens: long input", "111k new: long input", "111k new"),
        "111,388 new tokens, a long input; nothing to mend", "SLOW",
    ),
    "slow decode": (
        why(Verdict.SLOW_DECODE, phases=Phases(None, None, 20.0)), "warn",
        ("slow decode: 3.1 tok/s", "slow decode"), "it wrote 3.1 tokens a second for 20 s", "SLOW",
    ),
    "no fault": (
        why(Verdict.NO_FAULT, expected_because=(Because.HYBRID_BOUNDARY,)), "ok",
        ("ok: no state was saved there yet", "ok"), "nothing to mend: no state was saved there yet", "SLOW",
    ),
    "unsure": (
        why(
            Verdict.UNKNOWN, candidates=(Reason.EVICTED, Reason.STILL_RUNNING), reread_tokens=40_000,
            how="evicted or still running, the evidence fits both",
        ),
        "unsure",
        ("40.0k less than expected: evicted or still running", "evicted or still running", "40.0k less than expected",
         "cause not certain"),
        "it got 40.0k less than expected: evicted or still running, the evidence fits both", "UNSURE",
    ),
}  # fmt: skip


def row(found: Finding | None, **more: object) -> Turn:
    made = Turn(
        812, NOW - 5, started_at=NOW - 150, prompt_tokens=123_180, cached_tokens=11_792, new_tokens=111_388,
        completion_tokens=63, prefill_s=91.6, queue_s=0.4, ttft_s=92.0, duration_s=103.0, slow=True, waited=True,
        source="tap", relation="next", conversation="c1", finding=found,
        verdict=found.verdict if found is not None and found.verdict != "unknown" else None,
    )  # fmt: skip
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


def said(turn: Turn) -> sentence.Sentence:
    view = ServerView(
        "http://127.0.0.1:8000", "127.0.0.1:8000", State.UP, last_good_at=NOW, turns=(turn,), tap=TapView(1)
    )
    return sentence.make([view], 0, Around(NOW, None, 2.0, 0.95, 0.6, 10.0, frozenset()))


@pytest.mark.parametrize("name", CASES)
def test_each_verdict_in_words(name: str) -> None:
    given_why, tone, cells, clause, chip = CASES[name]
    found = finding(given_why, TURN)
    assert (found.verdict, found.tone, found.cells) == (given_why.verdict.value, tone, cells)
    assert found.clauses[0].replace("\N{NO-BREAK SPACE}", " ") == clause
    top = said(row(found))
    assert top.chip == chip
    assert top.text.replace("\N{NO-BREAK SPACE}", " ") == f"turn 812 waited 92 s: {clause}"
    assert len(top.text) <= 125


def test_every_verdict_is_worded() -> None:
    assert {case[0].verdict for case in CASES.values()} | {Verdict.FAILED, Verdict.ABORTED} == set(Verdict)
    for kind in Verdict:
        made = finding(why(kind), TURN)
        assert made.verdict == kind.value and made.tone in ("ok", "warn", "bad", "unsure")


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_worded_and_fits_a_narrow_row(reason: Reason) -> None:
    lost = finding(why(Verdict.ENGINE_LOST_CACHE, reason=reason.value), TURN)
    assert len(lost.cells) == 2 and len(pick(lost.cells, 18)) <= 18
    unsure = finding(why(Verdict.UNKNOWN, candidates=(reason,)), TURN)
    assert unsure.cells[0] == f"less than expected: perhaps {lost.cells[-1]}"


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_cause_fits_the_sentence(kind: Kind) -> None:
    found = finding(dataclasses.replace(BROKE, diff=diff(cause(kind)), reason=kind.value), TURN)
    assert len(said(row(found)).text) <= 125
    assert "_" not in found.cells[0].replace(kind.value, "") or kind.value in found.cells[0]


def test_a_clock_in_the_system_prompt_is_called_that() -> None:
    clock = dataclasses.replace(
        cause(Kind.VOLATILE_TEXT), section="messages[0].content", values=(Varies.DATE_TIME,), of_system=True
    )
    broke = dataclasses.replace(
        BROKE,
        diff=diff(clock, section="messages[0].content"),
        reason="volatile_text",
        split=Split(4_511, 768, 3_712, 0),
    )
    found = finding(broke, TURN)
    assert found.cells == (
        "prefix broke at 12,622 in the system prompt: a clock", "a clock in the system prompt",
        "broke in the system prompt", "a clock", "broke",
    )  # fmt: skip
    assert found.clauses[0] == "prefix broke at token\u00a012,622 in the system prompt (a clock), 107k re-read"
    assert (found.reread_tokens, found.new_tokens) == (3_712, 31)


def test_that_nothing_was_read_again_is_known() -> None:
    known = finding(why(Verdict.NO_FAULT, split=Split(4_511, 4_480, 0, 0)), TURN)
    assert (known.reread_tokens, known.new_tokens) == (0, 31)
    assert finding(why(Verdict.NO_FAULT, split=Split(4_511, 4_480)), TURN).reread_tokens is None


@pytest.mark.parametrize(
    ("name", "mark", "at_80", "at_200"),
    [
        ("broke", "×", "broke in tools[4]", "prefix broke at 12,622 in tools[4]: key order"),
        ("evicted", "×", "evicted", "engine lost it: evicted"),
        ("queued", "!", "queued 7.4 s", "queued 7.4 s behind turn 811"),
        ("new", "·", "111k new", "111k new tokens: long input"),
        ("unsure", "?", "cause not certain", "40.0k less than expected: evicted or still running"),
        ("no fault", "·", "ok", "ok: no state was saved there yet"),
    ],
)
def test_a_row_says_it(name: str, mark: str, at_80: str, at_200: str) -> None:
    marked, _, words = verdict(row(finding(CASES[name][0], TURN)), None)
    assert (marked, pick(words, 17), pick(words, 60)) == (mark, at_80, at_200)


def test_what_nobody_knows_keeps_the_words_of_the_row_and_of_the_sentence() -> None:
    unknown = finding(why(Verdict.UNKNOWN), TURN)
    assert not unknown.tells
    assert verdict(row(unknown), None) == verdict(row(None), None)
    assert said(row(unknown)) == said(row(None))


def test_how_it_ended_comes_before_why_it_was_slow() -> None:
    broke = finding(BROKE, TURN)
    assert verdict(row(broke, state="failed", status=400, error="prompt too long"), None)[2][0].startswith("failed")
    assert verdict(row(finding(why(Verdict.FAILED), TURN), state="failed", status=400), None)[2] == verdict(
        row(None, state="failed", status=400), None
    )[2]  # fmt: skip


def test_the_first_turn_of_a_conversation_stays_one() -> None:
    new = finding(why(Verdict.NEW_TOKENS), TURN)
    assert verdict(row(new, relation="first"), None)[2][0] == "first turn, 111k new"


@pytest.mark.parametrize(
    ("kinds", "told"),
    [
        ([Kind.TOOL_KEY_ORDER], "tools' keys turned"),
        ([Kind.TOOL_ARRAY_ORDER], "tools' lists turned"),
        ([Kind.TOOLS_REORDERED], "tools in another order"),
        ([Kind.TOOL_TEXT_CHANGED], "other tools"),
        ([Kind.TOOL_KEY_ORDER, Kind.TOOL_ADDED], "other tools"),
        ([], "other tools"),
    ],
)
def test_tools_that_are_the_same_in_another_form_are_not_called_other_tools(kinds: list[Kind], told: str) -> None:
    """The linker compares bytes; the judged causes know what changed."""
    turn = changed(TURN, parent=811, relation="next", changed=["tools"])
    found = finding(why(Verdict.NO_FAULT, diff=diff(*map(cause, kinds))), turn)
    judged = row(found, relation="next", changed=("tools",))
    assert verdict(judged, None)[2][:2] == [f"ok, {told}", told]
    both = row(found, relation="next", changed=("system", "tools"))
    assert both.changes == f"another system prompt and {told}"
    elsewhere = finding(why(Verdict.NO_FAULT, diff=diff(*map(cause, kinds))), changed(turn, parent=799))
    again = "other tools" if kinds else f"tools of turn {BROKE.diff.old} again"
    assert row(elsewhere, changed=("tools",)).changes == again, "it was compared with another turn"


def test_what_broke_it_comes_before_where_while_it_fits() -> None:
    turned = dataclasses.replace(BROKE, diff=diff(cause(Kind.TOOLS_REORDERED)), reason="tools_reordered")
    assert finding(turned, TURN).cells[1:] == (
        "tools in another order in tools[4]", "tools in another order", "broke in tools[4]", "broke",
    )  # fmt: skip


def test_a_clock_in_a_state_is_named() -> None:
    clock = dataclasses.replace(cause(Kind.LIVE_STATUS), values=(Varies.DATE_TIME,))
    assert words_of(clock) == "a state with a clock"


def test_nothing_to_mend_is_no_alarm() -> None:
    for name, tone in (("broke", "bad"), ("by design", "warn"), ("new", "warn"), ("unsure", "warn")):
        assert said(row(finding(CASES[name][0], TURN))).tone == tone, name


@given(st.text(max_size=60) | st.just(EVIL), st.sampled_from(list(Kind)), st.text(max_size=400))
def test_text_from_outside_cannot_do_anything(section: str, kind: Kind, said_by: str) -> None:
    hostile = dataclasses.replace(
        BROKE, sentence=said_by * 100, fix=said_by, how=said_by, diff=diff(cause(kind), section=section)
    )
    for verdict_of in Verdict:
        found = finding(dataclasses.replace(hostile, verdict=verdict_of, reason="evicted"), changed(TURN, error=EVIL))
        for text in (*found.cells, *found.clauses, found.sentence, found.fix):
            assert all(unicodedata.category(char)[0] != "C" for char in text)
            assert len(text) <= 500
