"""Two turns sent once more, to an idle server: what their prompts share there says whose fault a miss was.

The old turn is sent twice and the new one once, each for one token, under a cache salt that nobody had. A salt keeps
hashes apart, not room: what this writes evicts what others wrote. So `plan` says first what it will cost.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from kvtop.capture.api.answers import Answered, read_answer
from kvtop.capture.api.canonical import decode
from kvtop.capture.turn import Route, possible
from kvtop.errors import KvtopError
from kvtop.model.own import OwnRequest
from kvtop.model.window import between, since_start
from kvtop.readings import Scrape, SourceDown
from kvtop.sources.http import Answer
from kvtop.triage.fixes import Repaired
from kvtop.triage.kinds import Verdict
from kvtop.triage.replayed import Live, Name, Plan, Replayed, Run, judged
from kvtop.triage.resent import PATHS, fresh_salt, resent, salts

IDLE_S = 1.0
"""Between the two looks that must see nothing move. A gauge is written only when the engine has something to say."""
COUNTED_S = 10.0
"""The counters have told of a request so long after its answer, or never will."""
LOOK_S = 0.05
_BYTES_A_TOKEN = 3.5

Sleep = Callable[[float], Awaitable[None]]


class ServerLike(Protocol):
    """Counters and requests of one server."""

    @property
    def url(self) -> str: ...

    async def scrape(self) -> Scrape | SourceDown: ...

    async def post(self, path: str, body: bytes) -> Answer:
        """Sent once, never repeated. Raises KvtopError where there is no answer."""
        ...

    def failed(self, path: str, answer: Answer) -> KvtopError: ...


@dataclass(frozen=True, slots=True)
class Sent:
    """The two turns, as they were sent."""

    route: Route
    old: bytes = field(repr=False)
    new: bytes = field(repr=False)
    old_tokens: int | None = None
    new_tokens: int | None = None
    """Of their prompts, where known."""


@dataclass(frozen=True, slots=True)
class _Step:
    name: Name
    route: Route
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Counted:
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    alone: bool | None = None
    """None: the counters tell nothing."""


class Replay:
    """`plan`, ask whoever may say no, then `run`. `so_far` holds at any moment, also when `run` was cancelled."""

    def __init__(
        self,
        server: ServerLike,
        sent: Sent,
        *,
        repaired: Repaired | None = None,
        live: Live | None = None,
        rate: float | None = None,
        noted: Callable[[OwnRequest], None] = lambda note: None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`rate`: prompt tokens that this server computes in a second; None: as its counters tell. `noted` is told of
        each request when it begins, and again when more is known of it (`kvtop.triage.replay_notes`). Raises KvtopError
        for turns that cannot be replayed."""
        self._server, self._sent, self._repaired = server, sent, repaired
        self._live, self._rate, self._noted, self._sleep = live or Live(), rate, noted, sleep
        self.salt = fresh_salt()
        self._runs: list[Run] = []
        self._id = ""
        """Of this run, in its notes."""
        self._sending = False
        """A request is on its way, and was not answered yet."""
        self._plan: Plan | None = None
        self._unit: int | None = None
        self._steps(offloads=False)

    async def plan(self) -> Plan:
        """Whether the server is idle, and what a run would write. Sends nothing but two GETs. Raises KvtopError."""
        first = await self._scrape()
        await self._sleep(IDLE_S)
        second = await self._scrape()
        window, life = between(first, second, IDLE_S), since_start(second)
        requests, config = window.all.requests, window.all.config
        moved = window.all.cached.prompt_tokens
        busy = ""
        if requests.running is None or requests.waiting is None or moved is None:
            raise KvtopError(
                f"{self._server.url} does not tell whether it is idle", "start it without --disable-log-stats"
            )
        if requests.running or requests.waiting:
            runs = "1 request runs" if requests.running == 1 else f"{requests.running:,.0f} requests run"
            busy = f"{runs} and {requests.waiting:,.0f} wait"
        elif moved or requests.finished.total:
            busy = "requests came in the last second"
        sizes = [len(step.body) for step in self._steps(offloads=False) if step.name is not Name.WARM]
        known = [self._sent.old_tokens, self._sent.new_tokens] * (2 if self._repaired is not None else 1)
        guessed = [
            tokens if tokens is not None else round(size / _BYTES_A_TOKEN)
            for tokens, size in zip(known, sizes, strict=True)
        ]
        rate = self._rate or life.all.throughput.prefill_tokens_per_s
        self._unit = config.match_unit_tokens
        self._plan = Plan(
            self._server.url,
            not busy,
            busy,
            sum(guessed),
            None not in known,
            config.kv_cache_tokens,
            sum(guessed) / rate if rate else None,
            bool(window.all.offload.supported) and window.all.offload.unit == "bytes",
        )
        return self._plan

    async def run(self, *, force: bool = False, told: Callable[[Run], None] = lambda run: None) -> Replayed:
        """Send all of it. `told` is called with each run as it ends. Refuses a server that is not idle unless `force`.
        Raises KvtopError, also where an answer fails."""
        plan = await self.plan()
        if not plan.idle and not force:
            raise refused(plan)
        self._runs.clear()
        self._id = secrets.token_hex(8)
        for step in self._steps(offloads=plan.offloads):
            run = await self._ask(step)
            self._runs.append(run)
            told(run)
        return self.so_far()

    def so_far(self) -> Replayed:
        """What was sent, and what it shows."""
        plan = self._plan
        verdict, sentence = judged(
            self._runs,
            self._live,
            unit_tokens=self._unit,
            pool_tokens=plan.pool_tokens if plan is not None else None,
            fix=self._repaired.says if self._repaired is not None else None,
        )
        return Replayed(
            self._server.url,
            plan is not None and plan.idle,
            self.salt,
            tuple(self._runs),
            verdict if self._runs else Verdict.UNKNOWN,
            _unended(sentence if self._runs else "", sending=self._sending),
        )

    def _steps(self, *, offloads: bool) -> list[_Step]:
        """The requests, in their order. Raises KvtopError."""
        try:
            old, new = (_object(decode(body)) for body in (self._sent.old, self._sent.new))
        except ValueError as error:
            raise KvtopError(
                f"a request cannot be read: {error}", "give two request bodies, as they were sent"
            ) from None
        first, second = salts(self.salt, old, new)
        route = self._sent.route
        asked = [(Name.COLD, route, old, first), (Name.WARM, route, old, first), (Name.NEW, route, new, second)]
        if (fixed := self._repaired) is not None:
            first, second = salts(f"{self.salt}-fixed", fixed.old, fixed.new)
            asked += [
                (Name.OLD_FIXED, fixed.route, fixed.old, first),
                (Name.NEW_FIXED, fixed.route, fixed.new, second),
            ]
        return [_Step(name, route, resent(route, body, salt, offloads=offloads)) for name, route, body, salt in asked]

    async def _ask(self, step: _Step) -> Run:
        before = await self._scrape()
        began = time.monotonic()
        path = PATHS[step.route]
        note = OwnRequest(f"{self._id}-{step.name.value}", self._server.url, time.time())
        self._noted(note)
        self._sending = True
        try:
            answer = await self._server.post(path, step.body)
        finally:
            note = replace(note, ended_at=time.time())
            self._noted(note)
        self._sending = False
        took = time.monotonic() - began
        said = Answered()
        if answer.status == 200:
            said = read_answer(step.route, answer.status, tuple(answer.headers.items()), answer.body, False)
        self._noted(replace(note, prompt_tokens=said.prompt_tokens, cached_tokens=said.cached_tokens))
        counted = await self._counted(before, said.prompt_tokens)
        if answer.status != 200 and counted.prompt_tokens is None:
            raise self._server.failed(path, answer)
        prompt = said.prompt_tokens if counted.prompt_tokens is None else counted.prompt_tokens
        told = possible(said.cached_tokens, prompt)
        cached = counted.cached_tokens if told is None else told
        if (prompt, cached) != (said.prompt_tokens, said.cached_tokens):
            self._noted(replace(note, prompt_tokens=prompt, cached_tokens=cached))
        return Run(step.name, prompt, cached, took, counted.alone is False)

    async def _counted(self, before: Scrape, prompt: int | None) -> _Counted:
        """What the counters say of the request that just ended."""
        deadline = time.monotonic() + COUNTED_S
        while True:
            window = between(before, await self._scrape(), None).all
            grew, finished = window.cached.prompt_tokens, window.requests.finished.total
            if grew is None or finished is None:
                return _Counted()
            if finished >= 1 and grew > 0 and not window.requests.running:
                if finished == 1 and prompt in (None, grew):
                    return _Counted(grew, window.cached.cached_tokens, True)
                return _Counted(alone=False)
            if time.monotonic() >= deadline:
                return _Counted(alone=None if not grew and not finished else False)
            await self._sleep(LOOK_S)

    async def _scrape(self) -> Scrape:
        found = await self._server.scrape()
        if isinstance(found, SourceDown):
            raise KvtopError(f"{self._server.url}: {found.cause}", "replay when the server answers")
        return found


def refused(plan: Plan) -> KvtopError:
    """What is said where a server has something else to do."""
    return KvtopError(f"{plan.url} is busy: {plan.busy}", "try again when it is idle, or with --force")


def _unended(sentence: str, *, sending: bool) -> str:
    """What was shown, or that nothing was; and that a request was on its way."""
    if sending:
        more = "a request was sent and not waited for: its prompt may be written, under a salt that nobody uses"
        return f"{sentence}; {more}" if sentence else more
    return sentence or "nothing was sent"


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value
