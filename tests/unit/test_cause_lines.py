"""The causes of a turn as lines of `kvtop why`, and in words."""

from __future__ import annotations

import pytest

from kvtop.cli.why import causes
from kvtop.triage.kinds import Kind, Varies, Who
from kvtop.triage.result import Cause
from kvtop.triage.words import cause, place


def made(kind: Kind, *values: Varies, section: str = "messages[0].content", **more: object) -> Cause:
    return Cause(kind, "", section, "says", "mend it", values=values, **more)  # type: ignore[arg-type]


def test_a_price_is_whole_blocks_and_their_time() -> None:
    clock = made(Kind.VOLATILE_TEXT, Varies.DATE_TIME, lost_tokens=6_538, lost_s=6.538, reread_tokens=3_712)
    assert list(causes([clock], "mend it")) == [
        "volatile_text (date_time) in messages[0].content, 3,712 tokens, 3.7 s, client"
    ]


def test_what_costs_nothing_has_no_price_and_another_conversation_no_line() -> None:
    back = made(Kind.ROLLED_BACK, section="messages[9]", who=Who.NOBODY, lost_tokens=3_378, lost_s=3.6)
    other = made(Kind.OTHER_CONVERSATION, who=Who.NOBODY, lost_tokens=0, lost_s=0.0)
    assert list(causes([other, back], None)) == ["rolled_back in messages[9], nobody", "  mend it"]


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (made(Kind.VOLATILE_TEXT, Varies.DATE_TIME), "a clock"),
        (made(Kind.VOLATILE_TEXT, Varies.COUNTER), "a counter"),
        (made(Kind.VOLATILE_TEXT, Varies.DATE_TIME, Varies.UUID), "text that changes each time"),
        (made(Kind.PER_AGENT_TEXT_FIRST), "each agent's own text stands first"),
        (made(Kind.TOOL_KEY_ORDER), "key order"),
    ],
)
def test_in_words(one: Cause, words: str) -> None:
    assert cause(one) == words


@pytest.mark.parametrize("kind", Kind)
def test_no_kind_is_told_by_its_id(kind: Kind) -> None:
    assert "_" not in cause(made(kind)) and cause(made(kind)) != kind.value


@pytest.mark.parametrize(
    ("one", "where"),
    [
        (made(Kind.TEXT_EDITED, of_system=True), "the system prompt"),
        (made(Kind.TEXT_EDITED, section="system[1].text"), "the system prompt"),
        (made(Kind.TEXT_EDITED, section="instructions"), "the system prompt"),
        (made(Kind.TEXT_EDITED, section="messages[3].content"), "messages[3]"),
        (made(Kind.TOOL_KEY_ORDER, section="tools[4].function.parameters"), "tools[4]"),
    ],
)
def test_the_system_prompt_is_called_that(one: Cause, where: str) -> None:
    assert place(one) == where
