"""`kvtop profile list`: every profile in one row."""

from __future__ import annotations

import asyncio
import json
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtop.cli.args import Parser
from kvtop.cli.table import GAP, room, show
from kvtop.clock import iso
from kvtop.errors import printable
from kvtop.model.starting import LIVE
from kvtop.model.words import gib, lasted
from kvtop.profiles import folder
from kvtop.profiles.folder import Entry
from kvtop.profiles.secret import shown
from kvtop.profiles.standing import Standing, known, standing, word_of

if TYPE_CHECKING:
    from kvtop.profiles.running.attached import Answering

_WIDTH = 40
_ROOMY, _NARROW = 120, 20
"""On a terminal that is narrower than so many cells, names take so few."""
_CARD = 12
"""GPU-1a2b3c4d."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop profile list",
        usage="%(prog)s [-h] [--json]",
        description="The profiles of the folder profiles/ beside config.toml. A server that kvtop did not start, with "
        "the flags of a profile, runs too; in --json its state is `foreign`. Servers that are only watched (attach) "
        "are asked for their health, all at once, for 2 s at most.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args(argv)
    entries = folder.read_all()
    said = answers(entries)
    rows = [_row(one, said.get(one.name)) for one in states(entries)]
    if args.json:
        print(json.dumps(rows, allow_nan=False))
    elif not rows:
        print(f"no profiles in {folder.folder()}")
        print("kvtop profile import makes one of what runs your server today; docs/profiles.md shows the format")
    else:
        _tell(rows, said)
    return 0


def states(entries: Sequence[Entry]) -> list[Standing]:
    """Each with its server, as it is now."""
    from kvtop.sources.processes import ProcessTable

    return standing([known(entry) for entry in entries], ProcessTable().read().vllm)


def answers(entries: Sequence[Entry]) -> dict[str, Answering]:
    """Whether the servers that are only watched answer, by name."""
    from kvtop.profiles.running import attached

    watched = {
        entry.name: entry.profile
        for entry in entries
        if entry.profile is not None and entry.profile.runner == "attach" and entry.profile.attach.url
    }
    return asyncio.run(attached.ask_all(watched)) if watched else {}


def _row(one: Standing, said: Answering | None) -> dict[str, Any]:
    """A row of the JSON contract. What is not known is None."""
    known, facts = one.known, one.facts
    error = known.problem or (one.record.why if one.state == "failed" and one.record is not None else "")
    state = one.state
    if said is not None and state == "stopped":
        state, error = ("running", error) if said.ready else (state, f"no answer: {said.why}")
    return {
        "name": known.name,
        "file": str(known.file),
        "about": known.about or None,
        "runner": facts.runner or None,
        "model": facts.model or None,
        "port": facts.port,
        "gpus": list(facts.gpus) or None,
        "cpu_tier_bytes": facts.tier_bytes,
        "changed": one.changed,
        "state": state,
        "pid": one.pid,
        "since": iso(one.since),
        "error": shown(error, 1000) or None,
    }


def _tell(rows: Sequence[dict[str, Any]], said: Mapping[str, Answering]) -> None:
    heads = ("name", "runner", "model", "port", "GPU", "tier", "state", "since, or what stands in the way")
    lines: list[tuple[str, ...]] = [heads]
    w = room()
    most = _WIDTH if w is None or w >= _ROOMY else _NARROW
    for row in rows:
        tier = row["cpu_tier_bytes"]
        model = (row["model"] or "–").rstrip("/").rpartition("/")[2]
        error = (row["error"] or "").replace(f"{Path(row['file']).parent}/", "")
        state, silent = row["state"], said.get(row["name"])
        if silent is not None and not silent.ready and state == "stopped":
            state, _, error = error.partition(": ")
            error = f"{error} {lasted(max(0.0, time.time() - silent.at))} ago"
        whose = ", kvtop did not start it" if state == "foreign" else ""
        runs = f"pid {row['pid']}, since {row['since']}{whose}" if row["pid"] else ""
        if row["changed"] and state in LIVE:
            runs = f"{runs}; its profile was changed since, a restart takes that over".removeprefix("; ")
        told = "; ".join(part for part in (runs, error) if part) or row["about"] or ""
        lines.append(
            (
                printable(row["name"], most),
                row["runner"] or "–",
                printable(model, most),
                str(row["port"] or "–"),
                printable(",".join(_card(one) for one in row["gpus"] or ["–"]), _WIDTH),
                gib(tier),
                word_of(state),
                printable(told, 400),
            )
        )
    below = _moved_below(lines, w)
    show(lines, left=8)
    for line in below:
        print(line)


def _card(name: str) -> str:
    """An index; of a UUID its beginning, which CUDA takes too."""
    return name if len(name) <= _CARD else f"{name[:_CARD]}…"


def _moved_below(lines: list[tuple[str, ...]], w: int | None) -> list[str]:
    """What would make a row longer than `w` cells, for lines under the table; the rows say so."""
    if w is None:
        return []
    free = w - sum(max(map(len, column)) + len(GAP) for column in list(zip(*lines, strict=True))[:-1])
    below: list[str] = []
    for at, line in enumerate(lines):
        if at and line[-1] and len(line[-1]) > free:
            below += textwrap.wrap(f"{line[0]}: {line[-1]}", w, subsequent_indent="  ", break_on_hyphens=False)
            lines[at] = (*line[:-1], "see below")
    return below
