"""The captured turns as triage needs them: which one to compare with, what each one's prompt was, what it should have
had from the cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kvtop.capture.slow import RATED, usual_rate
from kvtop.capture.turn import Captured, TurnState
from kvtop.errors import KvtopError
from kvtop.model.judge import Thresholds
from kvtop.model.own import OwnRequest, of_server
from kvtop.model.shown_turn import CONTINUES
from kvtop.triage import agent, baseline, gone_back, seen
from kvtop.triage.apart import two_conversations
from kvtop.triage.continued import BEGINS, broken_off, goes_on
from kvtop.triage.cost import costed
from kvtop.triage.differ import Cache, Counted, Divergence, Sent, Server, diverge
from kvtop.triage.doubt import doubt
from kvtop.triage.engine import Engine, Layers
from kvtop.triage.judge import read
from kvtop.triage.kinds import Kind
from kvtop.triage.kv_facts import Told
from kvtop.triage.overlap import shared
from kvtop.triage.prompt import Prompt, reads_nothing
from kvtop.triage.proxies import through_proxy
from kvtop.triage.recurrence import seen_before
from kvtop.triage.result import Cause, Why
from kvtop.triage.reuse import Expected, History
from kvtop.triage.seen import KvFacts
from kvtop.triage.shortened import shortened
from kvtop.triage.verdict import with_costs as judged

LOOKED_AT = baseline.LOOKED_AT
"""Turns before one that may have left something in the cache for it."""
OWN = 8
"""The last turns of its own conversation, however long ago."""
COMPARED = LOOKED_AT + OWN + baseline.ALIKE + 1
"""Requests that are kept at hand: a verdict goes back to each of those before the turn several times, and to itself."""
NEAREST = 4
"""Of a model that keeps all of its past only the prompts that are most alike decide; of others each may."""
AROUND = 64
"""Turns before and after one that may have taken something from it."""
TALK = 60
"""Turns of an agent in which a cause is looked for again."""


class Turns(Protocol):
    """The store. Every method may block, and raises KvtopError."""

    def turns(
        self, *, last: int = 100, conversation: str | None = None, since_id: int = 0, before_id: int | None = None
    ) -> list[Captured]: ...

    def turn(self, id: int) -> Captured | None: ...

    def request_body(self, id: int) -> bytes | None: ...

    def response_body(self, id: int) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the server that the turns went to. None: not known."""

    engine: Engine | None = None
    rate: float | None = None
    """Prompt tokens that it computes in a second."""
    server: seen.Server = seen.Server()

    @property
    def unit(self) -> int | None:
        """Tokens that a prefix is matched in multiples of."""
        return None if self.engine is None else self.engine.unit or self.engine.block


NOTHING = Known()
APART = ("first", *agent.BESIDE)
"""Relations of turns whose messages are their own."""


class NotFound(KvtopError):
    """There is no such turn, or none to compare it with."""


