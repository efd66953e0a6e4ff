"""One moment of the whole box, ready to be shown: what the dashboard, the status line and the export draw from.

Everything here is worked out below the screen: a widget only words and places it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtop.model.box import Config, Window
from kvtop.model.own_part import OwnPart, less
from kvtop.model.shown_turn import Turn, TurnKey
from kvtop.model.starting import Starting
from kvtop.model.words import span
from kvtop.readings import Discovery, GpuReading, HostReading, Model, State

WINDOWS: tuple[tuple[str, float | None, str], ...] = (
    ("10s", 10.0, "10 s"),
    ("1m", 60.0, "1 min"),
    ("5m", 300.0, "5 min"),
    ("1h", 3600.0, "1 hour"),
    ("start", None, "since start"),
)
"""Key, seconds, words. `start` is since the server's process began."""


def seconds_of(window_key: str) -> float | None:
    """How long a window is; None: since start."""
    return next((seconds for key, seconds, _ in WINDOWS if key == window_key), 300.0)


WHOLE = 0.9
"""A window of which so much was seen is called by its length: scrapes do not lie exactly so far apart."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Equal columns of time that end now, oldest first. None is a gap: nothing is known of that column."""

    values: tuple[float | None, ...] = ()
    span_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class EngineLine:
    """One line of the strip above the panels: a server, or a data-parallel engine of the selected server."""

    key: str
    label: str
    state: State
    share: float | None = None
    running: int | None = None
    waiting: int | None = None
    ttft_p50_s: float | None = None
    kv_cache_usage_share: float | None = None
    age_s: float | None = None
    """Seconds since the figures were read."""
    state_s: float | None = None
    """Seconds that it has been in this state."""
    selected: bool = False


@dataclass(frozen=True, slots=True)
class Sentence:
    """The state of the box in one sentence, worst thing first."""

    chip: str
    """OK, SLOW, QUEUE, STALE, DOWN, LOADING, DEAD, ..."""
    tone: str
    """ok, warn, bad or dim: a judgement, not a colour."""
    first: str
    """What and how bad: shown bold."""
    rest: str = ""
    """Why, then what it cost."""
    shorter: tuple[tuple[str, str], ...] = ()
    """The same in fewer words, (first, rest), longest first: for a header in which this one breaks badly."""
    turn: tuple[str, TurnKey] | None = None
    """(URL of its server, key) of the turn that it tells of."""

    @property
    def text(self) -> str:
        return f"{self.first} {self.rest}".strip()


@dataclass(frozen=True, slots=True)
class Savings:
    """What the prefix cache spared in the window."""

    tokens: int | None = None
    prefill_s: float | None = None
    """tokens over this server's own measured prefill rate; None until a rate was measured."""
    prefill_tokens_per_s: float | None = None
    """That rate, from the window, else from the last hour, else since start."""


@dataclass(frozen=True, slots=True)
class TapView:
    """What goes through a tap to one server."""

    captured: int
    """Turns of this server in the store, as far back as they are kept at hand."""
    listens: tuple[str, ...] = ()
    """host:port of the taps to this server that run now."""
    share: float | None = None
    """Of the prompt tokens that the server counted in the window: those of captured turns, at most. None: not known,
    for instance because no tap ran for the whole window."""
    passed_by_tokens: int | None = None
    """The others: prompt tokens of requests that did not go through the tap, at least."""
    no_details: bool = False
    """The newest turns have usage without cached tokens: the server runs without --enable-prompt-tokens-details."""
    no_usage: int = 0
    """Of its last turns the streams without usage: their client does not set stream_options.include_usage."""
    usage_unsent: int = 0
    """Those without usage whose client asked for it, or of which that is not known."""
    problem: str = ""
    """Why the store cannot be read; empty where it can."""
    unwritten: str = ""
    """Why a tap that runs cannot write its store, so that turns wait for it; empty where it can."""
    by_itself: bool = False
    """The server fills the store itself, without a tap: the box of the demo."""


