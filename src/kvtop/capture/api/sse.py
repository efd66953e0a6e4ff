"""A stream of server-sent events: which events bring content, and when.

Bytes are searched, not parsed: a text that holds such bytes has them escaped in its JSON. Until the first event with
content each read is looked through as it comes; after that only its time is noted, and the events are found at the end.

Line ends of CR alone and events over several data lines are valid and seldom: a stream is taken for one of those where
nothing is found in it as it stands, and is then rewritten, byte for byte in its place, to what the search knows.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from operator import sub

from kvtop.capture.turn import Route

MAX_READS = 200_000
"""Of one stream, whose times are kept; what comes later counts as of the last of them."""


def _later_in_line(head: bytes, tail: bytes) -> re.Pattern[bytes]:
    """`tail` anywhere after the line's first `head`, as group 1; without it the match takes the rest of the line.

    A head that nothing follows must not be a failure: from each further head of the line the same rest would be read
    again, and a line that repeats it would cost the square of its length.
    """
    return re.compile(head + rb"[^\n]*?(?:(" + tail + rb")|\n|\Z)")


_CONTENT = {
    Route.CHAT: (
        _later_in_line(
            rb'"delta":\s*\{',
            rb'"(?:content|reasoning|reasoning_content|refusal)":\s*"(?!")|"tool_calls":\s*\[\s*\{',
        ),
    ),
    Route.COMPLETIONS: (re.compile(rb'"text":\s*(")(?!")'),),
    Route.MESSAGES: (
        _later_in_line(rb'"delta":\s*\{', rb'"(?:text|thinking|partial_json)":\s*"(?!")'),
        _later_in_line(rb'"content_block":\s*\{', rb'"type":\s*"(?:tool_use|server_tool_use|redacted_thinking)"'),
    ),
    Route.RESPONSES: (
        re.compile(rb'"delta":\s*(")(?!")'),
        _later_in_line(rb'output_item\.added(?:"|\r?\ndata:)', rb'"type":\s*"[a-z_]+_call"'),
    ),
}
"""What an event with content holds: a match with a group. Each begins with fixed bytes, so that it is found fast."""


_CR = re.compile(rb"\r(?!\n)")
_SPREAD = re.compile(rb"(?:\A|(?<=\n))data:[^\n]*(?:\ndata:[^\n]*)+")


def line_ends(data: bytes) -> bytes:
    """The bytes with each CR that is a line's whole end as LF; none is shifted."""
    return _CR.sub(b"\n", data) if b"\r" in data else data


def _plain(data: bytes) -> bytes:
    """The bytes of whole events, the data of each on one line; none is shifted."""
    data = line_ends(data)
    if b"\ndata:" not in data:
        return data
    return _SPREAD.sub(lambda found: found[0].replace(b"\ndata:", b"      "), data)


class EventTimes:
    """The times of one stream's reads, and what follows from them."""

    def __init__(self, route: Route) -> None:
        self._content = _CONTENT.get(route, _CONTENT[Route.CHAT])
        self._ends = array("q")
        self._times = array("q")
        self._seen = 0
        """Bytes of whole events that were looked through."""
        self._rewritten = False
        """Content was found only in what `_plain` made of it."""
        self.first_ns: int | None = None
        """The read that completed the first event with content, reasoning or a tool call."""

    def read(self, body: bytearray, at_ns: int) -> bool:
        """`body` has grown by a read at that time. Whether that completed the first event with content."""
        ends = self._ends
        before = ends[-1] if ends else 0
        if len(ends) < MAX_READS:
            ends.append(len(body))
            self._times.append(at_ns)
        if self.first_ns is not None:
            return False
        start = max(self._seen, before - 3)
        end = _boundary(body, start)
        if (alone := end <= self._seen and body.find(b"\r", start) >= 0) and (
            end := _boundary(line_ends(bytes(body[start:])), 0)
        ) > 0:
            end += start
        if end <= self._seen:
            return False
        found = not alone and self._has_content(body, self._seen, end)
        if not found:
            as_it_is = bytes(body[self._seen : end])
            plain = _plain(as_it_is)
            found = self._rewritten = plain != as_it_is and self._has_content(plain, 0, len(plain))
        self._seen = end
        if found:
            self.first_ns = at_ns
        return found

    def _has_content(self, data: bytes | bytearray, start: int, end: int) -> bool:
        return any(m.lastindex for pattern in self._content for m in pattern.finditer(data, start, end))

    def later(self, ends: Sequence[int], times: Sequence[int]) -> None:
        """Several reads after the first content: where each ends in what they added together, and when it came."""
        before = self._ends[-1] if self._ends else 0
        room = MAX_READS - len(self._ends)
        self._ends.extend([before + end for end in ends[:room]])
        self._times.extend(times[:room])

    def gaps(self, body: bytes) -> tuple[list[float], bool]:
        """Seconds between one content event and the next, and whether several came in one read. Those share the time
        since the read before evenly, since their own times are not known."""
        times = self._event_times(body)
        if len(set(times)) == len(times):
            return [gap / 1e9 if gap > 0 else 0.0 for gap in map(sub, times[1:], times)], False
        reads = Counter(times)
        gaps: list[float] = []
        for before, now in pairwise(reads):
            gaps.extend([max(0, now - before) / 1e9 / reads[now]] * reads[now])
        return gaps, True

    def _event_times(self, body: bytes) -> list[int]:
        """When each event with content was complete."""
        if self.first_ns is None:
            return []
        if self._rewritten:
            body = _plain(body)
        apart = b"\r\n\r\n" if b"\r\n\r\n" in body[:65_536] else b"\n\n"
        width = len(apart)
        found: list[int] = []
        for pattern in self._content:
            at = 0
            for match in pattern.finditer(body):
                if match.lastindex is None or match.start() < at:
                    continue
                at = body.find(apart, match.end()) + width
                if at < width:
                    break
                found.append(at)
        if len(self._content) > 1:
            found = sorted(set(found))
        ends = self._ends.tolist()
        try:  # as a rule an event ends with a read
            return list(map(dict(zip(ends, self._times, strict=True)).__getitem__, found))
        except KeyError:
            pass
        times: list[int] = []
        read, last = 0, len(ends) - 1
        for end in found:
            while ends[read] < end and read < last:
                read += 1
            times.append(self._times[read])
        return times


def _boundary(body: bytes | bytearray, start: int) -> int:
    """Where the last whole event ends, looked for from there on; or -1."""
    end = max(body.rfind(b"\n\n", start), body.rfind(b"\n\r\n", start) + 1)
    return end + 2 if end > 0 else -1
