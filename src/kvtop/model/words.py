"""How kvtop writes numbers in words. One place; unknown is `–`, negative numbers and `-0` never appear."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from kvtop.readings import OffloadFile

DASH = "–"
"""Unknown: never 0, never blank."""
NBSP = "\N{NO-BREAK SPACE}"
"""Holds words together while a line is wrapped; `kvtop.ui.draw.wrap` gives it back as a space."""


def nb(text: str) -> str:
    """The same text, never broken inside: for a number and its unit in a sentence that is wrapped."""
    return text.replace(" ", NBSP)


def tok(n: float | None) -> str:
    """Tokens, three digits: 840, 4.2k, 12.6k, 107k, 1.21M, 3.40G."""
    if n is None or not math.isfinite(n):
        return DASH
    n = max(0.0, n)
    if n < 999.5:
        return f"{n:.0f}"
    if n < 99_950:
        return f"{n / 1e3:.1f}k"
    if n < 999_500:
        return f"{n / 1e3:.0f}k"
    if n < 99_950_000:
        return f"{n / 1e6:.2f}M" if n < 9_995_000 else f"{n / 1e6:.1f}M"
    return f"{n / 1e6:.0f}M" if n < 999_500_000 else f"{n / 1e9:.2f}G"


def exact(n: float | None) -> str:
    """Whole numbers with commas: 12,622."""
    return DASH if n is None or not math.isfinite(n) else f"{max(0, round(n)):,}"


def in_ms(s: float | None) -> bool:
    """Whether this many seconds are written in ms: everything under a second, nothing at all included."""
    return s is not None and s < 0.9995


def secs(s: float | None) -> str:
    """Seconds: 0 ms, 42 ms, 750 ms, 2.8 s, 92 s, 6 m 27 s, 10 h 37 m, 4 d 4 h."""
    if s is None or not math.isfinite(s):
        return DASH
    s = max(0.0, s)
    if in_ms(s):
        return f"{s * 1000:.0f} ms"
    if s < 9.95:
        return f"{s:.1f} s"
    if s < 119.5:
        return f"{s:.0f} s"
    whole = round(s)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 100 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def lasted(s: float | None) -> str:
    """Seconds that count up while one looks: whole ones, 0 s, 12 s, 2 m 41 s."""
    if s is None or not math.isfinite(s):
        return DASH
    return f"{max(0.0, s):.0f} s" if s < 119.5 else secs(s)


def ago(s: float) -> str:
    """How long something is past, in whole minutes: 1 min ago, 14 min ago, 2 h 05 m ago."""
    return f"{max(0, int(s // 60))} min ago" if s < 120 * 60 else f"{secs(s)} ago"


def span(s: float | None) -> str:
    """A length of time where seconds do not matter any more: 12 s, 14 min, 10 h 37 m."""
    if s is None or not math.isfinite(s):
        return DASH
    s = max(0.0, s)
    if s < 119.5:
        return f"{s:.0f} s"
    return f"{round(s / 60)} min" if s < 119.5 * 60 else secs(s)


def ms(s: float | None) -> str:
    """The gap between tokens: 26 ms; from a second on in seconds."""
    if s is None or not math.isfinite(s):
        return DASH
    return f"{max(0.0, s) * 1000:.0f} ms" if s < 0.9995 else secs(s)


def pct(share: float | None, places: int = 0) -> str:
    """A share of one: 96 %. Whole, but never a rounded-up 100 %."""
    if share is None or not math.isfinite(share):
        return DASH
    value = max(0.0, share) * 100
    text = f"{value:.{places}f}"
    if value < 100 and float(text) >= 100:
        text = f"{100 - 10.0**-places:.{places}f}"
    return f"{text} %"


def gib(b: float | None, places: int = 1) -> str:
    """Capacity, binary: 48.0 GiB; below a GiB in MiB, KiB or bytes."""
    if b is None or not math.isfinite(b):
        return DASH
    b = max(0.0, b)
    if 0 < b < 0.9995 * 2**30:
        if b < 2**10:
            return "1 byte" if round(b) == 1 else f"{b:.0f} bytes"
        return f"{b / 2**20:.0f} MiB" if b >= 2**20 else f"{b / 2**10:.0f} KiB"
    return f"{b / 2**30:.{places}f} GiB"


def bare_gib(b: float, places: int = 1) -> str:
    """GiB beside a unit that stands elsewhere: 64.0; below one 0.25, 0.125."""
    size = max(0.0, b) / 2**30
    return f"{size:.3f}".rstrip("0").rstrip(".") if 0 < size < 0.9995 else f"{size:.{places}f}"


def traffic(b: float | None) -> str:
    """Bytes moved, decimal, three digits: 0 B, 12.4 MB, 32.9 GB, 163 GB."""
    if b is None or not math.isfinite(b):
        return DASH
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if b >= size * 0.9995:
            return f"{b / size:.{1 if b < size * 99.95 else 0}f} {unit}"
    return f"{max(0.0, b):.0f} B"


def per_hour(b_per_s: float | None) -> str:
    """An average flow: 3.1 GB/h."""
    return DASH if b_per_s is None or not math.isfinite(b_per_s) else f"{traffic(b_per_s * 3600)}/h"


def per_second(b_per_s: float | None) -> str:
    """A flow of now: 0 B/s, 40 kB/s, 12.4 MB/s, 105 MB/s, 1.8 GB/s."""
    if b_per_s is None or not math.isfinite(b_per_s):
        return DASH
    b = max(0.0, b_per_s)
    if b >= 999.5e6:
        return f"{b / 1e9:.1f} GB/s"
    if b >= 0.05e6:
        return f"{b / 1e6:.{1 if b < 99.95e6 else 0}f} MB/s"
    return f"{b / 1e3:.0f} kB/s" if b >= 500 else f"{b:.0f} B/s"


def flow(b_per_s: float | None, window_key: str) -> str:
    """The mean flow of a window, in the unit that suits its length: a second's for 10 s, an hour's for the others."""
    return per_second(b_per_s) if window_key == "10s" else per_hour(b_per_s)


def held_by(file: OffloadFile) -> str:
    """Who maps a tier's file: mapped by 3 processes, left over, or that nobody may be told."""
    if file.stale:
        return "left over: nobody maps it"
    n = len(file.mapped_by)
    return f"mapped by {n} process{'' if n == 1 else 'es'}" if n else "nobody is seen to map it"


