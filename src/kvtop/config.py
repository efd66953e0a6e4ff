"""config.toml: every setting, its meaning, its limits and its default.

A broken file never stops kvtop: `load` takes what is good, key by key, and returns a Problem for each of the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from kvtop import files, paths
from kvtop.errors import Problem, keyless
from kvtop.toml_text import expected, line_of, shown

# The description of a limit is what its user reads as 'expected'.
Interval = Annotated[float, Meta(ge=0.05, le=3600, description="0.05 to 3600 (seconds)")]
Share = Annotated[float, Meta(ge=0, le=1, description="a share from 0 to 1")]
Span = Annotated[float, Meta(gt=0, le=86_400, description="more than 0, at most 86400 (seconds)")]
Times = Annotated[float, Meta(gt=0, le=1000, description="more than 0, at most 1000 (times)")]
Size = Annotated[int, Meta(ge=10_000, le=1_000_000_000, description="a whole number from 10000 to 1000000000 (bytes)")]
Days = Annotated[float, Meta(gt=0, le=36_500, description="more than 0, at most 36500 (days)")]
StoreSize = Annotated[int, Meta(ge=1_000_000, le=2**60, description="a whole number, 1000000 (1 MB) or more (bytes)")]
WindowKey = Annotated[str, Meta(pattern=r"^(10s|1m|5m|1h|start)\Z", description="one of 10s, 1m, 5m, 1h, start")]
Command = Annotated[list[str] | str, Meta(description="a command: a text for the shell, or a list of words")]
PanelName = Literal["cache", "offload", "queue", "ttft", "gpu", "turns"]

_MAX_BYTES = 256_000
"""Of config.toml."""
_MAX_KEY_BYTES = 64_000
"""Of an api_key_file; what follows is not read."""


class _Part(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A table of the file."""


class Server(_Part, frozen=True):
    """One `[[server]]`: an endpoint to watch when no URL is given."""

    url: str
    name: str = ""
    """Shown instead of host:port."""
    api_key_env: str = ""
    """Name of the environment variable that holds the API key."""
    api_key_file: str = ""
    """File whose first line that is not blank is the API key."""
    kv_events: str = ""
    """Where it publishes KV events, for instance tcp://127.0.0.1:5557; empty: as the server itself tells."""

    def api_key(self) -> str | None:
        """The key, read anew at each call and never kept in the configuration."""
        if self.api_key_env:
            return os.environ.get(self.api_key_env) or None
        if self.api_key_file:
            try:
                return read_key_file(self.api_key_file)[0] or None
            except (OSError, RuntimeError, ValueError):
                return None
        return None


def read_key_file(name: str) -> tuple[str, int]:
    """(key, mode bits) of an api_key_file: its first line that is not blank; '' where there is none.

    A pipe or a device is refused and never waited for, and no more than the beginning of a file is read. Raises
    OSError, ValueError for what is no text or no name of a file, RuntimeError for `~` without a home.
    """
    start, mode = files.read_start(Path(name).expanduser(), _MAX_KEY_BYTES)
    lines = start.strip().splitlines()
    return lines[0].decode("utf-8").strip() if lines else "", mode


class Poll(_Part, frozen=True):
    """Seconds between two reads of each source, and how long one may take."""

    metrics_s: Interval = 1.0
    metrics_busy_s: Interval = 0.2
    """While a request is in flight: fast enough to tell single requests apart."""
    metrics_idle_s: Interval = 2.0
    """When nothing has run for a while."""
    metrics_timeout_s: Interval = 2.0
    metrics_max_bytes: Size = 16_000_000
    """A larger answer is refused: no vLLM writes one."""
    facts_s: Interval = 30.0
    """/version, /v1/models and /is_sleeping; /health is asked beside /metrics, every 3 s."""
    gpu_s: Interval = 1.0
    pcie_s: Interval = 5.0
    """NVML's PCIe counters block for about 20 ms a card: sampled seldom."""
    host_s: Interval = 2.0
    discovery_s: Interval = 2.0


class Thresholds(_Part, frozen=True):
    """When a number is worth a look."""

    share_good: Share = 0.85
    share_poor: Share = 0.60
    """At most share_good."""
    slow_ttft_s: Span = 10.0
    """A wait of this length is told whatever its reason, also while it lasts."""
    slow_factor: Times = 3.0
    slow_extra_s: Span = 3.0
    kv_pool_full: Share = 0.95


