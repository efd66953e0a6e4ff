"""The expected reuse beside what real servers reported, on every step of every capture."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from metrics_texts import raw, scrape

from kvtop.model.engine_config import config
from kvtop.model.growth import Growth
from kvtop.model.samples import samples
from kvtop.triage.engine import Engine, Layers, engine_of
from kvtop.triage.ids import common, count, pack
from kvtop.triage.kinds import Because
from kvtop.triage.reuse import Earlier, Expected, History

Captures = Callable[[str], Path]

PLAIN = ["vllm-0.32.0", "vllm-0.28.0", "vllm-0.32.0-offload", "vllm-0.32.0-tier", "ev-qwen3", "spec-ngram"]
HYBRID = ["vllm-0.32.0-hybrid", "vllm-0.32.0-hybrid-offload"]


class Step:
    def __init__(self, row: dict[str, Any], told: dict[str, Any]) -> None:
        self.name: str = row["step"]
        self.salt: str | None = row["salt"]
        self.prompt_ids: list[int] = row["prompt"]
        self.prompt, self.reply = pack(row["prompt"]), pack(row["reply"])
        self.cached: int = told["cached"]


def steps_of(captures: Captures, name: str) -> list[Step]:
    told = {row["step"]: row for row in json.loads((captures(name) / "summary.json").read_text())["rows"]}
    rows = json.loads((captures("tokens") / f"{name}.json").read_text())
    assert len(rows) == len(told)
    return [Step(row, told[row["step"]]) for row in rows]


def engine_in(captures: Captures, name: str) -> Engine:
    method = "ngram" if name == "spec-ngram" else None
    now = samples(scrape(raw(captures(name) / "00-idle.txt")))
    return engine_of(config(Growth(None, now, None, zero=True)), method=method)


def expected(
    engine: Engine, steps: list[Step], *, replies: bool = True, told: bool = True
) -> dict[str, Expected | None]:
    """Of each step, from all steps before it with the same salt."""
    histories: dict[str | None, History] = {}
    found = {}
    for i, step in enumerate(steps):
        history = histories.setdefault(step.salt, History(engine))
        found[step.name] = history.expect(step.prompt)
        reply = step.reply if replies else None
        history.add(Earlier(i, step.prompt, reply, count(step.reply), step.cached if told else None))
    return found


@pytest.mark.parametrize("name", [*PLAIN, *HYBRID])
def test_the_common_prefix_of_each_pair(captures: Captures, name: str) -> None:
    steps = steps_of(captures, name)
    for old, new in itertools.pairwise(steps):
        same = 0
        for a, b in zip(old.prompt_ids, new.prompt_ids, strict=False):
            if a != b:
                break
            same += 1
        assert common(old.prompt, new.prompt) == common(new.prompt, old.prompt) == same


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("name", [*PLAIN, *HYBRID])
def test_the_law_gives_what_the_server_reported(captures: Captures, name: str, told: bool) -> None:
    steps = steps_of(captures, name)
    engine = engine_in(captures, name)
    assert engine.layers is (Layers.HYBRID if name in HYBRID else Layers.FULL)
    found = expected(engine, steps, told=told)
    got = {step: (one.tokens, one.exact, one.at_most) if one else None for step, one in found.items()}
    assert got == {step.name: (step.cached, True, step.cached) for step in steps}


@pytest.mark.parametrize("name", [*PLAIN, *HYBRID])
def test_without_the_ids_of_the_replies_it_lies_within_the_range(captures: Captures, name: str) -> None:
    steps = steps_of(captures, name)
    engine = engine_in(captures, name)
    found = expected(engine, steps, replies=False)
    inexact = 0
    for step in steps:
        one = found[step.name]
        assert one is not None and one.tokens <= step.cached <= one.at_most, step.name
        assert one.exact == (one.tokens == one.at_most)
        inexact += not one.exact
    assert inexact < len(steps) * 2 / 3


def test_a_first_divergence_on_a_hybrid_pins_its_junction(captures: Captures) -> None:
    steps = steps_of(captures, "vllm-0.32.0-hybrid")
    found = expected(engine_in(captures, "vllm-0.32.0-hybrid"), steps)
    first = {
        "13-schema-key-shuffle": 576,
        "21-no-tools": 288,
        "26-x-div-1": 864,
        "28-x-div-3-earlier": 576,
        "34-x-alt-B1": 576,
        "48-x-chunks-div3": 864,
    }
    for name, plain in first.items():
        one = found[name]
        assert one is not None
        assert (one.tokens, one.plain, one.because) == (0, plain, (Because.HYBRID_BOUNDARY,)), name
    second = found["27-x-div-2"]
    assert second is not None and (second.tokens, second.because) == (864, ())


def test_a_reply_is_not_saved_on_the_turn_that_first_carries_it(captures: Captures) -> None:
    steps = steps_of(captures, "vllm-0.32.0-hybrid")
    found = expected(engine_in(captures, "vllm-0.32.0-hybrid"), steps)
    one, again = found["23-x-reply-in-prompt"], found["24-x-reply-in-prompt-2"]
    assert one is not None and again is not None
    assert (one.tokens, one.plain, one.because) == (576, 1152, (Because.REPLY_NOT_SAVED,))
    assert (again.tokens, again.because) == (1152, ())


def test_who_gave_it(captures: Captures) -> None:
    steps = steps_of(captures, "vllm-0.32.0")
    names = [step.name for step in steps]
    found = expected(engine_in(captures, "vllm-0.32.0"), steps)
    back = found["16-back-to-normal"]
    assert back is not None and back.from_ == names.index("12-outer-key-shuffle")
    cold = found["01-cold"]
    assert cold is not None and (cold.from_, cold.nearest) == (None, None)


def test_prefix_caching_off(captures: Captures) -> None:
    now = samples(scrape(raw(captures("odd") / "metrics-0.32.0-noprefixcache.txt")))
    engine = engine_of(config(Growth(None, now, None, zero=True)))
    history = History(engine)
    ids = pack(list(range(1000)))
    history.add(Earlier(7, ids, b""))
    one = history.expect(ids)
    assert one is not None
    assert (one.tokens, one.exact, one.because, one.plain) == (0, True, (Because.PREFIX_CACHING_OFF,), 896)
