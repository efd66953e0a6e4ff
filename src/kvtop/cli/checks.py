"""The checks of `kvtop doctor`: evidence -> what is seen, what is not, and what would let it. Pure."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvtop import __version__
from kvtop.cli.evidence import Asked, Evidence
from kvtop.cli.profile_checks import rows as profile_rows
from kvtop.cli.profile_checks import startable
from kvtop.cli.tap_jobs import missed_line, unwritten_line
from kvtop.model.box import Window
from kvtop.model.here import server_of
from kvtop.model.window import since_start
from kvtop.model.words import gib, held_by, pct
from kvtop.readings import Scrape, ServerFacts, SourceDown, State, VllmProcess
from kvtop.sources.kv_places import told

GIB = 1 << 30


@dataclass(frozen=True)
class Check:
    """One line of the report. `ok` is None where it cannot be told."""

    what: str
    ok: bool | None
    because: str
    fix: str = ""
    """The flag, package or command that would let it; empty where nothing is needed."""
    about: str = ""
    """URL of the server that it is about, where several are looked at."""


def checks(seen: Evidence) -> Iterator[Check]:
    """All checks, in the order in which a person would ask."""
    yield Check("python", True, f"{platform.python_version()}, kvtop {__version__}")
    yield _terminal(seen)
    yield from _files(seen)
    if not seen.asked:
        yield _none(seen)
    for one in seen.asked:
        about = one.target.shown if len(seen.asked) > 1 else ""
        for check in _of_server(one, server_of(one.target.shown, seen.host)):
            yield replace(check, about=about)
    yield _tap(seen)
    yield from _missed(seen)
    if seen.profiles.where or seen.profiles.error:
        for row in profile_rows(seen.profiles, seen.host):
            yield Check(row.what, row.ok, row.because, row.fix)
    yield _gpu(seen)
    yield from _machine(seen)


def _terminal(seen: Evidence) -> Check:
    term = seen.terminal
    env = term.env
    where = "in tmux" if env.get("TMUX") else f"TERM={env.get('TERM', 'not set')}"
    if not term.is_tty:
        return Check("terminal", None, "the output is not a terminal", "run kvtop doctor in the terminal to judge it")
    size = f"{term.columns}x{term.rows}, {where}"
    if env.get("TERM") == "dumb":
        return Check("terminal", False, f"{size}: draws no screen", "use another terminal, or kvtop snapshot")
    if term.columns < 40 or term.rows < 15:
        return Check("terminal", False, f"{size}: too small", "40x15 is the least, 80x24 shows everything of use")
    if env.get("NO_COLOR"):
        return Check("terminal", True, f"{size}, grey because NO_COLOR is set")
    if env.get("COLORTERM") not in ("truecolor", "24bit"):
        fix = "export COLORTERM=truecolor if the terminal can; the theme kvtop-16 needs 16 colours only"
        return Check("terminal", True, f"{size}, 256 colours or fewer: COLORTERM is not set", fix)
    return Check("terminal", True, f"{size}, truecolor")


def _files(seen: Evidence) -> Iterator[Check]:
    """The user's own files: one row for each problem, one for all where there is none."""
    config = seen.config
    of_themes = [problem for problem in seen.problems if problem.about == "theme"]
    of_config = [problem for problem in seen.problems if problem.about != "theme"]
    if not of_config:
        count = len(config.settings.server)
        named = f"{config.path}, {count} server{'' if count == 1 else 's'} named"
        yield Check("config", True, named if config.exists else f"no {config.path}: the defaults are used")
    if not seen.themes:
        yield Check("themes", False, "the built-in theme files are missing", "install kvtop-tui again")
    elif not of_themes:
        yield Check("themes", True, f"{seen.themes} can be chosen")
    for problem in (*of_config, *of_themes):
        yield Check(_NAMES[problem.about], False, str(problem), problem.fix)


_NAMES = {"config": "config", "keys": "keys", "server": "config, server", "theme": "themes"}


_SERVER_FIX = {
    State.LOADING: "wait; kvtop shows it as soon as it listens",
    State.REFUSED: "start it: vllm serve MODEL --port PORT, or give another URL",
    State.TIMEOUT: "look at its log and load; poll.metrics_timeout_s in config.toml is the limit",
    State.DEAD_ENGINE: "look at its log for 'EngineCore encountered a fatal error' and restart it",
    State.UNAUTHORIZED: "name api_key_env or api_key_file in the [[server]] of this URL in config.toml",
    State.NO_STATS: "start it without --disable-log-stats",
    State.NOT_VLLM: "give the port of vllm serve",
    State.TOO_LARGE: "no vLLM writes that much: is it the right port? poll.metrics_max_bytes is the limit",
    State.TLS_ERROR: "http:// or https://; SSL_CERT_FILE=/path/of/ca.pem for your own authority",
    State.DNS_ERROR: "check the host name",
    State.HTTP_ERROR: "check the URL and what stands in between",
}


