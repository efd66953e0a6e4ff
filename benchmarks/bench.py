"""kvtop beside two other terminal monitors, against the same moving /metrics, in one run.

Each round starts every program once, in turn, for the time to first data; then all of them run side by side for the
CPU and memory. A ratio is of one round. First data is when a number of /metrics that all programs show (the requests
that wait, held at a value that nothing else has) is drawn.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import micro
from report import KVTOP, REPORT, Results, Size, page, parse_ratio, replace_part, table, three
from terminal import Terminal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CAPTURE = ROOT / "tests" / "fixtures" / "captures" / "series-0.32.0.tar.xz"
SIZES = ((80, 24), (200, 50))
WAITING = 467
SETTLE_S = 5.0


def programs(url: str) -> dict[str, list[str]]:
    rivals = HERE / ".venv" / "bin"
    return {
        KVTOP: [str(ROOT / ".venv" / "bin" / "kvtop"), url],
        "vllmstat": [str(rivals / "vllmstat"), "-u", url],
        "vllm-htop": [str(rivals / "vllm-htop"), "--url", url],
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def moving(capture: Path, *held: str) -> Iterator[str]:
    """The URL of a moving server, in a process of its own."""
    port = free_port()
    command = [sys.executable, str(HERE / "moving.py"), str(port), str(capture), *held]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def scrapes(url: str) -> int:
    with urllib.request.urlopen(f"{url}/scrapes") as answer:
        return int(answer.read())


def first_data(capture: Path, results: dict[Size, Results], rounds: int) -> None:
    with moving(capture, f"vllm:num_requests_waiting={WAITING}") as url:
        for turn in range(-1, rounds):
            for size in SIZES:
                for name, command in programs(url).items():
                    terminal = Terminal(command, *size)
                    terminal.expect(str(WAITING))
                    with terminal:
                        took = terminal.wait(30.0)
                    # The first turn fills the page cache and counts for nobody.
                    if turn >= 0:
                        results[size].first_ms.setdefault(name, []).append(took * 1000)
            say(f"first data, round {turn + 1} of {rounds}")


def running(capture: Path, size: Size, into: Results, seconds: float) -> None:
    """All programs at the same time, each with a server of its own so that its polls can be counted."""
    with ExitStack() as stack:
        started: dict[str, tuple[Terminal, str]] = {}
        for name in programs(""):
            url = stack.enter_context(moving(capture))
            started[name] = (stack.enter_context(Terminal(programs(url)[name], *size)), url)
        time.sleep(SETTLE_S)
        before = {name: (t.cpu_s(), scrapes(url), t.written, time.monotonic()) for name, (t, url) in started.items()}
        time.sleep(seconds)
        for name, (terminal, url) in started.items():
            cpu, polls, written, at = before[name]
            spent = time.monotonic() - at
            into.cpu_percent.setdefault(name, []).append((terminal.cpu_s() - cpu) / spent * 100)
            into.polls_per_s.setdefault(name, []).append((scrapes(url) - polls) / spent)
            into.written_kb_per_s.setdefault(name, []).append((terminal.written - written) / spent / 1000)
            into.rss_mb.setdefault(name, []).append(terminal.rss_bytes() / 1e6)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/run", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=9, help="starts of each program for first data (default 9)")
    parser.add_argument("--repeats", type=int, default=3, help="side by side runs a size (default 3)")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of one of them (default 60)")
    parser.add_argument("--only", choices=("first", "running", "parse"), help="one part alone; nothing is written")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    arguments = parser.parse_args()
    results = {size: Results() for size in SIZES}
    # No configuration of the user, and nothing of this run left in it.
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KVTOP_HOME"] = str(Path(folder) / "home")
        with tarfile.open(CAPTURE) as packed:
            packed.extractall(folder, filter="data")
        capture = Path(folder) / CAPTURE.name.partition(".tar")[0]
        parse = micro.measure(capture)
        if arguments.only in (None, "first"):
            first_data(capture, results, arguments.rounds)
        if arguments.only in (None, "running"):
            for turn in range(arguments.repeats):
                for size in SIZES:
                    running(capture, size, results[size], arguments.seconds)
                say(f"side by side, {turn + 1} of {arguments.repeats}")
    if arguments.only:
        print(table(results))
        print(f"parse: {three(parse[1], 2)} ms; official: {three(parse[2], 2)} ms; ratio {parse_ratio(parse):.3f}")
        return 0
    text = page(results, parse, seconds=arguments.seconds, settle=SETTLE_S)
    print(text)
    if arguments.write:
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(replace_part(REPORT.read_text() if REPORT.exists() else "", "screen", text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
