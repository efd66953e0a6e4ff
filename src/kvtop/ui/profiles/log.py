"""The end of a log, and one line of it."""

from __future__ import annotations

from kvtop.live.profile_view import Tail
from kvtop.profiles.running.text import told
from kvtop.ui.draw import Line, clip, fit, pick, safe
from kvtop.ui.numbers import exact, hms
from kvtop.ui.widgets.panel import rule

LEVELS = {"WARNING": ("WARN", "warn", "t"), "ERROR": ("ERROR", "bad", "bright"), "CRITICAL": ("CRIT", "bad", "bright"),
          "INFO": ("INFO", "d", "d"), "DEBUG": ("DEBUG", "f", "d")}  # fmt: skip
"""vLLM's word -> (ours, its style, the style of what is said)."""


def rows(tail: Tail, w: int, h: int, follows: bool) -> list[Line]:
    """The end of it."""
    if h <= 0:
        return []
    if not tail.of:
        return [rule("Log", w)]
    where = safe(tail.where)
    left_out = f", {exact(tail.polls)} poll{'s' * (tail.polls > 1)} left out" if tail.polls else ""
    notes = [where + left_out, where]
    if follows:
        notes = [f"{where}, following{left_out}", f"{where}, following", *notes]
    out = [rule("Log", w, [(pick([*notes, clip(where, max(1, w - 12))], w - 9), "d")])]
    if not tail.lines:
        since = f" since it was started at {hms(tail.since)}" if tail.since is not None else ""
        out.append([(f" nothing yet{since}", "d")])
    return [*out, *(line_of(line, w) for line in tail.lines[-(h - 1) :] if h > 1)]


def line_of(line: str, w: int) -> Line:
    """Time, level, and what is said; cut where the row ends."""
    at, level, said = told(line)
    word, style, text = LEVELS.get(level, ("", "d", "d"))
    return fit([(f" {at:<8} ", "d"), (f"{word:<5} ", style), (safe(said), text)], w)
