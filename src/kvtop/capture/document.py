"""One captured turn as an element of `turns --json`. Unknown is null."""

from __future__ import annotations

from typing import Any

from kvtop.capture.turn import Captured, TurnState
from kvtop.clock import iso
from kvtop.model import timing
from kvtop.model.document import plain


def turn(t: Captured, slow: bool | None, verdict: str | None = None) -> dict[str, Any]:
    """The keys of a turn from the counters (`kvtop.model.document.turn`), and what only a capture can tell. `verdict`:
    the kind of the last one that was given on it (`kvtop.capture.store.given`)."""
    return {
        "id": t.id,
        "n": 1,
        "started_at": iso(t.started_at),
        "ended_at": iso(t.ended_at),
        "route": t.route.value,
        "method": t.method or None,
        "path": t.path or None,
        "stream": t.stream,
        "model": t.model,
        "conversation": t.conversation,
        "parent": t.parent,
        "relation": t.relation,
        "changed": plain(t.changed),
        "agent": t.agent,
        "agent_version": t.agent_version,
        "hints": plain(t.hints),
        "upstream": t.upstream or None,
        "engine": None,
        "state": t.state and t.state.value,
        "phase": phase(t),
        "status": t.status,
        "error": t.error,
        "finish_reason": t.finish_reason,
        "response_id": t.response_id,
        "prompt_tokens": t.prompt_tokens,
        "cached_tokens": t.cached_tokens,
        "cached_share": plain(t.cached_share),
        "cached_source": t.cached_source,
        "new_tokens": t.new_tokens,
        "completion_tokens": t.completion_tokens,
        "reasoning_tokens": t.reasoning_tokens,
        "usage": plain(t.usage) or None,
        "queue_s": plain(t.queue_s),
        "prefill_s": plain(t.prefill_s),
        "decode_s": plain(decode_s(t)),
        "ttft_s": plain(t.ttft_s),
        "duration_s": plain(t.duration_s),
        "inter_token_mean_s": plain(1 / speed if (speed := tokens_per_s(t)) else None),
        "inter_token_p50_s": plain(t.inter_token_p50_s),
        "inter_token_p95_s": plain(t.inter_token_p95_s),
        "inter_token_n": t.inter_token_n,
        "coalesced": t.coalesced,
        "alone": t.alone,
        "request_bytes": t.request_bytes,
        "response_bytes": t.response_bytes,
        "slow": slow,
        "verdict": verdict,
        "source": t.source.value,
        "record": t.record.value,
        "prompt_unproven": t.prompt_unproven or None,
    }


def phase(t: Captured) -> str | None:
    """Of one in flight, what the wire tells: it writes, or it does not yet."""
    if t.state is not TurnState.IN_FLIGHT:
        return None
    return "writes" if t.first_token_at is not None else None


def decode_s(t: Captured) -> float | None:
    """First token to end."""
    if t.first_token_at is None or t.ended_at is None:
        return None
    return max(0.0, t.ended_at - t.first_token_at)


def tokens_per_s(t: Captured) -> float | None:
    """While it wrote: the tokens after the first one, over the time that they took."""
    return timing.tokens_per_s(t.completion_tokens, decode_s(t))
