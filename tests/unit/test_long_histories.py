"""Requests with very many messages or tools: bounded work, and a bounded answer that says how much it leaves out."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from kvtop.capture.api.canonical import encode
from kvtop.capture.turn import Route
from kvtop.triage import align, judge, plain, sheets
from kvtop.triage.differ import Divergence, Sent, diverge
from kvtop.triage.judge import MOST_ALIKE, read
from kvtop.triage.kinds import Kind
from kvtop.triage.likeness import message_likeness
from kvtop.triage.places import places
from kvtop.triage.sheet import Sheet
from kvtop.triage.values import key_of


def talk(n: int) -> list[dict[str, Any]]:
    said = (f"message number {i} says something of {i * i}" for i in range(n))
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(said)]


def edited(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every answer says a word more."""
    return [one if i % 2 == 0 else {**one, "content": f"{one['content']} thought"} for i, one in enumerate(messages)]


def compared(one: dict[str, Any], other: dict[str, Any]) -> tuple[Divergence, Sheet]:
    bodies = (encode({"model": "m", **one}), encode({"model": "m", **other}))
    old, new = (Sent(name, Route.CHAT, read(body, Route.CHAT), body) for name, body in zip("12", bodies, strict=True))
    found = asyncio.run(diverge(old, new, None))
    return found, sheets.of_words(found, "1", "2")


def test_causes_of_one_kind_are_told_one_by_one_up_to_a_number_and_the_rest_as_one() -> None:
    messages = talk(401)
    found, sheet = compared({"messages": messages}, {"messages": edited(messages)})
    causes = found.diff.causes
    assert len(causes) == MOST_ALIKE == 50
    assert [cause.section for cause in causes[:2]] == ["messages[1].content", "messages[3].content"]
    last = causes[-1]
    assert (last.kind, last.section) == (Kind.TEXT_EDITED, "messages[99].content")
    assert last.says.startswith("and 151 more of this kind from here on, of which this is the first: text of an")
    assert len(last.changes) == 151, "200 answers, 49 of them told before"
    restored = found.comparison.restored({id for cause in causes for id in cause.changes})
    assert list(restored.messages) == messages, "each change has its cause"
    where = places(sheet)
    assert where.at_cause == tuple(range(50))
    lines = list(plain.lines(sheet, 100))
    assert lines[-1] == "[and 100 more changes]"
    assert sum(line.startswith("@@") for line in lines) <= 100


def test_as_many_as_are_told_are_told_as_they_are() -> None:
    messages = talk(2 * MOST_ALIKE + 1)
    found, _ = compared({"messages": messages}, {"messages": edited(messages)})
    assert len(found.diff.causes) == MOST_ALIKE
    assert not any("more of this kind" in cause.says for cause in found.diff.causes)


def test_no_more_pairs_are_weighed_than_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(align, "MOST_WEIGHED", 1_000)
    messages = talk(3_000)
    shuffled = list(messages)
    random.Random(1).shuffle(shuffled)
    weighed = 0

    def likeness(old: Any, new: Any) -> float:
        nonlocal weighed
        weighed += 1
        return message_likeness(old, new)

    found = align.align(messages, shuffled, key_of, likeness)
    assert weighed <= 1_000 + len(messages)
    assert len(found.equal) > 50
    for pairs in (found.equal, found.alike):
        assert sorted(j for _, j in pairs) == [j for _, j in sorted(pairs)], "none cross"


@pytest.mark.parametrize("how", ["every second edited", "shuffled", "all others", "tools"])
def test_the_time_grows_as_the_length(how: str) -> None:
    """Eight times as many take no more than some 16 times as long: what looks at each pair of them takes 64 times."""

    def taken(n: int) -> float:
        messages = talk(n)
        old: dict[str, Any] = {"messages": messages}
        if how == "every second edited":
            new: dict[str, Any] = {"messages": edited(messages)}
        elif how == "all others":
            new = {"messages": [{**one, "content": f"other {hash(one['content'])}"} for one in messages]}
        elif how == "shuffled":
            new = {"messages": random.Random(1).sample(messages, n)}
        else:
            tools = [{"type": "function", "function": {"name": f"mcp__s{i}__t", "parameters": {}}} for i in range(n)]
            old = {"messages": messages[:1], "tools": tools}
            new = {"messages": messages[:1], "tools": random.Random(1).sample(tools, n)}
        began = time.process_time()
        _, sheet = compared(old, new)
        assert sum(1 for _ in plain.lines(sheet, 100)) < 4_000
        return time.process_time() - began

    taken(100)
    short = max(taken(500), 0.05)
    assert taken(4_000) < 30 * short, how
    assert judge.MOST_ALIKE == 50
