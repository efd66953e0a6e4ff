"""Which format a file is, and its records."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kvtop.capture.importers import claude_bodies, files, har, jsonl, litellm, mitmproxy, vllm_log
from kvtop.capture.importers.exchange import Bad, Item, words
from kvtop.errors import UsageError, printable

FORMATS = ("claude-bodies", "litellm", "har", "mitmproxy", "vllm-log", "jsonl")

_READERS: dict[str, Callable[[bytes], Iterator[Item]]] = {"har": har.read, "mitmproxy": mitmproxy.read}
_STREAMED: dict[str, Callable[[files.Source], Iterator[Item]]] = {"litellm": litellm.read, "jsonl": jsonl.read}
_LOG = (b"prompt_token_ids:", b"Received request ", b" JSON body: ")


class Opened:
    """A file, or a folder of bodies, that could be read, and what it is."""

    def __init__(self, path: Path, format: str | None = None, waits: files.Waits = lambda _: None) -> None:
        """`waits`: as of `files.Source`. Raises UsageError where it cannot be read, or nothing can be imported."""
        self.path = path
        self.guessed = format is None
        self._source: files.Source | None = None
        try:
            written = path.stat().st_mtime
            self.written_at = written if files.YEARS[0] <= written < files.YEARS[1] else time.time()
            bodies = path.is_dir() and claude_bodies.is_folder(path)
        except OSError as error:
            raise UsageError(f"cannot read '{printable(str(path))}': {error.strerror or error}") from None
        if path.is_dir() and not bodies:
            what = f"'{printable(str(path))}' is a folder without Claude Code's bodies (*{claude_bodies.REQUEST})"
            raise UsageError(what, "name the files in it")
        if path.is_dir() and format not in (None, "claude-bodies"):
            raise UsageError(f"'{printable(str(path))}' is a folder: the format {format} is of files")
        head = b""
        if not path.is_dir():
            source = files.Source(path, waits)
            head = source.head()
            if not head:
                raise UsageError(f"'{printable(str(path))}' is empty")
            if source.regular:
                source.close()  # many files are opened one after the other, and read later
            else:
                self._source = source
        self.format = format or ("claude-bodies" if bodies else guess(path.name, head))
        if not self.format and not path.is_dir():
            self.format = self._as_log()
        if not self.format:
            what = f"cannot tell what '{printable(str(path))}' is"
            raise UsageError(what, f"say it with --format: {', '.join(FORMATS)}")

    def items(self) -> Iterator[Item]:
        """Its records. Raises UsageError where it is not what was said or guessed."""
        if self.format == "claude-bodies":
            return self._checked(claude_bodies.read(self.path))
        source = self._source or files.Source(self.path)
        if self.format == "vllm-log":
            return self._checked(self._of_log(source))
        if self.format in _STREAMED:
            return self._checked(_STREAMED[self.format](source))
        return self._checked(_READERS[self.format](source.whole()))

    def _of_log(self, source: files.Source) -> Iterator[Item]:
        data = source.whole_lines()
        yield from vllm_log.read(data, self.written_at)
        if source.cut is not None:
            line = data.count(b"\n") + 1
            yield Bad(f"line {line}", files.CUT)

    def _as_log(self) -> str:
        """A log may tell of a request only after long."""
        if self._source is None:
            return "vllm-log" if files.holds(self.path, _LOG) else ""
        data = self._source.whole_lines()
        self._source = files.Held(data, self._source.cut)
        return "vllm-log" if any(word in data for word in _LOG) else ""

    def _checked(self, items: Iterator[Item]) -> Iterator[Item]:
        """What is wrong with a record is told by its reader (exchange.taken); here, that it is no such file at all."""
        number = 0
        try:
            for item in items:
                number += 1
                yield item
        except UsageError as error:
            if not number:
                raise
            yield Bad(f"after record {number}", words(error))
        except Exception as error:  # noqa: BLE001  a file is text from outside
            why = words(error)
            if not number:
                raise UsageError(f"'{printable(str(self.path))}' is no {self.format}: {why}") from None
            yield Bad(f"after record {number}", f"the rest cannot be read: {why}")
        if not number and self.format == "vllm-log":
            raise UsageError(f"'{printable(str(self.path))}' is no {self.format}: no request in it")


def guess(name: str, data: bytes) -> str:
    """The format that a file looks like, by how it begins; empty for none."""
    if name.endswith((claude_bodies.REQUEST, claude_bodies.RESPONSE)):
        return "claude-bodies"
    head = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if re.match(rb"\d{1,12}:\d{1,12}:\w", head) and b":type;4:" in data:
        return "mitmproxy"
    if head[:1] in (b"{", b"["):
        return _guess_json(head)
    return "vllm-log" if any(word in data for word in _LOG) else ""


def _guess_json(head: bytes) -> str:
    if b'"request_file"' in head[:2000] and b'"query_source"' in head[:2000]:
        return "claude-bodies"
    if re.match(rb'\{\s*"log"\s*:\s*\{', head) and b'"entries"' in head:
        return "har"
    if b'"call_type"' in head and (b'"startTime"' in head or b'"standard_logging_object"' in head):
        return "litellm"
    first = head.split(b"\n", 1)[0]
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        whole = re.match(rb'[\[{]\s*["{\]}]', head)
        return "jsonl" if whole else ""
    return "jsonl"
