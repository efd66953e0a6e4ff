"""The words of the turns filter."""

from __future__ import annotations

import pytest

from kvtop.model.view import Turn
from kvtop.ui.filter import matches

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
        ("cached<", False, False),
    ],
)
def test_words(words: str, slow: bool, flying: bool) -> None:
    assert (matches(SLOW, words), matches(FLYING, words)) == (slow, flying)
