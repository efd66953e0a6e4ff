"""A stream of server-sent events, looked through as it comes: which events bring content, and when.

Bytes are searched, not parsed: a text that holds such bytes has them escaped in its JSON. What the events say is read
once, at the end (`kvtop.capture.answers`).
"""

from __future__ import annotations

import re
from array import array

from kvtop.capture.turn import Route

MAX_GAPS = 100_000
"""Gaps between events that are kept of one answer."""

_CONTENT = {
    Route.CHAT: re.compile(rb'"(?:content|reasoning|reasoning_content|refusal)":\s*"(?!")|"tool_calls":\s*\[\s*\{'),
    Route.COMPLETIONS: re.compile(rb'"text":\s*"(?!")'),
    Route.MESSAGES: re.compile(
        rb'"(?:text|thinking|partial_json)":\s*"(?!")|"type":\s*"(?:tool_use|server_tool_use|redacted_thinking)"'
    ),
    Route.RESPONSES: re.compile(rb'"delta":\s*"(?!")|output_item\.added[^\0]*"type":\s*"[a-z_]+_call"'),
}


class EventTimes:
    """Feed it a decoded stream as it comes."""

    def __init__(self, route: Route) -> None:
        self._content = _CONTENT.get(route, _CONTENT[Route.CHAT])
        self._rest = bytearray()
        self.first_ns: int | None = None
        """The read that completed the first event with content, reasoning or a tool call."""
        self.coalesced = False
        """Several such events came in one read."""
        self._gaps = array("d")
        self._last_ns = 0
        self._before_ns: int | None = None
        self._burst = 0

    def feed(self, data: bytes, at_ns: int) -> bool:
        """The next bytes; whether they completed the first event with content."""
        rest = self._rest
        if rest:
            seen = max(0, len(rest) - 3)
            rest += data
            end = _boundary(rest, seen)
            if end < 0:
                return False
            whole = bytes(rest[:end])
            del rest[:end]
        else:
            end = _boundary(data, 0)
            if end < 0:
                rest += data
                return False
            if end < len(data):
                rest += data[end:]
                data = data[:end]
            whole = data
        n = self._count(whole)
        if not n:
            return False
        first = self.first_ns is None
        if first:
            self.first_ns = at_ns
        self._arrived(n, at_ns)
        return first

    def gaps(self) -> list[float]:
        """Seconds between one content event and the next. Several that came in one read share the time since the read
        before evenly, since their own times are not known."""
        self._settle()
        return list(self._gaps)

    def _count(self, events: bytes) -> int:
        search = self._content.search
        if events.find(b"\n\n") in (-1, len(events) - 2) and events.find(b"\r\n\r\n") in (-1, len(events) - 4):
            return 1 if search(events) else 0
        return sum(1 for event in events.replace(b"\r\n", b"\n").split(b"\n\n") if search(event))

    def _arrived(self, n: int, at_ns: int) -> None:
        if self._burst and at_ns == self._last_ns:
            self._burst += n
        else:
            self._settle()
            self._before_ns = self._last_ns or None
            self._last_ns, self._burst = at_ns, n
        if self._burst > 1:
            self.coalesced = True

    def _settle(self) -> None:
        if self._burst and self._before_ns is not None and len(self._gaps) < MAX_GAPS:
            gap = max(0, self._last_ns - self._before_ns) / 1e9 / self._burst
            self._gaps.extend([gap] * min(self._burst, MAX_GAPS))
        self._burst = 0


def _boundary(data: bytes | bytearray, seen: int) -> int:
    """Where the last whole event ends, or -1."""
    end = max(data.rfind(b"\n\n", seen), data.rfind(b"\n\r\n", seen) + 1)
    return end + 2 if end > 0 else -1
