"""`kvtop tap --status` and `--stop`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kvtop.capture.control import running
from kvtop.capture.control.plan import answers
from kvtop.capture.control.running import Running
from kvtop.capture.tap.ended import Missed
from kvtop.cli import stdio, tap_cut, tap_run
from kvtop.cli.tap_run import count
from kvtop.clock import iso
from kvtop.errors import KvtopError, UsageError, printable
from kvtop.sources.listeners import open_connections
from kvtop.sources.url import listen_address

START = "start one: kvtop tap --detach; for a server that is not found on this box add --upstream URL"
_NONE = "no tap runs"


def status(as_json: bool) -> int:
    """Print the taps that run; 1 where none does."""
    here = running.alive()
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(_row, here))
    if as_json:
        print(json.dumps(rows))
    elif not rows:
        print(f"{_NONE}; {START}")
    else:
        for record, row in zip(here, rows, strict=True):
            _print(row)
            if missed := missed_line(record.missed):
                print(f"  {missed}")
    return 0 if rows else 1


def _row(record: Running) -> dict[str, Any]:
    ports = [listen_address(mapped.listen)[1] for mapped in record.mappings]
    return {
        "name": record.name,
        "pid": record.pid,
        "since": record.since,
        "mappings": [
            {"listen": mapped.listen, "upstream": mapped.upstream, "upstream_answers": answers(mapped.upstream)}
            for mapped in record.mappings
        ],
        "open_connections": open_connections(record.pid, ports),
        "detached": record.log is not None,
        "store": record.store,
        "store_problem": tap_run.not_recorded(Path(record.store) if record.store else None)
        or unwritten_line(record.missed),
        "missed": None if record.missed is None else _missed(record.missed),
        "log": record.log,
    }


def _missed(missed: Missed) -> dict[str, Any]:
    return {
        "connections": missed.connections,
        "bytes": missed.bytes,
        "first_at": iso(missed.first_at),
        "last_at": iso(missed.last_at),
        "behind_since": iso(missed.behind_since),
    }


def missed_line(missed: Missed | None) -> str | None:
    """What a tap did not record, and when; None where it missed nothing, or records nothing."""
    if missed is None or not missed.connections:
        return None
    line = f"{missed.line}, from {iso(missed.first_at)} to {iso(missed.last_at)}"
    if missed.behind_since is not None:
        line += f"; the recorder has not kept up since {iso(missed.behind_since)}"
    return line


def unwritten_line(missed: Missed | None) -> str | None:
    """Why turns wait for a tap's store, and since when; None where none do, or it records nothing."""
    if missed is None or missed.unwritten is None:
        return None
    why = printable(missed.unwritten, 300)
    since = f" since {at}" if (at := iso(missed.unwritten_since)) else ""
    return f"turns wait{since}: the store cannot be written: {why}"


def _print(row: dict[str, Any]) -> None:
    held = row["open_connections"]
    facts = [
        f"process {row['pid']}{', detached' if row['detached'] else ''}",
        f"since {row['since']}",
        "open connections not known" if held is None else f"{count(held, 'open connection')}",
        f"records to {row['store']}" if row["store"] else "records nothing",
    ]
    print(printable(f"{row['name']}: {'; '.join(facts)}", 1000))
    for mapped in row["mappings"]:
        silent = "" if mapped["upstream_answers"] else ": nothing answers there now"
        print(printable(f"  http://{mapped['listen']} -> {mapped['upstream']}{silent}", 400))
    if row["store_problem"]:
        print(printable(f"  {row['store_problem']}", 1000))
    if row["log"]:
        print(printable(f"  log: {row['log']}", 1000))


def stop(which: str, drain_s: float | None) -> int:
    """End the tap of that name or address, or all; '' means the only one. 1 where one does not end."""
    chosen = _chosen(which, running.alive())
    with ThreadPoolExecutor(len(chosen)) as pool:
        ends = list(pool.map(lambda record: _end(record, drain_s), chosen))
    return 0 if all(ends) else 1


def _chosen(which: str, here: Sequence[Running]) -> Sequence[Running]:
    """Raises KvtopError where none runs, UsageError where it is not clear which one is meant."""
    names = ", ".join(printable(record.name, 80) for record in here)
    if not here:
        raise KvtopError(_NONE, START)
    if which == "all":
        return here
    if not which:
        if len(here) > 1:
            raise UsageError(f"{len(here)} taps run: {names}", "name one, or all: kvtop tap --stop NAME")
        return here
    found = [record for record in here if record.name == which] or [r for r in here if _listens(r, which)]
    if len(found) != 1:
        few = "no tap" if not found else "more than one tap"
        raise UsageError(f"{few} is called or listens on '{printable(which, 80)}'; there {_are(here)}: {names}")
    return found


def _are(here: Sequence[Running]) -> str:
    return "is" if len(here) == 1 else "are"


def _listens(record: Running, which: str) -> bool:
    try:
        host, port = listen_address(which)
    except UsageError:
        return False
    places = [listen_address(mapped.listen) for mapped in record.mappings]
    return (host, port) in places or (which.isdecimal() and port in [place[1] for place in places])


def _end(record: Running, drain_s: float | None) -> bool:
    name = printable(record.name, 80)
    limit = record.drain_s + running.STOP_GRACE_S if drain_s is None else drain_s
    try:
        gone, ending = running.stop(record, limit)
    except PermissionError:
        stdio.tell(f"kvtop: the tap {name} is another user's (process {record.pid})")
        return False
    if not gone:
        stdio.tell(f"kvtop: the tap {name} does not end; kill -9 {record.pid} does it, and cuts what is open")
        return False
    if ending is None:
        cut = "it said nothing of its connections"
    else:
        cut = f"{count(ending.cut, 'open connection')} cut" if ending.cut else "nothing was cut"
        if ending.missed is not None and ending.missed.connections:
            cut += f"; {ending.missed.line}"
    told = [f"{name} ended: {cut}", *(tap_cut.lines(ending, record.store) if ending else ())]
    print("".join(f"{line}\n" for line in told), end="", flush=True)  # in one piece: others end at the same time
    return True
