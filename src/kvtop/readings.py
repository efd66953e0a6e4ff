"""What a source hands up: frozen values without meaning. Below both `sources` and `model`; imports nothing of kvtop.

A source either has something to say (a reading) or is down (`SourceDown`), with the cause in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

HTTP_REQUESTS = "http_requests_total"
CLEARING = ("/pause", "/release_kv_cache_memory", "/reset_prefix_cache", "/sleep")
"""Routes of vLLM's development mode that clear the prefix cache (read in 0.32): of the web server's own counter the
rows of these handlers are kept."""


class State(StrEnum):
    """What a vLLM endpoint is. Each value is a word of the JSON contract."""

    UP = "up"
    LOADING = "loading"
    """A vLLM process is alive and its port refuses."""
    SLEEPING = "sleeping"
    DEAD_ENGINE = "dead_engine"
    """503 (500 up to 0.10): the API process lives, its engine does not."""
    REFUSED = "refused"
    TIMEOUT = "timeout"
    HTTP_ERROR = "http_error"
    UNAUTHORIZED = "unauthorized"
    """401 or 403: an API key is missing or wrong."""
    TLS_ERROR = "tls_error"
    DNS_ERROR = "dns_error"
    TOO_LARGE = "too_large"
    """The answer went over the size cap and was dropped."""
    NOT_VLLM = "not_vllm"
    """Something answers, but without vllm: series."""
    NO_STATS = "no_stats"
    """Started with --disable-log-stats."""
    RESET = "reset"
    """Counters fell between the two scrapes: the window counts from zero."""

    @property
    def good(self) -> bool:
        """Numbers can be read in this state (exit code 0)."""
        return self in (State.UP, State.SLEEPING, State.RESET)


@dataclass(frozen=True, slots=True)
class SourceDown:
    """A source that could not answer: which state that is, and why, in words fit for a screen."""

    state: State
    cause: str
    at: float
    """Unix time of the failed try."""
    http_status: int | None = None
    loader: VllmProcess | None = None
    """Of a server that loads: its process."""


SeriesKey = tuple[str, tuple[tuple[str, str], ...]]
"""Sample name as on the wire (`vllm:prompt_tokens_total`) and its labels, sorted by label name."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """One /metrics text, read whole. Values may be NaN or infinite: the model decides what that means."""

    values: Mapping[SeriesKey, float]
    """Only the series of families that the vocabulary names, process_start_time_seconds, and HTTP_REQUESTS of the
    handlers in CLEARING."""
    types: Mapping[str, str]
    """Family -> type, from the `# TYPE` lines; a family with a type and no sample is 'present, nothing yet'."""
    at: float | None = None
    """Unix time of arrival; None for a saved text."""
    truncated: bool = False
    """The text did not end in a newline: its last line was dropped."""
    ends: str = field(default="", compare=False)
    """The family of its last `# TYPE` or `# HELP` line: where the text was cut, rows of this one may be missing."""
    has_vllm: bool = True
    """At least one `vllm:` family."""
    has_http: bool = False
    """At least one `http_` family: a vLLM web server whose engine statistics are off, or another server."""


@dataclass(frozen=True, slots=True)
class Model:
    """A row of /v1/models."""

    id: str
    max_model_len: int | None = None
    owned_by: str | None = None


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What changes seldom: /version, /v1/models and /health."""

    version: str | None = None
    models: tuple[Model, ...] = ()
    sleeping: bool | None = None
    problems: tuple[str, ...] = ()
    """Routes that did not tell, and why: '/v1/models: HTTP 401: wants an API key ...'."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    pid: int
    memory_used_bytes: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card now. None is 'this card or driver does not tell'."""

    index: int
    name: str
    util_share: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    pcie_tx_bytes_per_s: int | None = None
    """GPU to host, sampled by the driver over about 20 ms; of now, not of the window."""
    pcie_rx_bytes_per_s: int | None = None
    """Host to GPU, likewise."""
    throttle: tuple[str, ...] = ()
    """Why the clock is held back, in words; empty when nothing does."""
    processes: tuple[GpuProcess, ...] = ()
    lost: str | None = None
    """Why this card cannot be read any more, for instance 'GPU is lost'."""
    uuid: str | None = None
    """GPU-…, as CUDA_VISIBLE_DEVICES takes it."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """All cards, or why there are none."""

    gpus: tuple[Gpu, ...] = ()
    error: str | None = None
    """Beside cards: why there is nothing newer than `at`."""
    driver: str | None = None
    at: float | None = None


@dataclass(frozen=True, slots=True)
class OffloadFile:
    """A CPU tier's memory file. Since vLLM 0.30 it is unlinked after mapping, and then only in its processes' maps."""

    path: str
    bytes: int
    mapped_by: tuple[int, ...] = ()
    stale: bool = False
    """On disk and mapped by nobody that could be looked at."""
    unlinked: bool = False
    shell_path: str = ""
    """The path as a shell takes it, whatever its characters; only of a left-over file that is this user's own."""


@dataclass(frozen=True, slots=True)
class VllmProcess:
    """A process of `vllm serve` (API, engine core, worker)."""

    pid: int
    role: str
    """api, engine or worker."""
    command: tuple[str, ...] = ()
    port: int | None = None
    host: str | None = None
    started_at: float | None = None
    parent: int | None = None
    ports: tuple[int, ...] = ()
    """TCP ports it listens on."""
    tier_bytes: int | None = None
    """CPU tier that its command line asks for."""
    contained: bool = False
    """Lives in another network namespace (a container): its ports are not those of this machine."""


@dataclass(frozen=True, slots=True)
class HostReading:
    """Memory and shared memory of this machine, and the vLLM processes on it."""

    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_used_bytes: int | None = None
    swap_used_bytes: int | None = None
    pressure: float | None = None
    """Share of the last 10 s in which some task waited for memory (PSI `some avg10` / 100)."""
    offload_files: tuple[OffloadFile, ...] = ()
    processes: tuple[VllmProcess, ...] = ()
    at: float | None = None
    processes_seen: int | None = None
    """Processes of all kinds that were looked at."""
    published_ports: tuple[int, ...] = ()
    """Ports of this machine that container proxies hold."""
    taps: tuple[tuple[int, str | None], ...] = ()
    """(port, URL of the server behind it, None where it cannot be told) for each way through a kvtop tap."""
    unreadable_maps: tuple[int, ...] = ()
    """vLLM processes whose maps this user may not read: what they map is not known."""
    error: str | None = None
    """Why there is nothing newer than `at`; None: this is what the last look saw."""


@dataclass(frozen=True, slots=True)
class Found:
    """A listening endpoint that may be a vLLM server."""

    url: str
    why: str
    """How it was found: 'process 41233' or 'container port, by its listening socket'."""
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Discovery:
    """Where kvtop looked for servers and what was there."""

    found: tuple[Found, ...] = ()
    looked: tuple[tuple[str, str], ...] = field(default=())
    """(place, what was seen there), for instance ('processes', '412 seen, 0 are vLLM')."""
    at: float | None = None


@dataclass(frozen=True, slots=True)
class KvPublisher:
    """Where one engine publishes its KV events over ZMQ."""

    rank: int
    """Its data-parallel rank."""
    endpoint: str
    """Where to connect."""
    replay: str | None = None
    """Where to ask for what was published before."""
    topic: str = ""


@dataclass(frozen=True, slots=True)
class KvMessage:
    """One message of that stream, as it came. Its payload holds prompts: for memory alone."""

    rank: int
    seq: int
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class KvSilence:
    """The connection to a publisher ended: what it sends from now on is missed."""

    rank: int
    at: float
    """Unix time."""
