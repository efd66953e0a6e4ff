"""The sentence about an endpoint whose numbers cannot be read: one table, a state a row.

Each maker gives wordings, longest first; the first that fits the header is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtop.errors import printable
from kvtop.model.here import host_of, port_of, server_of
from kvtop.model.shown_turn import TurnKey
from kvtop.model.view import ServerView
from kvtop.model.words import gib, hms, lasted, nb, short_labels
from kvtop.readings import HostReading, State

LENGTH = 125
"""Characters of a sentence, at most."""
_CAUSE = 50
"""In fewer a cause says nothing."""
Wording = tuple[str, str]
"""(first clause, the rest)."""


@dataclass(frozen=True, slots=True)
class Around:
    """What the sentence may look at besides the server itself."""

    now: float
    host: HostReading | None = None
    timeout_s: float = 2.0
    """How long one try of /metrics may take."""
    pool_full: float = 0.95
    share_poor: float = 0.60
    """A cached share below it is a fault, where reading anew takes time."""
    slow_ttft_s: float = 10.0
    """A wait for the first token that is told while it lasts."""
    opened: frozenset[tuple[str, TurnKey]] = frozenset()
    """(URL, id) of the slow turns that the user has looked at: they are told no more."""


BRIEF: dict[State, str] = {
    State.DEAD_ENGINE: "engine died",
    State.REFUSED: "refuses",
    State.DNS_ERROR: "no such host",
    State.TLS_ERROR: "no TLS",
    State.NOT_VLLM: "not vLLM",
    State.NO_STATS: "no stats",
    State.UNAUTHORIZED: "wants a key",
    State.HTTP_ERROR: "HTTP error",
    State.TOO_LARGE: "too large",
    State.TIMEOUT: "no answer",
}
"""Why a server cannot be read, where it is one of several. One that loads is on its way up, and no such server."""


def together(servers: Sequence[ServerView], worst: ServerView, told: Sequence[Wording], now: float) -> list[Wording]:
    """Wordings about several servers that cannot be read; `told`: those about the worst one, with its name.

    First with all that is known of that one, then each with a word and for how long, as many as fit.
    """
    names = dict(zip((view.url for view in servers), short_labels([label_of(view) for view in servers]), strict=True))
    lost = [worst, *(view for view in servers if view.state in BRIEF and view is not worst)]
    n = len(lost)
    every = "both" if n == 2 else f"all {n}"
    first = f"{every} servers are down:" if n == len(servers) else f"{n} of {len(servers)} servers are down:"
    named = [_named(names[view.url], view, now) for view in lost]
    out = [(first, f"{' '.join(words).strip()}; {', '.join(named[1:])}") for words in told]
    if worst.failed and told:  # nothing else on the screen says why
        for others in (", ".join(named[1:]), f"{n - 1} more"):
            room = LENGTH - len(first) - len(others) - 3
            out += [(first, f"{printable(' '.join(told[0]).strip(), room)}; {others}")] if room >= _CAUSE else []
    for k in range(n, 0, -1):
        rest = f" and {n - k} more" if k < n else ""
        out.append((first, ", ".join(named[:k]) + rest))
    return [*out, (first.removesuffix(":"), "")]


def _named(name: str, view: ServerView, now: float) -> str:
    """`:8000 (refuses, 42 s)`."""
    since = view.state_since if view.state_since is not None else view.last_good_at
    age = f", {nb(lasted(now - since))}" if since is not None else ""
    return f"{name} ({nb(BRIEF[view.state])}{age})"


def label_of(view: ServerView) -> str:
    """The server's name, safe and short enough for a sentence."""
    return printable(view.label or view.url, 40)


def _grey(view: ServerView, now: float) -> str:
    if view.last_good_at is None:
        return ""
    return f"; what it fed is grey and from {hms(view.last_good_at, now)}"


def _dead(view: ServerView, around: Around) -> list[Wording]:
    first = f"the engine died ({view.http_status or 503})"
    if view.state_since is None:
        return [(first, "")]
    return [
        (f"{first},", f"seen at {hms(view.state_since, around.now)}: the API process answers, no model runs behind it")
    ]


def _refused(view: ServerView, around: Around) -> list[Wording]:
    since = f" since {hms(view.state_since, around.now)}" if view.last_good_at is not None and view.state_since else ""
    if view.ended_by:
        stopped = f"{view.profile or label_of(view)} was stopped"
        since = since or _at(view, around.now, " at {}")
        return [(f"{stopped}{since},", f"by {printable(view.ended_by, 60)}"), (stopped, "")]
    first = f"{label_of(view)} refuses{since}:"
    file = _left_over(view, around.host)
    if view.failed:
        return _failed(view, first, file, around.now)
    alive = {p.pid for p in around.host.processes} if around.host else None
    if view.loader_pid is not None and alive is not None and view.loader_pid not in alive:
        ended = f"process {view.loader_pid} ended while it loaded"
        return [(first, f"{ended}{file}"), (first, ended)]
    if view.pid is not None and alive is not None and view.pid not in alive:
        gone = f"process {view.pid} is gone"
        return [(first, f"{gone}{file}"), (first, gone)]
    why = _cause(view).replace(f"nothing listens on {label_of(view)}", "nothing listens there")
    return [(first, why), (first, "nothing listens there")]