class Casebook:
    """Over an open store, and the server that may be asked for tokens (None: the text method)."""

    def __init__(
        self,
        store: Turns,
        server: Server | None = None,
        known: Known = NOTHING,
        limits: Thresholds = Thresholds(),  # noqa: B008  frozen
        events: Told | None = None,
        *,
        replays: Sequence[OwnRequest] = (),
    ) -> None:
        """`events`: what a server's KV events tell, where it publishes them and is one engine. `replays`: what kvtop's
        own asked of servers, oldest first."""
        self._store, self.server, self._known, self._limits = store, server, known, limits
        self._events, self._replays = events, replays
        self._sent: OrderedDict[int, Sent] = OrderedDict()
        self._counted: OrderedDict[int, Counted] = OrderedDict()
        self._rates: dict[int, float | None] = {}

    @property
    def version(self) -> str | None:
        """Of the server, where it is known."""
        return self._known.server.version

    # -- turns

    def turn(self, id: int) -> Captured:
        """Raises NotFound."""
        found = self._store.turn(id)
        if found is None:
            raise NotFound(f"there is no turn {id}", "kvtop turns lists them")
        return found

    def latest(self) -> Captured:
        """The newest turn with a prompt. Raises NotFound."""
        for turn in self._store.turns(last=200):
            if baseline.has_prompt(turn):
                return self.turn(turn.id)
        raise NotFound("no turn with a prompt is captured yet", "kvtop tap captures them")

    def before(self, turn: Captured) -> list[Captured]:
        """Those of the same model and upstream before it, oldest first, with their outlines."""
        rows = self._store.turns(last=20 * LOOKED_AT, before_id=turn.id)
        rows += [] if turn.source.value == "tap" else self._store.turns(last=20 * LOOKED_AT, since_id=turn.id)
        rows = [row for row in rows if baseline.has_prompt(row)]
        near = baseline.before(turn, rows, LOOKED_AT)
        if turn.parent is None:
            near += baseline.older(turn, rows, near, self._store.turn)
        if turn.conversation is not None:  # its own last turns may be longer ago
            own = self._store.turns(last=OWN, conversation=turn.conversation, before_id=turn.id)
            known = {row.id for row in near}
            near += [row for row in baseline.before(turn, filter(baseline.has_prompt, own), OWN) if row.id not in known]
        near.sort(key=lambda row: (row.started_at, row.id))
        found = [self._store.turn(row.id) for row in near]
        return [one for one in found if one is not None]

    def sent(self, turn: Captured) -> Sent:
        """Its request. Raises NotFound where its body is not kept."""
        if (known := self._sent.get(turn.id)) is not None:
            return known
        made = self._sent[turn.id] = self._read(turn)
        if len(self._sent) > COMPARED:
            self._sent.popitem(last=False)
        return made

    def _read(self, turn: Captured) -> Sent:
        body = self._store.request_body(turn.id)
        if body is None:
            raise NotFound(f"the body of turn {turn.id} is not kept any more")
        try:
            prompt = read(body, turn.route, self.version)
        except ValueError as error:
            raise NotFound(f"the body of turn {turn.id} holds no prompt to compare: {error}") from None
        return Sent(
            name=str(turn.id),
            route=turn.route,
            prompt=prompt,
            body=body,
            answer=self._store.response_body(turn.id),
            prompt_tokens=turn.prompt_tokens,
            cached_tokens=turn.cached_tokens,
        )

    # -- what it should have had

    async def baseline(self, turn: Captured) -> tuple[Captured | None, Expected | None]:
        """The turn to compare it with, and what the cache should have given. Raises KvtopError."""
        old, parent = self.before(turn), self._parent(turn)
        # A turn of its own conversation says why its prompt broke, also where another one's shares more of its head.
        own = [one for one in old if parent is None or turn.conversation in (None, one.conversation)]
        own = self._with_its_salt(turn, own)
        broken = broken_off(turn, own[-OWN:], self._prompt) if parent is None else None
        nearest = broken or baseline.nearest(turn, parent, own)
        if self.server is None or self._known.engine is None:
            return nearest, None
        expected, ids = await self._expected(turn, self._candidates(turn, old, nearest, parent))
        return broken or baseline.nearest(turn, parent, own, ids, self._known.unit or 1), expected

    def _with_its_salt(self, turn: Captured, old: list[Captured]) -> list[Captured]:
        """Those that it could read from; all, where there are none."""
        salt = self.sent(turn).prompt.inputs.get("cache_salt")
        same = [one for one in old if self._readable(one) and self.sent(one).prompt.inputs.get("cache_salt") == salt]
        return same or old

    def _parent(self, turn: Captured) -> Captured | None:
        """The turn that it continues, if that is kept."""
        if turn.parent is None or turn.relation not in CONTINUES:
            return None
        parent = self._store.turn(turn.parent)
        fit = parent is not None and baseline.has_prompt(parent) and parent.state is not TurnState.FAILED
        return parent if fit and parent is not None and self._readable(parent) else None

    def _candidates(
        self, turn: Captured, old: list[Captured], nearest: Captured | None, parent: Captured | None
    ) -> list[Captured]:
        """Those that may have left something for it; the one that it goes on from is always asked for."""
        engine = self._known.engine
        salt = self.sent(turn).prompt.inputs.get("cache_salt")
        read = [one for one in old if one.state is not TurnState.FAILED and self._readable(one)]
        same = [one for one in read if self.sent(one).prompt.inputs.get("cache_salt") == salt]
        if engine is not None and engine.layers is Layers.FULL:
            shared = {one.id: baseline.common_head(turn.outline, one.outline) for one in same}
            must = {one.id for one in (nearest, parent) if one is not None}
            same = sorted(same, key=lambda one: (shared[one.id], one.id in must, one.id))[-NEAREST:]
            same += [one for one in old if one.id in must - {known.id for known in same}]
        return baseline.admitted(same)

    def _readable(self, turn: Captured) -> bool:
        """Its body is there; that of another turn is no reason to answer nothing."""
        try:
            self.sent(turn)
        except KvtopError:
            return False
        return True

    async def _expected(self, turn: Captured, old: list[Captured]) -> tuple[Expected | None, dict[int, bytes]]:
        assert self._known.engine is not None
        mine = await self.counted(turn)
        known = {turn.id: mine} | await self._counted_of(turn, old)
        history = History(self._known.engine)
        salt = self.sent(turn).prompt.inputs.get("cache_salt")
        for one in old:
            if one.id in known and self.sent(one).prompt.inputs.get("cache_salt") == salt:
                history.add(baseline.earlier(one, known[one.id].ids, turn, known[one.id].reply))
        expected = history.expect(mine.ids)
        if expected is not None and reads_nothing(self.sent(turn).prompt):
            expected = replace(expected, tokens=0, at_most=0, exact=True)  # it reads no cached block
        return expected, {id: counted.ids for id, counted in known.items()}

    async def _counted_of(self, turn: Captured, old: list[Captured]) -> dict[int, Counted]:
        """Of all of these: the server is asked of the one that it goes on from, and of those whose tokens no later one
        tells. A prompt that the server refuses left nothing, and is left out."""
        found: dict[int, Counted] = {}
        longer: list[Captured] = []
        for one in sorted(old, key=lambda one: (one.id == turn.parent, one.id), reverse=True):
            made = next((told for other in longer if (told := self._shortened(one, other, found[other.id]))), None)
            if made is None:
                try:
                    made = await self.counted(one)
                except KvtopError:
                    continue
                longer.append(one)
            found[one.id] = made
        return found

    def _shortened(self, old: Captured, longer: Captured, counted: Counted) -> Counted | None:
        """From those that the server told of a longer one. What came with an answer is read there, with its reply. A
        template may leave out reasoning that it printed before."""
        if any(message.get("reasoning") for message in self.sent(old).prompt.messages):
            return None
        ids = shortened(old, longer, counted.ids) if counted.method == "server_tokens" else None
        if ids is None or self.sent(old).prompt.inputs != self.sent(longer).prompt.inputs:
            return None
        return replace(counted, ids=ids, reply=None)

    async def counted(self, turn: Captured) -> Counted:
        """Its token ids. Raises KvtopError."""
        if (known := self._counted.get(turn.id)) is not None:
            return known
        assert self.server is not None
        made = self._counted[turn.id] = await self.server.counted(self.sent(turn))
        if len(self._counted) > COMPARED:
            self._counted.popitem(last=False)
        return made

    # -- answers

    async def diff(self, new: Captured, old: Captured | None = None) -> Divergence:
        """Its divergence from `old`, else from the turn to compare it with: then its causes cost what `why` says that
        they did. Raises KvtopError."""
        base, expected = await self.baseline(new)
        asked = old or self._there(base, new)
        found, expected = await self._believed(asked, new, expected)
        if base is not None and asked.id == base.id:
            made = judged(self._scene(new, base, expected, found))  # what evicts tells nothing of prices
            return replace(found, diff=made.diff or found.diff)
        # The turn was not judged against another prompt: all that is known is that it read no more than this.
        causes = costed(found.diff.causes, new, self._rate(new), new.new_tokens)
        return replace(found, diff=replace(found.diff, causes=causes))

    async def base(self, turn: Captured) -> Captured:
        """The turn to compare it with. Raises NotFound where there is none."""
        return self._there((await self.baseline(turn))[0], turn)

    def _there(self, base: Captured | None, turn: Captured) -> Captured:
        if base is None:
            raise NotFound(f"turn {turn.id} begins a conversation: there is no earlier turn to compare it with")
        return base

    async def why(self, turn: Captured) -> Why:
        """The verdict on it. Raises KvtopError."""
        base, expected = await self.baseline(turn) if baseline.has_prompt(turn) else (None, None)
        found = None
        if base is not None:
            found, expected = await self._believed(base, turn, expected)
        scene = self._scene(turn, base, expected, found)
        scene = replace(scene, shared=await shared(scene, self._ids), events=await self._told(turn, scene.source))
        return judged(scene)

    def _scene(
        self, turn: Captured, base: Captured | None, expected: Expected | None, found: Divergence | None
    ) -> seen.Seen:
        return seen.Seen(
            turn=turn,
            baseline=base,
            others=tuple(self._around(turn, base, expected)),
            expected=expected,
            diff=None if found is None else found.diff,
            server=self._known.server,
            rate=self._rate(turn),
            limits=self._limits,
            exact=found is None or found.diff.exact,
            replays=of_server(self._replays, turn.upstream),
        )

    async def _ids(self, turn: Captured) -> bytes:
        return (await self.counted(turn)).ids

    def _rate(self, turn: Captured) -> float | None:
        """Prompt tokens a second by the turns before this one, whenever it is asked; else by itself; else as now."""
        if (known := self._rates.get(turn.id)) is None:
            rows = self._store.turns(last=RATED, before_id=turn.id)
            known = self._rates[turn.id] = usual_rate(turn, rows) or self._known.rate
        return known

    def _around(self, turn: Captured, base: Captured | None, expected: Expected | None) -> list[Captured]:
        """Others of its upstream by number; those from before the turns that it goes back to on with their samples."""
        rows = self._store.turns(last=AROUND, before_id=turn.id)
        rows += self._store.turns(last=AROUND, since_id=turn.id, before_id=turn.id + AROUND)
        near = sorted((row for row in rows if row.upstream == turn.upstream), key=lambda row: row.id)
        told = (base.id if base is not None else None, *((expected.from_, expected.unread) if expected else ()))
        first = min((id for id in told if id is not None), default=turn.id)
        known = sum(row.id < first for row in near) - 1  # the last look before it is one turn's more
        return [(self._store.turn(row.id) or row) if i >= known else row for i, row in enumerate(near)]

    async def _told(self, turn: Captured, source: Captured | None) -> KvFacts | None:
        """What KV events say of its prefix since the turn that should have given it."""
        if self._events is None or self.server is None or source is None:
            return None
        return await self._events.facts(turn, self.sent(turn).prompt, (await self.counted(turn)).ids, source)

    async def _believed(
        self, base: Captured, new: Captured, expected: Expected | None
    ) -> tuple[Divergence, Expected | None]:
        """Their divergence, and what is expected of it; by the texts alone where the server's tokens cannot be true."""
        found = await self._diverged(base, new, expected, self.server)
        if not (why := doubt(found, new, expected, self._known.unit or 1)):
            return found, expected
        found = await self._diverged(base, new, None, None)
        return replace(found, diff=replace(found.diff, notes=(*found.diff.notes, why))), None

    async def _diverged(
        self, base: Captured, new: Captured, expected: Expected | None, server: Server | None
    ) -> Divergence:
        cache = self.cache(new, expected)
        made = await diverge(self.sent(base), self.sent(new), server, cache, gateway=through_proxy(new))
        causes = made.diff.causes
        if causes:
            told, before = self.talk(new)
            causes = seen_before(causes, told, same_pair=before == base.id)
        apart = new.relation in APART and base.conversation != new.conversation
        if apart and not (new.relation in BEGINS and goes_on(made.comparison)):
            causes = two_conversations(causes, made.comparison, made.diff.tokens.common, self._known.unit)
        if any(cause.kind is Kind.ROLLED_BACK for cause in causes):
            causes = gone_back.named(causes, new, self.before(new))
        return replace(made, diff=replace(made.diff, causes=causes))

    def cache(self, turn: Captured, expected: Expected | None) -> Cache:
        return Cache(
            unit=self._known.unit,
            expected=None if expected is None else expected.tokens,
            expected_exact=expected is not None and expected.exact,
        )

    def talk(self, turn: Captured) -> tuple[tuple[Cause, ...], int | None]:
        """The causes of a turn as the last turns of its agent tell them (`kvtop.triage.agent.told`), and the turn that
        it was compared with there."""
        rows = [row for row in self._store.turns(last=4 * TALK, before_id=turn.id + 1) if row.id != turn.id]
        turns = agent.turns(turn, filter(baseline.has_prompt, rows), self._prompt, TALK)
        return agent.told(turns, gateway=through_proxy(turn))

    def _prompt(self, turn: Captured) -> Prompt | None:
        """None: its body is not kept, or damaged: the others still tell."""
        try:
            return (self._sent.get(turn.id) or self._read(turn)).prompt  # each is looked at once
        except KvtopError:
            return None
