"""One look at the profiles: the folder, the records of what runs, the end of a log. All of it blocks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from kvtop import paths
from kvtop.errors import KvtopError, printable
from kvtop.files import read_start
from kvtop.live.profile_asks import logged
from kvtop.live.profile_view import Attached, Figures, Foreign, ProfilesView, Tail
from kvtop.model.starting import LIVE
from kvtop.profiles import folder
from kvtop.profiles.folder import Entry
from kvtop.profiles.launch import config_of
from kvtop.profiles.running import attached, lock
from kvtop.profiles.running.record import Record, Who
from kvtop.profiles.running.runners import runner_of
from kvtop.profiles.running.text import Lines, less_polls
from kvtop.profiles.standing import Known, Standing, known, standing, stranger
from kvtop.readings import VllmProcess
from kvtop.sources.masking import text_without_secrets

LOG = logging.getLogger("kvtop.live")

TAIL_LINES = 60
"""Of a log, for the panel."""
TAIL_BYTES = 300_000
"""Of a log, read for them."""
TOOL_EVERY_S = 5.0
"""A runner's own tool is asked for its log so often."""
ATTACHED_EVERY_S = 10.0
_MOST_FIGURES = 200_000


class ProfileLook:
    """Remembers what has not changed on disk."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._signature: object = None
        self._entries: dict[str, Entry] = {}
        self._known: tuple[Known, ...] = ()
        self._configs: tuple[Path, ...] = ()
        """The files of --config that they name."""
        self._error = ""
        self._tail: tuple[object, Tail] = (None, Tail())
        self._attached: dict[str, Attached] = {}
        self._figures: dict[str, Figures] | None = None

    def look(self, chosen: str | None, processes: Sequence[VllmProcess]) -> ProfilesView:
        where = folder.folder()
        self._read_folder(where)
        if self._figures is None:
            self._figures = _kept()
        # The processes of this machine were looked at seconds ago: what has ended since is nobody's server.
        processes = [one for one in processes if one.role == "api" and Who.of(one.pid) is not None]
        now, busy = self._now(), lock.held()
        rows = tuple(standing(self._known, processes))
        others = _foreign(rows, processes)
        of = {one.pid: one for one in processes}
        strangers = tuple(stranger(of[one.pid], one.port) for one in others if not one.profile)
        subject = next((row for row in rows if row.state == "starting"), None)
        if subject is None and chosen is not None:
            subject = next((row for row in (*rows, *strangers) if row.name == chosen), None)
        state = logged(subject) if subject is not None else None
        tail = self._log(state, now) if chosen is not None and state is not None else Tail()
        if chosen is not None:
            self._ask_attached(now)
        return ProfilesView(
            now,
            _short(where),
            rows,
            self._error,
            tail,
            others,
            dict(self._figures),
            dict(self._attached),
            strangers,
            busy,
        )

    def entry(self, name: str) -> Entry | None:
        return self._entries.get(name)

    def keep(self, figures: dict[str, Figures]) -> None:
        if self._figures is None:
            self._figures = _kept()
        known_ones = {**self._figures, **figures}
        if known_ones == self._figures:
            return
        self._figures = known_ones
        try:
            file = _figures_file()
            paths.make_private(file.parent)
            part = file.with_name(f".{file.name}.part")
            part.touch(mode=0o600)
            part.write_bytes(msgspec.json.encode(known_ones))
            part.replace(file)
        except (OSError, KvtopError) as error:  # the next kvtop does not know them then, and nothing else is amiss
            LOG.info("the figures of profiles are not kept: %s", error)

    def _read_folder(self, where: Path) -> None:
        try:
            files = sorted(file for file in where.iterdir() if file.suffix == ".toml")
        except FileNotFoundError:
            files = []
        except OSError as error:
            self._error, self._known, self._entries = f"{where}: {error.strerror or error}", (), {}
            self._signature = None
            return
        signature = [(file, *_stamp(file)) for file in (*files, *self._configs)]
        if signature != self._signature:
            try:
                entries = folder.read_all(where)
            except OSError as error:
                self._error = f"{where}: {error.strerror or error}"
                return
            self._entries = {entry.name: entry for entry in entries}
            self._known = tuple(_seen(known(entry), where) for entry in entries)
            runs = [one.launch for one in self._known if one.launch is not None]
            configs = tuple(sorted({file for run in runs if (file := config_of(run.serve, run.cwd)) is not None}))
            # Others may have been written since they were read: with their stamps all is read once more.
            self._signature = signature if configs == self._configs else None
            self._configs, self._error = configs, ""

    def _log(self, state: Record, now: float) -> Tail:
        """Read again where it has grown."""
        words = runner_of(state).log_command(TAIL_LINES, False)
        if words is not None:
            stamp: object = (state.name, state.started_at, int(now / TOOL_EVERY_S))
            where = f"by {words[0]}"
        else:
            file = Path(state.log)
            stamp = (state.name, state.started_at, state.log, state.log_offset, _stamp(file))
            where = _short(file)
        if stamp != self._tail[0]:
            lines, polls = _lines(state)
            self._tail = (stamp, Tail(lines, where, state.name, state.started_at or None, polls))
        return self._tail[1]

    def _ask_attached(self, now: float) -> None:
        """One a look: each may take its time-out."""
        for name, entry in self._entries.items():
            profile, last = entry.profile, self._attached.get(name)
            if profile is None or profile.runner != "attach" or not profile.attach.url:
                continue
            if last is None or now - last.at >= ATTACHED_EVERY_S:
                said = asyncio.run(attached.ask(profile))
                self._attached[name] = Attached(
                    said.ready, said.why or f"{profile.attach.url.removeprefix('http://')} answers", now
                )
                return


def _foreign(rows: Sequence[Standing], processes: Sequence[VllmProcess]) -> tuple[Foreign, ...]:
    records = [row.record for row in rows if row.record is not None and row.state in LIVE]
    ours = {who.pid for one in records for who in (*one.family, *filter(None, (one.server,)))}
    found = [
        one for one in processes
        if one.role == "api" and not one.contained and one.pid not in ours and one.parent not in ours
    ]  # fmt: skip
    pids = {one.pid for one in found}
    names = {row.pid: row.name for row in rows if row.state == "foreign"}
    return tuple(
        Foreign(one.pid, one.ports[0] if one.ports else one.port, names.get(one.pid, ""), bool(one.ports))
        for one in found
        if one.parent not in pids
    )


def _stamp(file: Path) -> tuple[int, int]:
    try:
        facts = file.stat()
    except (OSError, ValueError):  # ValueError: no name of a file
        return (0, 0)
    return (facts.st_mtime_ns, facts.st_size)


def _seen(one: Known, where: Path) -> Known:
    """With when its file was written; its problem without the folder that all files are in."""
    written = _stamp(one.file)[0]
    return replace(one, problem=one.problem.replace(f"{where}/", ""), changed_at=written / 1e9 if written else None)


def _lines(state: Record) -> tuple[tuple[str, ...], int]:
    """Of this start alone: what an earlier one has written is no news of it. Nor are answered polls, kvtop's own among
    them: how many were left out."""
    kept, polls = less_polls(Lines().feed(runner_of(state).log_text(TAIL_BYTES) + b"\n"))
    return tuple(map(text_without_secrets, kept[-TAIL_LINES:])), polls


def _short(path: Path) -> str:
    return printable(paths.with_tilde(path), 300)


def _figures_file() -> Path:
    return paths.state_dir() / "figures.json"


def _kept() -> dict[str, Figures]:
    try:
        return msgspec.json.decode(read_start(_figures_file(), _MOST_FIGURES)[0], type=dict[str, Figures])
    except (OSError, ValueError, RecursionError, KvtopError):
        return {}
