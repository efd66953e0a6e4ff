"""A sheet as lines of text, for pipes and pagers: head, causes, and every change with a little of what is around it.

No colour, and nothing of a prompt that could move a cursor: control and format characters are written as escapes.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator
from itertools import chain

from kvtop.errors import printable
from kvtop.model.words import DASH, exact, secs
from kvtop.triage.flow import NEWLINE, Show, Shown, flow
from kvtop.triage.places import Places, places, unseen
from kvtop.triage.prompt import in_words
from kvtop.triage.result import Cause, Tokens
from kvtop.triage.sheet import Hunk, Sheet
from kvtop.triage.words import nothing_lost

LINE = 2_000
"""Characters of a line, at most, where no width is given."""
NARROWEST = 20
MOST_ROWS = 60
"""Rows of one side of a change; of a longer one its end is told in a count."""
ESCAPE = 10
"""Characters that the escape of one character takes at most."""
MOST_CHANGES = 100
"""Changes that are shown; how many more there are is told in a count."""
MOST_LINES = 1_000
"""After so many lines of changes no further one is begun."""
PIECES_A_ROW = 200
"""So many pieces fill a row in any case: of more than these nothing is laid out for the rows around a change."""

METHODS = {
    "served_ids": "the tokens that the server read",
    "server_tokens": "rendered by the server",
    "text": "compared as text: no server was asked for tokens",
}


def lines(sheet: Sheet, width: int | None, around: int = 3) -> Iterator[str]:
    """Lines without their ends, each at most `width` cells wide; None: as long as the prompt's own lines, up to 2,000.

    `around`: rows of equal text before and after each change. Changes that are closer than that are one paragraph.
    """
    w = LINE if width is None else max(NARROWEST, width)
    where = places(sheet)
    yield from _wrapped(_head(sheet, where), w)
    for cause_number, cause in enumerate(sheet.diff.causes, 1):
        yield ""
        yield from _cause(cause, cause_number, w)
    yield from chain.from_iterable(_wrapped([f"note: {_safe(note)}"], w) for note in sheet.diff.notes)
    shown = rows = 0
    for group in _groups(sheet, where, w - 2, around):
        if rows > MOST_LINES:
            break
        yield ""
        for line in _change(sheet, where, group, w, around):
            yield line
            rows += 1
        shown += len(group)
    if (left := len(where.changes) - shown) > 0:
        yield ""
        yield from _wrapped([f"[and {exact(left)} more change{'' if left == 1 else 's'}]"], w)


# ---------------------------------------------------------------- the head
def _head(sheet: Sheet, where: Places) -> list[str]:
    diff, tokens = sheet.diff, sheet.diff.tokens
    how = METHODS.get(diff.method, _safe(diff.method))
    known = sheet.tokens and tokens.common is not None
    out = [f"{_safe(sheet.old_label) or 'old'} and {_safe(sheet.new_label) or 'new'}: {_shared(sheet, where)}"]
    if known:
        parts = [f"{exact(tokens.old)} and {exact(tokens.new)} tokens", f"the same up to token {exact(tokens.common)}"]
        out.append(", ".join(parts))
        if (allowed := _allowed(tokens, diff.match_unit_tokens, diff.cached_tokens)) is not None:
            out.append(allowed)
    exactness = ", exact" if diff.exact else "" if diff.method == "text" else ", not exact"
    out.append(f"{how}{exactness}")
    return out


def _allowed(tokens: Tokens, unit: int | None, cached: int | None) -> str | None:
    """What the two prompts let the cache give, and what it gave: the one is no matter of the other."""
    had = f"the server had {exact(cached)}" if cached is not None else ""
    if tokens.reusable is None:
        return had or None
    of = f" of {exact(tokens.reusable + tokens.reread)}" if tokens.reread is not None else ""
    blocks = f" (blocks of {exact(unit)})" if unit else ""
    said = f"the prompts allow {exact(tokens.reusable)}{of} tokens to be reused{blocks}"
    return f"{said}; {had}" if had else said


def _shared(sheet: Sheet, where: Places) -> str:
    if where.first is None:
        return "the prompts are the same"
    if where.appended:
        return "nothing before the old end changed"
    first = sheet.diff.first
    section = where.section(min(where.first.new.start, max(0, len(sheet.new) - 1))) if sheet.new else ""
    section = first.section if first is not None and first.section else section
    return f"they part in {_safe(section)}" if section else "they part"


def _cause(cause: Cause, number: int, w: int) -> Iterator[str]:
    title = f"{number}  {cause.kind}  {_safe(cause.section) or DASH}"
    if cause.pointer_new is not None:
        title += f" -> {_safe(in_words(cause.pointer_new))}"
    price = []
    if cause.told_tokens is not None:
        price.append(f"{exact(cause.told_tokens)} tokens")
    if cause.lost_s is not None:
        price.append(secs(cause.lost_s))
    price += [nothing_lost(cause)] if cause.lost_tokens is not None and nothing_lost(cause) else []
    yield from _wrapped([", ".join([title, *price, str(cause.who)])], w, "   ")
    yield from _wrapped([f"   {' '.join(_sentences(cause))}"], w, "   ")
    if cause.fix:
        yield from _wrapped([f"   fix: {_safe(cause.fix)}"], w, "        ")


def _sentences(cause: Cause) -> Iterator[str]:
    says = _safe(cause.says)
    yield says if not cause.seen or says.endswith((".", "!", "?", "…")) else f"{says}."
    if cause.seen:
        yield f"Seen: {_safe(cause.seen)}."


def _wrapped(texts: list[str], w: int, indent: str = "") -> Iterator[str]:
    for text in texts:
        made = textwrap.TextWrapper(w, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True)
        for line in made.wrap(text):
            # it counts characters, of which some are two cells wide
            yield from (row.parts[0] for row in flow([line], range(1), w, _shown, _cells))


# ---------------------------------------------------------------- the changes
def _groups(sheet: Sheet, where: Places, w: int, around: int) -> Iterator[list[int]]:
    """Changes that belong into one paragraph: between them is no more than what is shown around both."""
    group: list[int] = []
    for n in where.changes[:MOST_CHANGES]:
        if group and n - group[-1] == 2:
            between = sheet.hunks[n - 1].new
            short = len(between) <= 2 * around * PIECES_A_ROW
            if short and len(_rows(sheet, between, w, new=True)) <= 2 * around:
                group.append(n)
                continue
        if group:
            yield group
        group = [n]
    if group:
        yield group


def _change(sheet: Sheet, where: Places, group: list[int], w: int, around: int) -> Iterator[str]:
    first, last = sheet.hunks[group[0]], sheet.hunks[group[-1]]
    section = _safe(where.section(min(first.new.start, max(0, len(sheet.new) - 1)))) if sheet.new else ""
    place = f"token {exact(first.new.start)}" if sheet.tokens else ""
    if sheet.tokens and first.old.start != first.new.start:
        place += f" (in the old prompt {exact(first.old.start)})"
    broke = ""
    if first is where.first:
        broke = "what follows is new" if where.appended else "the first difference"
    causes = [str(n) for n, at in enumerate(where.at_cause, 1) if at is not None and where.changes[at] in group]
    told = f"cause {' and '.join(causes)}" if causes else ""
    title = ", ".join(part for part in (place, section, broke, told) if part)
    yield from _wrapped([f"@@ {title} @@" if title else "@@"], w)
    before = range(max(0, first.new.start - around * PIECES_A_ROW), first.new.start)
    yield from (f"  {row}" for row in _rows(sheet, before, w - 2, new=True)[-around:] if around)
    for n in range(group[0], group[-1] + 1):
        hunk = sheet.hunks[n]
        if hunk.same:
            yield from (f"  {row}" for row in _rows(sheet, hunk.new, w - 2, new=True))
        else:
            yield from _sides(sheet, hunk, w)
    after = range(last.new.stop, min(len(sheet.new), last.new.stop + around * PIECES_A_ROW))
    yield from (f"  {row}" for row in _rows(sheet, after, w - 2, new=True)[:around])


def _sides(sheet: Sheet, hunk: Hunk, w: int) -> Iterator[str]:
    what = "tokens" if sheet.tokens else "words"
    show = _drawn if unseen(sheet, hunk) else _shown
    for mark, span, new in (("-", hunk.old, False), ("+", hunk.new, True)):
        looked_at = range(span.start, min(span.stop, span.start + MOST_ROWS * PIECES_A_ROW))
        rows = _flowed(sheet, looked_at, w - 2, new=new, show=show, most=MOST_ROWS + 1)
        cut = len(rows) > MOST_ROWS or len(looked_at) < len(span)
        for _, text in rows[:MOST_ROWS]:
            yield f"{mark} {text}"
        if cut:
            piece, _ = rows[MOST_ROWS] if len(rows) > MOST_ROWS else (looked_at.stop, "")
            left = span.stop - piece
            one = f"1 more {what[:-1]}" if left == 1 else f"{exact(left)} more {what}"
            yield from _wrapped([f"{mark} [and {one}]"], w, "  ")


def _rows(sheet: Sheet, span: range, w: int, *, new: bool) -> list[str]:
    return [text for _, text in _flowed(sheet, span, w, new=new)]


def _flowed(
    sheet: Sheet, span: range, w: int, *, new: bool, show: Show | None = None, most: int | None = None
) -> list[tuple[int, str]]:
    """Rows with the piece that each begins in."""
    pieces = sheet.new if new else sheet.old
    rows = flow(pieces, span, w, show or _shown, _cells, most=most)
    before = pieces[span.start - 1] if span.start < span.stop and span.start else "\n"
    if len(rows) > 1 and not rows[0].parts[0] and not before.endswith("\n"):
        del rows[0]
    return [(row.at, row.parts[0]) for row in rows]


# ---------------------------------------------------------------- fit for a terminal
def _safe(text: str) -> str:
    return printable(text, 500)


def _shown(piece: str) -> Shown:
    if piece.isascii() and piece.isprintable():
        return ((piece, len(piece)),)
    parts = (printable(line, ESCAPE * len(line)) for line in piece.split("\n"))
    return tuple((part, _cells(part)) for part in parts)


def _drawn(piece: str) -> Shown:
    """White space that can be seen, and anything that is not ASCII as its code."""
    *lines, last = (ascii(line)[1:-1].replace(" ", "·") for line in piece.split("\n"))
    return tuple((text, len(text)) for text in (*(line + NEWLINE for line in lines), last))


def _cells(text: str) -> int:
    """Cells that most terminals give a text: two for wide characters, none for marks."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