class Capture(_Part, frozen=True):
    """How long captured turns stay on disk. The oldest go first."""

    keep_days: Days = 7.0
    max_bytes: StoreSize = 2_147_483_648
    """Of turns.db, 2 GiB."""


class Settings(_Part, frozen=True):
    """The whole file."""

    theme: str = "kvtop-dark"
    window: WindowKey = "5m"
    hide: list[PanelName] = msgspec.field(default_factory=list)
    """Panels hidden at start."""
    export_dir: str = ""
    """Where `e` writes; the current folder when empty."""
    on_slow: Command = ""
    """Run for each slow turn that ends while the dashboard runs, with the verdict's JSON on its standard input."""
    server: list[Server] = msgspec.field(default_factory=list)
    poll: Poll = Poll()
    thresholds: Thresholds = Thresholds()
    capture: Capture = Capture()
    keys: dict[str, str] = msgspec.field(default_factory=dict)
    """Action name to key, for instance `window = "ctrl+w"`."""


@dataclass(frozen=True)
class Loaded:
    """Settings and what was wrong with the file they came from."""

    settings: Settings
    path: Path
    problems: tuple[Problem, ...] = field(default=())
    exists: bool = True
    """There is such a file."""


def path() -> Path:
    """Where config.toml is looked for. Raises UsageError where the environment names no folder for it."""
    return paths.config_dir() / "config.toml"


def load(file: Path | None = None) -> Loaded:
    """Read config.toml, or the defaults where there is none. Raises UsageError as `path` does, for nothing else."""
    file = file or path()

    try:
        text, raw = files.read_toml(file, _MAX_BYTES)
    except FileNotFoundError:
        return Loaded(Settings(), file, exists=False)
    except files.Unusable as error:
        problem = Problem("config", f"{error}; the defaults are used", error.fix, file, error.line)
        return Loaded(Settings(), file, (problem,))
    reader = _Reader(file, text)
    settings = reader.settings(raw)
    in_order = sorted(reader.problems, key=lambda problem: problem.line or 1 << 30)
    if reader.more:
        in_order.append(Problem("config", f"{reader.more:,} more like these", _FIX, file))
    return Loaded(settings, file, tuple(in_order))


