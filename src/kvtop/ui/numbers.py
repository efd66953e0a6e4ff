"""How kvtop writes numbers on a screen: the words of the model, and a few forms that only tables need."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from kvtop.model.words import (
    DASH,
    bound,
    bucket,
    exact,
    flow,
    gib,
    hms,
    in_ms,
    lasted,
    ms,
    other_day,
    pct,
    per_hour,
    per_second,
    secs,
    span,
    tok,
    traffic,
)  # fmt: skip

__all__ = [
    "DASH", "ago", "bound", "bucket", "counting", "exact", "flow", "gib", "hm", "hms", "lasted", "ms", "of_gib", "pct",
    "per_hour", "per_second", "rate", "secs", "short", "span", "tok", "traffic", "when", "whole_shares",
]  # fmt: skip


def short(s: float | None) -> str:
    """Seconds in at most six cells, for tables: 0 ms, 42 ms, 750 ms, 2.8 s, 387 s, 17 m, 5.2 h."""
    if s is None or not math.isfinite(s):
        return DASH
    if in_ms(s):
        return f"{max(0.0, s) * 1000:.0f} ms"
    if s < 999.5:
        return f"{s:.1f} s" if s < 9.95 else f"{s:.0f} s"
    return f"{s / 60:.0f} m" if s < 99.5 * 60 else f"{s / 3600:.1f} h" if s < 99.5 * 3600 else f"{s / 86400:.0f} d"


def counting(s: float | None) -> str:
    """As `short`, of what counts up while one looks: 0.4 s, never in ms."""
    return f"{max(0.0, s):.1f} s" if s is not None and in_ms(s) and s < 0.95 else short(s)


def of_gib(used: float | None, total: float | None, places: int = 0) -> str:
    """Used of all, binary: 48/63 GiB, 23.1/24 GiB; `–` where neither is known."""
    if used is None and total is None:
        return DASH
    left = DASH if used is None else f"{max(0.0, used) / 2**30:.{places}f}"
    return f"{left}/{DASH if total is None else f'{total / 2**30:.0f}'} GiB"


def whole_shares(parts: Sequence[float], of: int = 100) -> list[int]:
    """Whole percents of the parts, which add up to `of`: what rounding down leaves goes to the largest remainders."""
    total = sum(parts)
    if total <= 0:
        return [0] * len(parts)
    exactly = [max(0.0, part) / total * of for part in parts]
    out = [math.floor(value) for value in exactly]
    for i in sorted(range(len(parts)), key=lambda i: out[i] - exactly[i])[: of - sum(out)]:
        out[i] += 1
    return out


def rate(per_s: float | None) -> str:
    """Tokens a second: 38, 1.2k; one decimal below ten."""
    if per_s is None or not math.isfinite(per_s):
        return DASH
    return f"{max(0.0, per_s):.1f}" if 0 < per_s < 9.95 else tok(per_s)


def hm(at: float | None) -> str:
    """Local time of day in hours and minutes: 13:04."""
    return DASH if at is None else time.strftime("%H:%M", time.localtime(at))


def when(at: float | None, now: float, w: int) -> str:
    """Local time of day in 5 or 8 cells: 13:04, 13:04:21; of another day its date: 29Nov, 29 Nov."""
    if at is None:
        return DASH
    date, clock = ("%d %b", "%H:%M:%S") if w >= 8 else ("%d%b", "%H:%M")
    return time.strftime(date if other_day(at, now) else clock, time.localtime(at))


def ago(seconds: float) -> str:
    """12 s, 3 m, 10 h, 2 d: how long it is past."""
    s = max(0.0, seconds)
    if s < 60:
        return f"{s:.0f} s"
    if s < 3600:
        return f"{s // 60:.0f} m"
    return f"{s // 3600:.0f} h" if s < 48 * 3600 else f"{s // 86400:.0f} d"
