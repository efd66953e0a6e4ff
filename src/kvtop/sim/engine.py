"""The scheduler of the embedded box, over simulated time.

It works in steps, as vLLM's does: running requests are served first (a decoding one computes one token, a prefilling
one a chunk), then waiting ones are admitted while the step has budget. A step lasts as long as its tokens take; what it
did shows when it ends. Steps that only decode are taken many at a time: an hour is some thousands, not a million.

Times are Unix seconds of the simulated clock.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from kvtop.sim.cache import CpuTier, PrefixCache
from kvtop.sim.metrics import Finish, ServerMetrics
from kvtop.sim.spec import EngineSpec


@dataclass(slots=True, eq=False)
class Request:
    """A prompt on its way through the engine. `chain` hashes the full blocks of prompt and reply together."""

    prompt: int
    chain: list[int]
    reply: int
    """Tokens that it will generate."""
    reason: str = "stop"
    max_tokens: int = 4096
    arrived_at: float = 0.0
    queued_at: float = 0.0
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float = 0.0
    finished_at: float | None = None
    computed: int = 0
    """Tokens whose KV is on the device."""
    generated: int = 0
    device: int = 0
    """Tokens found on the device at the first admission."""
    host: int = 0
    """Tokens loaded from the tier at the first admission."""
    looked_up: bool = False
    preemptions: int = 0
    offered: int = 0
    """Prompt blocks that the tier has been offered."""
    ready_at: float | None = None
    """When the load from the tier will have arrived; None: no load under way."""
    blocks: list[int] = field(default_factory=list)

    @property
    def need(self) -> int:
        """Tokens known so far: what must be computed before the next one can be sampled."""
        return self.prompt + self.generated


@dataclass(slots=True)
class _Step:
    began_at: float
    ends_at: float
    work: list[tuple[Request, int]]


def _decodes(request: Request, tokens: int) -> bool:
    return tokens == 1 and request.generated > 0


class Engine:
    """One engine core: queue, batch, KV pool and tier. `run` moves its clock."""

    def __init__(self, spec: EngineSpec, now: float, started_at: float) -> None:
        self.spec = spec
        self.now = now
        self.cache = PrefixCache(spec.blocks, spec.block_tokens, spec.match_unit_tokens)
        self.tier = CpuTier(spec.tier_bytes // spec.block_bytes) if spec.tier_bytes else None
        self.metrics = ServerMetrics(
            spec.model, started_at, spec.max_model_len, spec.cache_config(), offload=self.tier is not None
        )
        self.waiting: deque[Request] = deque()
        self.loading: list[Request] = []
        self.running: list[Request] = []
        self._busy_s = 0.0
        self._step: _Step | None = None
        self._preempted = False
        self._done: list[Request] = []

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.loading or self.running)

    @property
    def busy_s(self) -> float:
        """Seconds spent in steps since the start, the present one included."""
        return self._busy_s + (self.now - self._step.began_at if self._step else 0.0)

    @property
    def prefilling(self) -> bool:
        """The present step has a prefill chunk."""
        return self._step is not None and any(not _decodes(r, n) for r, n in self._step.work)

    def submit(self, request: Request, at: float) -> None:
        """A request arrives at the frontend. `at` must not be before the engine's clock."""
        request.arrived_at = at
        request.queued_at = at + self.spec.frontend_s
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """The client went away: its blocks are freed, and no counter says so (0.32)."""
        for where in (self.waiting, self.loading, self.running):
            if request in where:
                where.remove(request)
                self._release(request)
        if self._step is not None:
            self._step.work = [(r, n) for r, n in self._step.work if r is not request]

    def run(self, until: float) -> list[Request]:
        """Let time pass, up to `until` or to the first finish, whichever comes first. The requests that finished."""
        while True:
            if self._step is None and not self._begin(until):
                self.now = max(self.now, until)
                break
            if self._step is not None:
                if self._step.ends_at > until:
                    self.now = max(self.now, until)
                    break
                self._end(self._step)
            if self._done:
                break
        done, self._done = self._done, []
        return done

    def gauges(self) -> None:
        """Write the present state into the gauges."""
        self.metrics.gauges(
            running=len(self.running),
            capacity=len(self.waiting),
            deferred=len(self.loading),
            usage=self.cache.usage,
        )

    def _begin(self, until: float) -> bool:
        """Plan the next step, or take a stretch of decoding steps at once. False: nothing can happen before `until`."""
        self._land()
        work = self._plan()
        if not work:
            wakes = [r.ready_at for r in self.loading if r.ready_at is not None]
            wakes += [r.queued_at for r in self.waiting if r.queued_at > self.now]
            wake = min(wakes, default=math.inf)
            if wake > until and not self._preempted:
                return False
            if not self._preempted:
                self.now = max(self.now, wake)
            return True
        if all(_decodes(r, n) for r, n in work) and self._stretch(work, until):
            return True
        self._step = _Step(self.now, self.now + self._seconds(work), work)
        return True

    def _seconds(self, work: list[tuple[Request, int]]) -> float:
        decoding = sum(1 for r, n in work if _decodes(r, n))
        prefill = sum(n for _, n in work) - decoding
        spec = self.spec
        decode = spec.decode_step_s + spec.decode_extra_s * (decoding - 1) if decoding else 0.0
        if not prefill:
            return decode
        # Decode tokens ride along in a batch that is bound by the chunk; they cost about their share of the reads.
        return prefill / spec.prefill_tokens_per_s + spec.decode_extra_s * decoding

    def _stretch(self, work: list[tuple[Request, int]], until: float) -> bool:
        """Take as many equal decoding steps as fit before anything can change. False: none fits."""
        seconds = self._seconds(work)
        horizon = min([until, *(r.ready_at for r in self.loading if r.ready_at is not None)])
        horizon = min([horizon, *(r.queued_at for r in self.waiting if r.queued_at > self.now)])
        times = min(int((horizon - self.now) / seconds), *(r.reply - r.generated for r, _ in work))
        if times < 2:
            return False
        size = self.spec.block_tokens
        wanted = [max(-(-(r.need + times - 1) // size) - len(r.blocks), 0) for r, _ in work]
        if sum(wanted) > self.cache.room:
            return False
        for (request, _), count in zip(work, wanted, strict=True):
            request.blocks += self.cache.allocate(count) or []
        began, self.now = self.now, self.now + seconds * times
        self._busy_s += seconds * times
        self.metrics.step(len(work), len(work), times)
        for request, _ in work:
            self.metrics.gap(began + seconds - request.last_token_at)
            self.metrics.gap(seconds, times - 1)
            self._advance(request, times)
            request.generated += times
            request.last_token_at = self.now
            self._finish_if_done(request)
        return True

    def _land(self) -> None:
        """Loads that have arrived go to the head of the queue."""
        landed = [r for r in self.loading if r.ready_at is not None and r.ready_at <= self.now]
        for request in reversed(landed):
            self.loading.remove(request)
            request.ready_at = None
            self.waiting.appendleft(request)

    def _plan(self) -> list[tuple[Request, int]]:
        """Who computes how many tokens in the next step."""
        budget = self.spec.max_batched_tokens
        work: list[tuple[Request, int]] = []
        self._preempted = False
        at = 0
        while at < len(self.running) and budget:
            request = self.running[at]
            tokens = min(request.need - request.computed, budget, self.spec.long_prefill_tokens)
            if not self._grow(request, tokens):
                break
            work.append((request, tokens))
            budget -= tokens
            at += 1
        while budget and not self._preempted and self.waiting and len(self.running) < self.spec.max_running:
            request = self.waiting[0]
            if request.queued_at > self.now or not self._admit(request):
                break
            if request.ready_at is not None:
                continue
            tokens = min(request.need - request.computed, budget, self.spec.long_prefill_tokens)
            if not self._grow(request, tokens):
                break
            work.append((request, tokens))
            budget -= tokens
        return work

    def _grow(self, request: Request, tokens: int) -> bool:
        """Blocks for the next `tokens` tokens; others are thrown out, last come first, where the pool is full."""
        count = max(-(-(request.computed + tokens) // self.spec.block_tokens) - len(request.blocks), 0)
        while (taken := self.cache.allocate(count)) is None:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        request.blocks += taken
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        request.computed = 0
        request.preemptions += 1
        self._preempted = True
        self.metrics.preempted()
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self.cache.release(request.blocks)
        request.blocks = []

    def _admit(self, request: Request) -> bool:
        """Take the head of the queue into the batch, or send it to load first. False: its whole length does not fit."""
        if not request.blocks:
            cache, size = self.cache, self.spec.block_tokens
            found = cache.match(request.chain, request.need)
            # The whole prompt must fit beside what those before it will still need for theirs.
            promised = sum(max(-(-r.need // size) - len(r.blocks), 0) for r in (*self.running, *self.loading))
            if cache.needs(request.chain, found, -(-request.need // size)) > cache.room - promised:
                return False
            hits = request.chain[:found]
            request.blocks = cache.hold(hits)
            request.computed = found * size
            loaded = self._load(request, found)
            if not request.looked_up:
                request.looked_up = True
                request.device, request.host = found * size, loaded * size
                self.metrics.admitted(request.prompt, request.device, request.host)
        self.waiting.popleft()
        if request.ready_at is not None:
            self.loading.append(request)
            return True
        self.running.append(request)
        if request.scheduled_at is None:
            request.scheduled_at = self.now
        return True

    def _load(self, request: Request, found: int) -> int:
        """Start the copy of what the tier has beyond the device's hits; how many blocks."""
        if self.tier is None:
            return 0
        size, unit = self.spec.block_tokens, self.cache.match_unit_tokens
        most = min(len(request.chain), (request.need - 1) // size)
        count = self.tier.match(request.chain, found, most)
        count -= count % (unit // size)
        if not count:
            return 0
        blocks = self.cache.allocate(count)
        if blocks is None:
            return 0
        part = request.chain[found : found + count]
        self.tier.load(part)
        self.cache.publish(blocks, part)
        request.blocks += blocks
        request.computed += count * size
        moved = count * self.spec.block_bytes
        seconds = moved / self.spec.pcie_bytes_per_s
        request.ready_at = self.now + seconds
        self.metrics.loaded(moved, seconds, request.ready_at)
        return count

    def _end(self, step: _Step) -> None:
        """What the step did becomes visible."""
        self._step = None
        self._busy_s += step.ends_at - step.began_at
        self.now = step.ends_at
        read, sampled = 0, 0
        for request, tokens in step.work:
            self._advance(request, tokens)
            if request.computed == request.need:
                sampled += 1
                if request.first_token_at is None:
                    read += request.prompt - request.device - request.host
                self._sample(request)
        if sampled:
            # As in vLLM: a step without a token is not observed, and a prompt counts whole with its first token.
            self.metrics.step(read + sampled, sampled)

    def _advance(self, request: Request, tokens: int) -> None:
        """`tokens` more are computed: full blocks can be hit from now on, and prompt blocks go to the tier."""
        size = self.spec.block_tokens
        before = request.computed // size
        request.computed += tokens
        after = min(request.computed // size, len(request.chain))
        if after > before:
            self.cache.publish(request.blocks[before:after], request.chain[before:after])
        most = min(after, request.prompt // size)
        if self.tier is not None and most > request.offered:
            # What the device had is offered too: so a reply gets there with the prompt that carries it.
            new = self.tier.store(request.chain[request.offered : most])
            request.offered = most
            if new:
                moved = new * self.spec.block_bytes
                self.metrics.stored(moved, moved / self.spec.pcie_bytes_per_s, new, self.now)

    def _sample(self, request: Request) -> None:
        request.generated += 1
        if request.first_token_at is None:
            request.first_token_at = self.now
            ttft_s = self.now - request.arrived_at + self.spec.frontend_s
            self.metrics.first_token(request.prompt, request.device, request.host, ttft_s)
        else:
            self.metrics.gap(self.now - request.last_token_at)
        request.last_token_at = self.now
        self._finish_if_done(request)

    def _finish_if_done(self, request: Request) -> None:
        if request.generated < request.reply:
            return
        self.running.remove(request)
        self._release(request)
        request.finished_at = self.now
        scheduled = request.scheduled_at if request.scheduled_at is not None else request.queued_at
        first = request.first_token_at if request.first_token_at is not None else self.now
        self.metrics.finish(
            Finish(
                reason=request.reason,
                prompt_tokens=request.prompt,
                computed_tokens=request.prompt - request.device - request.host,
                generated_tokens=request.generated,
                max_tokens=request.max_tokens,
                queue_s=scheduled - request.queued_at,
                prefill_s=first - scheduled,
                decode_s=self.now - first,
                e2e_s=self.now - request.arrived_at + self.spec.frontend_s,
                preemptions=request.preemptions,
            )
        )
        self._done.append(request)
