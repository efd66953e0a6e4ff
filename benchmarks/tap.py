"""The tap beside nginx and a direct connection, between the same upstream and the same clients, in one run.

Each round measures every way once, in turn; what a way adds is taken against the direct connection of the same round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import free_port, say
from report import REPORT, replace_part
from tapreport import DIRECT, NGINX_DIRECT, NGINX_HTTP, NGINX_TCP, TAP, TAP_ALONE, Results, page

HERE = Path(__file__).resolve().parent
LOAD = str(HERE / "tapload.py")
MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
STREAMS, HZ = 64, 50.0
IDLE = 1000
NOTICED_S = 2.0
"""How long a leave may take to be noticed before it counts as not noticed."""
CAP = 32 << 20

NGINX = """
{module}
daemon off; worker_processes 1; user root; pid {folder}/pid; error_log {folder}/errors warn;
events {{ worker_connections 8192; }}
http {{
  access_log off; tcp_nodelay on; client_max_body_size 0; keepalive_requests 1000000; keepalive_timeout 600;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream box {{ server 127.0.0.1:{upstream}; keepalive 128; keepalive_requests 1000000; }}
  proxy_http_version 1.1; proxy_set_header Connection "";
  proxy_buffering off; proxy_read_timeout 600;
  server {{ listen 127.0.0.1:{http}; location / {{ proxy_pass http://box; }} }}
  server {{ listen 127.0.0.1:{anew}; location / {{ proxy_pass http://127.0.0.1:{upstream}; }} }}
  server {{
    proxy_request_buffering off;
    listen 127.0.0.1:{direct}; location / {{ proxy_pass http://box; }}
  }}
  server {{
    proxy_request_buffering off;
    listen 127.0.0.1:{direct_anew}; location / {{ proxy_pass http://127.0.0.1:{upstream}; }}
  }}
}}
{stream}
"""
STREAM = """
stream {{ server {{
  listen 127.0.0.1:{tcp}; proxy_pass 127.0.0.1:{upstream}; tcp_nodelay on; proxy_timeout 600;
}} }}
"""


class Helper:
    """A load process: an order a line, an answer a line."""

    def __init__(self, kind: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, LOAD, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def order(self, line: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def answer(self) -> object:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit("benchmarks: a load process ended")
        return json.loads(line)

    def ask(self, *what: object) -> object:
        self.order(json.dumps(what))
        return self.answer()

    def say(self, line: str) -> object:
        self.order(line)
        return self.answer()

    def close(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait()


class Way:
    """One way to the upstream: its port, and the processes that it runs in."""

    def __init__(self, name: str, port: int, pid: int = 0, anew: int = 0) -> None:
        self.name = name
        self.port = port
        self.pid = pid
        self.anew = anew or port
        """Where a new connection makes a new one to the upstream too."""

    def pids(self) -> list[int]:
        """All of it, the recorder too. nginx's worker alone does its work, its master none."""
        return family(self.pid) if self.pid else []

    def cpu_s(self) -> float:
        return sum(cpu_s(pid) for pid in self.pids())

    def own_cpu_s(self) -> float:
        """Without the recorder."""
        return cpu_s(self.pid)


def family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += family(int(child))
    return found


def cpu_s(pid: int) -> float:
    """Time on a core, of all threads that live."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(task.read_text().split()[0])
    return total / 1e9


def rss_bytes(pid: int, field: str = "VmRSS:") -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition(field)[2].split()[0]) * 1024


@contextmanager
def ended(child: subprocess.Popen[str], last_words: list[str] | None = None) -> Iterator[subprocess.Popen[str]]:
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        text, _ = child.communicate()
        if last_words is not None:
            last_words.append(text)


def start_tap(stack: ExitStack, upstream: int, store: str, cap: int = CAP, last_words: list[str] | None = None) -> Way:
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
    command = [sys.executable, str(HERE / "tapserve.py"), str(upstream), store, str(cap)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    child = stack.enter_context(ended(started, last_words))
    assert child.stdout is not None
    return Way(TAP_ALONE if store == "-" else TAP, int(child.stdout.readline()), child.pid)


def start_nginx(stack: ExitStack, folder: Path, upstream: int) -> list[Way]:
    """Its HTTP and its TCP proxy, and the first again, passing requests on without buffering them."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise SystemExit("benchmarks: no nginx here: apt-get install nginx-light libnginx-mod-stream")
    ways = []
    for name in (NGINX_HTTP, NGINX_TCP):
        if name == NGINX_TCP and not MODULE.exists():
            say("no stream module of nginx here (libnginx-mod-stream): its TCP proxy is left out")
            continue
        own = folder / name.replace(" ", "-")
        own.mkdir()
        http, anew, direct, direct_anew, tcp = (free_port() for _ in range(5))
        text = NGINX.format(
            folder=own,
            upstream=upstream,
            http=http,
            anew=anew,
            direct=direct,
            direct_anew=direct_anew,
            module=f"load_module {MODULE};" if name == NGINX_TCP else "",
            stream=STREAM.format(tcp=tcp, upstream=upstream) if name == NGINX_TCP else "",
        )
        (own / "nginx.conf").write_text(text)
        stack.enter_context(
            ended(subprocess.Popen([program, "-c", str(own / "nginx.conf"), "-e", str(own / "errors")], text=True))
        )
        deadline = time.monotonic() + 5
        while not (own / "pid").exists() or not (own / "pid").read_text().strip():
            if time.monotonic() > deadline:
                raise SystemExit(f"benchmarks: nginx does not start: {(own / 'errors').read_text()}")
            time.sleep(0.05)
        worker = family(int((own / "pid").read_text()))[-1]
        if name == NGINX_TCP:
            ways.append(Way(name, tcp, worker))
        else:
            ways += [Way(name, http, worker, anew), Way(NGINX_DIRECT, direct, worker, direct_anew)]
    return ways


class Bench:
    """The processes of one run."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.upstream = Helper("upstream")
        stack.callback(self.upstream.close)
        self.direct_port = int(str(self.upstream.answer()))
        self.client = Helper("client")
        stack.callback(self.client.close)
        self.firsts = [
            Way(DIRECT, self.direct_port),
            *start_nginx(stack, folder, self.direct_port),
            start_tap(stack, self.direct_port, "-"),
            start_tap(stack, self.direct_port, str(folder / "turns.db")),
        ]
        # It differs in requests alone.
        self.ways = [way for way in self.firsts if way.name != NGINX_DIRECT]
        self.results = Results()
        time.sleep(1.0)

    def first(self, count: int) -> None:
        for size in (10_000, 500_000):
            for reuse in (True, False):
                for way in self.firsts:
                    took = self.client.ask("first", way.port if reuse else way.anew, size, count, reuse)
                    assert isinstance(took, list)
                    self.results.first[size, reuse][way.name].append(statistics.median(took))

    def streams(self, seconds: float) -> None:
        for way in self.ways:
            self.client.ask("open", way.port, STREAMS)
            before = way.cpu_s(), way.own_cpu_s() if way.pid else 0.0
            self.upstream.order(f"stream {seconds} {HZ}")
            heard = self.client.ask("listen", seconds)
            sent = self.upstream.answer()
            assert isinstance(heard, dict)
            chunks = heard["chunks"]
            if heard["failed"] or chunks != sent:
                raise SystemExit(f"benchmarks: {way.name} lost something: {sent} sent, {chunks} came")
            delays = heard["delays"]
            self.results.delay_p50[way.name].append(delays[len(delays) // 2] / 1000)
            self.results.delay_p99[way.name].append(delays[len(delays) * 99 // 100] / 1000)
            if way.pid:
                self.results.cpu[way.name].append((way.cpu_s() - before[0]) / chunks * 1e6)
                self.results.rss[way.name].append(sum(rss_bytes(pid) for pid in way.pids()) / 1e6)
                if way.name == TAP:
                    self.results.cpu_own.append((way.own_cpu_s() - before[1]) / chunks * 1e6)
            self.close()

    def bursts(self, count: int) -> None:
        for way in self.ways:
            if not way.pid:
                continue
            self.client.ask("open", way.port, STREAMS)
            self.upstream.order(f"bursts {count}")
            credit = self.upstream.answer()
            before = way.cpu_s(), way.own_cpu_s()
            heard = self.client.ask("bursts", credit, count * STREAMS)
            self.upstream.answer()
            assert isinstance(heard, dict)
            self.results.burst_cpu[way.name].append((way.own_cpu_s() - before[1]) / heard["reads"] * 1e6)
            self.close()

    def aborts(self, count: int) -> None:
        for how in ("prefill-fin", "prefill-rst", "stream-rst"):
            for way in self.ways:
                self.upstream.say("left")
                left = self.client.ask("abort", way.port, how, count)
                assert isinstance(left, list)
                seen: list[int] = []
                end = time.monotonic() + NOTICED_S
                while len(seen) < len(left) and time.monotonic() < end:
                    told = self.upstream.say("left")
                    assert isinstance(told, list)
                    seen += told
                if len(seen) != len(left):
                    raise SystemExit(f"benchmarks: {way.name}: {len(left)} left ({how}), {len(seen)} were noticed")
                self.results.abort[how][way.name] += [
                    (there - here) / 1e6 for here, there in zip(left, sorted(seen), strict=True)
                ]

    def idle(self) -> None:
        for way in self.ways:
            if not way.pid:
                continue
            self.client.ask("idle", way.port, 200)
            time.sleep(0.5)
            before = rss_bytes(way.pid, "RssAnon:")
            self.client.ask("idle", way.port, IDLE)
            time.sleep(0.5)
            self.results.idle[way.name].append((rss_bytes(way.pid, "RssAnon:") - before) / IDLE)
            self.close()

    def close(self) -> None:
        self.upstream.say("end")
        time.sleep(0.1)
        self.client.ask("close")
        time.sleep(0.3)
        self.upstream.say("left")


def stopped(seconds: float, still: float, cap: int) -> tuple[str, bool]:
    """64 streams; the recorder is stopped for a part of the time. What was seen, and whether nothing failed."""
    last_words: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = Helper("upstream")
        stack.callback(upstream.close)
        port = int(str(upstream.answer()))
        client = Helper("client")
        stack.callback(client.close)
        way = start_tap(stack, port, str(folder / "turns.db"), cap, last_words)
        time.sleep(1.0)
        client.ask("open", way.port, STREAMS)
        recorder = next(pid for pid in way.pids() if pid != way.pid)
        before = rss_bytes(way.pid)
        upstream.order(f"stream {seconds} {HZ}")
        freeze = threading.Timer((seconds - still) / 2, os.kill, (recorder, signal.SIGSTOP))
        thaw = threading.Timer((seconds + still) / 2, os.kill, (recorder, signal.SIGCONT))
        freeze.start()
        thaw.start()
        heard = client.ask("listen", seconds)
        sent = upstream.answer()
        peak = rss_bytes(way.pid, "VmHWM:")
        upstream.say("end")
        client.ask("close")
    assert isinstance(heard, dict)
    delays = heard["delays"]
    text = (
        f"{STREAMS} streams for {seconds:.0f} s, the recorder stopped for {still:.0f} s of them, its queue limited to "
        f"{cap / 1e6:.1f} MB:\n{sent} chunks sent, {heard['chunks']} came, {heard['failed']} streams failed; delay p50 "
        f"{delays[len(delays) // 2] / 1000:.2f} ms, p99 {delays[len(delays) * 99 // 100] / 1000:.2f} ms, largest\n"
        f"of a sample {delays[-1] / 1000:.1f} ms; the tap's memory {before / 1e6:.1f} MB before, {peak / 1e6:.1f} MB "
        f"at most; {json.loads(last_words[0])['lost_bytes'] / 1e6:.2f} MB told as gaps.\n"
    )
    return text, not heard["failed"] and sent == heard["chunks"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/run --tap", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="(default 7)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of streams, a way and round (default 8)")
    parser.add_argument(
        "--requests", type=int, default=40, help="for the first byte, a way, size and round (default 40)"
    )
    parser.add_argument("--only", choices=("first", "streams", "bursts", "aborts", "idle"), help="one part alone")
    parser.add_argument("--stopped", action="store_true", help="only: streams while the recorder stands still")
    parser.add_argument("--still", type=float, default=10.0, help="seconds that it does (default 10 of 60)")
    parser.add_argument("--cap", type=int, default=2_000_000, help="limit of the queue then, bytes (default 2000000)")
    parser.add_argument("--write", action="store_true", help=f"write the tap's part of {REPORT.name}")
    arguments = parser.parse_args()
    if arguments.stopped:
        text, well = stopped(arguments.still * 6, arguments.still, arguments.cap)
        print(text)
        return int(not well)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["KVTOP_HOME"] = str(folder / "home")
        bench = Bench(stack, folder)
        parts: dict[str, Callable[[], None]] = {
            "first": lambda: bench.first(arguments.requests),
            "streams": lambda: bench.streams(arguments.seconds),
            "bursts": lambda: bench.bursts(300),
            "aborts": lambda: bench.aborts(5),
            "idle": bench.idle,
        }
        for turn in range(arguments.rounds):
            for name, part in parts.items():
                # Memory for connections is kept for the next ones: only the first time shows it.
                if arguments.only in (None, name) and (name != "idle" or turn == 0):
                    part()
            say(f"round {turn + 1} of {arguments.rounds}")
        results = bench.results
    text = page(results, rounds=arguments.rounds, seconds=arguments.seconds, requests=arguments.requests)
    if arguments.write:
        text += "\n" + stopped(arguments.still * 6, arguments.still, arguments.cap)[0]
    print(text)
    if arguments.write and not arguments.only:
        REPORT.write_text(replace_part(REPORT.read_text(), "tap", text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
