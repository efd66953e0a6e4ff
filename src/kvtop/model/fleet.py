"""Several servers, or several engines of one: their lines, and the suspicion that a balancer deals turns out in turn.

Round-robin breaks prefix reuse: an agent's next turn lands where its conversation is not held, so the cached share of
every replica falls, the more the more replicas there are. From counters this can only be suspected. It is, when
everything below holds, and a single replica that is well, or prompts with nothing to reuse, clears it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvtop.errors import printable
from kvtop.model.box import EngineWindow, Window
from kvtop.model.view import EngineLine, ServerView
from kvtop.model.words import nb, pct
from kvtop.readings import State

MIN_TURNS = 12
"""Requests a replica: with fewer, an even spread is chance (12 and 12 of 24 thrown coins happens every sixth time,
but sticky sessions of a few agents are then already uneven)."""

EVEN = 1.3
"""Most over fewest requests. Dealing in turn gives 1.0; sessions that stay where they are seldom come below 1.5."""

COLD_SHARE = 0.02
"""Below it on all replicas nothing repeats at all: a benchmark or one-off prompts, which no routing would help."""

MIN_PROMPT_TOKENS = 2_000
"""Mean prompt. Short prompts share little beyond a head that any replica holds at once."""

MIN_UNITS = 4
"""And the mean prompt must be this many match units: below that the unit alone makes the share small."""


@dataclass(frozen=True, slots=True)
class Replica:
    """What one server or engine did in the window."""

    model: str | None
    up: bool
    turns: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    match_unit_tokens: int | None = None

    @property
    def share(self) -> float:
        return (self.cached_tokens or 0) / self.prompt_tokens if self.prompt_tokens else 0.0


def suspicion(replicas: Sequence[Replica], share_poor: float) -> str:
    """The warning about replicas of one model, or '' where there is nothing to suspect.

    A replica whose cached share is `share_poor` or more is well: whatever spreads the load does not hurt.
    """
    for model in dict.fromkeys(r.model for r in replicas if r.model is not None):
        group = [r for r in replicas if r.model == model and r.up]
        if _dealt_out(group, share_poor):
            shares = sorted(r.share for r in group)
            low, high = f"{shares[0] * 100:.0f}", nb(pct(shares[-1]))
            spread = high if pct(shares[0]) == pct(shares[-1]) else f"{low} to {high}"
            counts = "/".join(str(r.turns) for r in group[:4]) + ("/…" if len(group) > 4 else "")
            name = printable(model, 40)
            return (
                f"{len(group)} replicas of {name} get the same load (n={counts}) and serve only {spread} "
                "from cache: looks like round-robin; keep a conversation on one replica"
            )
    return ""


def _dealt_out(group: Sequence[Replica], share_poor: float) -> bool:
    if len(group) < 2:
        return False
    turns = [r.turns or 0 for r in group]
    if min(turns) < MIN_TURNS or max(turns) > EVEN * min(turns):
        return False
    if any(r.prompt_tokens is None or r.cached_tokens is None for r in group):
        return False
    for replica, n in zip(group, turns, strict=True):
        mean = (replica.prompt_tokens or 0) / n
        if mean < max(MIN_PROMPT_TOKENS, MIN_UNITS * (replica.match_unit_tokens or 0)):
            return False
    return all(r.share < share_poor for r in group) and any(r.share > COLD_SHARE for r in group)


def replicas(views: Sequence[ServerView]) -> list[Replica]:
    """Of each server the whole: over the hour, or what was seen of it."""
    return [
        Replica(
            model=view.models[0].id if view.models else None,
            up=view.state.good and view.last_good_at is not None,
            turns=view.hour.all.latency.ttft.n,
            prompt_tokens=view.hour.all.cached.prompt_tokens,
            cached_tokens=view.hour.all.cached.cached_tokens,
            match_unit_tokens=view.config.match_unit_tokens,
        )
        for view in views
    ]


def ranks(window: Window, model: str) -> list[Replica]:
    """The data-parallel engines of one server."""
    return [
        Replica(
            model=model,
            up=window.state.good,
            turns=engine.latency.ttft.n,
            prompt_tokens=engine.cached.prompt_tokens,
            cached_tokens=engine.cached.cached_tokens,
            match_unit_tokens=engine.config.match_unit_tokens,
        )
        for engine in window.engines
    ]


def lines(views: Sequence[ServerView], selected: int, now: float) -> tuple[EngineLine, ...]:
    """One line a server; of a single one a line an engine; empty where there is one of both."""
    if len(views) > 1:
        return server_lines(views, selected, now)
    return tuple(replace(line, state_s=_lasts(view, now)) for view in views for line in view.engines)


def server_lines(views: Sequence[ServerView], selected: int, now: float) -> tuple[EngineLine, ...]:
    """One line a server, in the order given; empty for a single one. What is stale says its age."""
    if len(views) < 2:
        return ()
    return tuple(
        replace(
            _line(view.url, view.label, view.state, view.window.all),
            state_s=_lasts(view, now),
            age_s=max(0.0, now - view.last_good_at) if view.last_good_at is not None else None,
            selected=index == selected,
        )
        for index, view in enumerate(views)
    )


def _lasts(view: ServerView, now: float) -> float | None:
    return max(0.0, now - view.state_since) if view.state_since is not None else None


def _line(key: str, label: str, state: State, seen: EngineWindow) -> EngineLine:
    """A line without figures where the state is not good: the last ones say nothing of now."""
    if not state.good:
        return EngineLine(key, label, state)
    ttft, requests = seen.latency.ttft, seen.requests
    return EngineLine(
        key,
        label,
        state,
        share=seen.cached.share,
        running=requests.running,
        waiting=requests.waiting,
        ttft_p50_s=ttft.p50.value_s if ttft.p50 is not None else None,
        kv_cache_usage_share=requests.kv_cache_usage_share,
    )


def engine_lines(window: Window, state: State, age_s: float | None, engine: str | None) -> tuple[EngineLine, ...]:
    """One line a data-parallel engine; empty for a single one."""
    if len(window.engines) < 2:
        return ()
    return tuple(
        replace(
            _line(one.engine or "", f"engine {one.engine or ''}", state, one),
            age_s=age_s,
            selected=(one.engine or "") == engine,
        )
        for one in window.engines
    )


def warning(servers: Sequence[ServerView], selected: int, share_poor: float) -> str:
    """What is suspected of several servers, or of the ranks of the selected one; empty: nothing."""
    if len(servers) > 1:
        return suspicion(replicas(servers), share_poor)
    if not servers:
        return ""
    view = servers[selected]
    return suspicion(ranks(view.hour, view.models[0].id if view.models else "this model"), share_poor)