KEY_REFUSED = "mend the key that api_key_env or api_key_file names: the server does not take it"


def _key_fix(cause: str) -> str:
    """What to do about a server that wants a key: one that it refuses is named already."""
    return KEY_REFUSED if "configured API key" in cause else _SERVER_FIX[State.UNAUTHORIZED]


def _refuses_key(one: Asked) -> bool:
    facts = one.facts
    told = facts.problems if isinstance(facts, ServerFacts) else (facts.cause,)
    return any("configured API key" in words for words in told)


def _none(seen: Evidence) -> Check:
    looked = "; ".join(f"{place}: {what}" for place, what in seen.discovery.looked)
    names = [entry.name for entry in seen.profiles.entries if entry.problem is None]
    fix = f"{startable(names)}, or give a URL: kvtop doctor http://host:8000" if names else ""
    return Check("server", False, f"none found. {looked}", fix or "give a URL: kvtop doctor http://host:8000")


def _of_server(one: Asked, process: VllmProcess | None) -> Iterator[Check]:
    """`process`: the server's, where it is one of this machine."""
    yield _server(one)
    if isinstance(one.scrape, Scrape):
        yield from _series(one.scrape, process)
        yield from _routes(one, process)


def _server(one: Asked) -> Check:
    where = f"{one.target.shown} ({one.target.why})"
    scrape = one.scrape
    if isinstance(scrape, SourceDown):
        return Check("server", False, f"{where} {scrape.state}: {scrape.cause}", _fix(scrape))
    facts = one.facts
    if isinstance(facts, SourceDown):
        return Check("server", False, f"{where} {facts.state}: {facts.cause}", _fix(facts))
    models = ", ".join(model.id for model in facts.models) or "models not known"
    words = f"{where} up, vLLM {facts.version or 'of unknown version'}, {models}"
    for problem in facts.problems:
        if "API key" in problem:
            return Check("server", False, f"{words}; {problem}", _key_fix(problem))
    return Check("server", True, words)


def _fix(down: SourceDown) -> str:
    return _key_fix(down.cause) if down.state is State.UNAUTHORIZED else _SERVER_FIX.get(down.state, "")


def _answers(one: Asked) -> bool:
    return isinstance(one.scrape, Scrape) or isinstance(one.facts, ServerFacts)


def _tap(seen: Evidence) -> Check:
    if not seen.taps:
        there = next((one.target.shown for one in seen.asked if _answers(one)), None)
        way = f"kvtop tap --upstream {there} --detach, then kvtop tap --how AGENT" if there is not None else ""
        fix = way or "once a server answers: kvtop tap --upstream URL --detach"
        return Check("tap", False, "none runs: who asked, and what, is not known", fix)
    ways = [f"{mapped.line} (process {tap.pid})" for tap in seen.taps for mapped in tap.mappings]
    return Check("tap", True, ", ".join(ways))


def _missed(seen: Evidence) -> Iterator[Check]:
    """What a tap passed on and could not record."""
    for tap in seen.taps:
        waits = unwritten_line(tap.missed)
        if waits is not None:
            fix = f"make {tap.store or 'the store'} writable, with room on its disk: the turns are written then"
            yield Check("turns written", False, f"tap {tap.name} (process {tap.pid}): {waits}", fix)
        line = missed_line(tap.missed)
        if line is not None:
            fix = "more CPU or a faster disk for the recorder; kvtop tap --status shows whether the numbers grow"
            yield Check("turns recorded", False, f"tap {tap.name} (process {tap.pid}): {line}", fix)


def _has(scrape: Scrape, *families: str) -> bool:
    """A family with a type or a sample: counters stand with and without `_total` in the type lines."""
    names = {name for family in families for name in (family, f"{family}_total")}
    return any(name in scrape.types for name in names) or any(name in names for name, _ in scrape.values)


