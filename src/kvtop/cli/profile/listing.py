"""`kvtop profile list`: every profile in one row."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtop.cli.args import Parser
from kvtop.cli.table import across, cells, cut, fitting, room, show, widths, wrapped
from kvtop.clock import iso
from kvtop.errors import printable
from kvtop.model.starting import LIVE
from kvtop.model.words import gib, lasted
from kvtop.profiles import folder
from kvtop.profiles.folder import Entry
from kvtop.profiles.running.unkept import KEEPER_GONE, offer
from kvtop.profiles.secret import shown
from kvtop.profiles.standing import Standing, known, standing, word_of

if TYPE_CHECKING:
    from kvtop.profiles.running.attached import Answering

_HEADS = ("name", "runner", "model", "port", "GPU", "tier", "state", "since, or what stands in the way")
_NAME, _MODEL, _TOLD = 0, 2, -1
_SPARE = ("tier", "GPU", "runner", "model", "port")
"""Where a row has no room for all: these go, in this order."""
_WIDTH = 40
_ROOMY, _NARROW = 120, 20
"""On a terminal that is narrower than so many cells, models take so few."""
_LEAST = 16
"""Names and models are cut to so many cells before a column goes."""
_LINE, _UNDER = 160, 400
"""Cells of what stands in the way: in a line of a file, and under the table of a terminal."""
_WHOLE = 2000
"""Characters of a name: of the 255 bytes of a file's each may be shown as an escape."""
_BELOW, _SHORT = "see below", "since"
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
    found = states(entries)
    rows = [_row(one, said.get(one.name)) for one in found]
    if args.json:
        print(json.dumps(rows, allow_nan=False))
    elif not rows:
        print(f"no profiles in {folder.folder()}")
        print("kvtop profile import makes one of what runs your server today; docs/profiles.md shows the format")
    else:
        w = room()
        _show([_HEADS, *(_told(row, one, said.get(one.name), w) for row, one in zip(rows, found, strict=True))], w)
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
        "mark": one.record.mark if one.record is not None else None,
        "keeper_gone": one.unkept if one.record is not None and one.state in LIVE else None,
        "sidecars_ended": one.sidecars_ended,
        "after_stop_owed": one.owed,
        "error": shown(error, 1000) or None,
    }


def _told(row: Mapping[str, Any], one: Standing, said: Answering | None, w: int | None) -> tuple[str, ...]:
    """A row for a person, its name whole. `w`: cells of a line; None: as many as it takes."""
    name = printable(row["name"], _WHOLE)
    model = (row["model"] or "–").rstrip("/").rpartition("/")[2]
    state, error = row["state"], (row["error"] or "").replace(f"{Path(row['file']).parent}/", "")
    if said is not None and not said.ready and state == "stopped":
        state, _, error = error.partition(": ")
        error = f"{error} {lasted(max(0.0, time.time() - said.at))} ago"
    told = (*_runs(row, one), cut(error, _LINE if w is None else _UNDER), *_owes(name, one))
    return (
        name,
        row["runner"] or "–",
        cut(printable(model, 300), _WIDTH if w is None or w >= _ROOMY else _NARROW),
        str(row["port"] or "–"),
        cut(printable(",".join(_card(card) for card in row["gpus"] or ["–"]), 300), _WIDTH),
        gib(row["cpu_tier_bytes"]),
        word_of(state),
        "; ".join(filter(None, told)) or cut(row["about"] or "", _LINE if w is None else _UNDER),
    )


def _runs(row: Mapping[str, Any], one: Standing) -> Iterator[str]:
    """What is to be told of a server that runs or starts."""
    who = [f"pid {one.pid}"] if one.pid is not None else []
    who += [f"since {row['since']}"] if row["since"] else []
    if one.state == "foreign":
        yield ", ".join([*who, "kvtop did not start it"])
    if one.state not in LIVE:
        return
    yield ": ".join(filter(None, (", ".join(who), _at(one))))
    if one.settles:
        yield "its after_stop runs"
    if one.unkept:
        yield KEEPER_GONE
    if one.missed:
        yield one.missed
    if one.changed:
        yield "its profile was changed since, a restart takes that over"


def _at(one: Standing) -> str:
    """The stage that a start is at: `pre-start command 1 of 2`, `weights, 9 of 14 shards`. Empty: none is known."""
    if one.record is None or one.state != "starting":
        return ""
    from kvtop.profiles.running.stages import stage_words  # only a start has any

    now = next((stage for stage in one.record.stages if stage.ended_at is None), None)
    return stage_words(now, one.record) if now is not None else ""


def _owes(name: str, one: Standing) -> Iterator[str]:
    if one.owed:
        yield f"after_stop is owed: {offer(name)}"


def _card(name: str) -> str:
    """An index; of a UUID its beginning, which CUDA takes too."""
    return name if len(name) <= _CARD else f"{name[:_CARD]}…"


def _show(lines: Sequence[tuple[str, ...]], w: int | None) -> None:
    below: list[str] = []
    if w is not None:
        lines, below = _fitted(lines, w)
    show(lines, left=len(lines[0]), w=w)
    for line in below:
        print(line)


def _fitted(lines: Sequence[tuple[str, ...]], w: int) -> tuple[list[tuple[str, ...]], list[str]]:
    """The rows as lines of `w` cells have room for them, and the lines under the table: what a row has no room for,
    behind its whole name; the row says so."""
    wide = widths(lines)
    name, model = wide[_NAME], wide[_MODEL]
    wide[_NAME], wide[_MODEL] = min(name, _LEAST), min(model, _LEAST)
    wide[_TOLD] = max(min(cells(line[_TOLD]), len(_BELOW)) for line in lines[1:])
    shown = fitting(_HEADS, wide, w, _SPARE)
    spare = max(0, w - across([wide[i] for i in shown]))
    more = min(spare, name - wide[_NAME])
    wide[_NAME] += more
    wide[_MODEL] = min(model, wide[_MODEL] + spare - more)
    *first, last = shown
    free = w - across([*(wide[i] for i in first), 0])
    fitted: list[tuple[str, ...]] = []
    below: list[str] = []
    for line in lines:
        told = line[last]
        if line is _HEADS and cells(told) > free:
            told = _SHORT
        elif told and cells(told) > free:
            below += wrapped(f"{line[_NAME]}: {told}", w)
            told = _BELOW
        fitted.append((*(cut(line[i], wide[i]) for i in first), told))
    return fitted, below
