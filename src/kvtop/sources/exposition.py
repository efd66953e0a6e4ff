"""The Prometheus text format, read fast: a line's name and labels are parsed once and remembered between scrapes.

In the steady state a server repeats the same series in every text, so each line costs a dictionary lookup and a float.

What is read
- Samples `name{labels} value [timestamp] [# exemplar]`, `# TYPE` lines; CRLF, blank lines, other comments and `# EOF`
  are fine. Of a series that stands twice the last value counts.
- A `vllm:` line outside that grammar goes to prometheus_client's parser, which is imported only then; what it refuses
  too is dropped and counted in `Reader.dropped`. That second look is slow, so `MAX_ODD` lines a text get it, and none
  over `MAX_ODD_CHARS`.
- Nothing in a text makes `read` raise; one of more than `MAX_LINES` lines counts as cut there.

What is kept: `vllm:` samples that `wanted` names (by default all but the `_created` gauges, which are creation times),
process_start_time_seconds, and how often a request was answered that clears the cache; types of `vllm:` families.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import compress, count, pairwise
from operator import ne
from sys import intern

from kvtop.readings import CLEARING, HTTP_REQUESTS, Scrape, SeriesKey

START_TIME = "process_start_time_seconds"

MAX_HEADS = 50_000
"""Remembered line heads; a server of 64 engines has about 30,000."""
MAX_HEAD_CHARS = 12_000_000
MAX_LINES = 400_000
MAX_SERIES = 60_000
"""Samples kept of one text; further ones are dropped and counted."""
MAX_FAMILIES = 4_000
"""Types kept of one text."""
MAX_ODD = 200
MAX_ODD_CHARS = 4_096
"""A longer odd line is dropped unseen: the official parser takes quadratic time."""

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*+="(?:[^"\\]++|\\.)*+"'
_HEAD = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL}(?:,|(?=\}})))*+)\}})?")
_ONE_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*+)="((?:[^"\\]++|\\.)*+)"')
_TAIL = re.compile(r"[ \t]*([^\s#]+)(?:[ \t]+[-+.eE0-9]+)?[ \t]*(?: # .*)?")
_META = re.compile(rf"#[ \t]+(?:TYPE|HELP)[ \t]+({_NAME})")
_TYPE = re.compile(rf"#[ \t]+TYPE[ \t]+({_NAME})[ \t]+(\w+)[ \t]*")
_ESCAPE = re.compile(r'\\([\\n"])')
_CLEARS = tuple(f'{HTTP_REQUESTS}{{handler="{path}",' for path in CLEARING)
"""As the server writes these lines: in another form they are foreign."""
_OURS = ("vllm:", START_TIME, *_CLEARS)
_VLLM, _HTTP, _ELSE = 1, 2, 3
"""What a remembered head is when it is not kept: a vllm: sample, an http_ one, anything else."""

_Memory = SeriesKey | str | int
"""Of a head: the series it names, the family whose `# TYPE` it is, or one of the marks above."""


def _plain(name: str) -> bool:
    return not name.endswith("_created")


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _key(match: re.Match[str]) -> SeriesKey | None:
    """The series of a matched head; None where a label stands twice (left to the official parser)."""
    name, labels = match[1], match[2]
    if not labels:
        return intern(name), ()
    # label names and most values are the same few words on every line
    pairs = [(intern(label), intern(value)) for label, value in _ONE_LABEL.findall(labels)]
    if "\\" in labels:
        pairs = [(label, _ESCAPE.sub(_unescape, value)) for label, value in pairs]
    pairs.sort()
    if any(a[0] == b[0] for a, b in pairwise(pairs)):
        return None
    return intern(name), tuple(pairs)


def _official(line: str) -> tuple[SeriesKey, float] | None:
    """What prometheus_client makes of one odd line; None where it refuses it."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families(line + "\n"):
            for sample in family.samples:
                return (sample.name, tuple(sorted(sample.labels.items()))), float(sample.value)
    except Exception:  # noqa: BLE001  a foreign parser on hostile text: whatever it raises means 'not a sample'
        return None
    return None


