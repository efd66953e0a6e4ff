"""What is known of a profile's server: one file a profile in the state folder, and the last starts beside it.

While a keeper lives it alone writes the record, and what it starts, before that runs; others tell it something by a
small file of their own (`ask`). Where it is gone, whoever acts on the server writes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import quote

import msgspec

from kvtop import paths
from kvtop.errors import printable
from kvtop.files import identity, read_start
from kvtop.sources.births import birth, lives, outlived

State = Literal["starting", "running", "stopping", "stopped", "failed"]
LAST_STARTS = 5
"""Good starts that are remembered for what is usual."""
_MAX_BYTES = 16_000_000

_T = TypeVar("_T")


class Who(msgspec.Struct, frozen=True):
    """A process, told from a later one with the same number."""

    pid: int
    birth: str
    """See `births.birth`."""

    @property
    def lives(self) -> bool:
        return lives(self.pid, self.birth)

    @classmethod
    def of(cls, pid: int, *, ended: bool = False) -> Who | None:
        """None where no such process lives. `ended`: as for `birth`."""
        born = birth(pid, ended=ended)
        return None if born is None else cls(pid, born)


class Ask(msgspec.Struct, frozen=True):
    """Who asked for the server's end."""

    by: str
    """For instance `kvtop profile stop`, `a switch to coder-30b`, `a restart`."""
    at: float
    """Unix time."""


class Unended(msgspec.Struct, frozen=True):
    """Why a server that was to end goes on."""

    why: str
    at: float
    """Unix time."""


class Stage(msgspec.Struct, frozen=True):
    """One stage of a start. See `progress`."""

    name: str
    began_at: float | None = None
    """Unix time; None where nobody watched."""
    ended_at: float | None = None

    @property
    def took_s(self) -> float | None:
        return None if self.began_at is None or self.ended_at is None else max(0.0, self.ended_at - self.began_at)


class TierFile(msgspec.Struct, frozen=True):
    """A file of the CPU tier that a process of this server had mapped, or that its log names."""

    path: str
    inode: int


class Setup(msgspec.Struct, frozen=True):
    """What a list shows of a profile, as its files say it at one moment."""

    gpus: tuple[str, ...] = ()
    tier_bytes: int | None = None
    """Of all engines. None: none, or not known."""
    port_told: bool = False
    """Whether the port is known: False where a file that cannot be read may say another one."""
    fingerprint: str = ""
    """See `differences.fingerprint`; empty: not known."""


class Record(msgspec.Struct, kw_only=True):
    """One start of one profile."""

    name: str
    file: str = ""
    """The profile's."""
    runner: str = "venv"
    argv: list[str] = []
    """What was run, its secrets masked."""
    model: str = ""
    names: list[str] = []
    host: str = "127.0.0.1"
    port: int = 8000
    setup: Setup = Setup()
    """As its profile was when it was started."""
    state: State = "starting"
    why: str = ""
    """Of a failure, or of an end that is worth a word: one line."""
    started_at: float = 0.0
    """Unix time."""
    ready_at: float | None = None
    ended_at: float | None = None
    health_url: str = ""
    """Empty: /health of host and port; also where it holds a secret."""
    timeout_s: float = 1800.0
    stop_wait_s: float = 15.0
    keeper: Who | None = None
    server: Who | None = None
    """None before it was started, and where its number is not known (a container)."""
    family: list[Who] = []
    """Processes that it had when they were last looked at."""
    doing: str = ""
    """What its first stage is at, in words: a pre-start command, a sidecar. Empty: not told."""
    step: Who | None = None
    """The command that its start or its end is at: a pre-start command, the runner's own tool, one of after_stop."""
    container: str = ""
    """Its id; docker and compose."""
    unit: str = ""
    user_unit: bool = False
    program: list[str] = []
    """What asks the runner's own tool: docker; docker compose with its files; systemctl --user."""
    service: str = ""
    former: str = ""
    """The profile whose server a switch ended for this start: where it fails, that is offered again. Empty: none, or
    somebody has answered."""
    ask: Ask | None = None
    unended: Unended | None = None
    """The last stop did not work: docker or systemctl refused, or it is another user's."""
    exit_code: int | None = None
    """As the shell has it: 128 and the signal for one that was killed."""
    log: str = ""
    """Empty: the runner keeps it (docker, compose, systemd)."""
    log_file: str = ""
    """Its `identity` when this start began: it may be moved away."""
    log_offset: int = 0
    """Where in it this start begins."""
    sidecar_log: str = ""
    """Of the sidecar that its start is at, or came no further than. Empty: it was at none, or is past them."""
    sidecar_log_offset: int = 0
    stages: list[Stage] = []
    shards_done: int | None = None
    shards: int | None = None
    kv_cache_tokens: int | None = None
    block_tokens: int | None = None
    tier_files: list[TierFile] = []
    sidecars: list[Who] = []
    after_stop: int = 0
    """Commands that the profile wants run when the server is gone; 0 when they have run."""
    after_by: Who | None = None
    """The kvtop that runs them for a keeper that is gone."""
    after_owed: bool = False
    """They were not run, or not to their end: its keeper was gone. A person is asked (`kvtop profile stop`); nobody
    runs them by looking."""
    notes: list[str] = []
    """What was seen after its end: killed, left over, removed."""
    secrets: bool = False
    """It was given some, which its keeper alone knows: without it no line of its log is quoted."""

    @property
    def mark(self) -> str:
        """Tells this start from every other one, of any profile: `@` and the Unix time at which it began."""
        return f"@{self.started_at!r}"

    def outputs(self) -> set[str]:
        """The `identity` of each file that the server's output may go into."""
        return {self.log_file, identity(self.log) or ""} - {""} if self.log else set()

    @property
    def after_runs(self) -> bool:
        """What is owed is run just now."""
        return self.after_owed and self.after_by is not None and self.after_by.lives

    def left(self) -> list[Who]:
        """What lives on of a start that is over."""
        known = (*self.family, *self.sidecars, *filter(None, (self.step,)))
        return [who for who in dict.fromkeys(known) if who.lives]

    def at_sidecar(self) -> Record:
        """With the log of the sidecar that its start is at, or came no further than; else as it is."""
        if not self.sidecar_log:
            return self
        return msgspec.structs.replace(
            self, runner="venv", log=self.sidecar_log, log_file="", log_offset=self.sidecar_log_offset
        )

    @property
    def loaded(self) -> tuple[int, int] | None:
        """(done, of) shards of the weights; None: not known."""
        return None if self.shards is None or self.shards_done is None else (self.shards_done, self.shards)


