"""Where every panel stands: from the size, the visible panels, the cards and the servers to rectangles. Pure.

The breakpoints of the dashboard are this file and nothing else. What gives way, in order: the preview, the GPU panel
(to one line), the strip's lines, Offload, Queue, TTFT (to one line each), Turns. The sentence and the cached share
always stay.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

PANELS = ("cache", "offload", "queue", "ttft", "gpu", "turns")
"""In the order of their keys 1 to 6."""

COMPACT_WIDTH, COMPACT_HEIGHT = 76, 20
"""Narrower or lower than this, panels become one-line facts."""
THREE_WIDE = 116
"""From here on Queue, TTFT and GPU stand in one row."""
PREVIEW_WIDE = 160
"""From here on the chosen turn is shown beside the table."""
GAP = 2


class Rect(NamedTuple):
    x: int
    y: int
    w: int
    h: int


def plan(w: int, h: int, shown: Collection[str], gpus: int = 0, lines: int = 0) -> dict[str, Rect]:
    """Rectangles by name: head, strip, facts, the six panels, preview, foot; hidden, where no panel is shown.

    What is not there is not shown.
    gpus: cards to show (0: one line that says why there is none). lines: rows that the strip of servers or engines
    would like to have.
    """
    compact = w < COMPACT_WIDTH or h < COMPACT_HEIGHT
    out = _compact(w, h, shown, lines) if compact else _full(w, h, shown, gpus, lines)
    if not shown:
        top = max(rect.y + rect.h for name, rect in out.items() if name != "foot")
        room = (out["foot"].y if "foot" in out else h) - top
        if room > 0:
            out["hidden"] = Rect(0, top, w, room)
    return out


def _compact(w: int, h: int, shown: Collection[str], lines: int) -> dict[str, Rect]:
    """One column: the sentence, one-line facts with the chart of the share, the turns."""
    out: dict[str, Rect] = {}
    foot = 1 if h >= 7 else 0
    head = 2 if w >= COMPACT_WIDTH else 3
    head = max(1, min(head, h - foot - 2 if h < 8 else h - foot - 4))
    out["head"] = Rect(0, 0, w, head)
    y = head
    if lines and h >= 12:
        out["strip"] = Rect(0, y, w, 1)
        y += 1
    room = h - y - foot
    one_liners = sum(1 for name in ("offload", "queue", "ttft", "gpu") if name in shown)
    want = 1 + (max(1, min(9, (h - 13) // 2)) if "cache" in shown else 0) + one_liners
    if "turns" not in shown and "cache" in shown:
        want = room
    facts = max(1, min(want, room))
    if 0 < room - facts < 2:
        facts = room if "cache" in shown or room < want else facts
    if room > 0:
        out["facts"] = Rect(0, y, w, facts)
    y += facts
    if "turns" in shown and h - y - foot >= 2:
        out["turns"] = Rect(0, y, w, h - y - foot)
    if foot:
        out["foot"] = Rect(0, h - 1, w, 1)
    return out


def _full(w: int, h: int, shown: Collection[str], gpus: int, lines: int) -> dict[str, Rect]:
    out: dict[str, Rect] = {"head": Rect(0, 0, w, 2), "foot": Rect(0, h - 1, w, 1)}
    top_h, mid_h = (14, 9) if h >= 45 else (10, 7) if h >= 30 else (6, 4)
    three = w >= THREE_WIDE
    top = [name for name in ("cache", "offload") if name in shown]
    mid = [name for name in ("queue", "ttft") if name in shown]
    weights = {"cache": 1, "offload": 1, "queue": 30, "ttft": 36, "gpu": 34}
    if not three:
        weights |= {"queue": 1, "ttft": 1}
    gpu_h = 0
    if "gpu" in shown:
        if three and gpus:
            mid.append("gpu")
        else:
            gpu_h = _gpu_rows(h, gpus)
    top_h, mid_h = (top_h if top else 0), (mid_h if mid else 0)
    left = h - 3 - top_h - mid_h - gpu_h
    strip = max(0, min(lines, left - 4, 4 + (h - 24) // 4)) if lines else 0
    if lines and not strip and left >= 4:
        strip = 1
    left -= strip
    if "turns" not in shown and left > 0:  # the room goes to the charts
        if top:
            top_h += left
        elif mid:
            mid_h += left
    y = 2
    if strip:
        out["strip"] = Rect(0, y, w, strip)
        y += strip
    y = _band(out, top, y, w, top_h, weights=weights)
    y = _band(out, mid, y, w, mid_h, weights=weights)
    if gpu_h:
        out["gpu"] = Rect(0, y, w, gpu_h)
        y += gpu_h
    rest = h - y - 1
    if "turns" in shown and rest >= 2:
        if w >= PREVIEW_WIDE and rest >= 12:
            side = min(68, w * 34 // 100)
            out["turns"] = Rect(0, y, w - side - GAP, rest)
            out["preview"] = Rect(w - side, y, side, rest)
        else:
            out["turns"] = Rect(0, y, w, rest)
    return out


def _gpu_rows(h: int, gpus: int) -> int:
    """Full width: a title and one row a card, or one line."""
    if not gpus or h < 24:
        return 1
    return 1 + min(gpus, 2 if h < 30 else 4 if h < 45 else 8)


def _band(out: dict[str, Rect], names: list[str], y: int, w: int, h: int, *, weights: dict[str, int]) -> int:
    """Panels side by side; the y under them."""
    if not names or h <= 0:
        return y
    room = w - GAP * (len(names) - 1)
    total = sum(weights[name] for name in names)
    x = 0
    for i, name in enumerate(names):
        wide = room * weights[name] // total if i < len(names) - 1 else w - x
        out[name] = Rect(x, y, wide, h)
        x += wide + GAP
    return y + h
