"""What `diff`, `why` and `replay` share: the store, the turn that is meant, and the server that may be asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kvtop.capture.slow import prefill_rates
from kvtop.capture.store.store import Store
from kvtop.capture.turn import Captured
from kvtop.cli.once import host_now, source
from kvtop.cli.stdio import tell
from kvtop.cli.target import Target, key_for, settings
from kvtop.config import Settings
from kvtop.errors import KvtopError, UsageError, printable
from kvtop.live.kv_past import past
from kvtop.model.here import is_local
from kvtop.model.judge import Thresholds
from kvtop.sources.url import normalise
from kvtop.triage.asked import Asked
from kvtop.triage.casebook import Casebook, Known
from kvtop.triage.known import look, sized
from kvtop.triage.residency import Residency

RATED = 1_000
"""Turns that the prefill rate is worked out from."""


def turn_id(text: str) -> int:
    """Raises UsageError for what is none."""
    if not is_id(text):
        raise UsageError(f"'{printable(text, 40)}' is no id of a turn", "kvtop turns lists them")
    return int(text)


def is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


def is_turn(text: str) -> bool:
    """An id, and no file of that name."""
    return is_id(text) and not Path(text).exists()


@asynccontextmanager
async def book(
    store: Store, turn: Captured | None, url: str | None, *, events: bool = False
) -> AsyncIterator[Casebook]:
    """The captured turns, with the server that they went to, or that is named. One that was not named and does not
    answer is said on stderr, and texts are compared. `events`: also what it still has of its KV events."""
    have = settings()
    place = url or (turn.upstream if turn is not None else "")
    if not place:
        yield Casebook(store, limits=limits(have))
        return
    to = target(place, have)
    try:
        known, told = await _looked(to, have, rate_of(store, turn), events=events)
    except KvtopError as error:
        if url is not None:
            raise
        tell(f"kvtop: {error.what}: texts are compared, and no tokens are counted")
        yield Casebook(store, limits=limits(have))
        return
    async with tokens_of(to) as server:
        yield Casebook(store, server, known, limits(have), told)


@asynccontextmanager
async def tokens_of(to: Target) -> AsyncIterator[Asked]:
    """The server that counts tokens."""
    from kvtop.triage.tokens import Tokenizer

    server = Asked(Tokenizer(to.url, key=to.key))
    try:
        yield server
    finally:
        await server.aclose()


async def _looked(to: Target, have: Settings, rate: float | None, *, events: bool) -> tuple[Known, Residency | None]:
    server = source(to, have)
    try:
        known = await look(server, rate)
        if known.server.offload and known.server.tier_bytes is None and is_local(to.shown):
            known = sized(known, to.shown, await host_now())
        if not events or known.server.engines not in (None, 1):
            return known, None
        configured = next((one.kv_events for one in have.server if normalise(one.url) == to.shown), "")
        return known, await past(server.probe, configured=configured, here=is_local(to.shown))
    finally:
        await server.aclose()


def limits(have: Settings) -> Thresholds:
    """What counts as slow."""
    wanted = have.thresholds
    return Thresholds(wanted.slow_factor, wanted.slow_extra_s, wanted.slow_ttft_s)


def target(url: str, have: Settings) -> Target:
    """Raises UsageError for what is no URL."""
    return Target(url, normalise(url), key_for(url, have.server), "command line")


def rate_of(store: Store, turn: Captured | None) -> float | None:
    """Prompt tokens a second that its server computes, as its turns tell it."""
    if turn is None:
        return None
    return prefill_rates(store.turns(last=RATED)).get((turn.upstream, turn.model))
