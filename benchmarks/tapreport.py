"""The results of the tap's benchmark as a part of the page."""

from __future__ import annotations

import statistics
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from report import machine, three

DIRECT, NGINX_HTTP, NGINX_TCP = "direct", "nginx http", "nginx TCP"
NGINX_DIRECT = "nginx http, requests unbuffered"
TAP_ALONE, TAP = "tap alone", "tap"
WAYS = (DIRECT, NGINX_HTTP, NGINX_TCP, TAP_ALONE, TAP)
FIRST_WAYS = (DIRECT, NGINX_HTTP, NGINX_DIRECT, NGINX_TCP, TAP_ALONE, TAP)

Rounds = dict[str, list[float]]
"""Way -> one value a round."""


def _rounds() -> Rounds:
    return defaultdict(list)


@dataclass
class Results:
    """Milliseconds, microseconds of CPU, bytes (idle), MB (rss)."""

    first: dict[tuple[int, bool], Rounds] = field(default_factory=lambda: defaultdict(_rounds))
    """(body size, connection used again) -> median of a round."""
    delay_p50: Rounds = field(default_factory=_rounds)
    delay_p99: Rounds = field(default_factory=_rounds)
    cpu: Rounds = field(default_factory=_rounds)
    """A chunk, of the whole way, with the recorder where there is one."""
    cpu_own: list[float] = field(default_factory=list)
    """Of the tap without its recorder, while that runs."""
    burst_cpu: Rounds = field(default_factory=_rounds)
    """A read of the client (a chunk, but where several came in one), all streams at once."""
    abort: dict[str, Rounds] = field(default_factory=lambda: defaultdict(_rounds))
    idle: Rounds = field(default_factory=_rounds)
    rss: Rounds = field(default_factory=_rounds)


def added(of: Rounds, way: str) -> list[float]:
    """Against the direct connection of the same round."""
    return [mine - direct for mine, direct in zip(of[way], of[DIRECT], strict=True)]


