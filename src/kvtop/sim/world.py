"""The box and its agents on one simulated clock: who acts next, and what came of it."""

from __future__ import annotations

import heapq
import itertools
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from kvtop.readings import Scrape
from kvtop.sim.agents import Act, Ask, Restart, Script, Sleep, Stage
from kvtop.sim.cache import extend_chain, root_hash
from kvtop.sim.engine import Engine, Request
from kvtop.sim.prompt import Prompt
from kvtop.sim.scenarios import Scenario
from kvtop.sim.tapped import SINCE_S, Tapped
from kvtop.sim.text import IM_END, tokenize

BOOT_S = 1.5
"""From the start of the process to the first answer of its port, of the restarts that the box plays."""


@dataclass(slots=True, eq=False)
class _Player:
    script: Script
    stage: Stage
    begun: bool = False


class World:
    """Plays a scenario. Time moves only in `run`; it never goes back."""

    def __init__(self, scenario: Scenario, seed: int, live_at: float, tap: Tapped | None = None) -> None:
        """`tap` is told what the agents ask and get."""
        self.scenario = scenario
        self._tap = tap
        if tap is not None:
            tap.since = live_at - SINCE_S
        self.live_at = live_at
        self.now = live_at - scenario.past_s
        self.started_at = self.now - BOOT_S
        self.down_until: float | None = None
        """While the server is restarted: when it will answer again."""
        self.restarts = 0
        self.engine = Engine(scenario.spec, self.now, self.started_at)
        self.past: list[Scrape] = []
        """The counters of the warm past, as `play_past` met them."""
        self._order = itertools.count()
        self._queue: list[tuple[float, int, _Player, bool]] = []
        self._waits: dict[Request, _Player | Callable[[Request | None], None]] = {}
        self._seeds = random.Random(seed)
        self._stages: list[Stage] = []
        for script in scenario.cast(self._stage):
            # A generator runs nothing before its first resumption, so the stages were made in the order of the scripts.
            self._enter(script, self._stages.pop(0))

    def _stage(self) -> Stage:
        rng = random.Random(self._seeds.getrandbits(64))
        stage = Stage(self.scenario.spec.block_tokens, rng, self.live_at, self.now)
        self._stages.append(stage)
        return stage

    def _enter(self, script: Script, stage: Stage) -> None:
        self._push(self.now, _Player(script, stage), True)

    def _push(self, at: float, player: _Player, value: bool) -> None:
        heapq.heappush(self._queue, (at, next(self._order), player, value))

    @property
    def up(self) -> bool:
        return self.down_until is None

    def play_past(
        self, step_s: float = 5.9, single_s: float = 600.0, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Fast-forward to the moment at which the port opens, keeping in `past` what a dashboard would have seen.

        `single_s`: in the last so many seconds each finish has a scrape of its own, so that its turn stands alone.
        `stopped`: nobody wants to see it any more.
        """
        at = self.now
        while self.now < self.live_at and not stopped():
            at = min(at + step_s, self.live_at)
            while self.run(at, stop_at_finish=True):
                if self.now > self.live_at - single_s:
                    self.past.append(self._seen())
            self.past.append(self._seen())

    def _seen(self) -> Scrape:
        self.engine.gauges()
        return self.engine.metrics.scrape(self.now)

    def run(self, until: float, *, stop_at_finish: bool = False) -> bool:
        """Let time pass up to `until`. True: stopped early, at a finish."""
        while True:
            wake = self._queue[0][0] if self._queue else float("inf")
            if self.down_until is not None:
                if self.down_until > min(until, wake):
                    self.now = min(until, wake)
                else:
                    self._boot(self.down_until)
                    continue
            else:
                done = self.engine.run(min(until, wake))
                self.now = max(self.now, self.engine.now)
                for request in done:
                    self._finished(request)
                if done:
                    if stop_at_finish:
                        return True
                    continue
            if wake > until:
                self.now = max(self.now, until)
                return False
            _, _, player, value = heapq.heappop(self._queue)
            self._resume(player, value)

    def submit(
        self,
        prompt: Prompt,
        reply: array[int],
        *,
        reason: str,
        max_tokens: int,
        salt: str = "",
        done: Callable[[Request | None], None],
    ) -> Request:
        """A request from outside. `done` gets it when it has finished, or None where the server went down."""
        request = self._request(prompt, reply, reason, max_tokens, salt)
        self._waits[request] = done
        self.engine.submit(request, self.now)
        return request

    def abort(self, request: Request) -> None:
        """Its client has gone."""
        self._waits.pop(request, None)
        self.engine.abort(request)

    def restart(self, down_s: float) -> None:
        """The server goes away with all that it held, and answers again after `down_s`."""
        self.down_until = self.now + down_s
        self.restarts += 1
        waits, self._waits = self._waits, {}
        for request, waiter in waits.items():
            if isinstance(waiter, _Player):
                if self._tap is not None:
                    self._tap.broke(request, self.now)
                self._push(self.now + 0.1, waiter, False)
            else:
                waiter(None)

    def _boot(self, at: float) -> None:
        self.now = at
        self.down_until = None
        self.started_at = at - BOOT_S
        self.engine = Engine(self.scenario.spec, at, self.started_at)

    def _request(self, prompt: Prompt, reply: array[int], reason: str, max_tokens: int, salt: str = "") -> Request:
        size = self.scenario.spec.block_tokens
        chain = extend_chain(prompt.chain[:], prompt.ids + reply, size, root_hash(salt))
        return Request(len(prompt.ids), chain, len(reply), reason, max_tokens)

    def _finished(self, request: Request) -> None:
        waiter = self._waits.pop(request)
        if isinstance(waiter, _Player):
            self.engine.metrics.http_request("/v1/chat/completions", "POST", 200, self.now)
            if self._tap is not None:
                self._tap.answered(self.scenario.spec, request)
            self._resume(waiter, True)
        else:
            waiter(request)

    def _resume(self, player: _Player, value: bool) -> None:
        player.stage.now = self.now
        try:
            act: Act = player.script.send(value) if player.begun else next(player.script)
            player.begun = True
        except StopIteration:
            return
        finally:
            for script in player.stage.spawned:
                self._enter(script, player.stage)
            player.stage.spawned.clear()
        match act:
            case Sleep(seconds):
                self._push(self.now + seconds, player, True)
            case Restart(down_s):
                self.restart(down_s)
                self._push(self.now, player, True)
            case Ask():
                self._ask(player, act)

    def _ask(self, player: _Player, act: Ask) -> None:
        if self.down_until is not None:
            self._push(self.down_until + 1.0, player, False)
            return
        reply = tokenize(act.reply)
        reply.append(IM_END)
        request = self._request(act.conversation.prompt(), reply, act.reason, 8_192)
        self._waits[request] = player
        self.engine.submit(request, self.now)
        if self._tap is not None:
            self._tap.asked(self.scenario.spec, request, act)
