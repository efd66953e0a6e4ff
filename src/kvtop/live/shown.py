"""A captured turn as the dashboard has it. Pure."""

from __future__ import annotations

from kvtop.capture.document import decode_s
from kvtop.capture.turn import Captured
from kvtop.model.timing import waited_s
from kvtop.model.view import Estimate, Turn


def shown(
    turn: Captured,
    *,
    phase: str | None = None,
    estimate: Estimate | None = None,
    slow: bool = False,
    waited: bool = False,
    verdict: str | None = None,
    again: bool = False,
    began_as: str | None = None,
) -> Turn:
    """With what only its server's other turns, and its counters, tell of it."""
    return Turn(
        phase=phase,
        estimate=estimate,
        slow=slow,
        waited=waited,
        verdict=verdict,
        reread=again,
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
