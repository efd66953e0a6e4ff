"""The text of a log: bytes cut anywhere -> clean lines. Pure.

A progress bar is drawn over itself with carriage returns: each of its states is a line here. Colours and cursor
movements are taken out. A line without an end for very long is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MAX_LINE = 100_000
"""Bytes; what is longer is no line that a person wrote."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)|[ -/]+[0-~]|[@-Z\\-_])")
_ANSI_BYTES = re.compile(_ANSI.pattern.encode())
_PREFIX = re.compile(
    r"^(?:\((?P<process>[^)]{1,60})\) ?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):? +"
    r"(?:\d\d-\d\d (?P<time>\d\d:\d\d:\d\d) )?(?:\[[^\]]{1,100}\] ?)?)?"
)
_POLL = re.compile(
    r"^(?:\([^)]{1,60}\) ?)?INFO\b[^\"]{0,200}\"GET "
    r"(?:(?:/metrics|/health|/v1/models)(?:\?[^ \"]{0,200})? HTTP/[\d.]{1,3}\" 200"
    r"|/(?:version|is_sleeping|kv_event_sources) HTTP/[\d.]{1,3}\" (?:200|404))(?: [A-Za-z ]{0,30})?$"
)

_ASKED = b'"GET /'
_LONGEST_POLL = 600


class Lines:
    """Feeds on bytes, gives lines that have ended. However the bytes were cut, the lines are the same."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        pieces = re.split(rb"[\r\n]", self._rest + data)
        # What has not ended is cut where it would be cut if it came in one piece.
        self._rest = pieces.pop()
        while len(self._rest) >= MAX_LINE:
            pieces.append(self._rest[:MAX_LINE])
            self._rest = self._rest[MAX_LINE:]
        for piece in pieces:
            for start in range(0, len(piece), MAX_LINE):
                if line := clean(piece[start : start + MAX_LINE]):
                    yield line


def whole_lines(data: bytes) -> bytes:
    """What was cut in front, without the line that was cut."""
    first = re.search(rb"[\r\n]", data)
    return data[first.end() :] if first is not None else b""


def clean(line: bytes) -> str:
    """Without colours and cursor movements, as text. What else controls a terminal stays: see `errors.printable`."""
    return _ANSI.sub("", line.decode("utf-8", "replace")).rstrip()


def colourless(lines: bytes) -> bytes:
    """The same lines, without colours and cursor movements."""
    return _ANSI_BYTES.sub(b"", lines)


def is_poll(line: str) -> bool:
    """Whether it tells of an answered question such as kvtop and other watchers ask every second. Who asked it does not
    say; one that was refused is none."""
    return _POLL.match(line) is not None


class Quiet:
    """A log as it grows, without the lines that are polls. However the bytes were cut, it is the same in the end."""

    def __init__(self) -> None:
        self.left_out = 0
        self._held = b""
        self._open = False
        """The beginning of a line was handed on."""

    def feed(self, data: bytes) -> bytes:
        """The rest of it. What may be the beginning of a poll is held until its line has ended."""
        text, self._held, kept = self._held + data, b"", []
        pieces = text.splitlines(keepends=True)
        for number, piece in enumerate(pieces, 1):
            ended = piece.endswith((b"\n", b"\r"))
            if self._open or not (_ASKED in piece if ended else _may_be_poll(piece)):
                kept.append(piece)
                self._open = not ended
            elif not ended or (piece.endswith(b"\r") and number == len(pieces)):  # the other half of its end may come
                self._held = piece
            elif is_poll(clean(piece)):
                self.left_out += 1
            else:
                kept.append(piece)
        return b"".join(kept)

    def rest(self) -> bytes:
        """What is held, when nothing more of it comes."""
        held, self._held = self._held, b""
        if held and is_poll(clean(held)):
            self.left_out += 1
            return b""
        self._open = self._open or bool(held)
        return held


def _may_be_poll(piece: bytes) -> bool:
    begins = piece.startswith((b"(", b"\x1b", b"INFO")) or b"INFO".startswith(piece)
    return begins and len(piece) < _LONGEST_POLL


def less_polls(lines: Iterable[str]) -> tuple[list[str], int]:
    """(the lines that are no polls, how many were)."""
    every = list(lines)
    kept = [line for line in every if not is_poll(line)]
    return kept, len(every) - len(kept)


def split(line: str) -> tuple[str, str, str]:
    """(process, level, what it says) of a line of vLLM's; empty where it has none."""
    found = _PREFIX.match(line)
    if found is None:
        return "", "", line
    return found["process"] or "", found["level"] or "", line[found.end() :]


def told(line: str) -> tuple[str, str, str]:
    """(time of day, level, what it says), for a list of lines; empty where it has none."""
    found = _PREFIX.match(line)
    if found is None:
        return "", "", line
    return found["time"] or "", found["level"] or "", line[found.end() :]
