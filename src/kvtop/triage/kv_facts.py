"""What KV events tell of one turn's prefix."""

from __future__ import annotations

from kvtop.capture.turn import Captured
from kvtop.triage.ids import unpack
from kvtop.triage.prompt import Prompt
from kvtop.triage.residency import Residency
from kvtop.triage.seen import Gone, KvFacts

TIERS = ("GPU", "CPU", "STORAGE")
SETTLES_S = 1.0
"""A step tells at its end what it did, and of an idle engine only with the next one."""


def facts(index: Residency, turn: Captured, prompt: Prompt, ids: bytes, old: Captured) -> KvFacts:
    """From the end of `old`, whose prefix this turn goes on with, to the turn's first token. `ids`: packed, of the
    turn's prompt. Of an adapter, which is asked for as a model, the events tell by its name."""
    salt = prompt.inputs.get("cache_salt")
    arrived = turn.sent_at or turn.started_at
    since = old.ended_at or old.started_at
    until = (turn.first_token_at or turn.ended_at or arrived) + SETTLES_S
    prefix = index.prefix(unpack(ids)[:-1], salt if isinstance(salt, str) else None)
    device, anywhere = index.leading(prefix, at=arrived), index.leading(prefix, TIERS, at=arrived)
    return KvFacts(
        complete=index.complete(since, until),
        gone=tuple(Gone(one.at, one.tier, one.end_tokens) for one in index.removals(prefix, since, until)),
        cleared_at=tuple(one.at for one in index.clearings(since, until) if not one.restart),
        on_device=device.tokens if device.known else None,
        anywhere=anywhere.tokens if anywhere.known else None,
    )
