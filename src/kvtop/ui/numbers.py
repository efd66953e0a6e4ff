"""How kvtop writes numbers on a screen. One place; unknown is `–`."""

from __future__ import annotations

import math
import time

DASH = "–"


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


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


def secs(s: float | None) -> str:
    """Seconds: 0.8 s, 12 s, 92 s, 6 m 27 s, 10 h 37 m, 3 d 4 h."""
    if s is None or not math.isfinite(s):
        return DASH
    s = max(0.0, s)
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
    """Capacity, binary: 48.0 GiB; below a GiB in MiB."""
    if b is None or not math.isfinite(b):
        return DASH
    b = max(0.0, b)
    if 0 < b < 0.9995 * 2**30:
        return f"{b / 2**20:.0f} MiB" if b >= 2**20 else f"{b / 2**10:.0f} KiB"
    return f"{b / 2**30:.{places}f} GiB"


def of_gib(used: float | None, total: float | None, places: int = 0) -> str:
    """Used of all, binary: 48/63 GiB, 23.1/24 GiB; `–` where neither is known."""
    if used is None and total is None:
        return DASH
    left = DASH if used is None else f"{max(0.0, used) / 2**30:.{places}f}"
    return f"{left}/{DASH if total is None else f'{total / 2**30:.0f}'} GiB"


def traffic(b: float | None) -> str:
    """Bytes moved, decimal: 0 B, 12.4 MB, 32.9 GB."""
    if b is None or not math.isfinite(b):
        return DASH
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if b >= size * 0.9995:
            return f"{b / size:.1f} {unit}"
    return f"{max(0.0, b):.0f} B"


def per_hour(b_per_s: float | None) -> str:
    """An average flow: 3.1 GB/h."""
    return DASH if b_per_s is None or not math.isfinite(b_per_s) else f"{traffic(b_per_s * 3600)}/h"


def per_second(b_per_s: float | None) -> str:
    """A flow of now: 12.4 MB/s, 1.8 GB/s; one unit a column."""
    if b_per_s is None or not math.isfinite(b_per_s):
        return DASH
    b = max(0.0, b_per_s)
    return f"{b / 1e9:.1f} GB/s" if b >= 999.5e6 else f"{b / 1e6:.1f} MB/s"


def rate(per_s: float | None) -> str:
    """Tokens a second: 38, 1.2k; one decimal below ten."""
    if per_s is None or not math.isfinite(per_s):
        return DASH
    return f"{max(0.0, per_s):.1f}" if per_s < 9.95 else tok(per_s)


def bucket(above_s: float, up_to_s: float | None) -> str:
    """The bounds of a histogram bucket in seconds: 2.5–5, > 1920."""
    return f"{above_s:g}–{up_to_s:g}" if up_to_s is not None and math.isfinite(up_to_s) else f"> {above_s:g}"


def hms(at: float | None, places: int = 3) -> str:
    """Local time of day: 13:04:21, or 13:04 with places = 2."""
    return DASH if at is None else time.strftime("%H:%M:%S" if places == 3 else "%H:%M", time.localtime(at))