def _series(scrape: Scrape, process: VllmProcess | None) -> Iterator[Check]:
    life = since_start(scrape)
    yield _cached_share(scrape, life)
    if _has(scrape, "vllm:prompt_tokens_cached_by_source"):
        yield Check("share by tier", True, "prompt_tokens_cached_by_source names device, host, disk and p2p")
    elif _has(scrape, "vllm:prompt_tokens_by_source"):
        yield Check("share by tier", False, "only device and external are told apart", "vLLM 0.32 or later")
    else:
        yield Check("share by tier", False, "no prompt_tokens_by_source", "vLLM 0.16, better 0.32 or later")
    if _has(scrape, "vllm:request_prefill_kv_computed_tokens"):
        yield Check("single turns", True, "told apart from the counters while one request at a time finishes")
    else:
        yield Check("single turns", False, "cached tokens of a single request are not known", "vLLM 0.13 or later")
    offload = life.all.offload
    if offload.supported:
        unit = "" if offload.unit == "bytes" else ", in blocks: this connector counts no bytes"
        size = life.all.config.cpu_tier_bytes or (process.tier_bytes if process is not None else None)
        tier = f"; CPU tier {gib(size)}" if size is not None else "; the tier's size is not known"
        yield Check("offload", True, f"the connector's series are there{unit}{tier}")
    else:
        fix = "--kv-offloading-size GiB (vLLM 0.11.2 or later), or --kv-transfer-config"
        yield Check("offload", False, "no offload series: no offload connector, or one that counts nothing", fix)
    if _has(scrape, "vllm:kv_block_lifetime_seconds"):
        yield Check("block lifetimes", True, "kv_block_* histograms are there; they fill when blocks are evicted")
    else:
        yield Check("block lifetimes", False, "no kv_block_* series", "--kv-cache-metrics (vLLM 0.12 or later)")
    if life.started_at is None:
        because = "no process_start_time_seconds: several API processes; a restart shows only as falling counters"
        yield Check("restarts", None, because, "--api-server-count 1, if one is enough")
    yield _details(process)


def _cached_share(scrape: Scrape, life: Window) -> Check:
    if life.all.config.prefix_caching is False:
        return Check("cached share", False, "the server's prefix cache is off", "--enable-prefix-caching")
    if _has(scrape, "vllm:prompt_tokens_cached"):
        return Check("cached share", True, "prompt_tokens_cached over prompt_tokens, both at the first token")
    if _has(scrape, "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"):
        because = "from prefix_cache_hits over queries, which count at admission and skip some requests"
        return Check("cached share", True, because, "vLLM 0.16 or later counts it exactly")
    return Check("cached share", False, "no series of this version tells", "vLLM 0.9 or later")


def _details(process: VllmProcess | None) -> Check:
    flag = "--enable-prompt-tokens-details"
    if process is not None and flag in process.command:
        return Check("cached_tokens in usage", True, f"process {process.pid} was started with {flag}")
    because = "without sending a request it cannot be known whether responses carry it"
    if process is not None:
        because += f"; {flag} is not on the command line of process {process.pid}"
    return Check("cached_tokens in usage", None, because, flag)


def _routes(one: Asked, process: VllmProcess | None) -> Iterator[Check]:
    status = {path: answer[0] for path, answer in one.probes.items()}
    tokenize = status.get("/tokenize")
    if tokenize in (405, 200, 400, 422):
        yield Check("/tokenize", True, "is there: exact token ids of a prompt can be asked for")
    elif tokenize is None:
        yield Check("/tokenize", None, "could not be asked")
    else:
        yield Check("/tokenize", False, f"HTTP {tokenize}", "a gateway in between may hide it: ask vLLM directly")
    facts = one.facts if isinstance(one.facts, ServerFacts) else ServerFacts()
    yield _render(facts, status.get("/v1/chat/completions/render"), process, _refuses_key(one))
    events = one.probes.get("/kv_event_sources")
    flag = '--kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq"}\''
    if events is None or events[0] != 200:
        yield Check("KV events", None, "vLLM before 0.31 does not say whether it publishes them", flag)
    elif events[1].strip() in (b"", b"{}", b"[]", b"null"):
        yield Check("KV events", False, "/kv_event_sources is empty: none are published", flag)
    elif (where := told(events[1])) is not None and where.problems:
        yield Check("KV events", False, where.problems[0], flag)
    else:
        yield Check("KV events", True, "/kv_event_sources names a publisher")
    if status.get("/is_sleeping") == 200:
        yield Check("dev mode", True, "is on: the cache can be reset; anyone who reaches the port can do so")
    else:
        because = "is off: no cache reset, no sleep; right for a server that others reach"
        yield Check("dev mode", False, because, "VLLM_SERVER_DEV_MODE=1 in the server's environment, on a trusted box")
    scrape = one.scrape
    asleep = isinstance(scrape, Scrape) and since_start(scrape).state is State.SLEEPING
    if facts.sleeping or asleep:
        yield Check("sleep", True, "the server sleeps: its memory is given back", "POST /wake_up ends it")
    elif facts.sleeping is False or (isinstance(scrape, Scrape) and _has(scrape, "vllm:engine_sleep_state")):
        yield Check("sleep", True, "awake")
    else:
        yield Check("sleep", None, "no series of this version tells whether it sleeps", "vLLM 0.11.2 or later")


