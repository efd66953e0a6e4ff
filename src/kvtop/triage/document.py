"""`diff --json` and `why --json`. Unknown is null."""

from __future__ import annotations

from typing import Any

from kvtop.model.document import plain
from kvtop.triage.result import Cause, Diff, Why


def diff(found: Diff) -> dict[str, Any]:
    """The keys of the contract, and what is told besides: notes."""
    tokens, first = found.tokens, found.first
    return {
        "old": found.old,
        "new": found.new,
        "method": found.method,
        "exact": found.exact,
        "tokens": {
            "old": tokens.old,
            "new": tokens.new,
            "common": tokens.common,
            "reusable": tokens.reusable,
            "lost": tokens.lost,
            "reread": tokens.reread,
        },
        "match_unit_tokens": found.match_unit_tokens,
        "cached_tokens": found.cached_tokens,
        "expected_cached_tokens": found.expected_cached_tokens,
        "first_difference": None
        if first is None
        else {
            "token": first.token,
            "byte": first.byte,
            "section": first.section,
            "pointer": first.pointer,
            "old": first.old,
            "new": first.new,
        },
        "causes": [cause(one) for one in found.causes],
        "append_only": found.append_only,
        "notes": list(found.notes),
    }


def cause(one: Cause) -> dict[str, Any]:
    made: dict[str, Any] = {
        "kind": one.kind.value,
        "pointer": one.pointer,
        "section": one.section,
        "values": [value.value for value in one.values],
        "lost_tokens": one.lost_tokens,
        "lost_s": plain(one.lost_s),
        "who": one.who.value,
        "says": one.says,
        "fix": one.fix,
        "seen": one.seen,
    }
    if one.pointer_new is not None:
        made["pointer_new"] = one.pointer_new
    return made


def why(found: Why) -> dict[str, Any]:
    """The keys of the contract, and what the evidence rules out."""
    return {
        "turn": found.turn,
        "verdict": found.verdict.value,
        "reason": found.reason,
        "candidates": [reason.value for reason in found.candidates],
        "sentence": found.sentence,
        "evidence": list(found.evidence),
        "rules_out": list(found.rules_out),
        "expected_cached_tokens": found.expected_cached_tokens,
        "cached_tokens": found.cached_tokens,
        "expected_because": [because.value for because in found.expected_because],
        "tokens": {
            "prompt": found.split.prompt,
            "cached": found.split.cached,
            "reread": found.split.reread,
            "reread_changed": None if found.split.reread is None else found.split.changed,
            "reread_lost": found.split.lost,
            "reread_unsaved": None if found.split.reread is None else found.split.unsaved,
            "new": found.split.new,
        },
        "phases": {
            "queue_s": plain(found.phases.queue_s),
            "prefill_s": plain(found.phases.prefill_s),
            "decode_s": plain(found.phases.decode_s),
        },
        "diff": None if found.diff is None else diff(found.diff),
        "fix": found.fix,
    }
