"""`kvtop tap --detach`: the tap as a process of its own, with a log; and that process's side of it.

Both talk over a pipe: the child says once that it listens, or why it does not.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import logging.handlers
import os
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvtop.capture.control import detached, running
from kvtop.capture.control import plan as tap_plan
from kvtop.capture.control.detached import LOG_BYTES, Ready
from kvtop.capture.control.plan import Leg
from kvtop.capture.control.running import Running
from kvtop.cli import stdio, tap, tap_cut, tap_run
from kvtop.errors import KvtopError, printable

_log = logging.getLogger("kvtop.tap")


def start(name: str, args: argparse.Namespace, ways: Sequence[Leg]) -> int:
    """Start it, and return when it listens. Raises KvtopError, with its reason, where it does not."""
    started = detached.start(
        name, ways, store=tap.store(args), drain_s=tap.drain_s(args), allow_remote=args.allow_remote
    )
    started.child.returncode = 0  # it goes on: nobody waits for it
    for mapped in started.mappings:
        print(tap_run.line(mapped), flush=True)
    if started.problem:
        stdio.tell(f"kvtop: {started.problem}")
    for mapped in started.mappings:
        if said := tap_run.silent(mapped.upstream, "yet"):
            stdio.tell(f"kvtop: {said}")
    here = running.alive()
    mine = next((record for record in here if record.pid == started.pid), None)
    stop = tap_run.stop_command(mine, here) if mine is not None else "kvtop tap --stop"
    stdio.tell(f"kvtop: it runs as process {started.pid}; {stop} ends it; its log: {started.log}")
    return 0


def child(args: argparse.Namespace) -> int:
    """The detached process. Whatever ends it before it listens goes to the parent; later things go to the log."""
    os.set_inheritable(args.ready_fd, False)
    os.umask(0o077)
    ways = tap.legs(args)
    name = tap.name_of(args, ways)
    log = running.log_path(name)
    _log_to(log)
    with os.fdopen(args.ready_fd, "wb", buffering=0) as pipe:

        def say(ready: Ready) -> None:
            if not pipe.closed:
                with contextlib.suppress(OSError):  # the parent gave up
                    pipe.write(msgspec.json.encode(ready) + b"\n")
                pipe.close()

        def listening(record: Running, problem: str) -> None:
            for mapped in record.mappings:
                _log.info("listens: %s", mapped.line)
            if problem:
                _log.warning("%s", problem)
            say(Ready(mappings=record.mappings, problem=problem))
            _silence()

        try:
            located = tap_plan.checked(ways, running.alive(), allow_remote=args.allow_remote)
            ending = tap_run.serve(
                name,
                located,
                store=tap.store(args),
                drain_s=tap.drain_s(args),
                log=log,
                on_listening=listening,
                note=lambda text: _log.warning("%s", text),
            )
        except KvtopError as error:
            _log.error("%s", error.what)
            say(Ready(what=error.what, fix=error.fix))
            return 1
        except Exception as error:
            _log.critical("ended by an error", exc_info=error)
            say(Ready(what=f"the tap ended with {type(error).__name__}", fix=f"where, is in its log: {log}"))
            raise SystemExit(1) from error
    _log.info("ended: %s served, %s cut", ending.served, ending.cut)
    if ending.missed is not None and ending.missed.connections:
        _log.info("%s", ending.missed.line)
    for cut in ending.cuts:
        _log.info("cut: %s -> %s, %.1f s after it asked", cut.peer, cut.upstream, cut.ran_s)
    if ending.lost_turns:
        file = tap.store(args)
        _log.warning("%s", tap_cut.lost(ending.lost_turns, str(file) if file else None))
    return 0


def _silence() -> None:
    """From here on the log alone is written, which has a size: not what anything prints."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)


def _log_to(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1, delay=True)
    handler.setFormatter(_Discreet())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("kvtop").setLevel(logging.INFO)
    logging.raiseExceptions = False  # a full disk does not matter to the traffic


class _Discreet(logging.Formatter):
    """One line for each thing, without what an error or a library says of data that passed: kinds and places alone."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        own = record.name.partition(".")[0] == "kvtop"
        words = record.getMessage() if own else f"(a message of {record.name})"
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            frames = traceback.extract_tb(error.__traceback__)
            places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
            words += f": {type(error).__name__} at {places or 'no place'}"
        when = self.formatTime(record, "%Y-%m-%dT%H:%M:%SZ")
        return f"{when} {record.process} {record.levelname.lower()} {printable(words, 1000)}"
