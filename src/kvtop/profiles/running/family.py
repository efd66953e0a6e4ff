"""Which processes are a server's, and signals that reach them and nobody else.

A server has a session of its own. What left that session is known by having been its descendant when it was looked at,
or by coming to its keeper when it loses its parent (`orphans`).
Each is told by number and birth, so that one which took over a number is never touched.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from kvtop.files import identity
from kvtop.profiles.running.record import Who
from kvtop.sources.births import birth, of_this_boot
from kvtop.sources.processes import UNTOLD

WORKERS_S = 5.0
"""How long engine and workers may outlive their parent before they are killed."""
KILL_S = 10.0
"""How long the kernel may take over the end of what was killed: the memory of a card is given back then."""
TRACKER_S = 3.0
"""How long Python's resource tracker may take: once those whose memory it tracks are gone, it removes what they left in
/dev/shm, and ends. Killed with them, it leaves that behind."""
FREE_S = 15.0
"""How long a card's driver may take over giving the memory of a process back."""
POLL_S = 0.05

Pause = Callable[[float], None]
"""Waits that long, or until something may have changed."""


@dataclass(slots=True)
class End:
    """How a server's processes ended."""

    too_long: str = ""
    """The server itself did not end by the one signal that it got: `within 15 s of SIGINT`; empty: it did."""
    took_s: float = 0.0
    killed: int = 0
    """Of those that were killed, the ones that had left the server's session, or stayed behind it."""
    left: list[int] = field(default_factory=list)
    """Processes that live still."""


def look(
    server: Who,
    known: Iterable[Who] = (),
    *,
    session: bool = True,
    own: Collection[int] | None = None,
    logs: Collection[str] = (),
) -> list[Who]:
    """The server's living processes: itself, its session, its descendants, and those of `known` that live. Never this
    process and those above it, whatever a record says.

    Not `session`: it has none of its own. `own`: the children that this process started itself; all others came to it
    as orphans and are the server's, unless they are of a session of `own`. None: orphans do not come here. `logs`: the
    `identity` of each file that the server's output may go into.
    """
    facts = {pid: one for pid in _pids() if (one := _parent_and_session(pid)) is not None}
    mine = {os.getpid(), *_above(os.getpid(), facts)}
    found: dict[int, Who] = {who.pid: who for who in known if who.lives and who.pid not in mine}
    if server.lives and server.pid not in mine:
        found[server.pid] = server
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in facts.items():
        children.setdefault(parent, []).append(pid)
    ways = [*found]
    if session and server.pid not in mine:
        members = [pid for pid, one in facts.items() if one[1] == server.pid]
        # Nobody gets a number that a session has. Once it was empty, another one may have it, with another's processes.
        if birth(server.pid, ended=True) == server.birth or found.keys() & {*members}:
            ways += members
        elif of_this_boot(server.birth):
            ways += [pid for pid in members if _writes(pid, logs)]
    if server.pid in found:
        ways.append(server.pid)
    if own is not None:
        ways += [pid for pid in children.get(os.getpid(), ()) if not {pid, facts[pid][1]} & {*own}]
    seen = set(mine)
    while ways:
        pid = ways.pop()
        if pid in seen:
            continue
        seen.add(pid)
        ways += children.get(pid, ())
        if pid not in found and (who := Who.of(pid)) is not None and pid != server.pid:
            found[pid] = who
    return sorted(found.values(), key=lambda who: who.pid)


def _above(pid: int, facts: Mapping[int, tuple[int, int]]) -> Iterator[int]:
    while pid in facts:
        pid = facts[pid][0]
        yield pid


def writers(logs: Collection[str]) -> list[int]:
    """The processes, this one aside, whose output goes into one of these files (their `identity`)."""
    return [pid for pid in _pids() if pid != os.getpid() and _writes(pid, logs)] if logs else []


def _writes(pid: int, logs: Collection[str]) -> bool:
    """Whether its output goes into one of these files, as that of a server's processes does."""
    return any(identity(f"/proc/{pid}/fd/{number}") in logs for number in (1, 2))


def _tracks(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _pids() -> Sequence[int]:
    try:
        return psutil.pids()
    except UNTOLD:
        return ()


def _parent_and_session(pid: int) -> tuple[int, int] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = stat.rpartition(")")[2].split()
        return int(fields[1]), int(fields[3])
    except (OSError, IndexError, ValueError):
        return None


def send(who: Who, number: signal.Signals) -> bool:
    """Whether it was there to get it. Raises PermissionError where it is another user's."""
    try:
        handle = os.pidfd_open(who.pid)
    except OSError:
        return False
    try:
        if not who.lives:  # the descriptor holds the number, so that it cannot change hands behind this look
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
            return True
        return False
    finally:
        os.close(handle)


def end(
    server: Who,
    known: Iterable[Who],
    wait_s: float,
    pause: Pause,
    clock: Callable[[], float],
    *,
    gently: bool = True,
    session: bool = True,
    own: Collection[int] | None = None,
    logs: Collection[str] = (),
    politely: bool = False,
) -> End:
    """One SIGINT to the server, `wait_s` for its end, SIGKILL to whatever of it is there then.

    No second signal: while a stream is open the web server ignores it. Not `gently`: killed at once. `politely`:
    SIGTERM to all of them instead, as any program takes it. The rest as in `look`.
    """

    def see(known: Iterable[Who]) -> list[Who]:
        return look(server, known, session=session, own=own, logs=logs)

    began = clock()
    done = End()
    family = see(known)
    asked = gently and server in family and send(server, signal.SIGTERM if politely else signal.SIGINT)
    if politely:
        for who in family:
            with contextlib.suppress(PermissionError):
                asked = (who != server and send(who, signal.SIGTERM)) or asked
    if asked:
        _until(lambda: not server.lives, wait_s, pause, clock)
        if server.lives:
            done.too_long = f"within {wait_s:g} s of {'SIGTERM' if politely else 'SIGINT'}"
        family = see(family)
        until = clock() + min(WORKERS_S, wait_s)
        while not done.too_long and family and clock() < until:
            pause(POLL_S)
            family = see(family)
    until, trackers_until = clock() + KILL_S, clock() + TRACKER_S
    hit: set[Who] = set()
    while family:  # again while there is anybody: one that was just being born is met the next time
        for who in family:
            if clock() < trackers_until and _tracks(who.pid):
                continue
            with contextlib.suppress(PermissionError):
                if send(who, signal.SIGKILL):
                    hit.add(who)
        pause(POLL_S)
        family = see(family)
        if clock() > until:
            break
    done.left = [who.pid for who in family]
    done.killed = len(hit - {server})
    done.took_s = clock() - began
    return done


def _until(done: Callable[[], bool], wait_s: float, pause: Pause, clock: Callable[[], float]) -> None:
    until = clock() + wait_s
    while not done() and clock() < until:
        pause(POLL_S)