def located(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """The same, those that know their place in config.toml with its line. Reads that file once more; never raises."""
    out, known = [], {}
    for problem in problems:
        if problem.file is not None and problem.place is not None and problem.line is None:
            if problem.file not in known:
                known[problem.file] = _text_of(problem.file)
            table, key, nth = problem.place
            text, taken = known[problem.file]
            line = line_of(text, (table, key), taken[nth] if table == "server" and nth < len(taken) else 0)
            problem = replace(problem, line=line)
        out.append(problem)
    return tuple(out)


def _text_of(file: Path) -> tuple[str, list[int]]:
    """(Text, which of its [[server]] are taken); empty where it cannot be read any more."""
    try:
        text, raw = files.read_toml(file, _MAX_BYTES)
    except (OSError, files.Unusable):
        return "", []
    servers = raw.get("server")
    servers = servers if isinstance(servers, list) else []
    return text, [i for i, one in enumerate(servers) if isinstance(one, dict) and isinstance(one.get("url"), str)]


_TABLES: dict[str, type[_Part]] = {"server": Server, "poll": Poll, "thresholds": Thresholds, "capture": Capture}
_FIX = "docs/config.md lists every setting"
_MAX_PROBLEMS = 100
"""Told one by one: each costs a look through the text."""


class _Reader:
    """Takes what is good out of the parsed file, key by key, and notes the rest."""

    def __init__(self, file: Path, text: str) -> None:
        self._file, self._text = file, text
        self.problems: list[Problem] = []
        self.more = 0
        """Problems that are counted only."""

    def settings(self, raw: dict[str, Any]) -> Settings:
        servers = self._tables("server", raw.pop("server", []))
        poll, limits, capture, keys = (
            self._table(name, raw.pop(name, {})) for name in ("poll", "thresholds", "capture", "keys")
        )
        hide = self._hide(raw.pop("hide", []))
        return Settings(
            server=[Server(**one) for one in servers],
            poll=Poll(**self._good(poll, Poll, "poll")),
            thresholds=self._ordered(Thresholds(**self._good(limits, Thresholds, "thresholds"))),
            capture=Capture(**self._good(capture, Capture, "capture")),
            keys=self._texts(keys),
            hide=hide,
            **self._good(raw, Settings, ""),
        )

    def _good(self, raw: dict[str, Any], kind: type[_Part], table: str, nth: int = 0) -> dict[str, Any]:
        """The keys of a table that can be used."""
        fields = {f.name: f for f in msgspec.structs.fields(kind)}
        good = {}
        for name, value in raw.items():
            known = fields.get(name)
            if known is None:
                self._unknown(name, kind, table, nth)
                continue
            try:
                good[name] = msgspec.convert(value, known.type)
            except msgspec.ValidationError:
                # what stands in [[server]] may be a key in the wrong place: never shown
                given = "" if table == "server" else f" is {shown(value)}"
                instead = "it is left out" if known.default == "" else f"{shown(known.default)} holds"
                instead = "this server is left out" if known.required else instead
                self._note(f"{name}{given}: expected {expected(known.type)}; {instead}", table, name, nth)
        return good

    def _tables(self, table: str, raw: object) -> list[dict[str, Any]]:
        if not isinstance(raw, list) or not all(isinstance(one, dict) for one in raw):
            self._note("server: expected [[server]] tables; it is left out", "", table)
            return []
        good = [self._good(one, Server, table, nth) for nth, one in enumerate(raw)]
        for nth, one in enumerate(raw):
            if "url" not in one:
                self._note("url is missing; this server is left out", table, "", nth)
        return [one for one in good if "url" in one]

    def _table(self, name: str, raw: object) -> dict[str, Any]:
        if isinstance(raw, dict):
            return raw
        self._note(f"{name} is {shown(raw)}: expected a table [{name}]; its defaults hold", "", name)
        return {}

    def _hide(self, raw: object) -> list[PanelName]:
        names = get_args(PanelName)
        if not isinstance(raw, list):
            self._note(f'hide is {shown(raw)}: expected a list such as ["gpu"]; it is left out', "", "hide")
            return []
        for name in raw:
            if name not in names:
                self._note(f"hide: {shown(name)} is no panel; the panels are {', '.join(names)}", "", "hide")
        return [name for name in names if name in raw]

    def _texts(self, raw: dict[str, Any]) -> dict[str, str]:
        for name, value in raw.items():
            if not isinstance(value, str):
                what = f"{keyless(name, 40)} is {shown(value)}: expected a key in quotes; it is left out"
                self._note(what, "keys", name)
        return {name: value for name, value in raw.items() if isinstance(value, str)}

    def _ordered(self, limits: Thresholds) -> Thresholds:
        if limits.share_poor <= limits.share_good:
            return limits
        usual = Thresholds()
        self._note(
            f"share_poor is {limits.share_poor:g}: expected at most share_good, which is {limits.share_good:g}; "
            f"{usual.share_poor:g} and {usual.share_good:g} hold",
            "thresholds",
            "share_poor",
        )
        return msgspec.structs.replace(limits, share_poor=usual.share_poor, share_good=usual.share_good)

    def _unknown(self, name: str, kind: type[_Part], table: str, nth: int) -> None:
        if len(self.problems) >= _MAX_PROBLEMS:
            self.more += 1  # a search for what was meant takes its time
            return
        from difflib import get_close_matches

        what = f"{keyless(name, 40)} is no setting"
        own = [f.name for f in msgspec.structs.fields(kind)]
        home = [f"[{other}]" for other, part in _TABLES.items() if name in part.__struct_fields__ and other != table]
        if table and name in Settings.__struct_fields__:
            home = ["the top, before the first table"]
        near = get_close_matches(name.lower(), own, 1, 0.6)
        if home:
            what += f" here: it belongs to {home[0]}"
        elif near:
            what += f": did you mean '{near[0]}'?"
        self._note(what, table, name, nth)

    def _note(self, what: str, table: str, key: str, nth: int = 0) -> None:
        if len(self.problems) >= _MAX_PROBLEMS:
            self.more += 1
            return
        label = f"[[{table}]] " if table == "server" else f"[{table}] " if table else ""
        line = line_of(self._text, (table, key), nth)
        self.problems.append(Problem("config", label + what, _FIX, self._file, line))
