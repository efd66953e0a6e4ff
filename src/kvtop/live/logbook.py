"""A log in lines: the end of it in memory, an index of where each line begins, and what was found in it.

Of a large log the last part is held, and no more of it is read. A progress bar that is drawn over itself is a line for
each of its states.
"""

from __future__ import annotations

import os
import re
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from kvtop.profiles.running import logs, record, tools
from kvtop.profiles.running.record import Record
from kvtop.profiles.running.runners import runner_of
from kvtop.profiles.running.text import Quiet, clean, colourless
from kvtop.sources.masking import text_without_secrets

KEPT = 64_000_000
"""Bytes of a log that are held: more than one that kvtop rotates ever has."""
FIRST = 400_000
"""Bytes that are read first, so that the end is there at once."""
LONGEST = 4_000
"""Bytes of a line that are shown."""
TOOL_LINES = 100_000
_UNENDED_LOOKS = 2
_ENDS = re.compile(rb"\r\n|[\r\n]")


@lru_cache(2_000)
def _masked(line: str) -> str:
    """Each line that is seen is drawn again and again, and masking takes a hundred times as long as the rest of it."""
    return text_without_secrets(line)


class LogBook:
    """Lines of bytes. `feed` adds to the end."""

    def __init__(self, data: bytes = b"", skipped: int = 0) -> None:
        """`skipped`: bytes of the log in front of it that are not here; its first line is left out then, being a part
        of one."""
        self.skipped = skipped
        self._data = bytearray()
        self._begins = array("Q", [0])
        """Where each line begins; the last one has not ended, and may be empty."""
        if skipped and (first := _ENDS.search(data)) is not None:
            self.skipped += first.end()
            data = data[first.end() :]
        self.feed(data)

    def __len__(self) -> int:
        """Lines; an empty one at the end is none."""
        return len(self._begins) - (1 if self._begins[-1] == len(self._data) else 0)

    @property
    def size(self) -> int:
        """Bytes of the whole log."""
        return self.skipped + len(self._data)

    def feed(self, data: bytes) -> None:
        """What came."""
        if not data:
            return
        at = len(self._data)
        if at and data[:1] == b"\n" and self._data[-1:] == b"\r":
            self._begins.pop()  # the two are one end
            at -= 1
        self._data += data
        begins = _begins(_ends_alike(bytes(self._data[at:])), at)
        next(begins)
        self._begins.extend(begins)

    def line(self, i: int) -> str:
        """Without colours and secrets; what controls a terminal is still in it."""
        begin = self._begins[i]
        end = self._begins[i + 1] if i + 1 < len(self._begins) else len(self._data)
        return _masked(clean(bytes(self._data[begin : min(end, begin + LONGEST)]).rstrip(b"\r\n")))

    def matches(self, text: str) -> Sequence[int]:
        """The lines that have this text as they are shown, whatever the case of its letters from a to z, by number."""
        found = array("Q")
        data, starts, want = _ends_alike(bytes(self._data)), self._begins, text.encode().lower()
        if b"\x1b" in data:
            data = colourless(data)
            starts = array("Q", _begins(data, 0))
        data = data.lower()
        at = data.find(want) if want else -1
        while at >= 0:
            line = bisect_right(starts, at) - 1
            found.append(line)
            if line + 1 >= len(starts):
                break
            at = data.find(want, starts[line + 1])
        return found


def _ends_alike(data: bytes) -> bytes:
    """As long as it was, each end of a line \\n: ten times as fast as looking for each."""
    return data.replace(b"\r\n", b" \n").replace(b"\r", b"\n")


def _begins(data: bytes, at: int) -> Iterator[int]:
    """Where each of its lines begins; it stands at `at`. The last one has not ended, and may be empty."""
    pieces = data.split(b"\n")
    pieces.pop()
    return accumulate((len(piece) + 1 for piece in pieces), initial=at)


