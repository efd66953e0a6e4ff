"""Causes of pairs that real clients send: what is none, what is which one, in any language, and in how much time."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.turn import Route
from kvtop.triage.align import MOST_PAIRS, align, insertions_last
from kvtop.triage.causes.template import Leftover, explain
from kvtop.triage.changes import compare
from kvtop.triage.judge import read
from kvtop.triage.kinds import Kind, Varies, Who
from kvtop.triage.plain import _shown
from kvtop.triage.prompt import Prompt
from kvtop.triage.result import Cause
from kvtop.triage.spans import skeleton, varying
from kvtop.triage.words import cause as words_of
from triage_score import compare_bodies


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


ASKED = [system("You help."), user("tell me of Rome and its seven hills")]
GOES_ON = [assistant("Rome is old."), user("go on")]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "ok"}
TOOL = {"type": "function", "function": {"name": "f", "description": "does it"}}


def causes(old: dict[str, Any], new: dict[str, Any], route: Route = Route.CHAT) -> tuple[Cause, ...]:
    bodies = (json.dumps({"model": "m", **body}).encode() for body in (old, new))
    return compare_bodies(*bodies, route).causes


def talk(old: list[Any], new: list[Any], **more: Any) -> tuple[Cause, ...]:
    return causes({"messages": old, **more}, {"messages": new, **more})


def kinds(found: tuple[Cause, ...]) -> list[Kind]:
    return [cause.kind for cause in found]


# What reaches no prompt accuses nobody.


def picture(**more: Any) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", **more}}],
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([*ASKED, assistant(None, tool_calls=[CALL | {"index": 0}])], [*ASKED, assistant(None, tool_calls=[CALL])]),
        ([*ASKED, assistant("x", provider_specific_fields={"a": 1})], [*ASKED, assistant("x")]),
        ([*ASKED, assistant("x", reasoning_details=[{"a": 1}])], [*ASKED, assistant("x", timestamp=5)]),
        ([picture()], [picture(detail="auto")]),
    ],
    ids=["index of a call", "a gateway's field", "notes", "detail of a picture"],
)
def test_what_goes_no_further_than_the_server_is_no_cause(old: list[Any], new: list[Any]) -> None:
    assert talk(old, [*new, user("next")]) == ()


@pytest.mark.parametrize(
    ("old", "new", "route"),
    [
        ({"messages": ASKED, "tool_choice": "none"}, {"messages": ASKED}, Route.CHAT),
        ({"messages": ASKED}, {"messages": ASKED, "response_format": {"type": "text"}}, Route.CHAT),
        ({"input": "a"}, {"input": "a", "text": {"format": {"type": "text"}}}, Route.RESPONSES),
        ({"input": "a"}, {"input": "a", "truncation": "disabled"}, Route.RESPONSES),
        ({"prompt": "a"}, {"prompt": "a b", "add_special_tokens": True}, Route.COMPLETIONS),
        ({"messages": ASKED}, {"messages": ASKED, "add_special_tokens": False}, Route.CHAT),
        ({"prompt": "a"}, {"prompt": "a b", "echo": True}, Route.COMPLETIONS),
        ({"messages": ASKED[1:], "thinking": {"type": "enabled"}}, {"messages": ASKED[1:]}, Route.MESSAGES),
        (
            {"messages": ASKED[1:], "thinking": {"type": "enabled"}},
            {"messages": ASKED[1:], "thinking": {"type": "adaptive"}},
            Route.MESSAGES,
        ),
    ],
)
def test_what_is_so_unless_it_is_said_otherwise_is_no_cause(
    old: dict[str, Any], new: dict[str, Any], route: Route
) -> None:
    assert causes(old, new, route) == ()


@pytest.mark.parametrize(
    ("old", "new", "route", "kind", "pointer"),
    [
        (
            {"messages": ASKED, "tools": [TOOL], "tool_choice": "none"},
            {"messages": ASKED, "tools": [TOOL]},
            Route.CHAT,
            Kind.TEMPLATE_INPUTS_CHANGED,
            "/tool_choice",
        ),
        (
            {"messages": ASKED},
            {"messages": ASKED, "response_format": {"type": "json_object"}},
            Route.CHAT,
            Kind.RESPONSE_FORMAT_CHANGED,
            "/response_format",
        ),
        (
            {"prompt": "a"},
            {"prompt": "a b", "add_special_tokens": False},
            Route.COMPLETIONS,
            Kind.TEMPLATE_INPUTS_CHANGED,
            "/add_special_tokens",
        ),
        (
            {"messages": ASKED},
            {"messages": ASKED, "truncate_prompt_tokens": 100},
            Route.CHAT,
            Kind.TEMPLATE_INPUTS_CHANGED,
            "/truncate_prompt_tokens",
        ),
        (
            {"messages": ASKED[1:]},
            {"messages": ASKED[1:], "thinking": {"type": "disabled"}},
            Route.MESSAGES,
            Kind.TEMPLATE_INPUTS_CHANGED,
            "/thinking/type",
        ),
        (
            {"prompt": "a"},
            {"prompt": "a b", "echo": True, "logprobs": 1},
            Route.COMPLETIONS,
            Kind.PROMPT_LOGPROBS_SET,
            "/echo",
        ),
        ({"messages": ASKED}, {"messages": ASKED, "echo": True}, Route.CHAT, Kind.PROMPT_LOGPROBS_SET, "/echo"),
    ],
)
def test_inputs_that_make_another_prompt(
    old: dict[str, Any], new: dict[str, Any], route: Route, kind: Kind, pointer: str
) -> None:
    assert [(cause.kind, cause.pointer) for cause in causes(old, new, route)] == [(kind, pointer)]


# Which one it is.


def test_a_question_that_has_its_answer_was_edited_and_not_replaced() -> None:
    again = [ASKED[0], user("tell me of Rome, its seven hills and the river")]
    replaced, edited = talk(ASKED, again), talk(ASKED, [*again, *GOES_ON])
    assert [(cause.kind, cause.who) for cause in replaced] == [(Kind.LAST_MESSAGE_REPLACED, Who.NOBODY)]
    assert [(cause.kind, cause.who) for cause in edited] == [(Kind.TEXT_EDITED, Who.CLIENT)]


HISTORY = [
    one
    for i in range(8)
    for one in (user(f"question number {i} on topic {i * 7}"), assistant(f"answer {i}: {i * i} since reason {i}"))
]
OLD = [ASKED[0], *HISTORY, user("the last question")]
SUMMARY = user(
    "This session is continued from a previous one. Summary of the conversation so far: " + "it went on. " * 20
)


@pytest.mark.parametrize(
    ("new", "kind"),
    [
        ([ASKED[0], *HISTORY[:4], user("Write a summary of chapter 3.")], Kind.ROLLED_BACK),
        (
            [ASKED[0], *HISTORY[10:], user("the last question"), assistant("done"), user("Give me a recap")],
            Kind.WINDOW_TRUNCATED,
        ),
        ([ASKED[0], SUMMARY], Kind.COMPACTION),
        ([ASKED[0], SUMMARY, *HISTORY[14:], user("the last question")], Kind.COMPACTION),
    ],
    ids=["stepped back, and asks for a summary", "cut, and asks for a recap", "compacted", "compacted, tail kept"],
)
def test_who_asks_for_a_summary_compacts_nothing(new: list[Any], kind: Kind) -> None:
    found = talk(OLD, new)
    assert [(cause.kind, cause.who) for cause in found] == [(kind, Who.NOBODY)]


CLOCK = [system("It is 12:05:01."), user("start the job"), assistant("one done"), user("continue")]


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_the_same_words_said_again_are_not_put_in_before_the_end(rounds: int) -> None:
    more = [one for n in range(rounds) for one in (assistant(f"{n + 2} done"), user("continue"))]
    found = talk(CLOCK, [system("It is 12:06:44."), *CLOCK[1:], *more])
    assert [(cause.kind, cause.pointer) for cause in found] == [(Kind.VOLATILE_TEXT, "/messages/0/content")]


def test_a_message_put_in_before_the_end_is_still_told() -> None:
    new = [*CLOCK[:3], user("mind the gap"), CLOCK[3], assistant("two done"), user("go on")]
    assert [(cause.kind, cause.pointer) for cause in talk(CLOCK, new)] == [(Kind.MESSAGE_INSERTED, "/messages/3")]


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_insertions_last_keeps_all_that_an_alignment_says(old: str, new: str) -> None:
    before = align(old, new, str, lambda a, b: 0.0)
    after = insertions_last(before, new, str)
    assert all(old[i] == new[j] for i, j in after.equal)
    assert sorted(after.equal) == sorted(after.equal, key=lambda pair: pair[1])
    assert len(after.equal) == len(before.equal) and after.removed == before.removed
    assert sorted([*(j for _, j in after.equal), *after.inserted]) == list(range(len(new)))


@given(st.text("ab", min_size=1, max_size=8), st.text("ab", max_size=8))
def test_what_only_grows_is_appended_whatever_the_first_one_is(said: str, more: str) -> None:
    found = insertions_last(align("x" + said, "y" + said + more, str, lambda a, b: 1.0), "y" + said + more, str)
    assert (0, 0) in found.alike or not found.alike
    assert len(found.inserted) in (len(more), len(more) + 1)
    assert not found.equal or max(i for i, _ in found.equal) == len(said)


@pytest.mark.parametrize(
    ("message", "old", "new", "hoisted"),
    [
        ("ok", "the look of it", "a look at the token stream", False),
        ("Be brief.", "The list follows", "Be brief.\nThe list follows", True),
        ("Be brief.", "Be brief. Then", "Be brief. Now", False),
    ],
)
def test_a_system_turn_is_hoisted_where_the_prompt_says_it(message: str, old: str, new: str, hoisted: bool) -> None:
    def prompt(messages: list[Any]) -> Prompt:
        return read(json.dumps({"messages": messages}).encode(), Route.CHAT)

    comparison = compare(prompt([*ASKED]), prompt([*ASKED, assistant("y"), system(message), user("z")]))
    cause = explain(comparison, Leftover(500, "before ", old, new), 16)
    assert (cause is not None and cause.kind is Kind.SYSTEM_TURN_HOISTED) == hoisted


def test_a_name_is_no_role() -> None:
    call = assistant(None, tool_calls=[CALL])
    named, role = RESULT | {"name": "f"}, RESULT | {"role": "user"}
    assert kinds(talk([*ASKED, call, named], [*ASKED, call, RESULT, *GOES_ON])) == [Kind.TEXT_EDITED]
    assert Kind.ROLE_CHANGED in kinds(talk([*ASKED, call, RESULT], [*ASKED, call, role, *GOES_ON]))


def test_a_year_in_a_name_is_not_random() -> None:
    def tools(name: str) -> dict[str, Any]:
        return {"messages": ASKED, "tools": [{"type": "function", "function": {"name": name}}]}

    assert kinds(causes(tools("search_2025"), tools("search_2026"))) == [Kind.TOOLS_CHANGED]
    assert kinds(causes(tools("tmp_48213"), tools("tmp_90417"))) == [Kind.TOOL_RANDOM_NAME]


# In any language.

DAYS = [
    ("Heute ist Montag, der 30. November 2026", "Heute ist Dienstag, der 1. Dezember 2026"),
    ("Nous sommes le lundi 30 novembre 2026", "Nous sommes le mardi 1 décembre 2026"),
    ("Сегодня 30 ноября 2026 г., понедельник", "Сегодня 1 декабря 2026 г., вторник"),
    ("Сьогодні 30 листопада 2026 року", "Сьогодні 1 грудня 2026 року"),
    ("Bugün 30 Kasım 2026 Pazartesi", "Bugün 1 Aralık 2026 Salı"),
    ("Hôm nay là ngày 30 tháng 11 năm 2026", "Hôm nay là ngày 1 tháng 12 năm 2026"),
    ("اليوم هو 30 نوفمبر 2026", "اليوم هو 1 ديسمبر 2026"),
    ("आज 30 नवंबर 2026 है", "आज 1 दिसंबर 2026 है"),
    ("วันนี้วันที่ 30 พฤศจิกายน 2569", "วันนี้วันที่ 1 ธันวาคม 2569"),
    ("今天是11月30日，星期一", "今天是12月1日，星期二"),
    ("今日は11月30日(月曜日)です", "今日は12月1日(火曜日)です"),
    ("오늘은 11월 30일 월요일입니다", "오늘은 12월 1일 화요일입니다"),
]


def test_a_text_that_says_the_sign_of_a_date_is_no_date() -> None:
    assert varying("from \0date_time\0 on", "from 2026-11-30 on") is None


@pytest.mark.parametrize(("old", "new"), DAYS)
def test_a_day_in_the_words_of_its_language(old: str, new: str) -> None:
    assert varying(old, new) == (Varies.DATE_TIME,)
    [cause] = talk([system(old), ASKED[1]], [system(new), ASKED[1], *GOES_ON])
    assert (cause.kind, cause.values) == (Kind.VOLATILE_TEXT, (Varies.DATE_TIME,))
    assert cause.says.endswith("(to the day)")


@pytest.mark.parametrize(
    ("old", "new", "precision"),
    [
        ("le lundi 30 novembre 2026, 14h05", "le lundi 30 novembre 2026, 14h06", "minute"),
        ("2026年11月30日 14時05分", "2026年11月30日 14時06分", "minute"),
        ("now 2026-11-30 14:05:22", "now 2026-11-30 14:05:24", "second"),
        ("ts=1764511500", "ts=1764511512", "second"),
        ("ts=1764511500.25", "ts=1764511512.75", "second"),
        ("Day 2026-11-30, opens 09:30:00", "Day 2026-12-01, opens 09:30:00", "day"),
        ("Stand: 30.11.2026", "Stand: 01.12.2026", "day"),
        ("as of 2026.11.30", "as of 2026.12.01", "day"),
    ],
)
def test_how_fine_a_time_is_follows_from_what_differs(old: str, new: str, precision: str) -> None:
    [cause] = talk([system(old), ASKED[1]], [system(new), ASKED[1], *GOES_ON])
    assert cause.says.endswith(f"(to the {precision})")


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("Состояние устройств:", Kind.LIVE_STATUS),
        ("设备状态：", Kind.LIVE_STATUS),
        ("Estado de la casa:", Kind.LIVE_STATUS),
        ("Estados Unidos:", Kind.TEXT_EDITED),
        ("Stanford:", Kind.TEXT_EDITED),
        ("## 参考資料", Kind.MEMORY_TEXT),
        ("## Reference documents", Kind.MEMORY_TEXT),
        ("## Suchergebnisse", Kind.MEMORY_TEXT),
        ("## Hausregeln", Kind.TEXT_EDITED),
    ],
)
def test_a_block_is_what_its_heading_says(heading: str, kind: Kind) -> None:
    def prompt(word: str) -> dict[str, Any]:
        return system(f"Be brief.\n\n{heading}\n- the {word} fox sleeps\n- the end")

    assert kinds(talk([prompt("red"), ASKED[1]], [prompt("blue"), ASKED[1], *GOES_ON])) == [kind]


def test_a_heading_with_marks_stands_over_all_its_paragraphs() -> None:
    def prompt(fox: str, dog: str) -> dict[str, Any]:
        return system(f"Be brief.\n\n## Memories\n\nthe {fox} fox\n\nthe end\n\nthe {dog} dog\n\n## Rules\n\nNone.")

    [cause] = talk([prompt("red", "old"), ASKED[1]], [prompt("blue", "big"), ASKED[1], *GOES_ON])
    assert cause.kind is Kind.MEMORY_TEXT


@pytest.mark.parametrize(
    ("left", "kind"),
    [
        ("[salida antigua eliminada]", Kind.TOOL_OUTPUT_CLEARED),
        ("[alte Ausgabe entfernt]", Kind.TOOL_OUTPUT_CLEARED),
        ("（旧输出已清除）", Kind.TOOL_OUTPUT_CLEARED),
        ("[старый вывод удалён]", Kind.TOOL_OUTPUT_CLEARED),
        ("The file has 3 lines", Kind.TEXT_EDITED),
    ],
)
def test_a_placeholder_in_any_language(left: str, kind: Kind) -> None:
    before = [*ASKED, assistant(None, tool_calls=[CALL]), RESULT | {"content": "line\n" * 300}, assistant("done")]
    after = [*before[:3], RESULT | {"content": left}, assistant("done"), user("next")]
    assert kinds(talk(before, after)) == [kind]


@pytest.mark.parametrize(
    ("left", "says", "called"),
    [
        ("line of text\n" * 30 + "... [truncated]", "1 earlier tool output was shortened", "a tool output shortened"),
        ("[Old output cleared]", "1 earlier tool output was replaced by a placeholder", "a tool output cleared"),
    ],
)
def test_an_output_that_keeps_its_beginning_was_shortened(left: str, says: str, called: str) -> None:
    result = RESULT | {"content": "line of text\n" * 300}
    before = [*ASKED, assistant(None, tool_calls=[CALL]), result, assistant("done")]
    (found,) = talk(before, [*before[:3], RESULT | {"content": left}, assistant("done"), user("next")])
    assert (found.kind, found.says, words_of(found)) == (Kind.TOOL_OUTPUT_CLEARED, says, called)


# In bounded time: each of these took from many seconds to minutes.


def spent(old: list[Any], new: list[Any]) -> tuple[float, tuple[Cause, ...]]:
    began = time.process_time()
    found = talk(old, new)
    return time.process_time() - began, found


@pytest.mark.parametrize(
    "text",
    ["1," * 24_000, "call-" * 9_000, "a" * 9_000, "token" + " " * 40_000, "12:" * 16_000, "a/" * 24_000],
    ids=["numbers", "prefixes", "a long word", "spaces", "colons", "slashes"],
)
def test_long_lines_are_looked_through_once(text: str) -> None:
    began = time.process_time()
    skeleton(text)
    talk([system(text), ASKED[1]], [system(text[1:] + "b"), ASKED[1]])
    assert time.process_time() - began < 5


def test_thoughts_that_never_end() -> None:
    text = "<think>" * 60_000
    seconds, found = spent([*ASKED, assistant(f"{text}zz end")], [*ASKED, assistant(f"{text} end"), user("next")])
    assert kinds(found) == [Kind.TEXT_EDITED]
    assert seconds < 5


def words(count: int, seed: random.Random) -> str:
    return " ".join(f"word{seed.randrange(10**6)}" for _ in range(count))


def test_five_thousand_messages_that_lose_their_reminders() -> None:
    seed = random.Random(1)
    bare = [(user if n % 2 == 0 else assistant)(words(8, seed)) for n in range(5_000)]
    reminder = "\n<system-reminder>\nthe list is empty, number {}\n</system-reminder>"
    old = [one | {"content": one["content"] + reminder.format(n)} if n % 2 == 0 else one for n, one in enumerate(bare)]
    seconds, found = spent(old, [*bare, user("next" + reminder.format(1))])
    assert set(kinds(found)) == {Kind.REMINDER_MOVED}
    assert len({change for cause in found for change in cause.changes}) == 2_500
    assert seconds < 20


def test_every_other_one_of_five_thousand_messages_is_gone() -> None:
    seed = random.Random(2)
    old = [(user if n % 2 == 0 else assistant)(words(8, seed)) for n in range(5_000)]
    seconds, found = spent(old, [*old[::2], user("next")])
    assert [(cause.kind, len(cause.changes)) for cause in found] == [(Kind.MESSAGE_REMOVED, 2_500)]
    assert seconds < 10


def test_long_lists_are_aligned_as_short_ones_are() -> None:
    seed = random.Random(3)
    old = [f"one {n}" for n in range(1_200)]
    new = [key for key in old if seed.random() < 0.7]
    new.insert(300, "another")
    assert len(old) * len(new) > MOST_PAIRS * 10
    found = align(old, new, str, lambda a, b: 0.0)
    assert [old[i] for i, _ in found.equal] == [key for key in new if key != "another"]
    assert found.inserted == (300,)


# Fit for a terminal, and whole.


@pytest.mark.parametrize(
    ("piece", "shown"),
    [("abc\x1b[0m", "abc\\x1b[0m"), ("\u200b", "\\u200b"), ("\U000e0001x", "\\U000e0001x"), ("a\x00", "a\\x00")],
)
def test_what_is_written_as_an_escape_loses_nothing(piece: str, shown: str) -> None:
    assert _shown(piece) == ((shown, len(shown)),)
