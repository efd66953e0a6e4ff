"""The bytes of a file to import, unpacked, and what stands in them as JSON."""

from __future__ import annotations

import io
import json
import os
import select
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from kvtop.capture.importers.exchange import Bad, Odd, words
from kvtop.errors import UsageError, printable

MAX_BYTES = 2 << 30
"""Of one file, unpacked."""
MAX_LINE = 64 << 20
"""Of a line that is read as JSON: such a one takes eight times as much memory."""
MAX_VALUES = 5_000_000
"""Of one JSON text; its strings' commas and brackets count too."""
BOM = b"\xef\xbb\xbf"
HEAD = 1 << 20
"""What is looked at to tell a format."""
YEARS = (946_684_800.0, 4_102_444_800.0)
"""2000 and 2100: a time outside is none."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 20
_ZSTD_PIECE = 1 << 10
"""Is unpacked at a time: no more than 32 MiB come out of it, and its output cannot be capped otherwise."""
CUT = "the file ends before its packing does"
_WAIT_S = 0.3
"""A pipe that nobody has opened for so long is waited for with a word."""

Waits = Callable[[str], None]


class Source:
    """A file's bytes, unpacked as they are read: once, in order. Raises UsageError wherever it cannot be read, or is
    more than MAX_BYTES."""

    def __init__(self, path: Path, waits: Waits = lambda _: None) -> None:
        """`waits` gets a line for the terminal before a pipe is waited for that nobody writes to."""
        self._path = path
        self.cut: UsageError | None = None
        """Found once what it is packed in has ended too early: what came before that is right."""
        with self._told():
            self.regular = _kind(path)
            self._file: io.BufferedReader | None = _opened(path, self.regular, waits)
            self._pieces = self._counted(_pieces_of(self._file))
        self._read = bytearray()
        """Read, and not yet given out."""

    def close(self) -> None:
        """Read no further. What is read to its end is closed by itself."""
        if self._file is not None:
            self._file.close()

    def head(self) -> bytes:
        """What it begins with, HEAD bytes if there are as many; they are given out again. Of a cut one that too, if
        there is anything."""
        while len(self._read) < HEAD and (piece := next(self._pieces, b"")):
            self._read += piece
        if self.cut is not None and not self._read:
            raise self.cut
        return bytes(self._read[:HEAD])

    def whole(self) -> bytes:
        """All of it. Raises UsageError for a cut one too."""
        data = self.whole_lines()
        if self.cut is not None:
            raise self.cut
        return data

    def whole_lines(self) -> bytes:
        """All of it; of a cut one the lines that are whole."""
        for piece in self._pieces:
            self._read += piece
        if self.cut is not None:
            del self._read[self._read.rfind(b"\n") + 1 :]
        data, self._read = bytes(self._read), bytearray()
        return data

    def lines(self) -> Iterator[bytes | None]:
        """Its lines without their ends; None for one that is longer than MAX_LINE. The last one of a cut file comes as
        far as it goes; `cut` is set by then."""
        held, too_long = bytearray(), False
        for piece in self._rest():
            first, *others = piece.split(b"\n")
            too_long = too_long or len(held) + len(first) > MAX_LINE
            held = bytearray() if too_long else held + first
            for line in others:
                yield None if too_long else bytes(held)
                too_long = len(line) > MAX_LINE
                held = bytearray() if too_long else bytearray(line)
        if held or too_long:
            yield None if too_long else bytes(held)

    def _rest(self) -> Iterator[bytes]:
        """Small pieces: what is made of one is here at the same time."""
        begun, self._read = bytes(self._read), bytearray()
        for piece in chain((begun,), self._pieces):
            for at in range(0, len(piece), _CHUNK):
                yield piece[at : at + _CHUNK]

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        size = 0
        with self._told():
            for part in self._till_cut(pieces):
                size += len(part)
                if size > MAX_BYTES:
                    what = f"'{printable(str(self._path))}' holds more than {MAX_BYTES >> 30} GiB"
                    raise UsageError(what, "import it in pieces")
                if part:  # of packed ones some give nothing yet
                    yield part

    def _till_cut(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from pieces
        except EOFError:
            what = f"cannot read '{printable(str(self._path))}': {CUT}"
            self.cut = UsageError(what, "write it anew; only what has one record a line can be read as far as it goes")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, zlib.error) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"cannot read '{printable(str(self._path))}': {printable(why)}") from None


class Held(Source):
    """Bytes that are here already."""

    def __init__(self, data: bytes, cut: UsageError | None = None) -> None:
        self.regular = True
        self.cut = cut
        self._file = None
        self._pieces = iter(())
        self._read = bytearray(data)


def source(given: bytes | Source) -> Source:
    return Held(given) if isinstance(given, bytes) else given


def read(path: Path) -> bytes:
    """What a file holds, unpacked if it is gzip or zstd. Raises UsageError where it cannot be read."""
    return Source(path).whole()


def holds(path: Path, words: Sequence[bytes]) -> bool:
    """Whether one of these short words stands in a regular file. Raises UsageError as `Source`."""
    before = b""
    looked_in = Source(path)
    try:
        for piece in looked_in._pieces:
            looked = before + piece
            if any(word in looked for word in words):
                return True
            before = looked[-64:]
    finally:
        looked_in.close()
    return False


def _kind(path: Path) -> bool:
    """Whether it is a regular file; else a pipe. Raises UsageError for what is neither, OSError."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        raise UsageError(f"'{printable(str(path))}' is neither a file nor a pipe", "name the file")
    return stat.S_ISREG(mode)


