"""The causes over the two prompts, by their price, and what makes the diff approximate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtop.triage.places import Places
from kvtop.triage.prompt import in_words
from kvtop.triage.result import Cause
from kvtop.triage.sheet import Sheet
from kvtop.ui.draw import Line, cells, clip, lj, pick, rj, safe, wrap
from kvtop.ui.numbers import DASH, exact, secs
from kvtop.ui.widgets.panel import rule


def causes(sheet: Sheet, where: Places, w: int, most: int) -> list[Line]:
    """A title rule and a row a cause; at most so many rows of them, of which the last tells how many more there are."""
    listed = sheet.diff.causes
    priced = any(cause.told_tokens is not None for cause in listed)
    note = "by what they cost" if priced else "in the order of the prompt" if len(listed) > 1 else ""
    out = [rule("Causes", w, [(note, "d")] if note and cells(note) + 12 <= w else None)]
    if not listed:
        return [*out, [(" ", "t"), (pick(_NOTHING if where.appended else _NONE, w - 1), "d")]]
    shown = len(listed) if len(listed) <= most else max(0, most - 1)
    out += [[(" ", "t"), *row] for row in rows(listed[:shown], w - 1, priced)]
    if rest := listed[shown:]:
        tokens = sum(cause.told_tokens or 0 for cause in rest)
        cost = f", {exact(tokens)} tokens together" if priced and tokens else ""
        more = f"{len(rest)} more" if shown else f"{len(rest)} causes"
        out.append([(" ", "t"), (pick([f"and {more}{cost}" if shown else f"{more}{cost}", more], w - 1), "d")])
    return out


LEAST_FIX = 24
"""Cells; where there are fewer, what to do is told at the cause's place alone."""
LEAST_SECTION = 12
_NONE = ("none of those that kvtop knows explains it", "none that is known", "none")
_NOTHING = ("none: the new prompt begins with all of the old one", "none")


def notes(sheet: Sheet, w: int, most: int) -> list[Line]:
    """What makes it approximate, in at most so many rows."""
    listed = sheet.diff.notes
    rows = [row for note in listed for row in wrap([("! ", "warn"), (safe(note), "d")], max(1, w - 1), 2)]
    if len(rows) > most > 0:
        more = f" (and {len(listed) - 1} more)" if len(listed) > 1 else ""
        first = clip(safe(listed[0]), max(1, w - 3 - len(more)))
        rows = [[("! ", "warn"), (first, "d"), (more, "d")]]
    return [[(" ", "t"), *row] for row in rows[: max(0, most)]]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Cells of each; 0: it is left out."""

    kind: int
    where: int
    priced: bool
    who: int = 0
    fix: int = 0


def rows(listed: Sequence[Cause], w: int, priced: bool) -> list[Line]:
    """A row a cause: number, kind, section, tokens, seconds, who, fix; the last give way first, then the section is
    shortened."""
    if not listed:
        return []
    columns = _columns(listed, w, priced)
    if columns is None:
        return [[(f"{n}  ", "t bold"), (clip(cause.kind, max(1, w - 3)), "t")] for n, cause in enumerate(listed, 1)]
    return [_row(cause, n, columns) for n, cause in enumerate(listed, 1)]


def _columns(listed: Sequence[Cause], w: int, priced: bool) -> _Columns | None:
    kind = max(len(cause.kind) for cause in listed)
    who = max(len(cause.who) for cause in listed)
    wanted = max(cells(section(cause)[0]) for cause in listed)
    room = w - (4 + kind + 2 + (2 + 8 + 2 + 7 if priced else 0))  # for the section and what stands behind it
    fix = room - (min(wanted, 36) + 2 + who + 3)
    if fix >= LEAST_FIX:
        return _Columns(kind, min(wanted, 36), priced, who, fix)
    if room - (2 + who) >= LEAST_SECTION:
        return _Columns(kind, min(wanted, room - (2 + who)), priced, who)
    return _Columns(kind, min(wanted, room), priced) if room >= LEAST_SECTION else None


def _row(cause: Cause, n: int, columns: _Columns) -> Line:
    line: Line = [*lj(f"{n}", 1, "t bold"), ("   ", "t"), *lj(cause.kind, columns.kind), ("  ", "t")]
    line += lj(pick(section(cause), columns.where), columns.where)
    if columns.priced:
        line += [("  ", "t"), *rj(exact(cause.told_tokens), 8), ("  ", "t"), *rj(secs(cause.lost_s), 7)]
    if columns.who:
        line += [("  ", "t"), *lj(cause.who, columns.who, "t" if columns.fix else "d")]
    if columns.fix:
        line += [("   ", "t"), (pick(_shorter(safe(cause.fix)), columns.fix), "d")]
    return line


def _shorter(sentence: str) -> list[str]:
    """A sentence, and what of it says something by itself; nothing is the shortest."""
    whole = sentence.rstrip(".")
    ends = [n for n, char in enumerate(whole) if char in ",;:." and whole[n + 1 : n + 2] == " "]
    return [sentence, whole, *(whole[:n] for n in reversed(ends)), ""]


def section(cause: Cause) -> list[str]:
    """Where a cause stands, and where to it moved; the longest wording first."""
    name = safe(cause.section) or DASH
    first, _, rest = name.partition(".")
    short = f"{first}…{rest.rpartition('.')[2]}" if "." in rest else first
    if cause.pointer_new is None:
        return [name, short, first]
    new = safe(in_words(cause.pointer_new))
    to = f"[{new.partition('[')[2]}" if new.partition("[")[0] == name.partition("[")[0] and "[" in new else new
    return [f"{name} → {to}", f"{name}→{to}", f"{first}→{to.partition('.')[0]}", first]
