"""Requests whose heads are not as HTTP/1.1 says, and which a server may answer all the same: what is certain of them.

Where a line other than those that tell the body's end is odd, the request is read on without its value. Of any other
only the first line is believed.
"""

from __future__ import annotations

import re

from kvtop.capture.api.redact import REMOVED
from kvtop.capture.recorder.framing import Broken, Framing, RequestHead, request_head

_FIRST = re.compile(rb"([A-Z][A-Z-]{1,20}) ([^\x00-\x20\x7f]{1,65536})(?: HTTP/[0-9.]{1,5})?\r?\n")
_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_FRAMING = re.compile(rb"(?i)content-length|transfer-encoding|upgrade")


def read(data: bytes) -> RequestHead:
    """A request's head, its empty line included, odd or not. Raises Broken where its body's end is not certain."""
    try:
        return request_head(data)
    except Broken:
        first, *lines = data[:-4].split(b"\r\n")
        good, odd = _sorted(lines)
        if not odd or any(_FRAMING.search(line) for line in odd):
            raise
        head = request_head(b"\r\n".join([first, *good]) + b"\r\n\r\n")
        names = [line.partition(b":")[0].strip() for line in odd if b":" in line]
        headers = [*head.headers, *((name.decode("ascii"), REMOVED) for name in names if _NAME.fullmatch(name))]
        return head._replace(headers=headers, odd=True)


def _sorted(lines: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Those that can be read, and those that cannot; what is folded belongs to the line before."""
    whole: list[bytes] = []
    for line in lines:
        if line[:1] in (b" ", b"\t") and whole:
            whole[-1] += b"\r\n" + line
        else:
            whole.append(line)
    return [line for line in whole if _LINE.fullmatch(line)], [line for line in whole if not _LINE.fullmatch(line)]


def first_line(data: bytes) -> RequestHead | None:
    """What the first line of a head says that cannot be read any further; None where it is none."""
    found = _FIRST.match(data)
    if found is None:
        return None
    return RequestHead(found[1].decode("ascii"), found[2].decode("latin-1"), [], Framing.NONE, 0, odd=True)
