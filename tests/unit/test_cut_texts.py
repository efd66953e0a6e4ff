"""A text that was cut anywhere, the first or the second: each number is right or unknown, no restart is seen."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from metrics_texts import raw, scrape, texts_of

from kvtop.model import document
from kvtop.model.window import between, since_start
from kvtop.readings import State

WHOLE = ("vllm-0.32.0-tier", "vllm-0.32.0-offload", "vllm-0.28.0", "ev-qwen3", "spec-ngram", "pd", "dp2")


def numbers(value: object, at: str = "") -> Iterator[tuple[str, float]]:
    """Every number and truth of a document, by its place; tiers by their name."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from numbers(one, f"{at}.{key}")
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from numbers(one, f"{at}.{one.get('tier', i) if isinstance(one, dict) else i}")
    elif isinstance(value, int | float):
        yield at, value


def places(text: str, n: int, *, line_ends: bool) -> list[int]:
    dice = random.Random(len(text))
    ends = [i + 1 for i, c in enumerate(text) if c == "\n"]
    inside = [at for at in dice.sample(range(len(text)), n) if line_ends or text[at - 1 : at] != "\n"]
    return sorted({*inside, *(dice.sample(ends, min(n, len(ends))) if line_ends else ())})


@pytest.mark.parametrize("name", WHOLE)
def test_numbers_of_a_cut_text_are_right_or_unknown(name: str, captures: Callable[[str], Path]) -> None:
    files = texts_of(captures(name))
    first, second = raw(files[1]), raw(files[min(7, len(files) - 1)])
    a, b = scrape(first), scrape(second)
    whole = document.snapshot(between(a, b, 10.0))
    want = dict(numbers(whole))
    assert whole["state"] == "up"
    cuts = [("B", at, a, scrape(second[:at])) for at in places(second, 150, line_ends=True)]
    # several API processes tell no start: there new series of the second text may be new indeed
    line_ends = name != "dp2"
    cuts += [("A", at, scrape(first[:at]), b) for at in places(first, 150, line_ends=line_ends)]
    for which, at, one, other in cuts:
        got = document.snapshot(between(one, other, 10.0))
        assert got["state"] != "reset", (which, at, got["detail"])
        wrong = {key: value for key, value in numbers(got) if want.get(key) != value}
        assert not wrong, (which, at)


def test_a_text_that_ends_before_any_series_does_not_accuse_a_flag(captures: Callable[[str], Path]) -> None:
    whole = raw(texts_of(captures("vllm-0.32.0"))[0])
    window = since_start(scrape(whole[: whole.index("vllm:") - 3]))
    assert not window.state.good
    assert window.detail == "the text was cut before any series of the engine"


def test_a_text_that_ends_in_its_first_family_is_up_and_unknown(captures: Callable[[str], Path]) -> None:
    whole = raw(texts_of(captures("vllm-0.32.0"))[0])
    window = since_start(scrape(whole[: whole.index("\nvllm:") + 40]))
    assert window.state is State.UP and "cut" in window.detail
    assert window.all.requests.running is None and window.all.cached.prompt_tokens is None


@pytest.mark.parametrize("last", ["# HELP vllm:x_total of x", '# TYPE vllm:x histogram\nvllm:x_bucket{le="1"} 2'])
def test_a_last_line_that_cannot_be_the_last_is_a_cut(last: str) -> None:
    assert scrape(f"# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total 1\n{last}\n").truncated
