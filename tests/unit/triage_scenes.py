"""Scenes for the tests of the verdict: a turn that goes on from another a minute later, and what was around it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace as with_

from kvtop.capture.turn import Captured, Route, Sample, TurnState
from kvtop.triage.engine import Layers
from kvtop.triage.result import Cause, Diff, FirstDifference, Tokens
from kvtop.triage.reuse import Expected
from kvtop.triage.seen import Seen, Server

T = 1_796_000_000.0
URL = "http://127.0.0.1:8000"
STARTED = T - 7_200.0


def sample(at: float, *, computed: float = 0, cached: float = 0, generated: float = 0, **more: Any) -> Sample:
    """`at` seconds into the scene; what the server has computed, served from its cache and generated so far."""
    counters = {
        "started_at": STARTED,
        "prompt_tokens": 500_000 + computed + cached,
        "cached_tokens": 400_000 + cached,
        "queries": 500_000 + computed + cached,
        "hits": 400_000 + cached,
        "generation_tokens": 30_000 + generated,
        "finished": 100,
        "preempted": 0,
        "running": 1,
        "waiting": 0,
        "kv_cache_usage_share": 0.1,
    }
    return Sample(at=T + at, **{**counters, **more})


def turn(id: int, at: float, **more: Any) -> Captured:
    """It came `at` seconds into the scene, was read in 2 s and ended after 10."""
    made = Captured(
        id=id, upstream=URL, model="m", route=Route.CHAT, stream=True, state=TurnState.DONE, conversation=f"c{id}",
        started_at=T + at, sent_at=T + at, first_token_at=T + at + 2, ended_at=T + at + 10, finish_reason="stop",
        completion_tokens=300,
    )  # fmt: skip
    return with_(made, **more)


OLD = turn(
    10, 0, conversation="c1", relation="next", prompt_tokens=20_016, cached_tokens=19_008,
    samples=[sample(0), sample(10.2, computed=1_008, cached=19_008, generated=300)],
)  # fmt: skip
NEW = turn(
    14, 60, conversation="c1", relation="next", parent=10, prompt_tokens=21_016, cached_tokens=0,
    first_token_at=T + 82, ended_at=T + 92,
    samples=[
        sample(60, computed=1_008, cached=19_008, generated=300),
        sample(92.2, computed=22_024, cached=19_008, generated=600, running=0),
    ],
)  # fmt: skip
"""It should have had 20,000 tokens, got none, and took 22 s to read them at 1,000 a second."""
LAW = Expected(tokens=20_000, exact=True, at_most=20_000, plain=20_000, common=20_015, from_=10, nearest=10)
SERVER = Server(unit=16, pool_tokens=200_000, version="0.32.0", engines=1, layers=Layers.FULL, offload=False)


def scene(**more: Any) -> Seen:
    values: dict[str, Any] = {"turn": NEW, "baseline": OLD, "expected": LAW, "server": SERVER, "rate": 1_000.0}
    return Seen(**{**values, **more})


def diff(*causes: Cause, common: int = 12_622, reread: int | None = 7_376, append_only: bool = False) -> Diff:
    tokens = Tokens(old=20_016, new=21_016, common=common, lost=20_016 - common, reread=reread)
    first = FirstDifference("tools[4].function.parameters", "/tools/4/function/parameters", "old", "new", token=common)
    return Diff("10", "14", "server_tokens", True, tokens, causes, first, append_only)
