"""The tap: listens, splices, hands what it saw to its recorder, and ends in order.

This process parses no HTTP and opens no database, and imports little: it stands between an agent and its server.
"""

from __future__ import annotations

import errno
import gc
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, monotonic_ns, time
from types import FrameType

from kvtop.capture.tap.child import Child, Command
from kvtop.capture.tap.door import Door, Mapping, resolve
from kvtop.capture.tap.ended import MOST_CUTS, Cut, Ended, Missed
from kvtop.capture.tap.reactor import Reactor
from kvtop.capture.tap.splice import Link
from kvtop.capture.tap.spool import CAP_BYTES, Spool
from kvtop.errors import KvtopError, UsageError, printable
from kvtop.sources.url import authority

__all__ = ["Ended", "Mapping", "Tap", "serve"]

DRAIN_S = 30.0
FLUSH_S = 5.0
RECORDER_S = 5.0
AT_ONCE_S = 0.5
"""After a second signal, for a recorder that takes what it is told. One that does keeps nobody waiting."""
_BACKLOG = 1024
_LOOK_S = 0.02
_QUIET_NS = 3_000_000_000
"""A connection whose last answer seems whole, and on which nobody spoke for this long, is a kept-alive one that waits
for a next request. It is not waited for."""


def recorder(store: Path, name: str) -> Command:
    """How the recorder is started. -P: a module in the folder where the tap was started is none of its."""
    module = [sys.executable, "-P", "-m", "kvtop.capture.recorder.process"]

    def command(fd: int, done_fd: int | None) -> list[str]:
        done = [] if done_fd is None else ["--done-fd", str(done_fd)]
        return [*module, "--fd", str(fd), *done, "--store", str(store), "--tap", name]

    return command


def serve(
    mappings: Sequence[Mapping],
    *,
    store: Path | None,
    name: str,
    on_listening: Callable[[Sequence[tuple[str, int]]], None],
    drain_s: float = DRAIN_S,
    note: Callable[[str], None] | None = None,
    command: Command | None = None,
    cap_bytes: int = CAP_BYTES,
    tell: Callable[[Missed], None] = lambda _: None,
) -> Ended:
    """Run the tap in this process, in its main thread, until SIGTERM, SIGINT or the terminal's SIGHUP.

    `on_listening` gets the addresses, one for each mapping. The first signal stops listening and waits for open streams
    up to `drain_s`, a second one ends at once. Without a `store` nothing is recorded. `note` takes lines for the log
    (default: stderr), `tell` what the recorder has missed whenever that changed, which it must take without waiting;
    `command` and `cap_bytes` are for the recorder and the queue before it.
    Raises UsageError where an address cannot be listened on, or is its own upstream.
    """
    note = note or (lambda text: print(f"kvtop tap: {printable(text, 300)}", file=sys.stderr, flush=True))
    if command is None and store is not None:
        command = recorder(store, name)
    tap = Tap(mappings, command=command, cap_bytes=cap_bytes, drain_s=drain_s, note=note, tell=tell)
    with _signals(tap):
        on_listening(tap.addresses)
        return tap.run()


@contextmanager
def _signals(tap: Tap) -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        tap.stop()

    wanted = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # else it was started to outlive its terminal
        wanted.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in wanted}
    wakeup = signal.set_wakeup_fd(tap.wakeup_fd, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)