class LogReader:
    """The log of one start: of a file its end, from the runner's own tool what it gives. All of it blocks."""

    def __init__(self, state: Record) -> None:
        self._state = state
        runner = runner_of(state)
        self._none = runner.no_log
        self._words = runner.log_command(TOOL_LINES, False)
        self._follow = runner.log_command(0, True)
        self._path = Path(state.log)
        self._quiet: Quiet | None = None
        self._idle = 0
        """Looks since anything came."""
        self._tail: logs.Tail | None = None
        self._lock = threading.Lock()
        self._closed = False

    @property
    def where(self) -> str:
        return str(self._path) if self._words is None else " ".join(self._words[:2])

    @property
    def left_out(self) -> int:
        """Polls that were."""
        return self._quiet.left_out if self._quiet is not None else 0

    def read(self, most: int, *, polls: bool = True) -> LogBook:
        """Its last `most` bytes, from now on followed by `more`. `polls`: with the lines that only tell of them. Raises
        OSError, `tools.Failed`."""
        quiet = None if polls else Quiet()
        book = self._read(most, quiet)
        self._quiet = quiet
        return book

    def _read(self, most: int, quiet: Quiet | None) -> LogBook:
        self._turn_to(None)
        if self._none:
            raise tools.Failed(f"its last start has no log: {self._none}")
        if self._words is not None:
            said = tools.log(self._words, most)
            self._turn_to(logs.CommandTail(self._follow) if self._follow is not None else None)
            return LogBook(_less(said, quiet))
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = max(0, size - most)
            file.seek(begin)
            data = file.read(size - begin)
        self._turn_to(logs.FileTail(self._path, begin + len(data)))
        return LogBook(_less(self._parted(data, begin), quiet), begin)

    def _parted(self, data: bytes, begin: int) -> bytes:
        """With a line between what earlier starts have written and this one."""
        at = self._state.log_offset - begin
        if not self._state.log_offset or not 0 <= at <= len(data):
            return data
        end = b"" if not at or data[:at].endswith((b"\n", b"\r")) else b"\n"
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._state.started_at))
        return b"%b%b---- started %b ----\n%b" % (data[:at], end, when.encode(), data[at:])

    def more(self) -> bytes:
        """What came since. A line that has no end is there after a moment."""
        data = self._came()
        self._idle = 0 if data else self._idle + 1
        if self._quiet is not None and self._idle >= _UNENDED_LOOKS:
            return self._quiet.rest()
        return _less(data, self._quiet)

    def _came(self) -> bytes:
        tail = self._tail
        data = tail.read() if tail is not None else b""
        if not data or not isinstance(tail, logs.FileTail):
            return data
        now, begin = record.read(self._state.name), tail.at - len(data)
        if now is None or now.log != self._state.log or now.started_at <= self._state.started_at:
            return data
        if now.log_offset > tail.at:
            return data  # still the end of the one before
        self._state = now
        return self._parted(data, begin)

    def elsewhere(self) -> Record | None:
        """The last start of its profile, where that writes its log to another place by now: past a sidecar, or in a new
        container. None: it does not."""
        now = record.read(self._state.name)
        if now is None or not 0 < self._state.started_at <= now.started_at:
            return None
        here, there = _place(self._state), _place(now.at_sidecar())
        return now.at_sidecar() if here != there and any(there[1:]) else None

    def close(self) -> None:
        """Also while another thread is in `read`: what that begins to follow is ended with it."""
        with self._lock:
            self._closed = True
        self._turn_to(None)

    def _turn_to(self, tail: logs.Tail | None) -> None:
        with self._lock:
            if self._closed and tail is not None:
                left: logs.Tail | None = tail
            else:
                left, self._tail = self._tail, tail
        if left is not None:
            left.close()


def _place(state: Record) -> tuple[str, ...]:
    if state.runner in ("docker", "compose"):
        return state.runner, state.container
    return state.runner, state.unit if state.runner == "systemd" else state.log


def _less(data: bytes, quiet: Quiet | None) -> bytes:
    return data if quiet is None else quiet.feed(data)
