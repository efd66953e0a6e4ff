"""Load for the tap's benchmark: an upstream and its clients, each a process that answers orders on stdin.

usage: tapload.py upstream       prints its port; orders: `stream SECONDS HZ`, `bursts N`, `left`, `end`
       tapload.py client         orders, one JSON list a line: see `Client`

Both are single-threaded epoll loops that do as little as they can for a chunk (about 15 us each), so that at 64 streams
of 50 chunks a second each is busy for about a twentieth of the time. Times are CLOCK_MONOTONIC of the one machine.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import struct
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

CAPTURE = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "captures" / "series-0.32.0.tar.xz"
PATH = b"/v1/chat/completions?"
"""With what is to happen: first, stream or hang."""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STAMP = re.compile(rb'"t": *(\d+)')
APART_S = 0.03
"""Between two requests for the first byte: what the end of one costs, and what is done with it later, is no part of the
next."""
RESET = struct.pack("ii", 1, 0)
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)

now = time.monotonic_ns


def event() -> bytes:
    """One event of a chat as vLLM streams it, as one HTTP chunk of 229 bytes, with its time."""
    data = (
        b'data: {"id":"chatcmpl-9f2c63a1d0e84b57","object":"chat.completion.chunk","created":1790000000,"model":"m",'
        b'"choices":[{"index":0,"delta":{"content":" step"},"logprobs":null,"finish_reason":null}],"t": %020d}\n\n'
        % now()
    )
    return b"%x\r\n%s\r\n" % (len(data), data)


def last() -> bytes:
    """How a stream ends: usage, [DONE], and the last chunk."""
    usage = (
        b'data: {"id":"chatcmpl-9f2c63a1d0e84b57","object":"chat.completion.chunk","created":1790000000,"model":"tiny",'
        b'"choices":[],"usage":{"prompt_tokens":2500,"total_tokens":2900,"completion_tokens":400,'
        b'"prompt_tokens_details":{"cached_tokens":2432}}}\n\n'
    )
    return b"".join(b"%x\r\n%s\r\n" % (len(data), data) for data in (usage, b"data: [DONE]\n\n")) + b"0\r\n\r\n"


def request(what: bytes, size: int) -> bytes:
    """A chat request with a body of that size."""
    head = b'{"model":"tiny","stream":true,"messages":[{"role":"user","content":"'
    body = head + b"Mend it. " * (size // 9)
    body = body[: max(len(head), size - 4)] + b'"}]}'
    return b"POST %s%s HTTP/1.1\r\nhost: box\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        PATH, what, len(body), body,
    )  # fmt: skip


def nodelay(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def metrics() -> bytes:
    """A real server's /metrics as an answer: what the recorder asks for each second while a turn is in flight."""
    with tarfile.open(CAPTURE) as packed:
        text = packed.extractfile("series-0.32.0/000.txt")
        assert text is not None
        body = text.read()
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