def _render(facts: ServerFacts, status: int | None, process: VllmProcess | None, refused: bool) -> Check:
    what, flag = "render route", "--enable-scale-out (needed from vLLM 0.30 on)"
    if status == 404:
        return Check(what, False, "/v1/chat/completions/render is not there", f"vLLM 0.15.1 or later; {flag}")
    if status == 401:
        if refused:
            return Check(what, None, "refuses the configured API key", KEY_REFUSED)
        return Check(what, None, "wants the API key", _SERVER_FIX[State.UNAUTHORIZED])
    if status != 405:
        return Check(what, None, f"HTTP {status}" if status else "could not be asked", flag)
    match = re.match(r"0\.(\d+)\.", f"{facts.version or ''}.")
    if match and int(match[1]) < 30:
        return Check(what, True, "is there")
    if process is not None and "--enable-scale-out" in process.command:
        return Check(what, True, f"process {process.pid} was started with --enable-scale-out")
    return Check(what, None, "the path is known, but only a request would tell whether it is open", flag)


def _gpu(seen: Evidence) -> Check:
    reading = seen.gpu
    if not reading.gpus:
        fix = "the NVIDIA driver; in a container --gpus all. Everything else works without"
        return Check("NVML", False, reading.error or "no card", fix)
    names = ", ".join(dict.fromkeys(gpu.name for gpu in reading.gpus))
    lost = [gpu for gpu in reading.gpus if gpu.lost]
    words = f"{len(reading.gpus)} x {names}, driver {reading.driver or 'unknown'}"
    if lost:
        return Check("NVML", False, f"{words}; card {lost[0].index}: {lost[0].lost}", "reset the card or the machine")
    return Check("NVML", True, words)


def _machine(seen: Evidence) -> Iterator[Check]:
    host = seen.host
    if host.memory_total_bytes is None:
        yield Check("host memory", False, host.error or "/proc/meminfo cannot be read", "kvtop reads Linux only")
    else:
        pressure = "no memory pressure figures" if host.pressure is None else f"memory pressure {pct(host.pressure)}"
        free = f"{gib(host.memory_available_bytes)} of {gib(host.memory_total_bytes)} available"
        fix = "boot with psi=1 for them" if host.pressure is None else ""
        yield Check("host memory", True, f"{free}, {pressure}", fix)
    n = sum(process.role == "api" for process in host.processes)
    servers = f"{n} vLLM server{'' if n == 1 else 's'}"
    if host.processes_seen is None:
        yield Check("processes", False, "/proc does not list them", "kvtop reads Linux only")
    elif host.unreadable_maps:
        pids = ", ".join(map(str, host.unreadable_maps))
        because = f"{servers}; the maps of {pids} belong to another user: what they map is not known"
        yield Check("processes", False, because, "run kvtop as that user, or as root")
    else:
        yield Check("processes", True, f"{host.processes_seen} seen, {servers} among them")
    if host.shm_total_bytes is None:
        yield Check("/dev/shm", False, "is not there", "mount a tmpfs on /dev/shm")
    else:
        room = f"{gib(host.shm_used_bytes)} of {gib(host.shm_total_bytes)} used"
        yield Check("/dev/shm", True, room, "--shm-size for a container" if host.shm_total_bytes < GIB else "")
    left = [file for file in host.offload_files if file.stale]
    if left:
        size = gib(sum(file.bytes for file in left))
        own = [file.shell_path for file in left if file.shell_path]
        command = f"rm {' '.join(own)}" if own else "they are another user's: root may remove them"
        because = f"{len(left)} tier file{'' if len(left) == 1 else 's'}, {size}, that no process maps"
        yield Check("left-over tier files", False, because, command)
    else:
        yield Check("left-over tier files", True, "none")
    for file in host.offload_files:
        if not file.stale:
            yield Check("tier file", True, f"{file.path}, {gib(file.bytes)}, {held_by(file)}")
