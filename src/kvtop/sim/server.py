"""The embedded box as a server on 127.0.0.1: /metrics, /health, /version, /v1/models, /tokenize, /detokenize and chat
completions.

The box plays its scenario by itself; requests from outside go through the same engine and count in the same series.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from kvtop.sim.chat import Chat
from kvtop.sim.http import Answer, Call, error_answer, json_answer, serve_connection
from kvtop.sim.scenarios import DEFAULT, SCENARIOS, Scenario
from kvtop.sim.tapped import Tapped
from kvtop.sim.world import World

VERSION = "0.32.0"
METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"
_TICK_S = 0.25
_TICK_BUSY_S = 0.02
"""While a request from outside is under way: fine enough for its tokens to come one by one."""


class Mode(StrEnum):
    """What a test can make of the box."""

    UP = "up"
    DOWN = "down"
    """The port refuses."""
    HANG = "hang"
    """Connections are taken and nothing is answered."""
    UNAVAILABLE = "unavailable"
    """Everything is answered with 503."""
    SLEEPING = "sleeping"
    DEAD_ENGINE = "dead_engine"
    """/health says 503, /metrics stands still, requests fail."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """What the cards and the host of the box feel, as of one moment."""

    at: float
    up: bool = True
    busy_share: float = 0.0
    """Share of the last second or so in which a step ran."""
    prefilling: bool = False
    load_bytes_per_s: float = 0.0
    store_bytes_per_s: float = 0.0
    tier_bytes: int | None = None
    uptime_s: float = 0.0
    restarts: int = 0


class SimBox:
    """A server that plays a scenario. `speed` runs its clock faster than the wall, for tests; the demo keeps 1."""

    def __init__(
        self,
        scenario: str | Scenario = DEFAULT,
        *,
        seed: int = 7,
        speed: float = 1.0,
        port: int = 0,
        prompt_tokens_details: bool = True,
        tapped: Tapped | None = None,
    ) -> None:
        """`tapped` records what the agents of the play ask and get."""
        self.scenario = SCENARIOS[scenario] if isinstance(scenario, str) else scenario
        self.port = port
        self.mode = Mode.UP
        self.calls: Counter[str] = Counter()
        """Requests by path."""
        self.vitals = Vitals(0.0)
        self._seed = seed
        self._speed = speed
        self._details = prompt_tokens_details
        self._tapped = tapped
        self._leaves = False
        self._world: World | None = None
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._clients: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}
        self._changed = asyncio.Event()
        self._ready = asyncio.Event()
        self._live_at = 0.0
        self._mono = 0.0
        self._seen: tuple[float, float, int, int] | None = None
        self._frozen: bytes | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def listening(self) -> bool:
        """The port is open."""
        return self._server is not None

    @property
    def world(self) -> World:
        """The play. It exists once `start` has returned."""
        if self._world is None:
            raise RuntimeError("the box has not been started")
        return self._world

    async def start(self, bound: Callable[[str], None] | None = None) -> str:
        """Open the port, tell `bound`, then play the warm past: requests wait for its end. The URL."""
        await self._listen()
        if bound is not None:
            bound(self.url)
        self._live_at, self._mono = time.time(), time.monotonic()
        if self._tapped is not None:
            self._tapped.upstream = self.url
        world = World(self.scenario, self._seed, self._live_at, self._tapped)
        world.play_past(stopped=lambda: self._leaves)
        self._world = world
        self._feel()
        self._chat = Chat(world, self._details)
        self._ready.set()
        self._ticker = asyncio.create_task(self._tick())
        return self.url

    def leave(self) -> None:
        """Play no more of the past; from any thread. `stop` is still to be called."""
        self._leaves = True

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        self._close()
        await asyncio.sleep(0)

    async def be(self, mode: Mode) -> None:
        """Change what the box answers with."""
        self.mode = mode
        self._frozen = None
        if mode is Mode.DEAD_ENGINE:
            self._catch_up()
            self._frozen = self._metrics()
        if self._world is not None:
            self._world.engine.metrics.sleep_state("weights_offloaded" if mode is Mode.SLEEPING else "awake")
        self._changed.set()
        self._changed = asyncio.Event()
        await self._follow()

    async def restart(self, down_s: float) -> None:
        """As an operator would: refuse for `down_s` simulated seconds, then begin again with empty counters."""
        self._catch_up()
        self.world.restart(down_s)
        await self._follow()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._client, "127.0.0.1", self.port, limit=2**20)
        self.port = self._server.sockets[0].getsockname()[1]

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer, task in tuple(self._clients.items()):
            writer.transport.abort()
            if task is not None:
                task.cancel()

    async def _follow(self) -> None:
        """Open or close the port as mode and play want it."""
        wanted = self.mode is not Mode.DOWN and self.world.up
        if wanted and self._server is None:
            await self._listen()
        elif not wanted and self._server is not None:
            self._close()

    async def _tick(self) -> None:
        while True:
            self._catch_up()
            self._feel()
            await self._follow()
            await asyncio.sleep(_TICK_BUSY_S if self._chat.busy else _TICK_S)

    def _catch_up(self) -> None:
        if self.mode is not Mode.DEAD_ENGINE:
            self.world.run(self._live_at + (time.monotonic() - self._mono) * self._speed)

    def _feel(self) -> None:
        world, engine = self.world, self.world.engine
        tier = engine.tier
        now = (engine.now, engine.busy_s, tier.loaded if tier else 0, tier.stored if tier else 0)
        before = self._seen
        if before is not None and now[1] >= before[1] and now[0] - before[0] < 1.0 and world.up == self.vitals.up:
            return
        self._seen = now
        busy, loaded, stored = float(not engine.idle), 0.0, 0.0
        if before is not None and now[1] >= before[1] and now[0] > before[0]:
            passed = now[0] - before[0]
            busy = (now[1] - before[1]) / passed
            loaded, stored = (now[2] - before[2]) / passed, (now[3] - before[3]) / passed
        elif engine.prefilling and tier is not None:
            stored = engine.spec.prefill_tokens_per_s / engine.spec.block_tokens
        self.vitals = Vitals(
            at=now[0],
            up=world.up,
            busy_share=min(busy, 1.0) if world.up else 0.0,
            prefilling=engine.prefilling,
            load_bytes_per_s=loaded * engine.spec.block_bytes,
            store_bytes_per_s=stored * engine.spec.block_bytes,
            tier_bytes=engine.spec.tier_bytes,
            uptime_s=now[0] - world.started_at,
            restarts=world.restarts,
        )

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients[writer] = asyncio.current_task()
        try:
            await serve_connection(reader, writer, self._handle)
        except asyncio.CancelledError:
            pass  # only `_close` cancels, and then the connection is already gone
        finally:
            self._clients.pop(writer, None)

    async def _handle(self, call: Call) -> Answer:
        self.calls[call.path] += 1
        await self._ready.wait()
        while self.mode is Mode.HANG:
            await self._changed.wait()
        if self.mode is Mode.UNAVAILABLE:
            return error_answer(503, "the server is overloaded", "ServiceUnavailable")
        self._catch_up()
        return await self._route(call)

    async def _route(self, call: Call) -> Answer:
        route = (call.method, call.path)
        match route:
            case ("GET" | "HEAD", "/metrics"):
                return Answer(200, self._frozen or self._metrics(), METRICS_TYPE)
            case ("GET", "/health"):
                return Answer(503 if self.mode is Mode.DEAD_ENGINE else 200)
            case ("GET", "/version"):
                return json_answer({"version": VERSION})
            case ("GET", "/v1/models"):
                return self._chat.models(int(self.world.started_at))
            case ("POST", "/tokenize"):
                return self._count(call, self._chat.tokenize(call))
            case ("POST", "/detokenize"):
                return self._count(call, self._chat.detokenize(call))
            case ("POST", "/v1/chat/completions"):
                if self.mode in (Mode.DEAD_ENGINE, Mode.SLEEPING):
                    return self._count(call, error_answer(500, "EngineCore is not running", "InternalServerError"))
                return self._count(call, await self._chat.complete(call))
        if call.path in ("/tokenize", "/detokenize", "/v1/chat/completions"):
            return error_answer(405, "Method Not Allowed", "MethodNotAllowedError")
        return error_answer(404, "Not Found", "NotFoundError")

    def _count(self, call: Call, answer: Answer) -> Answer:
        if self._frozen is None:
            self.world.engine.metrics.http_request(call.path, call.method, answer.status, self.world.now)
        return answer

    def _metrics(self) -> bytes:
        self.world.engine.gauges()
        return self.world.engine.metrics.text().encode()
