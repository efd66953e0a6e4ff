"""The tap itself, run in this process: says when it listens, leaves its state file, says how it ended."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from kvtop import paths
from kvtop.capture.control import running
from kvtop.capture.control.plan import Leg, answers
from kvtop.capture.control.running import Mapped, Running
from kvtop.capture.store import header
from kvtop.capture.tap.ended import Ended, Missed
from kvtop.cli import stdio, tap_cut
from kvtop.errors import UsageError, printable
from kvtop.sources.url import parse

_IN_MEMORY_ONLY = "it runs, but --status and --stop will not know it"


def foreground(name: str, ways: Sequence[Leg], store: Path | None, drain_s: float) -> int:
    """Run until a signal ends it."""

    def listening(record: Running, problem: str) -> None:
        for mapped in record.mappings:
            print(line(mapped), flush=True)
        if problem:
            stdio.tell(f"kvtop: {problem}")
        threading.Thread(target=_tell_silent, args=(record.mappings,), daemon=True).start()

    ending = serve(name, ways, store=store, drain_s=drain_s, log=None, on_listening=listening)
    stdio.tell(f"kvtop tap ended: {count(ending.served, 'connection')} served, {ending.cut} cut")
    if ending.missed is not None and ending.missed.connections:
        stdio.tell(f"  {ending.missed.line}")
    for cut in tap_cut.lines(ending, str(store) if store else None):
        stdio.tell(cut)
    return 0


def _tell_silent(mappings: Sequence[Mapped]) -> None:
    """Beside the tap: traffic does not wait for the look."""
    for mapped in mappings:
        if said := silent(mapped.upstream, "yet"):
            stdio.tell(f"kvtop: {said}")


def line(mapped: Mapped) -> str:
    """What is printed for each way once the tap listens."""
    return f"kvtop tap listens: {printable(mapped.line, 300)}"


def silent(upstream: str, when: str) -> str:
    """`nothing answers at HOST:PORT yet`; empty where something does. No fault: a tap may start before its server."""
    return "" if answers(upstream) else f"nothing answers at {printable(parse(upstream).authority, 120)} {when}"


def stop_command(record: Running, here: Sequence[Running]) -> str:
    """What ends this tap and no other one. `here`: the taps that run."""
    others = [one for one in here if one.name != record.name]
    if not others:
        return "kvtop tap --stop"
    first = record.mappings[0].listen if record.mappings else ""
    port = first.rpartition(":")[2]
    short = record.name == first and not any(
        mapped.listen.rpartition(":")[2] == port for other in others for mapped in other.mappings
    )
    return f"kvtop tap --stop {port if short else printable(record.name, 80)}"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def serve(
    name: str,
    ways: Sequence[Leg],
    *,
    store: Path | None,
    drain_s: float,
    log: Path | None,
    on_listening: Callable[[Running, str], None],
    note: Callable[[str], None] | None = None,
) -> Ended:
    """Serve until a signal ends it. `on_listening` gets the record, and what is wrong with its file or its
    store, if anything. `note` takes what the tap says while it runs (default: stderr).

    Raises what the tap raises where it cannot listen.
    """
    from kvtop.capture.tap import process as tap

    mappings = [
        tap.Mapping(way.listen_host, way.listen_port, way.connect_host, way.upstream.port, way.upstream.url)
        for way in ways
    ]
    record = running.myself(
        name, [Mapped(way.listen, way.upstream.url) for way in ways], drain_s=drain_s, store=store, log=log
    )

    def listening(_: Sequence[tuple[str, int]]) -> None:
        on_listening(record, "; ".join(filter(None, (_claimed(record), not_recorded(store) or _no_place(store)))))

    ending = tap.serve(
        mappings, store=store, name=name, on_listening=listening, drain_s=drain_s, note=note, tell=_Teller(record)
    )
    with contextlib.suppress(OSError, UsageError):
        running.ended(record, ending)
    return ending


def not_recorded(store: Path | None) -> str:
    """Why nothing can be recorded in that store, as far as the file's beginning tells: traffic does not wait for it."""
    problem = header.problem(store) if store is not None else None
    return "" if problem is None else f"nothing is recorded: {problem.what}; {problem.fix}"


def _no_place(store: Path | None) -> str:
    """Why the store's folder cannot be had. What is missing of it is made, as the recorder would."""
    if store is None:
        return ""
    try:
        if os.access(paths.make_private(store.parent), os.W_OK | os.X_OK):
            return ""
        why = os.strerror(errno.EACCES)
    except OSError as error:
        why = error.strerror or str(error)
    name = printable(str(store), 300)
    return f"nothing is recorded: {name}: {why}; make it a file, in a folder, that you may read and write"


class _Teller:
    """Keeps the state file's numbers, beside the tap: traffic waits neither for the disk nor for the files' lock."""

    def __init__(self, record: Running) -> None:
        self._record = record
        self._queue: queue.SimpleQueue[Missed] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __call__(self, missed: Missed) -> None:
        self._queue.put(missed)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, daemon=True)
            self._thread.start()

    def _write(self) -> None:
        while True:
            missed = self._queue.get()
            with contextlib.suppress(OSError, UsageError):
                running.missed(self._record, missed)


def _claimed(record: Running) -> str:
    """What is wrong with the state file, if anything: traffic does not wait for it."""
    try:
        running.claim(record)
    except running.Taken as taken:
        return f"another tap is called {printable(record.name, 80)} (process {taken.record.pid}); {_IN_MEMORY_ONLY}"
    except OSError as error:
        return f"{error.filename or running.folder()}: {error.strerror or error}; {_IN_MEMORY_ONLY}"
    return ""