class Upstream:
    """Answers `first` when the request is complete, and /metrics; keeps `stream` and `hang` open."""

    def __init__(self) -> None:
        self.metrics = metrics()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.listener.setblocking(False)
        self.epoll = select.epoll()
        self.epoll.register(self.listener.fileno(), select.EPOLLIN)
        self.epoll.register(sys.stdin.fileno(), select.EPOLLIN)
        self.socks: dict[int, socket.socket] = {}
        self.got: dict[int, bytearray] = {}
        self.streams: dict[int, socket.socket] = {}
        self.waiting: set[int] = set()
        self.left: list[int] = []
        """Times at which a client of `hang` or `stream` was seen to be gone."""

    def run(self) -> None:
        tell(self.listener.getsockname()[1])
        while True:
            for fd, _ in self.epoll.poll():
                if fd == sys.stdin.fileno():
                    line = sys.stdin.readline()
                    if not line:
                        return
                    self.order(line.split())
                elif fd in self.socks or fd == self.listener.fileno():
                    self.ready(fd)

    def look(self) -> None:
        """Whatever came meanwhile, orders aside."""
        for fd, _ in self.epoll.poll(0):
            if fd in self.socks or fd == self.listener.fileno():
                self.ready(fd)

    def ready(self, fd: int) -> None:
        if fd == self.listener.fileno():
            with contextlib.suppress(BlockingIOError):
                while True:
                    sock, _ = self.listener.accept()
                    sock.setblocking(False)
                    self.socks[sock.fileno()] = nodelay(sock)
                    self.got[sock.fileno()] = bytearray()
                    self.epoll.register(sock.fileno(), select.EPOLLIN)
            return
        try:
            data = self.socks[fd].recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.gone(fd)
            return
        got = self.got[fd]
        got += data
        head = got.find(b"\r\n\r\n")
        if head < 0:
            return
        length = LENGTH.search(got, 0, head)
        if len(got) < head + 4 + (int(length[1]) if length else 0):
            return
        path = got.split(b" ", 2)[1]
        got.clear()
        if path == PATH + b"first":
            self.socks[fd].send(HEAD + event() + last())
        elif path == PATH + b"stream":
            self.socks[fd].send(HEAD)
            self.streams[fd] = self.socks[fd]
        elif path == b"/metrics":
            self.socks[fd].send(self.metrics)
        elif path == PATH + b"hang":
            self.waiting.add(fd)
        else:
            self.socks[fd].send(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    def gone(self, fd: int) -> None:
        if fd in self.waiting or fd in self.streams:
            self.left.append(now())
        self.waiting.discard(fd)
        self.streams.pop(fd, None)
        self.got.pop(fd)
        self.socks.pop(fd).close()

    def order(self, words: list[str]) -> None:
        if words[0] == "stream":
            tell(self.paced(float(words[1]), float(words[2])))
        elif words[0] == "bursts":
            tell(self.bursts(int(words[1])))
        elif words[0] == "left":
            self.look()
            tell(self.left)
            self.left = []
        elif words[0] == "open":
            tell([len(self.streams), len(self.waiting)])
        elif words[0] == "end":
            for sock in self.streams.values():
                with contextlib.suppress(OSError):
                    sock.send(last())
            self.streams.clear()
            tell("ended")

    def paced(self, seconds: float, hz: float) -> int:
        """Each stream has its own phase: chunks come one by one."""
        socks = list(self.streams.items())
        step = 1 / hz / max(1, len(socks))
        began = time.monotonic()
        sent = 0
        total = int(seconds / step)
        gone: set[int] = set()
        while sent < total:
            fd, sock = socks[sent % len(socks)]
            if fd not in gone:
                try:
                    sock.send(event())
                except OSError:
                    gone.add(fd)
                    self.gone(fd)
            sent += 1
            if sent % len(socks) == 0:
                self.look()
            pause = began + sent * step - time.monotonic()
            if pause > 0:
                time.sleep(pause)
        return sent

    def bursts(self, count: int) -> int:
        """A chunk on every stream at once, as an engine's step makes them; the next when the client has them all (it
        says so with a byte over a connection that is not measured)."""
        socks = list(self.streams.values())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            tell(listener.getsockname()[1])
            credit = nodelay(listener.accept()[0])
        with credit:
            for _ in range(count):
                for sock in socks:
                    sock.send(event())
                if not credit.recv(1):
                    break
                self.look()
        return count * len(socks)


class Client:
    """Orders: ["first", port, size, count, reuse], ["open", port, streams], ["listen", seconds], ["bursts", port,
    chunks], ["abort", port, how, count], ["idle", port, count], ["close"]."""

    def __init__(self) -> None:
        self.socks: list[socket.socket] = []

    def run(self) -> None:
        for line in sys.stdin:
            name, *values = json.loads(line)
            tell(getattr(self, name)(*values))

    def first(self, port: int, size: int, count: int, reuse: bool) -> list[float]:
        """Milliseconds from the first byte of the request to the first byte of the answer."""
        asked = request(b"first", size)
        took = []
        sock = None
        for _ in range(count):
            began = now()
            if sock is None:
                sock = nodelay(socket.create_connection(("127.0.0.1", port)))
            if reuse and not took:
                # The connection is there before the clock runs.
                self.ask(sock, asked)
                began = now()
            took.append((self.ask(sock, asked) - began) / 1e6)
            if not reuse:
                sock.close()
                sock = None
            time.sleep(APART_S)
        if sock is not None:
            sock.close()
        return took

    @staticmethod
    def ask(sock: socket.socket, asked: bytes) -> int:
        sock.sendall(asked)
        data = sock.recv(65536)
        at = now()
        while not data.endswith(b"0\r\n\r\n"):
            data += sock.recv(65536)
        return at

    def open(self, port: int, streams: int) -> int:
        for _ in range(streams):
            sock = nodelay(socket.create_connection(("127.0.0.1", port)))
            sock.sendall(request(b"stream", 10_000))
            self.socks.append(sock)
        for sock in self.socks:
            data = b""
            while b"\r\n\r\n" not in data:
                data += sock.recv(4096)
        return len(self.socks)

    def listen(self, seconds: float) -> dict[str, object]:
        """Delays in us from the upstream's send, until nothing comes for half a second after that time."""
        delays: list[int] = []
        until = time.monotonic() + seconds
        failed = self.receive(lambda data, at: delays.extend((at - int(t)) // 1000 for t in STAMP.findall(data)), until)
        delays.sort()
        return {"chunks": len(delays), "failed": failed, "delays": thin(delays)}

    def receive(self, take: Callable[[bytes, int], None], until: float) -> int:
        epoll = select.epoll()
        table = {sock.fileno(): sock for sock in self.socks}
        for fd, sock in table.items():
            sock.setblocking(False)
            epoll.register(fd, select.EPOLLIN)
        failed = 0
        while True:
            ready = epoll.poll(0.5, 64)
            if not ready and time.monotonic() > until:
                break
            for fd, _ in ready:
                try:
                    data = table[fd].recv(65536)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                at = now()
                if data:
                    take(data, at)
                else:
                    failed += 1
                    epoll.unregister(fd)
        epoll.close()
        return failed

    def bursts(self, direct: int, chunks: int) -> dict[str, object]:
        credit = nodelay(socket.create_connection(("127.0.0.1", direct)))
        epoll = select.epoll()
        table = {sock.fileno(): sock for sock in self.socks}
        for fd, sock in table.items():
            sock.setblocking(False)
            epoll.register(fd, select.EPOLLIN)
        got = reads = 0
        goal = len(self.socks)
        began = time.monotonic()
        while got < chunks:
            for fd, _ in epoll.poll():
                got += table[fd].recv(65536).count(b"\n\n")
                reads += 1
            if got >= goal:
                goal += len(self.socks)
                credit.send(b".")
        took = time.monotonic() - began
        credit.close()
        epoll.close()
        return {"chunks": got, "reads": reads, "seconds": took}

    def abort(self, port: int, how: str, count: int) -> list[int]:
        """Times at which this client left, with a FIN or a RST, in the prefill or in mid-stream."""
        where, end = how.split("-")
        left = []
        for _ in range(count):
            sock = nodelay(socket.create_connection(("127.0.0.1", port)))
            sock.sendall(request(b"hang" if where == "prefill" else b"stream", 10_000))
            if where == "stream":
                sock.recv(4096)
            time.sleep(0.05)
            if end == "rst":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            left.append(now())
            sock.close()
            time.sleep(0.05)
        return left

    def idle(self, port: int, count: int) -> int:
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(b"GET %shang HTTP/1.1\r\nhost: box\r\n\r\n" % PATH)
            self.socks.append(sock)
        return len(self.socks)

    def close(self) -> int:
        for sock in self.socks:
            sock.close()
        count = len(self.socks)
        self.socks.clear()
        return count


def thin(values: list[int]) -> list[int]:
    """At most some thousands, in order, the same percentiles."""
    step = max(1, len(values) // 5000)
    return values[step // 2 :: step]


def tell(what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "upstream":
        Upstream().run()
    else:
        Client().run()
