"""Captured turns laid before triage: with the server that each one went to, where that may be asked and answers.

All of it blocks, and is called in a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from kvtop.errors import KvtopError
from kvtop.live.factories import ServerLike, StoreLike
from kvtop.live.patience import Gate
from kvtop.model.judge import Thresholds
from kvtop.model.own import OwnRequest
from kvtop.readings import Scrape, ServerFacts, SourceDown, VllmProcess

if TYPE_CHECKING:
    from kvtop.capture.turn import Captured
    from kvtop.triage.casebook import Casebook, Known
    from kvtop.triage.kinds import Kind
    from kvtop.triage.kv_facts import Told
    from kvtop.triage.memory import Memory
    from kvtop.triage.replay_pair import Pair
    from kvtop.triage.result import Why
    from kvtop.triage.sheet import Sheet

T = TypeVar("T")

RATED = 1_000
"""Turns that the prefill rate is worked out from, where the server's own is not known."""
ASK_S = 10.0
"""One call for the tokens of a prompt."""
ALL_S = 60.0
"""All that is done for one turn; after that texts are compared."""
REMEMBERED = 24_000_000
"""Bytes of what servers said: the tokens of fifty prompts of 120,000."""
NOT_KEPT = "the captured turn is not kept any more"


@dataclass(frozen=True, slots=True)
class Place:
    """The server that a turn went to, which may be asked for tokens."""

    url: str = field(repr=False)
    """As given: it may hold a user and a password."""
    key: Callable[[], str | None] = lambda: None
    """Its API key; may ask the disk."""
    latest: tuple[Scrape, ServerFacts] | None = None
    """What was read of it last; None: nobody watches it, it is asked."""
    source: Callable[[], ServerLike] | None = None
    """Makes what asks it then."""
    rate: float | None = None
    """Prompt tokens that it computes in a second."""
    process: Callable[[], VllmProcess | None] = lambda: None
    """The one of this machine that serves it, whose command line may tell more."""
    started_at: float | None = None
    """Unix time: another one is another process, and perhaps another model."""
    events: Callable[[], Awaitable[Told | None]] | None = None
    """Who has its KV events; to read what it still has itself takes seconds."""


class Casebooks:
    """What servers said of prompts is remembered for all turns together."""

    def __init__(
        self,
        opened: Callable[[], StoreLike | None],
        limits: Thresholds,
        given: Callable[[Captured, str], None] = lambda turn, verdict: None,
        replays: Callable[[], Sequence[OwnRequest]] = tuple,
    ) -> None:
        """`opened`, `given` and `replays` as `captures`, `given` and `replays` of `Factories`."""
        self._opened, self._limits, self._given, self._replays = opened, limits, given, replays
        self._memory: Memory | None = None
        self._started: dict[str, float] = {}

    def why(self, id: int, place: Place | None, gate: Gate) -> Why:
        """The verdict on a turn. Without a place, or where that does not answer, by its text. Raises KvtopError where
        the turn is not kept, or the store cannot be read."""

        async def ask(cases: Casebook) -> Why:
            turn = cases.turn(id)
            found = await cases.why(turn)
            self._given(turn, found.verdict.value)
            return found

        return self._worked(id, place, gate, ask)

    def sheet(self, id: int, place: Place | None, gate: Gate) -> Sheet:
        """Its prompt beside the one that it is compared with. As `why`; also raises where there is none."""

        async def ask(cases: Casebook) -> Sheet:
            from kvtop.triage import sheets

            found = await cases.diff(cases.turn(id))
            labels = f"turn {found.diff.old}", f"turn {found.diff.new}"
            if cases.server is not None and found.counted is not None:
                return await sheets.of_tokens(found, cases.server, *labels)
            return sheets.of_words(found, *labels)

        if place is not None:
            place = replace(place, events=None)  # they tell nothing of texts
        return self._worked(id, place, gate, ask)

    def pair(self, id: int, place: Place, gate: Gate, kinds: Sequence[Kind]) -> Pair:
        """It and the turn that it is compared with, as a replay sends them; without these kinds of causes, too. As
        `why`; also raises where there is none, or it cannot be sent."""

        async def ask(cases: Casebook) -> Pair:
            from kvtop.triage.replay_pair import of_turns

            return await of_turns(cases, cases.turn(id), None, kinds)

        return self._worked(id, replace(place, events=None), gate, ask)

    def _worked(self, id: int, place: Place | None, gate: Gate, ask: Callable[[Casebook], Awaitable[T]]) -> T:
        store = self._opened()
        if store is None:
            raise KvtopError(NOT_KEPT)
        try:
            return gate.work.run(self._with_store(store, id, place, gate, ask))
        finally:
            store.close()

    async def _with_store(
        self, store: StoreLike, id: int, place: Place | None, gate: Gate, ask: Callable[[Casebook], Awaitable[T]]
    ) -> T:
        from kvtop.triage.casebook import Casebook, NotFound

        turn = store.turn(id)
        if turn is None:
            raise NotFound(NOT_KEPT)
        if place is not None:
            try:
                async with asyncio.timeout(ALL_S):
                    return await self._asking(store, turn, place, gate, ask)
            except NotFound:
                raise
            except (KvtopError, TimeoutError):
                pass  # texts need no server
        return await ask(Casebook(store, limits=self._limits, replays=self._own()))

    async def _asking(
        self, store: StoreLike, turn: Captured, place: Place, gate: Gate, ask: Callable[[Casebook], Awaitable[T]]
    ) -> T:
        from kvtop.live.patience import Patient
        from kvtop.triage.asked import Asked
        from kvtop.triage.casebook import Casebook
        from kvtop.triage.tokens import Tokenizer

        known = await self._known(store, turn, place)
        told = None
        if place.events is not None and known.server.engines in (None, 1):
            told = await place.events()
        server = Asked(Tokenizer(place.url, key=place.key, timeout_s=ASK_S, memory=self._remembered(place)))
        try:
            return await ask(Casebook(store, Patient(server, gate), known, self._limits, told, replays=self._own()))
        finally:
            await server.aclose()

    def _own(self) -> Sequence[OwnRequest]:
        try:
            return self._replays()
        except OSError:  # notes that cannot be read: no replay is known
            return ()

    async def _known(self, store: StoreLike, turn: Captured, place: Place) -> Known:
        from kvtop.capture.slow import prefill_rates
        from kvtop.triage.known import known, sized

        latest = place.latest or await _read(place)
        rate = place.rate or prefill_rates(store.turns(last=RATED)).get((turn.upstream, turn.model))
        found, process = known(*latest, rate), place.process()
        return found if process is None else sized(found, process)

    def _remembered(self, place: Place) -> Memory:
        from kvtop.sources.url import normalise
        from kvtop.triage.memory import Memory

        if self._memory is None:
            self._memory = Memory(REMEMBERED)
        url = normalise(place.url)
        if place.started_at is not None and self._started.get(url, place.started_at) != place.started_at:
            self._memory.drop(url)
        if place.started_at is not None:
            self._started[url] = place.started_at
        return self._memory


async def _read(place: Place) -> tuple[Scrape, ServerFacts]:
    if place.source is None:
        raise KvtopError("nobody watches it")
    source = place.source()
    try:
        scrape, facts = await source.scrape(), await source.facts()
    finally:
        await source.aclose()
    if isinstance(scrape, SourceDown):
        raise KvtopError("it does not answer")
    return scrape, ServerFacts() if isinstance(facts, SourceDown) else facts