def short_labels(labels: Sequence[str]) -> list[str]:
    """The labels of servers side by side; only their ports where all are of one host."""
    parts = [label.rpartition(":") for label in labels]
    if len({host for host, _, _ in parts}) == 1 and all(host and port.isdigit() for host, _, port in parts):
        return [f":{port}" for _, _, port in parts]
    return list(labels)


SAME_NIGHT_S = 6 * 3600.0
"""23:58 at five past midnight is clear without a date."""


def other_day(at: float, now: float) -> bool:
    """Its time of day would be taken for one of today: of another date, and not of the hours before a midnight that
    was just now. Unix times; OverflowError, OSError or ValueError for what is none."""
    return time.localtime(at)[:3] != time.localtime(now)[:3] and abs(now - at) > SAME_NIGHT_S


def hms(at: float | None, now: float | None = None) -> str:
    """Local time of day: 13:04:21; of another day than `now` is of with its date, 29 Nov 13:04."""
    if at is None:
        return DASH
    form = "%d %b %H:%M" if now is not None and other_day(at, now) else "%H:%M:%S"
    return time.strftime(form, time.localtime(at))


def bucket(above_s: float, up_to_s: float | None, value_s: float | None = None) -> str:
    """The bounds of a histogram bucket, in the unit that its value is written in: 2.5–5, 20–40, > 1920."""
    if up_to_s is None or not math.isfinite(up_to_s):
        return f"> {above_s:g}"
    scale = 1000 if in_ms(value_s) else 1
    return f"{above_s * scale:g}–{up_to_s * scale:g}"


def bound(s: float) -> str:
    """A bound as the server wrote it: 0.25 s, 80 ms."""
    return f"{s * 1000:g} ms" if in_ms(s) else f"{s:g} s"


def listed(words: Sequence[str], last: str = "and") -> str:
    """`a, b and c`."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
