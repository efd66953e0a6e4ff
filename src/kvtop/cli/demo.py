"""`kvtop demo`: the dashboard, or a summary, on a simulated box. No GPU, no server, no network but loopback."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from kvtop import config, interrupt
from kvtop.cli import stdio
from kvtop.cli.args import Parser, seconds, theme
from kvtop.errors import KvtopError, Problem, UsageError
from kvtop.model.view import WINDOWS
from kvtop.sim.scenarios import DEFAULT, SCENARIOS
from kvtop.sim.server import SimBox
from kvtop.sim.tapped import Tapped
from kvtop.sim.thread import BoxThread

if TYPE_CHECKING:
    from kvtop.cli.demo_watch import DemoWatch

DESCRIPTION = """The dashboard on a simulated box with a few coding agents: block-level prefix cache, CPU tier, queue.
It serves /metrics, /tokenize and chat completions on 127.0.0.1 and is read like any other server. All numbers are the
simulation's."""


def _parser() -> Parser:
    plays = "\n".join(f"  {one.name:<14} {one.words}" for one in SCENARIOS.values())
    parser = Parser(
        debug="show tracebacks",
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
    parser.add_argument("--seconds", metavar="N", type=seconds, help="with --headless: how long to watch (default: 5)")
    windows = [key for key, _, _ in WINDOWS]
    parser.add_argument("--window", metavar="W", choices=windows, help="10s, 1m, 5m, 1h or start")
    parser.add_argument("--theme", metavar="NAME", type=theme, help="as for the dashboard")
    return parser


def _check(loaded: config.Loaded) -> tuple[Problem, ...]:
    from kvtop.ui import export

    return export.problems(loaded.settings.export_dir, loaded.path)


async def _look(watch: DemoWatch, seconds: float) -> dict[str, Any]:
    async def ready() -> None:
        while not (watch.sources and watch.sources[0].live):
            await changed.wait()
            changed.clear()

    def note() -> None:
        server = watch.view("5m").server
        if server is not None and states[-1:] != [server.state.value]:
            states.append(server.state.value)
        changed.set()

    changed = asyncio.Event()
    states: list[str] = []
    running = asyncio.create_task(watch.run(note))
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10.0):
                await ready()
        await asyncio.sleep(seconds)
        server = watch.view("5m").server
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    source = watch.sources[0] if watch.sources else None
    groups = server.window.all if server else None
    ttft = groups.latency.ttft.p50 if groups else None
    share = groups.cached.share if groups else None
    return {
        "scrapes": source.live if source else 0,
        "turns": server.turns_total if server else 0,
        "share": None if share is None else round(share, 4),
        "ttft_p50_s": None if ttft is None or ttft.value_s is None else round(ttft.value_s, 3),
        "states": states,
    }


def main(argv: Sequence[str]) -> int:
    """Run the demo; the exit code. Headless it is 1 where the box never answered."""
    args = _parser().parse_args(list(argv))
    if args.seconds is not None and not args.headless:
        raise UsageError("--seconds needs --headless", "kvtop demo --headless --seconds 10")
    loaded = config.load()
    chosen = {k: v for k, v in (("window", args.window), ("theme", args.theme)) if v is not None}
    settings = msgspec.structs.replace(loaded.settings, **chosen)
    if not args.headless:
        stdio.need_terminal("without one: kvtop demo --headless --seconds 5")
    tapped = Tapped()
    thread = BoxThread(SimBox(args.scenario, seed=args.seed, tapped=tapped))
    try:
        url = thread.start()
    except OSError as error:
        raise KvtopError(f"no port could be opened on 127.0.0.1: {error.strerror or error}") from error
    try:
        from kvtop.cli.demo_watch import DemoWatch

        watch = DemoWatch(thread, url, settings, tapped)
        if args.headless:
            interrupt.as_usual()
            told = asyncio.run(_look(watch, args.seconds or 5.0))
            print(json.dumps(told))
            return 0 if told["scrapes"] else 1
        from kvtop.ui.app import run

        interrupt.as_usual()
        return run(watch, settings, problems=loaded.problems, check=partial(_check, loaded), tracebacks=args.debug)
    finally:
        thread.stop()
