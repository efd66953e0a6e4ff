"""Whatever the recorder does, what it gets is in order, and what it does not get is counted."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import cast

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvtop.capture.tap.batches import Handed
from kvtop.capture.tap.child import Start
from kvtop.capture.tap.ended import Missed
from kvtop.capture.tap.progress import Progress, page
from kvtop.capture.tap.reactor import Reactor
from kvtop.capture.tap.spool import Spool
from kvtop.capture.tap.tally import Tally
from kvtop.capture.tap.track import Track
from kvtop.capture.tap.wire import Frame, Frames, Kind, Lost, Opened, frame_of

OPENED = Opened(upstream="http://127.0.0.1:8000", listen="127.0.0.1:8001", peer="127.0.0.1:5")


class Keeper:
    """A recorder without a process: `take` reads what came, `die` hangs up, `start` begins the next life."""

    def __init__(self, *, says: bool = True) -> None:
        """`says`: how far it has come."""
        self.on_start: Start = lambda sock, _: sock.close()
        self.says = says
        self.progress: Progress | None = None
        self.sock: socket.socket | None = None
        self.lives: list[bytearray] = []

    def start(self) -> None:
        if self.sock is None:
            ours, self.sock = socket.socketpair()
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            self.sock.setblocking(False)
            self.lives.append(bytearray())
            done = page() if self.says else None
            self.progress = None
            if done is not None:
                self.progress = Progress(done)
                os.close(done)
            self.on_start(ours, self.progress)

    def take(self, size: int) -> int:
        """Read, and work through what is whole."""
        if self.sock is None:
            return 0
        try:
            data = self.sock.recv(size)
        except BlockingIOError:
            return 0
        self.lives[-1] += data
        if self.progress is not None:
            self.progress.add(len(data))
        return len(data)

    def die(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def lost(self) -> None:
        self.die()

    def end(self, within_s: float, then: Callable[[], None]) -> None:
        then()


def read(life: bytearray) -> Iterator[Frame]:
    return map(frame_of, Frames().feed(bytes(life)))


def run(reactor: Reactor, spool: Spool) -> None:
    """What is ready now, and what is due soon."""
    spool.flush()
    reactor.call_later(0, reactor.stop)
    reactor.run()


ACTIONS = st.one_of(
    st.tuples(st.just("open"), st.just(0), st.just(0)),
    st.tuples(st.just("close"), st.integers(0, 4), st.just(0)),
    st.tuples(st.sampled_from(["client", "server"]), st.integers(0, 4), st.integers(1, 9000)),
    st.tuples(st.just("burst"), st.just(0), st.integers(4, 20)),
    st.tuples(st.just("end"), st.integers(0, 4), st.just(0)),
    st.tuples(st.just("take"), st.just(0), st.integers(1, 30000)),
    st.tuples(st.sampled_from(["run", "start"]), st.just(0), st.just(0)),
    st.tuples(st.just("die"), st.integers(0, 1), st.just(0)),
)


@example([("close", 0, 0), ("burst", 0, 14), ("die", 1, 0), ("die", 1, 0)], 60_000, True)
@settings(max_examples=200, deadline=None)
@given(actions=st.lists(ACTIONS, min_size=10, max_size=60), cap=st.integers(2000, 60_000), deaths=st.booleans())
def test_order_and_counts(actions: list[tuple[str, int, int]], cap: int, deaths: bool) -> None:
    reactor, keeper = Reactor(), Keeper()
    try:
        play(reactor, keeper, actions, cap, deaths)
    finally:
        keeper.die()
        reactor.close()


def play(reactor: Reactor, keeper: Keeper, actions: list[tuple[str, int, int]], cap: int, deaths: bool) -> None:
    spool = Spool(reactor, keeper, cap)
    spool.start()
    tracks: list[Track] = []
    passed: dict[int, dict[Kind, bytearray]] = {}
    numbers = itertools.count()

    def pass_on(track: Track, kind: Kind, size: int) -> None:
        """No four bytes are twice the same."""
        data = b"".join(next(numbers).to_bytes(4, "big") for _ in range(size // 4 + 1))
        track.data(kind, 1, memoryview(data))
        passed[track.conn][kind] += data

    for what, which, size in [("open", 0, 0)] * 2 + actions:
        track = tracks[which % len(tracks)] if tracks else None
        if what == "open":
            track = spool.open(OPENED)
            tracks.append(track)
            passed[track.conn] = {Kind.CLIENT: bytearray(), Kind.SERVER: bytearray()}
        elif what in ("client", "server") and track:
            kind = Kind.CLIENT if what == "client" else Kind.SERVER
            pass_on(track, kind, size)
        elif what == "burst" and track:
            for piece in range(size):
                pass_on(tracks[piece % len(tracks)], Kind.SERVER, 2500)
            run(reactor, spool)
        elif what == "close" and track:
            tracks.remove(track)
            track.close()
        elif what == "end" and track:
            track.mark(Kind.CLIENT_END)
        elif what == "take":
            keeper.take(size)
        elif what == "die" and deaths:
            keeper.die()
            run(reactor, spool)
            if which:
                keeper.start()
        elif what == "start":
            keeper.start()
        elif what == "run":
            run(reactor, spool)
        # A batch may go over by what says that there was a gap, one such frame for each connection.
        assert spool.held + len(spool.batch) <= cap + 400 * (len(passed) + 1)
    for track in tracks:
        track.close()
    finish(reactor, spool, keeper)
    judge(keeper, passed)
    if len(keeper.lives) == 1:
        counted(list(read(keeper.lives[0])), spool.tally.missed)
    accounted(keeper, passed, spool.tally.missed)
    spool.abandon(0.0, lambda: None)


def finish(reactor: Reactor, spool: Spool, keeper: Keeper) -> None:
    keeper.start()
    for _ in range(300):
        run(reactor, spool)
        while keeper.take(1 << 20):
            pass
    assert not spool.held
    assert not spool.batch


def judge(keeper: Keeper, passed: dict[int, dict[Kind, bytearray]]) -> None:
    lives = [list(read(life)) for life in keeper.lives]
    for conn, both in passed.items():
        at = {Kind.CLIENT: 0, Kind.SERVER: 0}
        for frames in lives:
            check([frame for frame in frames if frame.conn == conn], both, at)
    for conn in {frame.conn for frame in lives[-1]}:
        assert [frame for frame in lives[-1] if frame.conn == conn][-1].kind is Kind.CLOSE, "all are over"
    if len(lives) == 1:
        whole(lives[0], passed)


def check(frames: list[Frame], passed: dict[Kind, bytearray], at: dict[Kind, int]) -> None:
    """One connection in one life: OPEN first, CLOSE last, and between the gaps what passed, in order and once.

    `at`: how far the lives before have read."""
    assert [frame.kind is Kind.OPEN for frame in frames] == [True, *([False] * (len(frames) - 1))][: len(frames)]
    assert Kind.CLOSE not in [frame.kind for frame in frames[:-1]]
    for kind in (Kind.CLIENT, Kind.SERVER):
        said, resumed = bytes(passed[kind]), False
        for frame in frames:
            if frame.kind is Kind.OPEN:
                resumed = msgspec.json.decode(frame.data, type=Opened).resumed
            elif frame.kind is Kind.GAP and not resumed:
                lost = msgspec.json.decode(frame.data, type=Lost)
                at[kind] += lost.client_bytes if kind is Kind.CLIENT else lost.server_bytes
            elif frame.kind is kind:
                if resumed:  # what the dead one had in hand is not known
                    at[kind], resumed = said.index(frame.data, at[kind]), False
                assert said[at[kind] : at[kind] + len(frame.data)] == frame.data
                at[kind] += len(frame.data)


def whole(frames: list[Frame], passed: dict[int, dict[Kind, bytearray]]) -> None:
    """Nobody died: every byte is there, or counted as lost."""
    told = {frame.conn for frame in frames}
    assert len(passed) - len(told) == 0
    for conn, both in passed.items():
        mine = [frame for frame in frames if frame.conn == conn]
        lost = [msgspec.json.decode(frame.data, type=Lost) for frame in mine if frame.kind is Kind.GAP]
        client = sum(len(frame.data) for frame in mine if frame.kind is Kind.CLIENT)
        server = sum(len(frame.data) for frame in mine if frame.kind is Kind.SERVER)
        assert client + sum(one.client_bytes for one in lost) == len(both[Kind.CLIENT])
        assert server + sum(one.server_bytes for one in lost) == len(both[Kind.SERVER])
        assert mine[-1].kind is Kind.CLOSE


def counted(frames: list[Frame], missed: Missed) -> None:
    """What the gaps tell is what the tap tells of itself."""
    gaps = [(f.conn, msgspec.json.decode(f.data, type=Lost)) for f in frames if f.kind is Kind.GAP]
    lost = [(conn, gap.client_bytes + gap.server_bytes) for conn, gap in gaps]
    assert missed.bytes == sum(size for _, size in lost)
    assert missed.connections == len({conn for conn, size in lost if size})
    assert (missed.first_at is None) == (missed.last_at is None) == (missed.connections == 0)


def accounted(keeper: Keeper, passed: dict[int, dict[Kind, bytearray]], missed: Missed) -> None:
    """Whoever died: every byte came whole to a recorder that lived, or is counted, once."""
    frames = [frame for life in keeper.lives for frame in read(life)]
    came = sum(len(frame.data) for frame in frames if frame.kind in (Kind.CLIENT, Kind.SERVER))
    assert came + missed.bytes == sum(len(data) for both in passed.values() for data in both.values())
    closed = {frame.conn for frame in frames if frame.kind is Kind.CLOSE}
    assert len(passed) - len(closed) <= missed.connections <= len(passed)


@pytest.mark.parametrize("dies", [True, False])
def test_what_was_sent_to_a_recorder_that_stood_still_is_counted(dies: bool) -> None:
    """It dies, or is ended with the tap: of three connections it had worked through one."""
    reactor, keeper = Reactor(), Keeper()
    spool = Spool(reactor, keeper)
    spool.start()

    def ask() -> None:
        track = spool.open(OPENED)
        track.data(Kind.CLIENT, 1, memoryview(bytes(100)))
        track.close()

    ask()
    run(reactor, spool)
    keeper.take(1 << 20)
    for _ in range(2):
        ask()
        run(reactor, spool)
    live = spool.open(OPENED)
    live.data(Kind.SERVER, 1, memoryview(bytes(30)))
    spool.refused(OPENED)
    run(reactor, spool)
    if dies:
        keeper.die()
        run(reactor, spool)
        keeper.start()
        run(reactor, spool)
        keeper.take(1 << 20)
        opened, gap = read(keeper.lives[1])
        assert (opened.kind, opened.conn) == (Kind.OPEN, live.conn)
        assert msgspec.json.decode(gap.data, type=Lost) == Lost(server_bytes=30)
    live.close()
    spool.finish(1.0, 1.0, lambda: None)
    run(reactor, spool)
    if dies:
        assert keeper.take(1 << 20), "and its CLOSE"
    missed = spool.tally.missed
    assert (missed.connections, missed.bytes) == (4, 230)
    keeper.die()
    reactor.close()


def test_a_recorder_that_does_not_say_how_far_it_is_costs_no_memory() -> None:
    reactor, keeper = Reactor(), Keeper(says=False)
    spool = Spool(reactor, keeper)
    spool.start()
    for _ in range(3):
        spool.open(OPENED).close()
        run(reactor, spool)
    keeper.die()
    run(reactor, spool)
    assert spool.tally.missed == Missed()
    reactor.close()


def test_what_no_socket_holds_is_worked_through_whatever_is_said() -> None:
    progress = page()
    assert progress is not None
    handed = Handed()
    handed.begin(Progress(progress))
    os.close(progress)
    for number in range(1, 40):
        handed.add(number, bytearray(64 * 1024))
    assert handed.through() == 39 - 16


class Clock:
    """A reactor whose timers go off when they are told to, and the clock of what uses it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self._calls: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr("kvtop.capture.tap.tally.monotonic", lambda: self.now)
        monkeypatch.setattr("kvtop.capture.tap.tally.time", lambda: self.now)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._calls.append((self.now + delay_s, call))

    def go_on(self, seconds: float) -> None:
        until = self.now + seconds
        while due := sorted((at for at, _ in self._calls if at <= until)):
            self.now = due[0]
            [call, *_] = [call for at, call in self._calls if at == due[0]]
            self._calls.remove((due[0], call))
            call()
        self.now = until