def _failed(view: ServerView, first: str, file: str, now: float) -> list[Wording]:
    """A profile's server: its record knows why."""
    name, why = printable(view.profile, 40), printable(view.failed, 600)
    if view.failed_loading:
        came_to = "did not start" if view.failed_before else "ended while it loaded"
        first, rest = f"{name} {came_to}{_at(view, now, ' ({})')}:", ""
    elif view.pid is not None:
        rest = f"process {view.pid} of {name} is gone: "
    else:
        rest = f"{name} failed{_at(view, now, ' at {}')}: "
    room = max(12, LENGTH - len(first) - 1 - len(rest))
    return [(first, f"{rest}{why}{file}"), (first, f"{rest}{printable(why, room)}")]


def _at(view: ServerView, now: float, form: str) -> str:
    """When its profile's server ended, which may be long before it was first seen to refuse."""
    return form.format(hms(view.ended_at, now)) if view.ended_at is not None else ""


def _left_over(view: ServerView, host: HostReading | None) -> str:
    """Its own files alone: others' lie there as well."""
    left = [file for file in host.offload_files if file.stale and file.path in view.tier_files] if host else []
    if not left:
        return ""
    size = nb(gib(sum(file.bytes for file in left), 0))
    return f"; its tier file ({size}) is left over" if len(left) == 1 else f"; its tier files ({size}) are left over"


def _dns(view: ServerView, around: Around) -> list[Wording]:
    host = printable(host_of(view.url) or view.url, 60)
    return [(f"{host} is not found:", _cause(view)), (f"{host} is not found", "")]


def _tls(view: ServerView, around: Around) -> list[Wording]:
    first = f"no TLS connection to {label_of(view)}:"
    return [(first, _cause(view)), (first, _cause(view)[: 123 - len(first)])]


def _loading(view: ServerView, around: Around) -> list[Wording]:
    if view.start is not None:
        return view.start.wordings
    process = server_of(view.url, around.host)
    if process is not None:
        since = process.started_at if process.started_at is not None else view.state_since
        so_far = f", {nb(lasted(around.now - since))} so far" if since is not None else ""
        return [(f"process {process.pid} runs,", f"port {port_of(view.url)} refuses: it loads the model{so_far}")]
    so_far = f", {nb(lasted(around.now - view.state_since))} so far" if view.state_since is not None else ""
    first = f"{label_of(view)} loads its model{so_far}"
    return [(f"{label_of(view)} loads:", _cause(view)), (first, "")] if view.cause else [(first, "")]


def _not_vllm(view: ServerView, around: Around) -> list[Wording]:
    return [(f"{label_of(view)} answers,", "but without vllm: series")]


def _no_stats(view: ServerView, around: Around) -> list[Wording]:
    return [
        (f"{label_of(view)} was started with --disable-log-stats:", "it counts nothing; start it without that flag")
    ]


def _unauthorized(view: ServerView, around: Around) -> list[Wording]:
    if "configured API key" in view.cause:
        return [(f"{label_of(view)}:", _cause(view)), (f"{label_of(view)} refuses the configured API key", "")]
    first = f"{label_of(view)} wants an API key ({view.http_status or 401}):"
    return [(first, "name its variable or file in config.toml, api_key_env or api_key_file"), (first, "none is set")]


def _as_told(view: ServerView, around: Around) -> list[Wording]:
    first = f"{label_of(view)}:"
    return [(first, f"{_cause(view)}{_grey(view, around.now)}"), (first, _cause(view))]


def _stale(view: ServerView, around: Around) -> list[Wording]:
    since = view.last_good_at if view.last_good_at is not None else view.state_since
    age = f" for {nb(lasted(around.now - since))}" if since is not None else ""
    tries = view.failed_tries
    each = f"{around.timeout_s:g}{nb(' s')}"
    how = f"({tries} tries of {each})" if tries > 1 else f"(1 try of {each})"
    first = f"/metrics has not answered{age}"
    return [(first, f"{how}{_grey(view, around.now)}"), (first, how)]


def _cause(view: ServerView) -> str:
    return printable(view.cause, 1000) or "no more is known"


DOWNS: tuple[tuple[State, str, str, Callable[[ServerView, Around], list[Wording]]], ...] = (
    (State.DEAD_ENGINE, "DEAD", "bad", _dead),
    (State.REFUSED, "DOWN", "bad", _refused),
    (State.DNS_ERROR, "NO HOST", "bad", _dns),
    (State.TLS_ERROR, "TLS", "bad", _tls),
    (State.LOADING, "LOADING", "dim", _loading),
    (State.NOT_VLLM, "NOT VLLM", "bad", _not_vllm),
    (State.NO_STATS, "NO STATS", "warn", _no_stats),
    (State.UNAUTHORIZED, "UNAUTHORIZED", "bad", _unauthorized),
    (State.HTTP_ERROR, "HTTP ERROR", "bad", _as_told),
    (State.TOO_LARGE, "TOO LARGE", "bad", _as_told),
    (State.TIMEOUT, "STALE", "warn", _stale),
)
"""State, chip, tone, wordings: worst first."""