class Start(msgspec.Struct, frozen=True):
    """A start that went well."""

    at: float
    took_s: float
    stages: dict[str, float]
    """Stage -> seconds."""
    kv_cache_tokens: int | None = None
    block_tokens: int | None = None
    """Of one KV block."""
    kv_cache_rank_bytes: int | None = None
    """Of one GPU."""
    hybrid: bool | None = None
    """Its log said that attention blocks were fitted to a Mamba state. None: not known."""
    model: str = ""
    """Empty: not known."""


def folder() -> Path:
    """Where the records are. Raises UsageError as `paths.state_dir`."""
    return paths.state_dir() / "profiles"


def path_of(name: str) -> Path:
    return folder() / f"{_quoted(name)}.json"


def starts_path(name: str) -> Path:
    return folder() / f"{_quoted(name)}.starts.json"


def _ask_path(name: str) -> Path:
    return folder() / f"{_quoted(name)}.ask.json"


def _quoted(name: str) -> str:
    """The record of a profile `coder.starts` is not the file of the starts of `coder`."""
    stem, dot, last = quote(name.encode("utf-8", "surrogateescape"), safe="").rpartition(".")
    return f"{stem}{'%2E' if dot and last in ('starts', 'ask') else dot}{last}"


def read(name: str) -> Record | None:
    """None where there is none that can be read, or it is another profile's."""
    found = _record(path_of(name))
    return found if found is not None and found.name == name else None


def every() -> list[Record]:
    """All records, by name."""
    return [found for file in _files() if (found := _record(file)) is not None]


def unreadable() -> list[Path]:
    """Files that should be records, and are none: cut short, edited, of another kind."""
    return [file for file in _files() if _record(file) is None]


def _files() -> list[Path]:
    try:
        files = sorted(folder().glob("*.json"), key=lambda file: file.stem)
    except OSError:
        return []
    return [file for file in files if not file.name.endswith((".starts.json", ".ask.json"))]


def write(record: Record) -> None:
    """In one piece, 0600. Raises OSError."""
    _put(path_of(record.name), msgspec.json.encode(record))


def write_over(old: Record | None, new: Record) -> bool:
    """`write`, where the record is still `old`; False: somebody else has written it since. For those who only look,
    and hold no lock: what they found out is stale where the server was stopped or started meanwhile. Raises OSError.
    """
    if read(new.name) != old:
        return False
    write(new)
    return True


def answered(name: str, started_at: float) -> None:
    """What was offered for a start that failed (`Record.former`) is offered no more. Raises OSError."""
    old = read(name)
    if old is not None and old.started_at == started_at and old.former:
        write_over(old, msgspec.structs.replace(old, former=""))


def ask(name: str, by: str, at: float) -> None:
    """Leave word for the keeper who wants the end. Raises OSError."""
    _put(_ask_path(name), msgspec.json.encode(Ask(by, at)))


def asked(name: str) -> Ask | None:
    """The word that was left; it is gone then."""
    found = _decode(_ask_path(name), Ask)
    with contextlib.suppress(OSError):
        _ask_path(name).unlink()
    return found


def starts(name: str) -> list[Start]:
    """The last good ones, oldest first."""
    return _decode(starts_path(name), list[Start]) or []


def remember(name: str, start: Start) -> None:
    """Add a good start. Raises OSError."""
    _put(starts_path(name), msgspec.json.encode([*starts(name), start][-LAST_STARTS:]))


def cut_short(state: Record) -> str:
    """Why a server that somebody ended never answered; empty where it had answered, or nobody is known to have."""
    if state.ready_at is not None or state.ask is None:
        return ""
    return f"it was stopped before it answered, by {printable(state.ask.by, 120)}"


def ended_stages(stages: Sequence[Stage]) -> dict[str, float]:
    """Stage -> seconds, of those whose length is known."""
    return {stage.name: took for stage in stages if (took := stage.took_s) is not None}


def tidy() -> None:
    """Remove what writers that were killed left half written."""
    with contextlib.suppress(OSError):
        for file in folder().glob(".*.json.*"):
            if outlived(file.name):
                with contextlib.suppress(OSError):
                    file.unlink()


def _record(path: Path) -> Record | None:
    """None also for one whose texts can be no paths and no words of a command."""
    found = _decode(path, Record)
    if found is None:
        return None
    texts = (found.log, found.sidecar_log, found.container, found.unit, found.service, found.host, *found.program)
    return None if any("\0" in text for text in texts) else found


def _decode(path: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(read_start(path, _MAX_BYTES)[0], type=kind)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _put(path: Path, text: bytes) -> None:
    paths.make_private(path.parent)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)  # of a process that had this number before
    try:
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(text)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