def test_a_gap_is_one_line_when_it_is_over_and_further_ones_a_minute_later(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, notes, told, behind = Clock(monkeypatch), list[str](), list[Missed](), [True]
    tally = Tally(cast("Reactor", clock), lambda: behind[0], notes.append, told.append)
    clock.go_on(100)
    assert (notes, told) == ([], [])
    tally.add(1_000_000, 1)
    tally.add(500, 0)
    clock.go_on(3)
    assert told == [Missed(connections=1, bytes=1_000_500, first_at=1100, last_at=1100, behind_since=1100)]
    behind[0] = False
    clock.go_on(1)
    assert notes == ["the recorder did not keep up; not recorded: 1,000,500 bytes, of 1 connection"]
    assert told[-1].behind_since is None and len(told) == 2
    for _ in range(5):
        tally.add(10, 1)
        clock.go_on(5)
    assert len(notes) == 1 and told[-1].connections == 6
    clock.go_on(60)
    line = "not recorded: 50 bytes, of 5 connections; 1,000,550 bytes since the tap began"
    assert notes[1:] == [f"the recorder did not keep up; {line}"]
    tally.add(7, 0)
    tally.close()
    assert len(notes) == 3


def test_a_recorder_that_takes_nothing_is_told_of_while_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, notes = Clock(monkeypatch), list[str]()
    tally = Tally(cast("Reactor", clock), lambda: True, notes.append, lambda _: None)
    tally.add(1, 1)
    clock.go_on(9.5)
    assert notes == []
    clock.go_on(100)
    assert notes == ["the recorder has not kept up for 10 s; traffic goes on unrecorded"]
    assert tally.missed.behind_since == 1000


def test_a_store_that_cannot_be_written_is_told_with_its_beginning_and_taken_back() -> None:
    reactor, told = Reactor(), list[Missed]()
    tally = Tally(reactor, lambda: False, lambda _: None, told.append)
    for why, look in (("full", 1), ("full", 1), (None, 1), (None, 1)):
        tally.unwritten(why)
        reactor.call_later(1.2 * look, reactor.stop)
        reactor.run()
    reactor.close()
    assert [missed.unwritten for missed in told] == ["full", None]
    assert told[0].unwritten_since is not None and told[1] == Missed()


def test_a_connection_for_which_there_was_no_room_at_all_is_counted() -> None:
    reactor, keeper = Reactor(), Keeper()
    spool = Spool(reactor, keeper, 4000)
    spool.start()
    track = spool.open(OPENED)
    for _ in range(40):
        track.data(Kind.SERVER, 1, memoryview(bytes(1000)))
    while not spool.full():
        spool.open(OPENED)
    spool.refused(OPENED)
    other = spool.open(OPENED)
    other.data(Kind.CLIENT, 1, memoryview(bytes(70)))
    other.close()
    missed = spool.tally.missed
    assert (missed.connections, missed.bytes) == (3, 40_000 - 3000 + 70)
    assert missed.behind_since is not None
    spool.abandon(0.0, lambda: None)
    keeper.die()
    reactor.close()


@pytest.mark.parametrize("reads", [True, False])
def test_what_is_abandoned_is_handed_over_as_far_as_it_is_taken_in_time(reads: bool) -> None:
    """A recorder that reads gets the ends too, though they are more than its socket holds; another one is not waited
    for any longer."""
    reactor, keeper = Reactor(), Keeper()
    spool = Spool(reactor, keeper)
    spool.start()
    track = spool.open(OPENED)
    track.data(Kind.SERVER, 1, memoryview(bytes(400_000)))
    track.close()

    def read_on() -> None:
        keeper.take(30_000)
        reactor.call_later(0.001, read_on)

    if reads:
        read_on()
    began = time.monotonic()
    spool.abandon(20.0 if reads else 0.1, reactor.stop)
    reactor.run()
    took_s = time.monotonic() - began
    while keeper.take(1 << 20):
        pass
    kinds = [frame.kind for frame in read(keeper.lives[0])]
    assert kinds == ([Kind.OPEN, Kind.SERVER, Kind.CLOSE] if reads else [Kind.OPEN])
    missed = spool.tally.missed
    assert (missed.connections, missed.bytes) == ((0, 0) if reads else (1, 400_000))
    assert took_s < 20 if reads else took_s >= 0.1
    assert keeper.sock is not None and keeper.sock.recv(1) == b"", "hung up"
    keeper.die()
    reactor.close()