def _last_family(lines: list[str]) -> str:
    """The family of the last comment that names one."""
    for line in reversed(lines):
        if line.startswith("#") and (named := _META.match(line)):
            return named[1]
    return ""


def _kind_of(line: str) -> int:
    """The mark of a line of ours."""
    return _ELSE if line.startswith(START_TIME) else _HTTP if line.startswith(_CLEARS) else _VLLM


def _is_half(lines: list[str]) -> bool:
    """Whether the text ends in the middle of a family, although with a whole line: its samples, or the count and the
    sum of a histogram, would follow."""
    last = lines[-1] if lines else ""
    return last.startswith("# HELP") or (last.startswith("vllm:") and last.partition("{")[0].endswith("_bucket"))


class Reader:
    """Reads the texts of one server; remembers its line heads from one text to the next.

    `dropped` is the number of lines of the last text that looked like ours and could not be read or kept.
    """

    def __init__(self, wanted: Callable[[str], bool] | None = None) -> None:
        self._wanted = wanted or _plain
        self._heads: dict[str, _Memory] = {}
        self._chars = 0
        self._before: tuple[list[str], Scrape] | None = None
        """The last text and what it said, where the next one may be read as what changed in it."""
        self.dropped = 0

    def read(self, text: str, at: float | None = None) -> Scrape:
        """The whole text as a scrape. Without a final newline its last line is dropped and `truncated` is set; it is
        also set where the last line cannot be the last one of a text."""
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        lines = text.split("\n", MAX_LINES)  # the last piece is a line without an end, or all that is too much
        truncated = bool(lines.pop()) or _is_half(lines)
        scrape = None if truncated else self._again(lines, at)
        if scrape is None:
            scrape = self._anew(lines, at, truncated)
            clean = not truncated and not self.dropped and self._each_once(lines, scrape)
            self._before = (lines, scrape) if clean else None
        else:
            self._before = (lines, scrape)
        return scrape

    def _again(self, lines: list[str], at: float | None) -> Scrape | None:
        """Read only the lines that differ from the last text's; None where more than numbers changed.

        Most lines of a text are those of the second before: half of the cost is finding that out.
        """
        if self._before is None or len(lines) != len(self._before[0]):
            return None
        before, last = self._before
        values: dict[SeriesKey, float] | None = None
        for i in compress(count(), map(ne, lines, before)):
            head, _, tail = lines[i].rpartition(" ")
            known = self._heads.get(head)
            if known is None or type(known) is str or before[i].rpartition(" ")[0] != head:
                return None
            if type(known) is tuple:
                try:
                    value = float(tail)
                except ValueError:
                    return None
                if values is None:
                    values = dict(last.values)
                values[known] = value
        return replace(last, values=last.values if values is None else values, at=at)

    def _each_once(self, lines: list[str], scrape: Scrape) -> bool:
        """No series stands twice and each head is remembered, so that a line alone says what changed."""
        known = (self._heads.get(line.rpartition(" ")[0]) for line in lines)
        return sum(type(memory) is tuple for memory in known) == len(scrape.values)

    def _anew(self, lines: list[str], at: float | None, truncated: bool) -> Scrape:
        values: dict[SeriesKey, float] = {}
        types: dict[str, str] = {}
        marks: set[int] = set()
        odd: list[str] = []
        self.dropped = 0
        heads = self._heads
        for line in lines:
            head, _, tail = line.rpartition(" ")
            known = heads.get(head)
            if known == _ELSE:
                continue
            if known is None:
                known = self._first_sight(line, head, values, types, odd)
            elif type(known) is tuple:
                try:
                    values[known] = float(tail)
                except ValueError:
                    odd.append(line)
                    marks.add(_kind_of(line))
            elif type(known) is str:
                types[known] = tail
            if type(known) is int:
                marks.add(known)
        self._leftovers(odd, values)
        if not truncated and lines and (last := _TYPE.fullmatch(lines[-1])):
            marks.add(_VLLM if last[1].startswith("vllm:") else _ELSE)
            types.pop(last[1], None)  # its samples may be cut off: 'present, nothing yet' would be a guess
        self._forget()
        return Scrape(
            values=values,
            types=types,
            at=at,
            truncated=truncated,
            ends=_last_family(lines),
            has_vllm=bool(types or _VLLM in marks or any(name.startswith("vllm:") for name, _ in values)),
            has_http=_HTTP in marks or any(name == HTTP_REQUESTS for name, _ in values),
        )

    def _first_sight(
        self, line: str, head: str, values: dict[SeriesKey, float], types: dict[str, str], odd: list[str]
    ) -> _Memory | None:
        """Read a line whose head is new; remember the head where it always means the same. Returns a mark, if any."""
        if line.startswith("#"):
            return self._comment(line, head, types)
        if not line.startswith(_OURS):
            stripped = line.strip()
            if not stripped.startswith((*_OURS, '{"vllm:')):
                return self._mark(line, head, _HTTP if stripped.startswith("http_") else _ELSE)
            line = stripped
        match = _HEAD.match(line)
        tail = match and _TAIL.fullmatch(line, match.end())
        key = _key(match) if match and tail else None
        if key is None or match is None or not tail:
            odd.append(line)
            return _kind_of(line)
        try:
            value = float(tail[1])
        except ValueError:
            odd.append(line)
            return _kind_of(line)
        name = key[0]
        if not (name in (START_TIME, HTTP_REQUESTS) or (name.startswith("vllm:") and self._wanted(name))):
            return self._mark(line, head, _VLLM if name.startswith("vllm:") else _ELSE)
        if len(values) >= MAX_SERIES:
            self.dropped += 1
            return _VLLM
        values[key] = value
        if match.end() == len(head):
            self._remember(head, key)
        return None

    def _comment(self, line: str, head: str, types: dict[str, str]) -> _Memory | None:
        match = _TYPE.fullmatch(line)
        if match is None:
            if not line.startswith("# TYPE"):  # of a damaged type line the head may come again, whole
                self._remember(head, _ELSE)
            return None
        family = match[1]
        if not family.startswith("vllm:"):
            return self._mark(line, head, _HTTP if family.startswith("http_") else _ELSE)
        if len(types) >= MAX_FAMILIES:
            return _VLLM
        types[family] = match[2]
        if head.endswith(family):
            self._remember(head, family)
        return None

    def _mark(self, line: str, head: str, mark: int) -> int:
        # a head may be remembered as foreign only where nothing of ours can ever begin with it
        if head and not head.isspace() and not line[0].isspace():
            self._remember(head, mark)
        return mark

    def _remember(self, head: str, memory: _Memory) -> None:
        if head and len(self._heads) < MAX_HEADS and self._chars < MAX_HEAD_CHARS:
            self._heads[head] = memory
            self._chars += len(head)

    def _forget(self) -> None:
        """Begin anew when the memory is full, so that series which are gone make room for those of today."""
        if len(self._heads) >= MAX_HEADS or self._chars >= MAX_HEAD_CHARS:
            self._heads.clear()
            self._chars = 0

    def _leftovers(self, odd: list[str], values: dict[SeriesKey, float]) -> None:
        self.dropped += max(0, len(odd) - MAX_ODD)
        for line in odd[:MAX_ODD]:
            found = _official(line) if len(line) <= MAX_ODD_CHARS else None
            if found is None:
                self.dropped += 1
                continue
            key, value = found
            if key[0] in (START_TIME, HTTP_REQUESTS) or (key[0].startswith("vllm:") and self._wanted(key[0])):
                values[key] = value
