"""A prompt that goes on with another one although it does not begin as that did, and those that only resemble one."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from kvtop.capture.turn import Route
from kvtop.triage.changes import compare
from kvtop.triage.continued import goes_on, holds, may_go_on
from kvtop.triage.judge import causes_of, read
from kvtop.triage.kinds import Kind
from kvtop.triage.prompt import Prompt, from_chat


def words(seed: int, n: int) -> str:
    pick = random.Random(seed)
    return " ".join(f"{pick.choice('abcdefgh')}{pick.randrange(900)}" for _ in range(n))


SYSTEM, BIG, NOTE = "You mend programs. " + words(1, 200), words(2, 1_500), "New: " + words(3, 40)
ANSWERED = [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "and then?"}]


def chat(*messages: tuple[str, str] | dict[str, Any], system: str = SYSTEM) -> Prompt:
    made = [one if isinstance(one, dict) else {"role": one[0], "content": one[1]} for one in messages]
    return from_chat({"messages": [{"role": "system", "content": system}, *made]}, {})


REMINDED = f"<system-reminder>{words(4, 200)}</system-reminder>\n"
STEPS = {
    "a message before it": (chat(("user", NOTE), ("user", BIG), *ANSWERED), Kind.MESSAGE_INSERTED),
    "another role": (chat(("human", BIG), *ANSWERED), Kind.ROLE_CHANGED),
    "words before it": (chat(("user", f"{NOTE}\n{BIG}"), *ANSWERED), Kind.TEXT_EDITED),
    "a reminder left it": (
        chat(("user", BIG), ANSWERED[0], ("user", f"{REMINDED}and then?")),
        Kind.REMINDER_MOVED,
    ),
}


@pytest.mark.parametrize("how", STEPS)
def test_the_same_long_message_answered_is_one_conversation(how: str) -> None:
    new, kind = STEPS[how]
    old = chat(("user", REMINDED + BIG if kind is Kind.REMINDER_MOVED else BIG))
    found = compare(old, new)
    assert may_go_on(old, new) and goes_on(found)
    assert [cause.kind for cause in causes_of(found)] == [kind]


OTHERS = {
    "another answer's question": chat(("user", NOTE), *ANSWERED),
    "the same, asked by another run": chat(("user", NOTE), ("user", BIG)),
    "another agent's": chat(("user", NOTE), ("user", BIG), *ANSWERED, system="You write titles. " + words(9, 200)),
    "a short one": chat(("user", NOTE), ("user", BIG[:200]), *ANSWERED),
}


@pytest.mark.parametrize("how", OTHERS)
def test_what_only_resembles_it_is_not(how: str) -> None:
    asked = BIG[:200] if how == "a short one" else BIG
    assert not goes_on(compare(chat(("user", asked)), OTHERS[how]))


def text(prompt: str) -> Prompt:
    return read(json.dumps({"model": "q", "prompt": prompt}).encode(), Route.COMPLETIONS)


def test_a_plain_text_goes_on_with_one_that_it_holds() -> None:
    old, new = text(BIG), text(f"X {BIG} and more")
    found = compare(old, new)
    assert may_go_on(old, new) and goes_on(found)
    (change,) = found.changes
    assert change.region is not None and (change.region.old, change.region.new) == ("", "X ")
    assert found.restored({change.id}).messages[0]["content"] == f"{BIG} and more"
    assert not goes_on(compare(old, text(words(5, 1_500)))) and not goes_on(compare(text("hi"), text("X hi")))


@pytest.mark.parametrize("closing", ["", " " + words(9, 40)])
def test_two_plain_texts_with_one_preamble_are_two(closing: str) -> None:
    """A labeller: the same instructions and examples before each document, and perhaps behind it."""
    preamble = words(5, 3_000)
    old, new = (text(f"{preamble} {words(n, 600)}{closing}") for n in (6, 7))
    assert not may_go_on(old, new) and not goes_on(compare(old, new))


def test_a_text_with_a_changed_part_is_held_and_half_of_one_is_not() -> None:
    assert holds(BIG, NOTE + BIG.replace(BIG[500:540], "other"))
    assert not holds(BIG, BIG[: len(BIG) // 2]) and holds("short", "a short one") and not holds("short", "none")