@dataclass(frozen=True, slots=True)
class ServerView:
    """One endpoint at one moment."""

    url: str
    label: str
    """host:port, or the configured name."""
    state: State
    cause: str = ""
    """Why it is in this state, in words; empty when up."""
    state_since: float | None = None
    """Unix time from which on it has been in this state."""
    last_good_at: float | None = None
    """Unix time of the last scrape that was read; None: never."""
    failed_tries: int = 0
    waits_for: str = ""
    """What a try that is under way, and slow, waits for, in words."""
    version: str | None = None
    models: tuple[Model, ...] = ()
    started_at: float | None = None
    """Start of the server's process, or of what the counters count from."""
    reset_at: float | None = None
    """Unix time at which the counters were seen to begin again, if kvtop saw it."""
    reset_seen_at: float | None = None
    """Unix time of the scrape that showed it: later than `reset_at` where nobody could look meanwhile."""
    config: Config = Config()
    window_key: str = "5m"
    window: Window = Window(State.UP)
    """Over the chosen window (or as much of it as was seen: see window.window_s)."""
    hour: Window = Window(State.UP)
    life: Window = Window(State.UP)
    """Since the server's start: lifetime values, always labelled as such."""
    savings: Savings = Savings()
    share_chart: Chart = Chart()
    """Cached share, 1-minute token-weighted mean, held for 2.5 minutes, then a gap."""
    store_chart: Chart = Chart()
    """Bytes per second, each column's peak."""
    load_chart: Chart = Chart()
    running_chart: Chart = Chart()
    waiting_chart: Chart = Chart()
    no_room: bool = False
    """Something waits for scheduling capacity, and the KV pool is full."""
    waiting_since: float | None = None
    """Unix time from which on something has waited without a break."""
    turns: tuple[Turn, ...] = ()
    """In flight first, then newest first; bounded."""
    turns_total: int = 0
    """Requests seen to finish since kvtop watches this server: those of the chosen engine, where one is chosen."""
    engines: tuple[EngineLine, ...] = ()
    """One a data-parallel engine; empty for a single engine."""
    engine: str | None = None
    """The engine whose numbers `window`, `hour` and `life` are restricted to; None: all."""
    http_status: int | None = None
    """Of the last failed try, where an HTTP answer came."""
    api_key: str = ""
    """refused (the configured one) or wanted (none is configured), where that hides /v1/models; else empty."""
    pid: int | None = None
    """The API process on this machine that was last seen to serve this URL."""
    loader_pid: int | None = None
    """The one that was last seen to load, where none has answered since."""
    tier_files: frozenset[str] = frozenset()
    """Paths of the tier's files that this process, or those it started, were seen to map."""
    watched_since: float | None = None
    """Unix time of the first scrape that was read."""
    last_busy_at: float | None = None
    """Unix time at which something was last seen to run, to wait or to be counted."""
    tap: TapView | None = None
    """None: nothing of this server was captured."""
    profile: str = ""
    """The profile whose server it is; empty: none that is known."""
    start: Starting | None = None
    """While a profile's server starts: how far it has come."""
    ended_by: str = ""
    """It was ended on purpose: who asked for that, `a switch to qwen27`; empty where nobody did, or it is not known."""
    failed: str = ""
    """Why the server of its profile has ended though nobody asked for that; empty where it has not, or nobody knows."""
    failed_loading: bool = False
    """That was before it ever answered."""
    failed_before: bool = False
    """That was before there was a server at all, as far as is known."""
    ended_at: float | None = None
    """Unix time of that end, or failure; None: not known."""
    last_traffic: Window | None = None
    """While nobody asks anything: the last 5 minutes in which somebody did."""
    own: OwnPart = OwnPart()
    """What kvtop's own replays are of `window`."""
    own_of_last: OwnPart = OwnPart()
    own_of_hour: OwnPart = OwnPart()

    @property
    def window_words(self) -> str:
        """The window as it was really seen: `5 min`, or `42 s` where kvtop has not watched for so long."""
        asked, seen = seconds_of(self.window_key), self.window.window_s
        if asked is not None and seen is not None and seen < asked * WHOLE:
            return span(seen)
        return next((words for key, _, words in WINDOWS if key == self.window_key), self.window_key)

    @property
    def asked_n(self) -> int | None:
        """First tokens of the window: of others alone, as far as `own` was taken out."""
        return less(self.window.all.latency.ttft.n, self.own)

    @property
    def stale(self) -> bool:
        """The numbers are from an earlier scrape than the last try."""
        return self.failed_tries > 0 and self.last_good_at is not None


@dataclass(frozen=True, slots=True)
class BoxView:
    """All endpoints and the machine, at one moment."""

    at: float
    """Unix time this view was made."""
    sentence: Sentence
    servers: tuple[ServerView, ...] = ()
    selected: int = 0
    lines: tuple[EngineLine, ...] = ()
    """One a server where there are several, else one an engine where there are several, else empty."""
    warning: str = ""
    """About the servers together, for instance round-robin suspicion; empty when there is none."""
    gpu: GpuReading | None = None
    """None: not read yet."""
    host: HostReading | None = None
    discovery: Discovery | None = None
    """What was found where, when no server is known."""
    demo: bool = False
    window_key: str = "5m"
    looks: int = 0
    """How often servers were looked for so far."""

    @property
    def server(self) -> ServerView | None:
        return self.servers[self.selected] if self.servers else None