class Tap:
    """A tap without its signals. Listens from its making on; `run` serves."""

    def __init__(
        self,
        mappings: Sequence[Mapping],
        *,
        command: Command | None = None,
        cap_bytes: int = CAP_BYTES,
        drain_s: float = DRAIN_S,
        note: Callable[[str], None] = lambda _: None,
        tell: Callable[[Missed], None] = lambda _: None,
    ) -> None:
        self._reactor = Reactor(note)
        self._drain_s = drain_s
        self._stops = 0
        self._deadline = 0.0
        self._cut = 0
        self._cuts: list[Cut] = []
        self.spool = None
        self._child: Child | None = None
        if command is not None:
            self._child = Child(self._reactor, command, note)
            self.spool = Spool(self._reactor, self._child, cap_bytes, note, tell)
            self._child.on_store = self.spool.tally.unwritten
        self._doors: list[Door] = []
        try:
            for mapping in mappings:
                self._doors.append(self._open(mapping, note))
            self._refuse_loops()
        except KvtopError:
            self._close_doors()
            self._reactor.close()
            raise

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens: host and port of each mapping."""
        return [door.listens for door in self._doors]

    @property
    def wakeup_fd(self) -> int:
        return self._reactor.wakeup_fd

    def run(self) -> Ended:
        """Serve until `stop`. Once."""
        if self.spool is not None:
            self.spool.start()
        gc.collect()
        gc.freeze()  # what lives as long as the tap need not be looked through again and again
        try:
            self._reactor.run()
        finally:
            gc.unfreeze()
            self._reactor.close()
        served = sum(door.served for door in self._doors)
        lost_turns = self._child.lost_turns if self._child is not None else 0
        missed = self.spool.tally.missed if self.spool is not None else None
        return Ended(cut=self._cut, served=served, lost_turns=lost_turns, missed=missed, cuts=self._cuts)

    def stop(self) -> None:
        """End after a drain; when called again, at once. From a signal handler or another thread."""
        self._reactor.post(self._stop)

    def _stop(self) -> None:
        self._stops += 1
        if self._stops == 1:
            self._close_doors()
            self._deadline = monotonic() + self._drain_s
            self._drain()
        elif self._stops == 2:
            self._cut_all()
            if self.spool is not None:
                self.spool.abandon(AT_ONCE_S, self._reactor.stop)
            else:
                self._reactor.stop()

    def _drain(self) -> None:
        if self._stops > 1:
            return
        quiet = monotonic_ns() - _QUIET_NS
        for link in self._links():
            if link.answered and link.at_ns < quiet:
                link.abort()
        if monotonic() >= self._deadline:
            self._cut_all()
        if any(door.links or door.dials for door in self._doors):
            self._reactor.call_later(_LOOK_S, self._drain)
        elif self.spool is not None:
            self.spool.finish(FLUSH_S, RECORDER_S, self._reactor.stop)
        else:
            self._reactor.stop()

    def _links(self) -> list[Link]:
        return [link for door in self._doors for link in door.links]

    def _cut_all(self) -> None:
        for door in self._doors:
            for link in list(door.links):
                self._note_cut(door, link.peer, link.asked_ns)
                link.abort()
            for dial in list(door.dials):
                self._note_cut(door, dial.peer, dial.began_ns)
                dial.abort()

    def _note_cut(self, door: Door, peer: str, began_ns: int) -> None:
        self._cut += 1
        if len(self._cuts) < MOST_CUTS:
            ran_s = (monotonic_ns() - began_ns) / 1e9
            url = door.mapping.upstream_url
            self._cuts.append(Cut(peer=peer, upstream=url, began_at=time() - ran_s, ran_s=ran_s))

    def _close_doors(self) -> None:
        for door in self._doors:
            door.close()

    def _open(self, mapping: Mapping, note: Callable[[str], None]) -> Door:
        listener = _listen(mapping.listen_host, mapping.listen_port)
        try:
            addresses = resolve(mapping.upstream_host, mapping.upstream_port)
        except OSError as error:
            note(f"upstream {mapping.upstream_url}: {error.strerror or error}; looked up again when a client comes")
            addresses = []
        return Door(self._reactor, listener, mapping, addresses, self.spool)

    def _refuse_loops(self) -> None:
        """Raises UsageError where an upstream is a port of this tap."""
        for door in self._doors:
            for family, address in door.addresses:
                if any(_reaches(family, address, other.listens) for other in self._doors):
                    raise UsageError(
                        f"the upstream {printable(door.mapping.upstream_url)} is the tap itself",
                        "name the server's own address, for instance --map 8001=127.0.0.1:8000",
                    )


def _reaches(family: socket.AddressFamily, address: tuple[str, int], listens: tuple[str, int]) -> bool:
    """A connection to that address would come to that listener of this machine."""
    host, port = listens
    if address[1] != port:
        return False
    if host not in ("0.0.0.0", "::"):
        return address[0] == host
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address[0], 0))  # only an address of this machine can be bound
        except OSError:
            return False
    return True


def _listen(host: str, port: int) -> socket.socket:
    where = authority(printable(host), port)
    try:
        family, address = resolve(host, port)[0]
        return socket.create_server((str(address[0]), port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"{where} is taken: another program listens there", "choose another port with --listen PORT"
            ) from None
        raise UsageError(f"cannot listen on {where}: {error.strerror or error}", "choose another address") from None
    except OverflowError:
        raise UsageError(f"cannot listen on {where}: a port is 0 to 65535", "choose another port") from None
