"""What each cause costs, in whole blocks of the new prompt: together they are what was read again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from triage_prompts import pairs
from triage_server import WORD, WordServer, sent, system_first, tools_first

from kvtop.triage.apart import two_conversations
from kvtop.triage.differ import Cache, Divergence, Sent, diverge
from kvtop.triage.kinds import KEYS, Kind, Varies, Who
from kvtop.triage.pricing import charged
from kvtop.triage.prompt import Prompt, from_chat
from kvtop.triage.result import Cause

UNIT = 16
RULES = "rule after rule, " * 40
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}}
TURNED = {"properties": {"limit": {"type": "integer"}, "path": {"type": "string"}}, "type": "object"}


def prompt(clock: str = "09:00:00", *said: str, schema: Any = SCHEMA, of: str = "You help", **inputs: Any) -> Prompt:
    system = f"{of}. {RULES}\nCurrent time: {clock}\n{RULES}"
    messages = [{"role": "system", "content": system}]
    messages += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    tools = [
        {"type": "function", "function": {"name": name, "description": f"does {name} " * 9, "parameters": schema}}
        for name in ("read", "grep")
    ]
    return from_chat({"messages": messages, "tools": tools}, inputs)


async def diff(old: Prompt, new: Prompt, template: Any = system_first) -> Divergence:
    return await diverge(sent(old, "1"), sent(new, "2"), WordServer(template), Cache(unit=UNIT))


def step(n: int) -> str:
    return f"step {n} of the work " * 12


TALK = [step(n) for n in range(9)]


@pytest.mark.parametrize("template", [system_first, tools_first])
async def test_they_sum_to_what_was_read_again(template: Any) -> None:
    edited = [*TALK[:3], TALK[3].replace("work", "WORK", 1), *TALK[4:], "done", "go on"]
    found = (await diff(prompt("09:00:00", *TALK), prompt("09:07:31", *edited, schema=TURNED), template)).diff
    assert {cause.kind for cause in found.causes} == {Kind.VOLATILE_TEXT, Kind.TOOL_KEY_ORDER, Kind.TEXT_EDITED}
    told = [cause.told_tokens or 0 for cause in found.causes]
    assert sum(told) == found.tokens.reread and all(one % UNIT == 0 for one in told)


@given(pairs())
async def test_never_more_than_what_was_read_again(two: tuple[Prompt, Prompt]) -> None:
    found = (await diff(*two)).diff
    told = [cause.told_tokens or 0 for cause in found.causes if cause.reread_tokens is not None]
    assert all(one >= 0 for one in told) and sum(told) <= (found.tokens.reread or 0)
    assert (found.tokens.reread or 0) % UNIT == 0


async def test_a_short_new_prompt_does_not_pay_for_a_long_old_one() -> None:
    """What stands in the old prompt behind the end of the new one was not read again."""
    found = (await diff(prompt("09:00:00", *TALK, *TALK, *TALK), prompt("09:07:31", TALK[0]))).diff
    clock = next(cause for cause in found.causes if cause.kind is Kind.VOLATILE_TEXT)
    assert found.tokens.new is not None and 0 < (clock.told_tokens or 0) < found.tokens.new
    assert clock.told_tokens == found.tokens.reread


def tokens(*texts: str) -> int:
    """Of the stand-in server, without what its template puts around each."""
    return sum(len(WORD.findall(text)) for text in texts)


async def test_what_a_change_took_away_was_not_read_again() -> None:
    """A tool output that is cleared: what stands behind it is read again, and not the room that it had."""
    long = "a line of output " * 200
    before = prompt("09:00:00", *TALK[:3], long, *TALK[4:])
    found = (await diff(before, prompt("09:00:00", *TALK[:3], "[cleared]", *TALK[4:], "done", "go on"))).diff
    behind = tokens(*TALK[4:])
    assert sum(cause.lost_tokens or 0 for cause in found.causes) > tokens(long) + behind
    assert behind <= (found.tokens.reread or 0) < behind + 60
    assert sum(cause.told_tokens or 0 for cause in found.causes) == found.tokens.reread


@pytest.mark.parametrize("kept", [0, 2])
async def test_a_summary_was_never_read_before(kept: int) -> None:
    """Of a compacted history only the messages that stand behind the summary as they were are read again."""
    summary = "This session is being continued from a previous conversation. Summary: " + "what was done " * 150
    tail = TALK[len(TALK) - kept :]
    found = (await diff(prompt("09:00:00", *TALK), prompt("09:00:00", summary, *tail))).diff
    assert [cause.kind for cause in found.causes] == [Kind.COMPACTION]
    assert (found.tokens.new or 0) - (found.tokens.common or 0) > tokens(summary)
    assert tokens(*tail) <= (found.tokens.reread or 0) <= tokens(*tail) + 2 * UNIT
    assert found.causes[0].told_tokens == found.tokens.reread


async def test_what_was_put_in_was_not_read_before() -> None:
    more = "a note that was put in " * 60
    found = (await diff(prompt("09:00:00", *TALK), prompt("09:00:00", TALK[0], more, *TALK[1:], "done"))).diff
    assert found.tokens.old is not None and found.tokens.reusable is not None
    assert found.tokens.reread == found.tokens.old // UNIT * UNIT - found.tokens.reusable


async def test_what_is_not_said_again_costs_nothing() -> None:
    """Went back, and on from there: all of the old prompt that the new one says is reused."""
    found = (await diff(prompt("09:00:00", *TALK), prompt("09:00:00", *TALK[:3], "Rather do it in another way."))).diff
    assert [cause.kind for cause in found.causes] == [Kind.ROLLED_BACK]
    assert found.tokens.reread == 0 and found.tokens.lost and found.causes[0].lost_tokens == found.tokens.lost
    assert found.causes[0].told_tokens is None


async def test_another_key_costs_what_is_the_same_and_the_others_the_rest() -> None:
    old, new = prompt("09:00:00", *TALK, cache_salt="a"), prompt("09:07:31", *TALK, "done", cache_salt="b")
    found = (await diff(old, new)).diff
    told = {cause.kind: cause.told_tokens or 0 for cause in found.causes}
    assert set(told) == {Kind.CACHE_SALT_CHANGED, Kind.VOLATILE_TEXT} and min(told.values()) > 0
    assert found.tokens.reusable == 0 and sum(told.values()) == found.tokens.reread
    assert all(cause.kind in KEYS or cause.at_token for cause in found.causes)


@pytest.mark.parametrize(
    ("more", "kind"), [({"clock": "09:07:31"}, Kind.VOLATILE_TEXT), ({"schema": TURNED}, Kind.TOOL_KEY_ORDER)]
)
async def test_a_second_conversation_pays_for_what_both_should_have_said_alike(more: Any, kind: Kind) -> None:
    clock = more.pop("clock", "09:00:00")
    made = await diff(prompt("09:00:00", *TALK[:3]), prompt(clock, "Name the files of this folder.", **more))
    causes = two_conversations(made.diff.causes, made.comparison)
    assert [cause.kind for cause in causes] == [kind, Kind.OTHER_CONVERSATION]
    assert causes[0].told_tokens == made.diff.tokens.reread and causes[1].told_tokens is None
    assert causes[1].who is Who.NOBODY


async def test_two_agents_are_held_nothing_against() -> None:
    other = prompt("09:07:31", "Name the files.", of="You review patches and write nothing at all, ever. " * 12)
    made = await diff(prompt("09:00:00", *TALK[:3]), other)
    causes = two_conversations(made.diff.causes, made.comparison)
    assert [cause.kind for cause in causes] == [Kind.OTHER_CONVERSATION] and made.diff.tokens.reread == 0


def test_what_another_prompt_left_is_not_charged() -> None:
    """The prompt meets it first, so it is the first cause's."""
    made = Cause(Kind.VOLATILE_TEXT, "", "messages[0]", "", "", lost_tokens=300, reread_tokens=288, at_token=100,
                 values=(Varies.DATE_TIME,))  # fmt: skip
    behind = replace(made, kind=Kind.TEXT_EDITED, lost_tokens=1_000, reread_tokens=992, at_token=400)
    assert charged((behind, made), 1_280) == (behind, made)
    some = charged((behind, made), 1_100)
    assert [cause.told_tokens for cause in some] == [992, 108]
    assert [cause.told_tokens for cause in charged((behind, made), 500)] == [500, 0]
    assert [cause.lost_tokens for cause in charged((behind, made), 0)] == [1_000, 300]


async def test_without_a_server_what_is_new_is_guessed_from_sizes() -> None:
    def told(made: Prompt, n: int) -> Sent:
        return sent(made, str(n), prompt_tokens=sum(map(tokens, map(str, (*made.messages, *made.tools)))))

    old, long = prompt("09:00:00", *TALK), "what was done " * 150
    grown = prompt("09:07:31", *TALK, "done", long)
    summary = prompt("09:00:00", f"This session is being continued from a previous conversation. Summary: {long}")
    for new, said in ((grown, tokens("done", long)), (summary, tokens(long)), (old, 0)):
        found = (await diverge(told(old, 1), told(new, 2), None)).diff
        assert found.method == "text" and found.tokens.fresh == pytest.approx(said, rel=0.25)
    assert (await diverge(sent(old), sent(grown), None)).diff.tokens.fresh is None
