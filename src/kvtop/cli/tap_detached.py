"""`kvtop tap --detach`: the tap as a process of its own, with a log; and that process's side of it.

Both talk over a pipe: the child says once that it listens, or why it does not.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import logging.handlers
import os
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

import kvtop
from kvtop import paths
from kvtop.capture import running
from kvtop.capture.running import Mapped, Running
from kvtop.cli import stdio, tap, tap_plan, tap_run
from kvtop.cli.tap_plan import Leg
from kvtop.errors import KvtopError, printable

READY_S = 20.0
LOG_BYTES = 256_000
"""A log of this size is moved aside as NAME.log.1; what was there is gone."""

PROGRAM: tuple[str, ...] = (sys.executable, "-P", "-m", "kvtop")
"""-P: the folder that a tap is started in is no place to import from."""

_log = logging.getLogger("kvtop.tap")


class _Ready(msgspec.Struct, omit_defaults=True):
    """What the child says."""

    mappings: list[Mapped] = []
    problem: str = ""
    """It runs, but something is not as it should be."""
    what: str = ""
    """Why it does not run."""
    fix: str = ""


def start(name: str, args: argparse.Namespace, ways: Sequence[Leg]) -> int:
    """Start the child and wait until it listens. Raises KvtopError, with the child's reason, where it does not."""
    log, store = running.log_path(name), tap.store(args)
    command = [*PROGRAM, "tap", "--name", name, "--drain", str(tap.drain_s(args))]
    command += ["--no-record"] if store is None else ["--store", str(store)]
    command += ["--allow-remote"] if args.allow_remote else []
    for way in ways:
        command += ["--map", way.as_map]
    receive, send = os.pipe()
    with os.fdopen(receive, "rb", buffering=0) as pipe:
        try:
            with _log_file(log) as output:
                child = subprocess.Popen(
                    [*command, "--ready-fd", str(send)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(send,),
                    cwd="/",
                    env=_environment(),
                    start_new_session=True,
                )
        finally:
            os.close(send)
        try:
            said = _heard(pipe.fileno())
        except BaseException:
            child.kill()
            child.wait()
            raise
    if not said.mappings:
        child.kill()
        child.wait()
        raise KvtopError(said.what or "the tap did not start", said.fix or f"its log: {log}")
    child.returncode = 0  # it goes on: nobody waits for it
    for mapped in said.mappings:
        print(tap_run.line(mapped), flush=True)
    if said.problem:
        stdio.tell(f"kvtop: {said.problem}")
    stdio.tell(f"kvtop: it runs as process {child.pid}; kvtop tap --stop ends it; its log: {log}")
    return 0


def _heard(pipe: int) -> _Ready:
    """What the child said; nothing where it died or is silent for too long."""
    text = b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while poll.poll(READY_S * 1000):
        piece = os.read(pipe, 65536)
        text += piece
        if not piece or text.endswith(b"\n"):
            break
    else:
        return _Ready(what=f"the tap did not listen within {READY_S:g} s")
    try:
        return msgspec.json.decode(text, type=_Ready)
    except msgspec.MsgspecError:
        return _Ready()


@contextlib.contextmanager
def _log_file(path: Path) -> Iterator[int]:
    """The log, open for what the child says before it has a logger. Raises KvtopError."""
    try:
        paths.make_private(path.parent)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > LOG_BYTES:
                path.replace(path.with_name(f"{path.name}.1"))
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        what = f"{error.filename or path}: {error.strerror or error}"
        raise KvtopError(what, "a detached tap writes its log there; without --detach it needs none") from None
    try:
        yield handle
    finally:
        os.close(handle)


def _environment() -> dict[str, str]:
    """The child's: a kvtop that is run from a checkout is found from its folder too."""
    env = dict(os.environ)
    root = Path(kvtop.__file__).parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), env.get("PYTHONPATH"))))
    return env


def child(args: argparse.Namespace) -> int:
    """The detached process. Whatever ends it before it listens goes to the parent; later things go to the log."""
    os.set_inheritable(args.ready_fd, False)
    os.umask(0o077)
    ways = tap.legs(args)
    name = tap.name_of(args, ways)
    log = running.log_path(name)
    _log_to(log)
    with os.fdopen(args.ready_fd, "wb", buffering=0) as pipe:

        def say(ready: _Ready) -> None:
            if not pipe.closed:
                with contextlib.suppress(OSError):  # the parent gave up
                    pipe.write(msgspec.json.encode(ready) + b"\n")
                pipe.close()

        def listening(record: Running, problem: str) -> None:
            for mapped in record.mappings:
                _log.info("listens: %s", mapped.line)
            if problem:
                _log.warning("%s", problem)
            say(_Ready(mappings=record.mappings, problem=problem))
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
            say(_Ready(what=error.what, fix=error.fix))
            return 1
        except Exception as error:
            _log.critical("ended by an error", exc_info=error)
            say(_Ready(what=f"the tap ended with {type(error).__name__}", fix=f"where, is in its log: {log}"))
            raise SystemExit(1) from error
    _log.info("ended: %s served, %s cut", ending.served, ending.cut)
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
