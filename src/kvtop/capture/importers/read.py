"""Which format a file is, and its records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from kvtop.capture.importers import claude_bodies, files, har, jsonl, litellm, mitmproxy, vllm_log
from kvtop.capture.importers.exchange import Bad, Item
from kvtop.errors import UsageError, printable

FORMATS = ("claude-bodies", "litellm", "har", "mitmproxy", "vllm-log", "jsonl")
_HEAD = 1 << 20

_READERS: dict[str, Callable[[bytes], Iterator[Item]]] = {
    "litellm": litellm.read,
    "har": har.read,
    "mitmproxy": mitmproxy.read,
    "jsonl": jsonl.read,
}


class Opened:
    """A file, or a folder of bodies, that could be read, and what it is."""

    def __init__(self, path: Path, format: str | None = None) -> None:
        """Raises UsageError where it cannot be read, or is nothing that can be imported."""
        self.path = path
        self.guessed = format is None
        self._data = b""
        try:
            self.written_at = path.stat().st_mtime
            bodies = path.is_dir() and claude_bodies.is_folder(path)
        except OSError as error:
            raise UsageError(f"cannot read '{printable(str(path))}': {error.strerror or error}") from None
        if path.is_dir() and not bodies:
            what = f"'{printable(str(path))}' is a folder without Claude Code's bodies (*{claude_bodies.REQUEST})"
            raise UsageError(what, "name the files in it")
        if path.is_dir() and format not in (None, "claude-bodies"):
            raise UsageError(f"'{printable(str(path))}' is a folder: the format {format} is of files")
        if not path.is_dir():
            self._data = files.read(path)
        self.format = format or ("claude-bodies" if bodies else guess(path.name, self._data))
        if not self.format:
            what = f"cannot tell what '{printable(str(path))}' is"
            raise UsageError(what, f"say it with --format: {', '.join(FORMATS)}")

    def items(self) -> Iterator[Item]:
        """Its records. Raises UsageError where it is not what was said or guessed."""
        if self.format == "claude-bodies":
            return self._checked(claude_bodies.read(self.path))
        if self.format == "vllm-log":
            return self._checked(vllm_log.read(self._data, self.written_at))
        return self._checked(_READERS[self.format](self._data))

    def _checked(self, items: Iterator[Item]) -> Iterator[Item]:
        """What is wrong with a record is told by its reader (exchange.taken); here, that it is no such file at all."""
        number = 0
        try:
            for item in items:
                number += 1
                yield item
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001  a file is text from outside
            why = printable(str(error) or type(error).__name__, 120)
            if not number:
                raise UsageError(f"'{printable(str(self.path))}' is no {self.format}: {why}") from None
            yield Bad(f"after record {number}", f"the rest cannot be read: {why}")


def guess(name: str, data: bytes) -> str:
    """The format that a file looks like; empty for none."""
    if name.endswith((claude_bodies.REQUEST, claude_bodies.RESPONSE)):
        return "claude-bodies"
    head = data[:_HEAD].removeprefix(b"\xef\xbb\xbf").lstrip()
    if re.match(rb"\d{1,12}:\d{1,12}:\w", head) and b":type;4:" in data:
        return "mitmproxy"
    if head[:1] in (b"{", b"["):
        return _guess_json(head)
    log = (b"prompt_token_ids:", b"Received request ", b" JSON body: ")
    return "vllm-log" if any(word in data for word in log) else ""


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
