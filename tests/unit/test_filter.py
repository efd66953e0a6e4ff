"""The words of the turns filter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtop.model.finding import Finding
from kvtop.model.shown_turn import Turn
from kvtop.ui.filter import HINTS, matches, misread

SLOW = Turn(
    12, 1.0, prompt_tokens=120_000, cached_tokens=12_000, new_tokens=108_000, ttft_s=92.0, slow=True, waited=True,
    verdict="new_tokens", finish_reason="stop", engine="1",
)  # fmt: skip
FLYING = Turn(13, None, state="in_flight", phase="reads")


@pytest.mark.parametrize(
    ("words", "slow", "flying"),
    [
        ("", True, True),
        ("slow", True, False),
        ("in flight", False, True),
        ("done", True, False),
        ("reads", False, True),
        ("new>10k", True, False),
        ("new>0.2m", False, False),
        ("cached<50", True, False),
        ("cached>=50", False, False),
        ("slow ttft>90 prompt=120k", True, False),
        ("slow ttft>100", False, False),
        ("12", True, False),
        ("stop", True, False),
        ("nonsense", False, False),
        ("new > 10k", True, False),
        ("slow ttft> 90 cached <50", True, False),
        ("out>zz", False, False),
        ("1=2", False, False),
        ("cached<", False, False),
    ],
)
def test_words(words: str, slow: bool, flying: bool) -> None:
    assert (matches(SLOW, words), matches(FLYING, words)) == (slow, flying)


@pytest.mark.parametrize(
    ("verdict", "words"),
    [("prompt_diverged", ["broke", "slow broke"]), ("engine_lost_cache", ["lost"]), ("queued", []), (None, [])],
)
def test_what_was_found_out(verdict: str | None, words: list[str]) -> None:
    finding = None if verdict is None else Finding(verdict, "bad")
    turn = replace(SLOW, finding=finding)
    assert [one for one in ("broke", "slow broke", "lost") if matches(turn, one)] == words


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("", ""),
        ("slow new>10k", ""),
        ("new >= 10k", ""),
        ("nonsense", ""),
        ("out>zz", "out>zz"),
        ("slow foo > 3", "foo>3"),
        ("new>", "new>"),
        ("cached<<50", "cached<<50"),
    ],
)
def test_what_cannot_be_a_comparison_is_named(words: str, wrong: str) -> None:
    assert misread(words) == wrong


def test_what_can_be_typed_can_be_read() -> None:
    assert not any(misread(hint) for hint in HINTS)


CAPTURED = Turn(
    15, 1.0, source="tap", agent="claude-code", model="Qwen3", conversation="c12", relation="side", state="aborted",
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "captured", "slow"),
    [
        ("claude", True, False),
        ("CLAUDE qwen", True, False),
        ("c12", True, False),
        ("c1", False, False),
        ("aborted", True, False),
        ("failed", True, False),
        ("cut", False, False),
        ("side", True, False),
        ("past", False, False),
        ("15", True, False),
    ],
)
def test_words_of_captured_turns(words: str, captured: bool, slow: bool) -> None:
    assert (matches(CAPTURED, words), matches(SLOW, words)) == (captured, slow)


def test_what_went_past_the_tap() -> None:
    assert matches(replace(SLOW, past_tap=True), "past") and not matches(SLOW, "past")
    assert matches(replace(CAPTURED, state=None), "cut"), "nobody saw its end"


def test_numbers_from_metrics_and_those_of_the_store_are_told_apart() -> None:
    counted, captured = Turn(15, 1.0, beside=True), Turn(15, 1.0, source="tap")
    assert [[matches(turn, word) for turn in (counted, captured)] for word in ("15", "m15")] == [
        [False, True], [True, False]
    ]  # fmt: skip


def test_imported_turns_are_found() -> None:
    assert matches(Turn(1, 1.0, source="import"), "import")
    assert not matches(Turn(1, 1.0, source="tap"), "import")
