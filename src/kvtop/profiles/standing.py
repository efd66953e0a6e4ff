"""Each profile of the folder with what is known of its server: what runs, starts, failed, or stands in the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvtop.errors import UsageError
from kvtop.model.starting import LIVE
from kvtop.profiles.differences import changed
from kvtop.profiles.folder import Entry
from kvtop.profiles.launch import Launch, asked, launch
from kvtop.profiles.match import behind_serve, is_of
from kvtop.profiles.running import beside, look, record
from kvtop.profiles.running.look import Seen
from kvtop.profiles.running.record import Record, Setup, Start
from kvtop.profiles.running.setup import setup
from kvtop.profiles.secret import shown
from kvtop.readings import VllmProcess
from kvtop.sources.url import authority

FILE_GONE = "its file is gone"


def word_of(state: str) -> str:
    """A state for a person: `runs` also for a server that kvtop did not start."""
    return {"starting": "starts", "stopping": "stops", "running": "runs", "foreign": "runs"}.get(state, state)


@dataclass(frozen=True, slots=True)
class Known:
    """What a profile's file says, or said when its server was started, as far as a list shows it. Texts are fit for a
    screen."""

    name: str
    file: Path
    runner: str = ""
    """Empty where the file cannot be used."""
    model: str = ""
    """Empty: the command line does not name it."""
    port: int | None = None
    """None: another file says it."""
    host: str = ""
    gpus: tuple[str, ...] = ()
    tier_bytes: int | None = None
    problem: str = ""
    """Why it cannot be used, without the folder of its file; empty where it can."""
    about: str = ""
    launch: Launch | None = None
    fingerprint: str = ""
    """See `differences.fingerprint`; empty: not known."""
    changed_at: float | None = None
    """Unix time at which its file was written last; None: not looked at."""

    @property
    def url(self) -> str:
        """Where its server answers; empty where that is not known."""
        return f"http://{authority(self.host, self.port)}" if self.port is not None else ""


@dataclass(frozen=True, slots=True)
class Standing:
    """One profile, and its server."""

    known: Known
    """What its file says now; `facts` is what its server was started with."""
    state: str
    """stopped, starting, running, stopping, failed, foreign (kvtop did not start it), unreadable."""
    pid: int | None = None
    since: float | None = None
    """Unix time."""
    record: Record | None = None
    """Of its last start by kvtop."""
    starts: tuple[Start, ...] = ()
    """The last good ones, oldest first."""
    unkept: bool = False
    """kvtop started what runs, and the keeper beside it is gone: nobody rotates its log or runs its after_stop."""
    left: int = 0
    """Processes of one that has ended, which live on."""
    sidecars_ended: int | None = None
    """Of what runs or starts by kvtop, however they ended; None: nothing does."""

    @property
    def missed(self) -> str:
        """In words which sidecars have ended; empty: none."""
        if not self.sidecars_ended or self.record is None:
            return ""
        return beside.words(self.sidecars_ended, len(self.record.sidecars))

    @property
    def name(self) -> str:
        return self.known.name

    @property
    def owed(self) -> bool:
        """Nothing of its last start by kvtop runs, and its after_stop was not run to its end: see
        `Record.after_owed`."""
        return self.record is not None and self.record.after_owed and self.state not in LIVE

    @property
    def settles(self) -> bool:
        """Its server is gone, and what its end owed is run just now."""
        return self.state == "stopping" and self.record is not None and self.record.after_runs

    @property
    def facts(self) -> Known:
        """What a list shows: while a server runs that kvtop started, what it was started with, whatever its file says
        by now; else what the file says."""
        return self.known if self.record is None or self.state not in LIVE else _started(self.known, self.record)

    @property
    def changed(self) -> bool | None:
        """Whether it says something else than at its last start by kvtop. None: there was none, or that is not known,
        as for a file that cannot be used."""
        return None if self.record is None else changed(self.record.setup.fingerprint, self.known.fingerprint)

    @property
    def stranger(self) -> bool:
        """No profile: a server that runs what none says."""
        return self.state == "foreign" and not self.known.runner

    @property
    def seen(self) -> Seen | None:
        """Its last start by kvtop; None: there was none."""
        if self.record is None:
            return None
        return Seen(self.name, self.record.state, self.record)


def known(entry: Entry) -> Known:
    """Of one file. Never raises."""
    run, problem = launched(entry)
    profile = entry.profile
    if profile is None:
        return Known(entry.name, entry.file, problem=problem or "cannot be read")
    flags = asked(() if run is None else run.serve, run.cwd if run else None)
    says = Setup(tuple(profile.gpus)) if run is None else setup(profile, run)
    return Known(
        entry.name,
        entry.file,
        profile.runner,
        shown(flags.model or profile.serve.model, 300),
        run.port if run is not None and says.port_told else None,
        "" if run is None else run.host,
        says.gpus,
        says.tier_bytes,
        problem or "",
        shown(profile.about, 200),
        run,
        says.fingerprint,
    )


def launched(entry: Entry) -> tuple[Launch | None, str | None]:
    """(what it runs, why it cannot be run)."""
    if entry.profile is None:
        return None, str(entry.problem)
    try:
        return launch(entry.name, entry.profile), None
    except UsageError as error:
        return None, error.what


def standing(profiles: Sequence[Known], processes: Sequence[VllmProcess]) -> list[Standing]:
    """Each with its server. `processes`: the vLLM processes of this machine. Reads the records; blocks."""
    seen = {one.name: one for one in look.every()}
    ours = {
        who.pid
        for one in seen.values()
        if one.record is not None and one.state in LIVE
        for who in (*one.record.family, *filter(None, (one.record.server,)))
    }
    servers = [one for one in processes if one.role == "api" and one.pid not in ours and one.parent not in ours]
    names = {profile.name for profile in profiles}
    gone = [_without_file(one) for one in seen.values() if one.state in LIVE and one.name not in names]
    return [_of(profile, seen, servers) for profile in (*profiles, *gone)]


def stranger(process: VllmProcess, port: int | None) -> Standing:
    """A server that kvtop did not start, and that runs what no profile says."""
    words = behind_serve(process.command)
    flags = asked(words) if words is not None else None
    model = flags.model if flags is not None else None
    host = process.host if process.host not in (None, "0.0.0.0", "::", "") else "127.0.0.1"
    known = Known(
        f"process {process.pid}", Path(), model=shown(model or "", 300), port=port, host=host or "127.0.0.1",
        tier_bytes=None if process.tier_bytes is None else process.tier_bytes * (flags.engines() if flags else 1),
    )  # fmt: skip
    return Standing(known, "foreign", process.pid, process.started_at)


def _without_file(seen: Seen) -> Known:
    """A server that runs, and whose profile is not in the folder, or not any more."""
    state = seen.record
    assert state is not None
    where = Path(state.file)
    return _started(Known(seen.name, where, problem="" if state.file and where.exists() else FILE_GONE), state)


def _started(profile: Known, state: Record) -> Known:
    told = state.setup.port_told or state.ready_at is not None  # it has answered there
    return replace(
        profile,
        runner=state.runner,
        model=shown(state.model, 300),
        port=state.port if told else None,
        host=state.host,
        gpus=tuple(shown(one) for one in state.setup.gpus),
        tier_bytes=state.setup.tier_bytes,
    )


def _of(profile: Known, every: Mapping[str, Seen], servers: Sequence[VllmProcess]) -> Standing:
    seen = every.get(profile.name)
    state = seen.record if seen is not None else None
    starts = tuple(record.starts(profile.name)) if state is not None else ()
    # one that stops though its record has it over: what it owed is run
    unkept = state is not None and seen is not None and {seen.state, state.state} <= {*LIVE} and not _is_kept(state)
    now = record.read(profile.name) if unkept else None
    if now is not None and state is not None and (now.state, now.keeper) != (state.state, state.keeper):
        seen = look.look(profile.name)  # its keeper has ended in good order since
        state, unkept = seen.record, not _is_kept(seen.record)
    if seen is not None and seen.state in LIVE:
        ended = beside.ended(state) if state is not None and seen.state != "stopping" else None
        return Standing(profile, seen.state, seen.pid, seen.since, state, starts, unkept, sidecars_ended=ended)
    run = profile.launch
    server = next((one for one in servers if run is not None and is_of(run, one)), None)
    if server is not None:
        return Standing(profile, "foreign", server.pid, server.started_at, state, starts)
    left = len(state.left()) if state is not None else 0
    if not profile.runner:
        return Standing(profile, "unreadable", None, None, state, starts, left=left)
    over = "stopped" if seen is None else seen.state
    return Standing(profile, over, None, seen.since if seen is not None else None, state, starts, left=left)


def _is_kept(state: Record | None) -> bool:
    return state is not None and state.keeper is not None and state.keeper.lives