def _opened(path: Path, regular: bool, waits: Waits) -> io.BufferedReader:
    if regular:
        return path.open("rb")
    # Opened as usual, a pipe holds kvtop here without a word until somebody writes to it.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if not poll.poll(_WAIT_S * 1000):
            waits(f"waits for a writer of the pipe '{printable(str(path))}'; ctrl-c ends it")
            poll.poll()
        os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _pieces_of(file: io.BufferedReader) -> Iterator[bytes]:
    with file:
        head = file.peek(4)[:4]
        if head.startswith(_GZIP):
            import gzip

            with gzip.open(file) as unpacked:
                # `read` would throw away what it has read where the end is missing
                while piece := unpacked.read1(_CHUNK):
                    yield piece
        elif head == _ZSTD:
            yield from _unpacked(file)
        else:
            yield from _pieces(file)


def _pieces(file: Any, size: int = _CHUNK) -> Iterator[bytes]:
    while piece := file.read(size):
        yield piece


def _unpacked(file: io.BufferedReader) -> Iterator[bytes]:
    """What zstd frames hold. Raises EOFError where the last one is cut, OSError where one is none."""
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    for piece in _pieces(file, _ZSTD_PIECE):
        while piece:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            try:
                yield frame.decompress(piece)
            except zstandard.ZstdError as error:
                raise OSError(str(error)) from None
            piece = frame.unused_data if frame.eof else b""
    if not frame.eof:
        raise EOFError


class Entry(NamedTuple):
    """A JSON object of a file."""

    where: str
    value: dict[str, Any]
    line: bytes
    """As it stands there, where it is a line."""


def objects(given: Source) -> Iterator[Entry | Bad]:
    """The JSON objects of a file with their places: a document, a list of them, or one a line."""
    head = given.head().removeprefix(BOM).lstrip()
    first, end, _ = head.partition(b"\n")
    if head[:1] == b"[" or (head[:1] == b"{" and end and not _is_json(first)):
        data = given.whole()
        try:
            whole = parsed(data.removeprefix(BOM))
        except (ValueError, RecursionError):
            whole = None
        if isinstance(whole, dict):
            yield Entry("entry 1", whole, b"")
            return
        if isinstance(whole, list):
            for at, entry in enumerate(whole, 1):
                one = Entry(f"entry {at}", entry, b"") if isinstance(entry, dict) else None
                yield one or Bad(f"entry {at}", "no JSON object")
            return
        given = Held(data)
        del data
    at = 0
    for at, line in enumerate(given.lines(), 1):
        where = f"line {at}"
        if line is None:
            yield Bad(where, f"longer than {MAX_LINE >> 20} MB")
            continue
        line = line.removeprefix(BOM).strip()
        if not line:
            continue
        try:
            found = parsed(line)
        except (ValueError, RecursionError) as error:
            if given.cut is not None:
                at -= 1
                break
            yield Bad(where, f"no JSON: {words(error)}")
            continue
        yield Entry(where, found, line) if isinstance(found, dict) else Bad(where, "no JSON object")
    if given.cut is not None:
        yield Bad(f"line {at + 1}", CUT)


def parsed(data: bytes) -> Any:
    """The value of a JSON text. Raises ValueError, Odd for what has more than MAX_VALUES values; RecursionError."""
    if len(data) > MAX_VALUES and sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise Odd(f"more than {MAX_VALUES:,} values")
    return json.loads(data)


def _is_json(line: bytes) -> bool:
    try:
        parsed(line)
    except (ValueError, RecursionError):
        return False
    return True


def unix_time(value: object) -> float | None:
    """A time as Unix seconds: a number of seconds or milliseconds, or ISO 8601; None for what is none, or lies outside
    YEARS."""
    at = _seconds(value)
    return at if at is not None and YEARS[0] <= at < YEARS[1] else None


def _seconds(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        if not 0 < value < 1e14:  # looked at as it stands: of 400 digits there is no float
            return None
        return value / 1000 if value >= 1e11 else float(value)
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
