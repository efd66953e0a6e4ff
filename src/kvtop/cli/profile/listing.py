"""`kvtop profile list`: every profile in one row."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvtop.cli.args import Parser
from kvtop.cli.table import show
from kvtop.clock import iso
from kvtop.errors import UsageError, printable
from kvtop.model.words import lasted
from kvtop.profiles import folder
from kvtop.profiles.flags import Flags
from kvtop.profiles.folder import Entry
from kvtop.profiles.launch import Launch, asked, launch
from kvtop.profiles.secret import shown
from kvtop.sources.tier_size import GIB, tier_bytes

if TYPE_CHECKING:
    from kvtop.profiles.running.adopt import Foreign
    from kvtop.profiles.running.attached import Answering
    from kvtop.profiles.running.look import Seen

_WIDTH = 40


class State(NamedTuple):
    """Of one profile."""

    word: str
    """stopped, starting, running, stopping, failed, foreign, unreadable."""
    pid: int | None = None
    since: float | None = None
    """Unix time."""
    error: str | None = None
    silent_for_s: float | None = None
    """Of a server that is only watched and does not answer: how long ago it was asked."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop profile list",
        usage="%(prog)s [-h] [--json]",
        description="The profiles of the folder profiles/ beside config.toml. State `foreign`: a server that kvtop did "
        "not start runs with the flags of this profile. Servers that are only watched (attach) are asked for their "
        "health, all at once, for 2 s at most.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    args = parser.parse_args(argv)
    entries = folder.read_all()
    found = states(entries)
    rows = [_row(entry, found[entry.name]) for entry in entries]
    if args.json:
        print(json.dumps(rows, allow_nan=False))
    elif not rows:
        print(f"no profiles in {folder.folder()}")
        print("kvtop profile import makes one of what runs your server today; docs/profiles.md shows the format")
    else:
        _tell(rows, found)
    return 0


def states(entries: Sequence[Entry]) -> dict[str, State]:
    """The state of each, by name."""
    from kvtop.profiles.running import adopt, attached, look

    runs = {entry.name: launched(entry) for entry in entries}
    foreign = adopt.foreign({name: run for name, (run, _) in runs.items() if run is not None})
    others = {one.profile: one for one in foreign if one.profile}
    watched = {
        entry.name: entry.profile
        for entry in entries
        if entry.profile is not None and entry.profile.runner == "attach" and runs[entry.name][0] is not None
    }
    answers = asyncio.run(attached.ask_all(watched)) if watched else {}
    return {
        entry.name: _answering(answers[entry.name])
        if entry.name in answers
        else _state(entry, runs[entry.name][1], look.look(entry.name), others)
        for entry in entries
    }


def _answering(said: Answering) -> State:
    if said.ready:
        return State("running")
    return State("stopped", error=f"no answer: {said.why}", silent_for_s=max(0.0, time.time() - said.at))


def _state(entry: Entry, error: str | None, seen: Seen, others: Mapping[str, Foreign]) -> State:
    other = others.get(entry.name)
    if seen.state in ("starting", "running", "stopping"):
        return State(seen.state, seen.pid, seen.since)
    if entry.profile is None:
        return State("unreadable", error=error)
    if other is not None:
        return State("foreign", other.who.pid, other.process.started_at)
    why = seen.record.why if seen.record is not None and seen.state == "failed" else error
    return State(seen.state, None, seen.since, why)


def launched(entry: Entry) -> tuple[Launch | None, str | None]:
    """(what it runs, why it cannot be run)."""
    if entry.profile is None:
        return None, str(entry.problem)
    try:
        return launch(entry.name, entry.profile), None
    except UsageError as error:
        return None, error.what


def _row(entry: Entry, state: State) -> dict[str, Any]:
    """A row of the JSON contract. What is not known is None."""
    run, _ = launched(entry)
    profile = entry.profile
    flags = asked(() if run is None else run.serve, run.cwd if run else None)
    return {
        "name": entry.name,
        "file": str(entry.file),
        "runner": profile.runner if profile else None,
        "model": None if flags.model is None else shown(flags.model, 300),
        "port": None if run is None or _elsewhere(entry, flags) else run.port,
        "gpus": profile.gpus if profile and profile.gpus else None,
        "cpu_tier_bytes": tier_bytes(flags.value("kv-offloading-size"), flags.value("kv-transfer-config")),
        "state": state.word,
        "pid": state.pid,
        "since": iso(state.since),
        "error": None if state.error is None else shown(state.error, 1000),
    }


def _elsewhere(entry: Entry, flags: Flags) -> bool:
    """Whether its port may stand where it cannot be read: in its configuration file, or in the file of its runner."""
    profile = entry.profile
    if profile is None or flags.value("port") is not None or profile.start.health_url:
        return False
    unread = flags.config is not None and not any(one.from_file for one in flags.given)
    return unread or (profile.runner in ("compose", "systemd") and not flags.words)


def _tell(rows: Sequence[dict[str, Any]], states: Mapping[str, State]) -> None:
    heads = ("name", "runner", "model", "port", "GPU", "tier", "state", "since, or what stands in the way")
    lines = [heads]
    for row in rows:
        tier = row["cpu_tier_bytes"]
        model = (row["model"] or "–").rstrip("/").rpartition("/")[2]
        error = (row["error"] or "").replace(f"{Path(row['file']).parent}/", "")
        state, silent_for = row["state"], states[row["name"]].silent_for_s
        if silent_for is not None:
            state, _, error = error.partition(": ")
            error = f"{error} {lasted(silent_for)} ago"
        told = error or (f"pid {row['pid']}, since {row['since']}" if row["pid"] else "")
        lines.append(
            (
                printable(row["name"], _WIDTH),
                row["runner"] or "–",
                printable(model, _WIDTH),
                str(row["port"] or "–"),
                printable(",".join(row["gpus"] or ["–"]), _WIDTH),
                "–" if tier is None else f"{tier / GIB:.1f} GiB",
                state,
                printable(told, 400),
            )
        )
    show(lines, left=8)
