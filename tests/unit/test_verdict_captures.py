"""The verdict on the steps of real captures: where the law gives what the server reported, no engine is blamed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from metrics_texts import raw, scrape
from msgspec.structs import replace
from test_reuse_captures import HYBRID, PLAIN, Step, engine_in, steps_of

from kvtop.capture.recorder.counters import sample_of
from kvtop.capture.turn import Captured, Route, Sample, TurnState
from kvtop.triage.baseline import by_ids, earlier
from kvtop.triage.engine import Engine
from kvtop.triage.kinds import Because, Reason, Verdict
from kvtop.triage.reuse import History
from kvtop.triage.seen import Seen, Server
from kvtop.triage.verdict import why

Captures = Callable[[str], Path]
T = 1_796_000_000.0


def turns_of(steps: list[Step]) -> list[Captured]:
    """A turn each, ten seconds apart, all of one conversation."""
    return [
        Captured(
            id=i, upstream="u", model="m", route=Route.CHAT, stream=True, state=TurnState.DONE, conversation="c1",
            relation="next", parent=i - 1, started_at=T + 10 * i, first_token_at=T + 10 * i + 0.3,
            ended_at=T + 10 * i + 0.5, prompt_tokens=len(step.prompt_ids), cached_tokens=step.cached,
            completion_tokens=len(step.reply) // 4,
        )
        for i, step in enumerate(steps, 1)
    ]  # fmt: skip


def judged(engine: Engine, steps: list[Step], server: Server) -> dict[str, tuple[Verdict, tuple[Because, ...]]]:
    turns, found = turns_of(steps), {}
    for i, (turn, step) in enumerate(zip(turns, steps, strict=True)):
        same = [(old, its) for old, its in zip(turns[:i], steps[:i], strict=True) if its.salt == step.salt]
        history = History(engine)
        for old, its in same:
            history.add(earlier(old, its.prompt, turn, its.reply))
        base = by_ids(turn, step.prompt, {old.id: its.prompt for old, its in same}, turns[:i], server.unit or 1)
        seen = Seen(
            turn=turn, baseline=base, others=tuple(turns[:i]),
            expected=history.expect(step.prompt), server=server, rate=20_000.0,
        )  # fmt: skip
        answer = why(seen)
        found[step.name] = answer.verdict, answer.expected_because
    return found


@pytest.mark.parametrize("name", [*PLAIN, *HYBRID])
def test_no_engine_is_blamed(captures: Captures, name: str) -> None:
    engine = engine_in(captures, name)
    found = judged(engine, steps_of(captures, name), Server(unit=engine.block, engines=1))
    assert {verdict for verdict, _ in found.values()} <= {Verdict.NO_FAULT, Verdict.PROMPT_DIVERGED}
    for step, (verdict, _) in found.items():
        if "shuffle" in step and "outer" not in step and "last-2" not in step:
            assert verdict is Verdict.PROMPT_DIVERGED, step
        if "append" in step or "repeat" in step:
            assert verdict is Verdict.NO_FAULT, step


def test_a_first_divergence_that_got_nothing_is_the_law_and_no_fault_of_the_engine(captures: Captures) -> None:
    engine = engine_in(captures, "vllm-0.32.0-hybrid")
    found = judged(engine, steps_of(captures, "vllm-0.32.0-hybrid"), Server(unit=288, engines=1))
    assert found["26-x-div-1"] == (Verdict.PROMPT_DIVERGED, (Because.HYBRID_BOUNDARY,))
    assert found["13-schema-key-shuffle"] == (Verdict.PROMPT_DIVERGED, (Because.HYBRID_BOUNDARY,))
    assert found["23-x-reply-in-prompt"] == (Verdict.NO_FAULT, (Because.REPLY_NOT_SAVED,))
    assert found["27-x-div-2"][1] == ()


def counters(captures: Captures, step: str, at: float) -> Sample:
    read = sample_of(scrape(raw(captures("vllm-0.32.0-offload") / f"{step}.txt"), at))
    assert read is not None
    return read


def test_real_counters_show_what_a_pool_could_not_hold(captures: Captures) -> None:
    """Four conversations of 17,600 tokens in a pool of 16,640 lie between two turns of one. The tier brought it back;
    had there been none, this is what would have been told."""
    steps = {step.name: step for step in steps_of(captures, "vllm-0.32.0-offload")}
    a, b = steps["03-A-append3"], steps["08-A-return"]
    old, new = turns_of([a, b])
    old = replace(
        old, started_at=T, first_token_at=T + 0.3, ended_at=T + 0.5, samples=[counters(captures, a.name, T + 0.6)]
    )
    new = replace(
        new, started_at=T + 50, first_token_at=T + 53, ended_at=T + 54, cached_tokens=0,
        samples=[counters(captures, "07-E-fill", T + 49.9), counters(captures, b.name, T + 54.2)],
    )  # fmt: skip
    history = History(engine_in(captures, "vllm-0.32.0-offload"))
    history.add(earlier(old, a.prompt, new, a.reply))
    server = Server(unit=128, pool_tokens=16_640, engines=1, offload=False)
    seen = Seen(turn=new, baseline=old, expected=history.expect(b.prompt), server=server)
    found = why(seen)
    assert (found.verdict, found.reason) == (Verdict.ENGINE_LOST_CACHE, Reason.EVICTED)
    assert found.evidence[1] == "17,721 tokens were computed since turn 1, the pool holds 16,640"
    assert "a restart: the process start is unchanged since turn 1" in found.rules_out
    served = why(Seen(turn=replace(new, cached_tokens=2_048), baseline=old, expected=seen.expected, server=server))
    assert served.verdict is Verdict.NO_FAULT