def middle(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None or theirs <= 0 else ours / theirs


def cell(values: list[float], digits: int) -> str:
    return three(values, digits) if values else "–"


def table(head: str, rows: Mapping[str, Mapping[str, list[float]]], digits: int, ways: tuple[str, ...] = WAYS) -> str:
    lines = [f"| {head} | " + " | ".join(ways) + " |", "|---" * (len(ways) + 1) + "|"]
    for name, of in rows.items():
        lines.append(f"| {name} | " + " | ".join(cell(of.get(way, []), digits) for way in ways) + " |")
    return "\n".join(lines)


def verdict(what: str, limit: str, value: float | None, most: float, unit: str = "") -> str:
    if value is None:
        return f"| {what} | {limit} | – | not measured |"
    digits = 2 if abs(value) < 100 else 0
    return f"| {what} | {limit} | {value:.{digits}f}{unit} | {'yes' if value <= most else '**no**'} |"


def verdicts(results: Results) -> list[str]:
    rows = []
    for size, most in ((10_000, 1.5), (500_000, 0.5)):
        for reuse in (False, True):
            of = results.first[size, reuse]
            if of:
                value = ratio(middle(added(of, TAP)), middle(added(of, NGINX_HTTP)))
                how = "connection used again" if reuse else "new connection"
                what = f"added time to first byte, {size // 1000} kB, {how}"
                rows.append(verdict(what, f"<= {most} x nginx http", value, most, " x"))
    if results.delay_p50:
        rows.append(verdict("added chunk delay p50", "<= 0.1 ms", middle(added(results.delay_p50, TAP)), 0.1, " ms"))
        p99 = ratio(middle(results.delay_p99[TAP]), middle(results.delay_p99[NGINX_TCP]))
        rows.append(verdict("chunk delay p99 (whole)", "<= 1.5 x nginx TCP", p99, 1.5, " x"))
        http = middle(results.cpu[NGINX_HTTP])
        rows.append(verdict("CPU a chunk, tap", "<= 1.6 x nginx http", ratio(middle(results.cpu_own), http), 1.6, " x"))
        rows.append(
            verdict(
                "CPU a chunk, with the recorder", "<= 2 x nginx http", ratio(middle(results.cpu[TAP]), http), 2, " x"
            )
        )
    if results.burst_cpu:
        cost = middle(results.burst_cpu[TAP])
        rate = None if not cost else 1e3 / cost
        met = "–" if rate is None else f"{rate:.1f} k | {'yes' if rate >= 40 else '**no**'}"
        rows.append(f"| chunks a second and core, tap, in bursts | >= 40 k | {met} |")
    for how, of in results.abort.items():
        rows.append(verdict(f"abort reaches the upstream, {how}, median", "<= 5 ms", middle(of[TAP]), 5, " ms"))
    if results.idle:
        rows.append(
            verdict("memory of an idle connection", "<= 4 kB", (middle(results.idle[TAP]) or 0) / 1000, 4, " kB")
        )
    if results.rss:
        rows.append(
            verdict("memory (RSS), tap and recorder, 64 streams", "<= 80 MB", middle(results.rss[TAP]), 80, " MB")
        )
    return rows


PAGE = """## The tap

Made by `./benchmarks/run --tap --write`.

- Machine: {machine}; {nginx}.
- Ways from the same clients to the same upstream: directly; nginx as HTTP proxy (`proxy_buffering off`, as one sets it
  for streams) and as TCP proxy, one worker each; the tap without a recorder, and with it.
  nginx http keeps connections to the upstream, but where a client's new connection is measured: there it makes a new
  one too, as it does by default. For the time to first byte it stands there twice: as above, and with
  `proxy_request_buffering off` too.
- Upstream and clients are a Python process each, epoll and nothing else, about 15 us a chunk, and share the cores with
  what is measured.
- {rounds} rounds; each measures all ways in turn. Cells are min – median – max over the rounds; "added" is against the
  direct connection of the same round. CPU is time on a core from /proc/PID/task/*/schedstat.

| target | limit | measured | met |
|---|---|---|---|
{verdicts}

{first}

{requests} requests one after another, a way and round; the median of a round counts.

{delay}

{cpu}

64 streams of 50 chunks a second for {seconds:.0f} s a way and round, each stream in its own phase, 229 bytes a chunk.
In bursts all 64 streams get a chunk at once and the next when the client has them all, so the way is never idle and no
two chunks come in one read.

{abort}

{memory}
"""


def page(results: Results, *, rounds: int, seconds: float, requests: int) -> str:
    firsts = {}
    for (size, reuse), of in results.first.items():
        how = "used again" if reuse else "new"
        firsts[f"{size // 1000} kB, {how}"] = {
            way: added(of, way) if way != DIRECT else of[way] for way in FIRST_WAYS if of[way]
        }
    delays = {}
    if results.delay_p50:
        delays = {
            "p50, whole": results.delay_p50,
            "p50, added": {way: added(results.delay_p50, way) for way in WAYS if results.delay_p50[way]},
            "p99, whole": results.delay_p99,
        }
    proxies = WAYS[1:]
    return PAGE.format(
        machine=machine(),
        nginx=nginx(),
        rounds=rounds,
        seconds=seconds,
        requests=requests,
        verdicts="\n".join(verdicts(results)),
        first=table("time to first byte, ms (direct: whole; others: added)", firsts, 3, FIRST_WAYS),
        delay=table("chunk delay, ms", delays, 3),
        cpu=table(
            "CPU, us",
            {
                "a chunk, whole way": results.cpu,
                "a chunk, without the recorder": {TAP: results.cpu_own},
                "a chunk in bursts, without the recorder": results.burst_cpu,
            },
            1,
            proxies,
        ),
        abort=table("client leaves -> upstream knows, ms", results.abort, 2),
        memory=table(
            "memory",
            {
                "an idle connection, kB": {way: [x / 1000 for x in of] for way, of in results.idle.items()},
                "RSS at 64 streams, MB": results.rss,
            },
            1,
            proxies,
        ),
    )


def nginx() -> str:
    done = subprocess.run(["/usr/sbin/nginx", "-v"], capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition(": ")[2].replace("/", " ") or "nginx"
