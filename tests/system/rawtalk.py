"""Both ends of a connection, byte by byte: a scripted upstream, a scripted client, and a tap between them."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvtop.capture.tap.child import Command
from kvtop.capture.tap.process import Mapping, Tap

SIOCOUTQ = 0x5411
"""Asks how many sent bytes the other end has not acknowledged."""

RESET = struct.pack("ii", 1, 0)
PATIENCE_S = 20.0

GET = b"GET /v1/models HTTP/1.1\r\nHost: box\r\n\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: box\r\nContent-Length: 2\r\n\r\n{}"


@dataclass(frozen=True)
class Heard:
    """What one end got from the other, and how that ended: fin or reset."""

    data: bytes
    end: str


class Talk:
    """One end. A script is a function that gets it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.data = bytearray()
        self.end = ""
        sock.settimeout(PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> bool:
        """False if the other end has reset."""
        try:
            self.sock.sendall(data)
        except ConnectionError:
            self.end = "reset"
            return False
        return True

    def read(self, size: int = 65536) -> bool:
        """False at the end."""
        try:
            data = self.sock.recv(size)
        except ConnectionError:
            self.end = "reset"
            return False
        self.data += data
        if not data and not self.end:
            self.end = "fin"
        return bool(data)

    def until(self, mark: bytes, times: int = 1) -> None:
        """Read until this has come so often."""
        while self.data.count(mark) < times and self.read():
            pass

    def count(self, size: int) -> None:
        """Read until there are so many bytes."""
        while len(self.data) < size and self.read():
            pass

    def rest(self) -> None:
        """Read until the end."""
        while self.read():
            pass

    def fin(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def delivered(self) -> None:
        """Wait until the other end's kernel has all that was sent: a reset may overtake what is still here."""
        end = time.monotonic() + 10
        while struct.unpack("i", fcntl.ioctl(self.sock, SIOCOUTQ, b"\0\0\0\0"))[0]:
            assert time.monotonic() < end
            time.sleep(0.001)

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.sock.close()

    @property
    def heard(self) -> Heard:
        return Heard(bytes(self.data), self.end)


Script = Callable[[Talk], None]


class Upstream:
    """Plays its script with everyone who connects, and keeps what it heard, in the order of the connections."""

    def __init__(self, script: Script, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listener = socket.create_server((host, 0), family=family, backlog=4096)
        self.port: int = self.listener.getsockname()[1]
        self.script = script
        self.talks: list[Talk] = []
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            talk = Talk(sock)
            thread = threading.Thread(target=self._play, args=(talk,), daemon=True)
            self.threads.append(thread)
            self.talks.append(talk)
            thread.start()

    def _play(self, talk: Talk) -> None:
        try:
            self.script(talk)
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.errors.append(error)
        finally:
            talk.sock.close()

    def wait(self) -> None:
        """Until all connections so far are done."""
        for thread in list(self.threads):
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "the upstream still waits"
        assert not self.errors, self.errors

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@contextlib.contextmanager
def upstream(script: Script, host: str = "127.0.0.1") -> Iterator[Upstream]:
    box = Upstream(script, host)
    try:
        yield box
    finally:
        box.close()


@contextlib.contextmanager
def tapped(
    port: int,
    *,
    host: str = "127.0.0.1",
    command: Command | None = None,
    cap_bytes: int = 32 << 20,
    drain_s: float = 0.0,
) -> Iterator[Tap]:
    """A tap in front of that port, in a thread of its own."""
    url = f"http://{'[::1]' if ':' in host else host}:{port}"
    notes: list[str] = []
    tap = Tap(
        [Mapping(host, 0, host, port, url)], command=command, cap_bytes=cap_bytes, drain_s=drain_s, note=notes.append
    )
    thread = threading.Thread(target=tap.run, daemon=True)
    thread.start()
    try:
        yield tap
    finally:
        tap.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the tap does not end"
        assert not [note for note in notes if "internal error" in note], notes


def connect(port: int, host: str = "127.0.0.1") -> Talk:
    return Talk(socket.create_connection((host, port), timeout=PATIENCE_S))


def play(port: int, script: Script, host: str = "127.0.0.1") -> Heard:
    """What a client hears that plays this script."""
    with connect(port, host) as talk:
        script(talk)
        return talk.heard


def both_ways(client: Script, server: Script, host: str = "127.0.0.1") -> tuple[list[Heard], list[Heard]]:
    """(what the client heard, what the upstream heard), each once directly and once through a tap."""
    with upstream(server, host) as box:
        heard = [play(box.port, client, host)]
        box.wait()
        with tapped(box.port, host=host) as tap:
            heard.append(play(tap.addresses[0][1], client, host))
            box.wait()
        return heard, [talk.heard for talk in box.talks]


def file_recorder(path: Path) -> Command:
    """A recorder that writes the frames to a file as they come; see tap_recorder.py."""
    script = Path(__file__).with_name("tap_recorder.py")
    words = [sys.executable, "-S", "-E", str(script), "--to", str(path)]
    return lambda fd, done: [*words, "--fd", str(fd), *([] if done is None else ["--done-fd", str(done)])]


def asks(*requests: bytes) -> Script:
    """Send all at once, read until the upstream ends."""

    def script(talk: Talk) -> None:
        for request in requests:
            talk.send(request)
        talk.rest()

    return script


def answers(data: bytes, after: bytes = b"\r\n\r\n", end: str = "fin") -> Script:
    """Read the request, say this in one go, and end."""

    def script(talk: Talk) -> None:
        talk.until(after)
        talk.send(data)
        if end == "fin":
            talk.fin()
            talk.rest()
        elif end == "reset":
            talk.delivered()
            talk.reset()

    return script


def echo(talk: Talk) -> None:
    """Say again what comes, until the end."""
    while talk.read():
        talk.send(bytes(talk.data))
        talk.data.clear()


def head(status: str, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin-1")
