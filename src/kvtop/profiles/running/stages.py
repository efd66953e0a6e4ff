"""A start as a screen shows it: the stages that were seen, and those that usually come. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvtop.errors import printable
from kvtop.model.starting import Starting, StartStage
from kvtop.profiles.running import progress
from kvtop.profiles.running.look import Seen
from kvtop.profiles.running.record import Record, Stage, Start

_SURE = (progress.PROCESS, progress.WEIGHTS, progress.KV_CACHE, progress.PORT)
"""What every start has, whatever its model."""


def stage_words(stage: Stage, state: Record) -> str:
    """`weights, 9 of 14 shards`."""
    if stage.name == progress.WEIGHTS and state.shards:
        return f"weights, {state.shards_done} of {state.shards} shards"
    if stage.name == progress.BEFORE and stage.ended_at is None and state.doing:
        return printable(state.doing, 160)
    if stage.name == progress.PORT and stage.ended_at is None:
        return f"waits for port {state.port}"
    return _words(stage.name, state)


def _words(name: str, state: Record) -> str:
    if name == progress.PORT:
        return f"port {state.port} answers"
    return progress.WORDS.get(name, printable(name, 30))


def starting(seen: Seen, past: Sequence[Start], now: float) -> Starting | None:
    """None where its profile was never started. Of a start that is over: how it went."""
    state = seen.record
    if state is None:
        return None
    past = [one for one in past if one.at != state.started_at]  # it is no measure of itself
    over = seen.state != "starting"
    # One that is ended on purpose starts no more from that moment on, however long its end takes.
    ended = state.ready_at or (state.ask.at if state.ask is not None else None) or state.ended_at
    at = ended if over and ended is not None else now
    left = None if over else progress.left(state.stages, state.loaded, past, now)
    lengths = [start.took_s for start in past]
    return Starting(
        profile=printable(state.name, 80),
        started_at=state.started_at,
        stages=_stages(state, progress.usual(past), at, over),
        pid=seen.pid,
        port=state.port,
        elapsed_s=max(0.0, at - state.started_at),
        left_s=left.seconds if left is not None else None,
        of_starts=len(past),
        fastest_s=min(lengths, default=None),
        slowest_s=max(lengths, default=None),
        over=over,
    )


def _stages(state: Record, usual: Mapping[str, float], at: float, over: bool) -> tuple[StartStage, ...]:
    seen = {stage.name: stage for stage in state.stages}
    wanted = set() if over else set(usual) or set(_SURE)
    here = max((progress.STAGES.index(name) for name in seen if name in progress.STAGES), default=-1)
    made: list[StartStage] = []
    for at_place, name in enumerate(progress.STAGES):
        stage = seen.get(name)
        if stage is None:
            if name in wanted and at_place > here:
                made.append(StartStage(_words(name, state), "next", None, usual.get(name)))
            continue
        running = stage.ended_at is None and not over
        took = stage.took_s
        if stage.ended_at is None and stage.began_at is not None:
            took = max(0.0, at - stage.began_at)
        words = stage_words(stage, state)
        share = _share(stage, state, took, usual.get(name)) if running else None
        made.append(StartStage(words, "now" if running else "done", took, usual.get(name), share))
    return tuple(made)


def _share(stage: Stage, state: Record, took: float | None, usual: float | None) -> float | None:
    shards = state.loaded
    if stage.name == progress.WEIGHTS and shards is not None and 0 <= shards[0] <= shards[1]:
        return shards[0] / max(1, shards[1])
    if took is None or not usual:
        return None
    return min(0.99, took / usual)
