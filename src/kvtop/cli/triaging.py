"""What `diff`, `why` and `replay` share: the store, the turn that is meant, and the server that may be asked."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from kvtop.capture.slow import prefill_rates
from kvtop.capture.store.store import Store, StoreError
from kvtop.capture.turn import Captured
from kvtop.cli.once import PATIENCE_S, host_now, source
from kvtop.cli.stdio import tell
from kvtop.cli.target import Target, all_named, key_for, settings
from kvtop.config import Settings
from kvtop.errors import KvtopError, UsageError, printable
from kvtop.live.kv_past import past
from kvtop.model.here import is_local, server_of
from kvtop.model.judge import Thresholds
from kvtop.model.own import OwnRequest
from kvtop.sources.url import discreet, normalise, same_place
from kvtop.triage import replay_notes
from kvtop.triage.asked import Asked
from kvtop.triage.casebook import Casebook, Known, NotFound
from kvtop.triage.known import look, sized
from kvtop.triage.kv_facts import Told

T = TypeVar("T")

LATE_S = 3.0
"""After which it is said that something is waited for."""
RATED = 1_000
"""Turns that the prefill rate is worked out from."""


def turn_id(text: str) -> int:
    """Raises UsageError for what is none."""
    if text[:1] == "m" and is_id(text[1:]):
        said = f"{text} is a row that only the counters tell of: its request was not captured"
        raise UsageError(said, "kvtop turns lists those that were; their numbers stand without a letter")
    if not is_id(text):
        raise UsageError(f"'{printable(text, 40)}' is no id of a turn", "kvtop turns lists them")
    return int(text)


def is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


def is_turn(text: str) -> bool:
    """An id, and no file of that name."""
    return is_id(text) and not Path(text).exists()


def files_of(which: Sequence[str]) -> list[str]:
    """Those that are files and no ids of turns. Raises UsageError for one of two kinds, and one file alone."""
    files = [name for name in which if not is_turn(name)]
    if files and len(which) != 2:
        raise UsageError(f"'{printable(files[0], 60)}' is no id of a turn", "two files, or ids that kvtop turns lists")
    return files


async def answered(
    store: Store,
    turn: Captured | None,
    url: str | None,
    work: Callable[[Casebook], Awaitable[T]],
    *,
    events: bool = False,
) -> T:
    """What `work` finds, with the server that may be asked. One that was not named and does not count tokens is said
    on stderr, and texts are compared; so is it said when this takes long."""
    doing = _Doing(discreet(url or (turn.upstream if turn is not None else "")))
    late = threading.Timer(LATE_S, lambda: tell(f"kvtop: {doing.words()} …"))
    late.daemon = True
    late.start()
    try:
        try:
            async with book(store, turn, url, events=events) as cases:
                doing.asks = cases.server
                return await work(cases)
        except (NotFound, StoreError):
            raise
        except KvtopError as error:
            if url is not None:
                raise
            tell(f"kvtop: {error.what}: texts are compared, and no tokens are counted")
        doing.asks = None
        return await work(Casebook(store, limits=limits(settings()), replays=own()))
    finally:
        late.cancel()


class _Doing:
    """What takes so long."""

    def __init__(self, place: str) -> None:
        self._place = place
        self.asks: object = self
        """Who is asked for tokens; None: nobody. This itself: that is not known yet."""

    def words(self) -> str:
        """Read from another thread."""
        waits = self.asks is self or getattr(self.asks, "waits", False)
        return f"waits for {self._place}" if self._place and waits else "compares the two requests"


def newest(store: Store) -> Captured | None:
    """The newest turn with a prompt."""
    try:
        return Casebook(store).latest()
    except NotFound:
        return None


@asynccontextmanager
async def book(
    store: Store, turn: Captured | None, url: str | None, *, events: bool = False, remote: bool = False
) -> AsyncIterator[Casebook]:
    """The captured turns, with the server that they went to, or that is named. One that was not named and does not
    answer, or may not be asked, is said on stderr, and texts are compared. `events`: also what it still has of its KV
    events. `remote`: also a server that nobody named, of another machine."""
    have = settings()
    place = url or (turn.upstream if turn is not None else "")
    if not place:
        yield Casebook(store, limits=limits(have), replays=own())
        return
    to = target(place, have)
    if url is None and not remote and not may_be_asked(to.shown, have):
        shown = to.shown.partition("://")[2]
        tell(f"kvtop: {shown} is not this machine and not in config.toml: compared as text; --url asks it")
        yield Casebook(store, limits=limits(have), replays=own())
        return
    try:
        known, told = await _looked(to, have, rate_of(store, turn), events=events)
    except KvtopError as error:
        if url is not None:
            raise
        tell(f"kvtop: {error.what}: texts are compared, and no tokens are counted")
        yield Casebook(store, limits=limits(have), replays=own())
        return
    async with tokens_of(to) as server:
        yield Casebook(store, server, known, limits(have), told, replays=own())


def may_be_asked(shown: str, have: Settings) -> bool:
    """A prompt goes to a server of this machine or of config.toml. Which server a turn went to may be the word of a
    file that was imported. `shown`: as `normalise` makes it."""
    return is_local(shown) or any(same_place(one.shown) == same_place(shown) for one in all_named([], have))


@asynccontextmanager
async def tokens_of(to: Target) -> AsyncIterator[Asked]:
    """The server that counts tokens."""
    from kvtop.triage.tokens import Tokenizer

    server = Asked(Tokenizer(to.url, key=to.key))
    try:
        yield server
    finally:
        await server.aclose()


async def _looked(to: Target, have: Settings, rate: float | None, *, events: bool) -> tuple[Known, Told | None]:
    server = source(to, have, PATIENCE_S)
    try:
        known = await look(server, rate)
        here = is_local(to.shown)
        process = server_of(to.shown, await host_now()) if here else None
        if process is not None:
            known = sized(known, process)
        if not events or known.server.engines not in (None, 1):
            return known, None
        command = process.command if process is not None else ()
        configured = next((one.kv_events for one in have.server if normalise(one.url) == to.shown), "")
        return known, await past(server.probe, command, configured, here=here)
    finally:
        await server.aclose()


def own() -> Sequence[OwnRequest]:
    """What replays asked of servers; nothing where their notes cannot be read."""
    try:
        return replay_notes.read()
    except OSError:
        return ()


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
