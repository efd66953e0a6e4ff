"""A captured turn as a row of the dashboard, and what one in flight is doing."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop.capture.document import decode_s
from kvtop.capture.turn import Captured
from kvtop.model.shown_turn import Estimate, Turn
from kvtop.model.timing import waited_s


def phases(flying: Sequence[Captured], waiting: int, running: int) -> dict[int, str | None]:
    """What each one does, newest first, as far as the server's counts of those that wait and run tell it.

    None where they do not: an answer that is no stream has no first token, and of requests that wait and others that
    are read only the server knows which is which.
    """
    writes = [turn for turn in flying if turn.first_token_at is not None]
    rest = [turn for turn in flying if turn.first_token_at is None]
    out: dict[int, str | None] = {turn.id: "writes" for turn in writes}
    if not waiting:
        return out | {turn.id: "reads" if turn.stream else None for turn in rest}
    if not running:
        return out | {turn.id: "waits" for turn in rest}
    if running + waiting != len(flying):
        return out | {turn.id: None for turn in rest}
    late = {turn.id for turn in rest[:waiting]}  # first come, first served: the server's rule unless it is told another
    return out | {turn.id: "waits" if turn.id in late else "reads" if turn.stream else None for turn in rest}


def shown(
    turn: Captured,
    *,
    phase: str | None = None,
    estimate: Estimate | None = None,
    slow: bool = False,
    waited: bool = False,
    verdict: str | None = None,
    again: bool = False,
    lost: bool | None = None,
    read_s: float | None = None,
    queue_seen: bool = False,
    began_as: str | None = None,
) -> Turn:
    """One turn, with what is not its own but worked out from others."""
    return Turn(
        phase=phase,
        estimate=estimate,
        slow=slow,
        waited=waited,
        verdict=verdict,
        reread=again,
        lost=lost,
        read_s=read_s,
        queue_seen=queue_seen,
        began_as=began_as,
        id=turn.id,
        ended_at=turn.ended_at,
        state=None if turn.state is None else str(turn.state),
        started_at=turn.started_at,
        prompt_tokens=turn.prompt_tokens,
        cached_tokens=turn.cached_tokens,
        cached_source=turn.cached_source,
        new_tokens=turn.new_tokens,
        completion_tokens=turn.completion_tokens,
        queue_s=turn.queue_s,
        prefill_s=turn.prefill_s,
        decode_s=decode_s(turn),
        ttft_s=waited_s(turn),
        worked_out=("ttft_s",) if turn.ttft_s is None and waited_s(turn) is not None else (),
        duration_s=turn.duration_s,
        inter_token_s=turn.inter_token_p50_s if not turn.coalesced else None,
        finish_reason=turn.finish_reason,
        source=str(turn.source),
        record=str(turn.record),
        route=str(turn.route),
        model=turn.model,
        agent=turn.agent,
        conversation=turn.conversation,
        relation=turn.relation,
        changed=tuple(turn.changed),
        status=turn.status,
        error=turn.error,
    )
