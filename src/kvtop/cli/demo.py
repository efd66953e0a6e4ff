"""`kvtop demo`: the dashboard, or a summary, on a simulated box. No GPU, no server, no network but loopback."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from kvtop import config
from kvtop.errors import KvtopError, UsageError
from kvtop.readings import Scrape, ServerFacts, SourceDown
from kvtop.sim.scenarios import DEFAULT, SCENARIOS
from kvtop.sim.server import SimBox
from kvtop.sim.thread import BoxThread

if TYPE_CHECKING:
    from kvtop.live.factories import ServerLike
    from kvtop.live.watch import Watch

DESCRIPTION = """The dashboard on a simulated box with a few coding agents: block-level prefix cache, CPU tier, queue.
It serves /metrics, /tokenize and chat completions on 127.0.0.1 and is read like any other server. All numbers are the
simulation's."""


def _parser() -> argparse.ArgumentParser:
    plays = "\n".join(f"  {one.name:<14} {one.words}" for one in SCENARIOS.values())
    parser = argparse.ArgumentParser(
        prog="kvtop demo",
        description=DESCRIPTION,
        epilog=f"scenarios:\n{plays}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--scenario", metavar="NAME", default=DEFAULT, choices=list(SCENARIOS), help=f"default: {DEFAULT}"
    )
    parser.add_argument("--seed", metavar="N", type=int, default=7, help="another number, another day (default: 7)")
    parser.add_argument("--headless", action="store_true", help="no screen: watch, then print one JSON line")
    parser.add_argument("--seconds", metavar="N", type=float, help="with --headless: how long to watch (default: 5)")
    parser.add_argument("--window", metavar="W", help="10s, 1m, 5m, 1h or start")
    parser.add_argument("--theme", metavar="NAME", help="as for the dashboard")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


@dataclass
class PastFirst:
    """A server source that hands over the box's warm past before it asks the box itself."""

    thread: BoxThread
    real: ServerLike
    live: int = 0
    """Answers of the box that could be read."""
    states: list[str] = field(default_factory=list)
    """The states it was seen in, each change once."""
    _past: list[Scrape] | None = None

    @property
    def pending(self) -> bool:
        """Part of the past is still to be told."""
        return self._past is None or bool(self._past)

    async def scrape(self) -> Scrape | SourceDown:
        if self._past is None:
            self._past = await asyncio.to_thread(self.thread.past)
            self._past.reverse()
        if self._past:
            return self._past.pop()
        answer = await self.real.scrape()
        state = answer.state.value if isinstance(answer, SourceDown) else "up"
        self.live += not isinstance(answer, SourceDown)
        if self.states[-1:] != [state]:
            self.states.append(state)
        return answer

    async def facts(self) -> ServerFacts | SourceDown:
        return await self.real.facts()

    async def aclose(self) -> None:
        await self.real.aclose()


@dataclass
class _Stage:
    """The watch on the box, and the source through which it looks."""

    watch: Watch
    sources: list[PastFirst]


def _watch(thread: BoxThread, url: str, settings: config.Settings) -> _Stage:
    from dataclasses import replace

    from kvtop.clock import SystemClock
    from kvtop.live.factories import real
    from kvtop.live.watch import Watch
    from kvtop.sim.hardware import SimGpus, SimHost

    box = thread.box
    factories = real(settings, SystemClock())
    sources: list[PastFirst] = []

    def server(given: str, configured: config.Server | None) -> ServerLike:
        sources.append(PastFirst(thread, factories.server(given, configured)))
        return sources[-1]

    async def sleep(seconds: float) -> None:
        # Nothing waits for the clock while the past is told; each step still lets the screen be drawn.
        await asyncio.sleep(0 if any(s.pending for s in sources) else seconds)

    simulated = replace(
        factories,
        server=server,
        gpu=lambda: SimGpus(box.scenario.spec, lambda: box.vitals),
        host=lambda: SimHost(box.scenario.spec, lambda: box.vitals, lambda: box.port),
    )
    return _Stage(Watch(settings, [url], demo=True, factories=simulated, sleep=sleep), sources)


async def _look(stage: _Stage, seconds: float) -> dict[str, Any]:
    async def ready() -> None:
        while not (stage.sources and stage.sources[0].live):
            await changed.wait()
            changed.clear()

    changed = asyncio.Event()
    running = asyncio.create_task(stage.watch.run(changed.set))
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10.0):
                await ready()
        await asyncio.sleep(seconds)
        server = stage.watch.view("5m").server
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    source = stage.sources[0] if stage.sources else None
    groups = server.window.all if server else None
    ttft = groups.latency.ttft.p50 if groups else None
    share = groups.cached.share if groups else None
    return {
        "scrapes": source.live if source else 0,
        "turns": server.turns_total if server else 0,
        "share": None if share is None else round(share, 4),
        "ttft_p50_s": None if ttft is None or ttft.value_s is None else round(ttft.value_s, 3),
        "states": source.states if source else [],
    }


def main(argv: Sequence[str]) -> int:
    """Run the demo; the exit code. Headless it is 1 where the box never answered."""
    args = _parser().parse_args(list(argv))
    if args.seconds is not None and not args.headless:
        raise UsageError("--seconds needs --headless", "kvtop demo --headless --seconds 10")
    if args.seconds is not None and not 0 < args.seconds <= 86_400:
        raise UsageError("--seconds is a number from 0 to 86400")
    loaded = config.load()
    chosen = {k: v for k, v in (("window", args.window), ("theme", args.theme)) if v is not None}
    settings = msgspec.structs.replace(loaded.settings, **chosen)
    if not args.headless and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the dashboard needs a terminal", "without one: kvtop demo --headless --seconds 5")
    thread = BoxThread(SimBox(args.scenario, seed=args.seed))
    try:
        url = thread.start()
    except OSError as error:
        raise KvtopError(f"no port could be opened on 127.0.0.1: {error.strerror or error}") from error
    try:
        if args.headless:
            told = asyncio.run(_look(_watch(thread, url, settings), args.seconds or 5.0))
            print(json.dumps(told))
            return 0 if told["scrapes"] else 1
        from kvtop.ui.app import KvtopApp

        app = KvtopApp(_watch(thread, url, settings).watch, settings, problems=loaded.problems)
        app.run()
        return app.return_code or 0
    finally:
        thread.stop()
