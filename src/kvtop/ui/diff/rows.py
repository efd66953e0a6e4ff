"""The rows of one block of a diff, in either view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtop.model.words import NBSP
from kvtop.triage.flow import NEWLINE, Flowed, flow, parted
from kvtop.triage.result import Cause
from kvtop.ui.diff.blocks import Block, What
from kvtop.ui.diff.document import Document
from kvtop.ui.draw import Line, cells, clip, fit, pick, rjust, safe, width, wrap
from kvtop.ui.numbers import exact
from kvtop.ui.pieces import shown

WORD = 24
"""Cells of a piece in a rule."""
GAP = 3
"""Cells between two prompts beside each other."""
BEHIND = (
    "the same again, but behind the break: nothing here can be reused",
    "the same again, but behind the break: not reusable",
    "the same again: not reusable",
)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the screen."""

    line: Line
    block: Block
    old: int = -1
    new: int = -1
    """The pieces that its text begins in; -1: it has none of that side."""


@dataclass(frozen=True, slots=True)
class View:
    """What its reader has chosen, and the room for it."""

    w: int
    side: bool
    parted: bool

    @property
    def half(self) -> int:
        """Cells of one prompt."""
        return (self.w - GAP) // 2 if self.side else self.w


def rows_of(doc: Document, block: Block, view: View) -> list[Row]:
    """At least one."""
    match block.what:
        case What.SAME:
            return _same(doc, block, view)
        case What.PAIR:
            return _pair(doc, block, view)
        case What.OLD | What.NEW:
            is_new = block.what is What.NEW
            side = _Side(doc, block, view, is_new)
            return [Row(line, block, *((-1, at) if is_new else (at, -1))) for at, line in side.rows(side.flowed())]
        case What.FOLD:
            return [Row(_fold(doc, block, view), block, block.old.start, block.new.start)]
        case What.NOTE:
            return [Row(line, block) for line in _note(doc.sheet.diff.causes[block.cause], block.cause, view.w)]
    return [Row(_ruled(doc, block, view.w), block)]


# ---------------------------------------------------------------- text
class _Side:
    """The rows of one prompt in one block."""

    def __init__(self, doc: Document, block: Block, view: View, new: bool) -> None:
        self.doc, self.new = doc, new
        self.changed = block.what is not What.SAME
        self.span = block.new if new else block.old
        sheet = doc.sheet
        largest = max(doc.number(len(side) - 1, new=side is sheet.new) for side in (sheet.old, sheet.new) if side)
        self.field = max(7, cells(exact(largest)) + 1) if sheet.tokens else 0
        self.w = view.half
        self.text = max(2, self.w - self.field - 3)
        self.show, self.parted = doc.show(block.hunk, view.parted), view.parted
        cached = not self.changed and block.new.stop <= doc.shaded
        self.shade = " @cached" if cached else "" if not self.changed else " @new" if new else " @old"

    def flowed(self) -> list[Flowed]:
        pieces = self.doc.sheet.new if self.new else self.doc.sheet.old
        if self.parted:
            return parted(pieces, self.span, self.text, self.show, cells)
        rows = flow(pieces, self.span, self.text, self.show, cells)
        before = pieces[self.span.start - 1] if self.span.start else "\n"
        if len(rows) > 1 and not any(rows[0].parts) and not before.endswith("\n"):
            del rows[0]  # the newline ends a line that a row ends already
        return rows

    def rows(self, flowed: Sequence[Flowed], apart: int = 0) -> list[tuple[int, Line]]:
        """Each with the piece that it begins in. `apart`: what is added to the pieces, of text of the other side."""
        out: list[tuple[int, Line]] = []
        before = -1
        for row in flowed:
            at, parts = row.at + apart, row.parts
            if self.changed and not any(parts):  # of what differs nothing is invisible
                parts = (NEWLINE,)
            out.append((at, self.line(at, parts, numbered=at != before and any(parts))))
            before = at
        return out

    def line(self, at: int, parts: Sequence[str], *, numbered: bool) -> Line:
        """Exactly as wide as the side is, where it is shaded; else as its text is."""
        shade = self.shade
        number = rjust(exact(self.doc.number(at, new=self.new)), self.field) if self.field and numbered else ""
        mark, style = ("+", "ok bold") if self.new else ("-", "bad bold")
        gutter: Line = [(rjust(number, self.field) + " ", "d" + shade)]
        gutter.append((f"{mark} " if self.changed else "  ", (style if self.changed else "d") + shade))
        text, separator = ("t" + shade, "d" + shade) if self.changed else ("d" + shade, "f" + shade)
        line = gutter + [(part, separator if n % 2 else text) for n, part in enumerate(parts) if part]
        if shade:
            used = sum(cells(part) for part, _ in line)
            line.append((" " * max(0, self.w - used), "t" + shade))
        return line


def _same(doc: Document, block: Block, view: View) -> list[Row]:
    right = _Side(doc, block, view, new=True)
    flowed = right.flowed()
    rows = right.rows(flowed)
    if not view.side:
        return [Row(line, block, -1, at) for at, line in rows]
    apart = block.old.start - block.new.start
    left = _Side(doc, block, view, new=False).rows(flowed, apart) if apart else rows
    return [
        Row(_beside(line, other, view), block, at + apart, at)
        for (_, line), (at, other) in zip(left, rows, strict=True)
    ]


def _pair(doc: Document, block: Block, view: View) -> list[Row]:
    sides = (_Side(doc, block, view, new) for new in (False, True))
    left, right = (side.rows(side.flowed()) for side in sides)
    empty: Line = []
    rows: list[Row] = []
    for n in range(max(len(left), len(right))):
        old, a = left[n] if n < len(left) else (-1, empty)
        new, b = right[n] if n < len(right) else (-1, empty)
        rows.append(Row(_beside(a, b, view), block, old, new))
    return rows


def _beside(left: Line, right: Line, view: View) -> Line:
    return [*fit(left, view.half), (" " * GAP, "t"), *right]


# ---------------------------------------------------------------- words between
def _fold(doc: Document, block: Block, view: View) -> Line:
    what = "tokens" if doc.sheet.tokens else "words"
    says = f"{exact(doc.count(block.new))} {what}, the same on both sides"
    where = safe(doc.places.sections(block.new.start, block.new.stop - 1))
    cached = block.new.stop <= doc.shaded
    shade = " @cached" if cached else ""
    room = view.half - (10 if doc.sheet.tokens else 3)
    short = [f"··· {says} ···", f"··· {exact(doc.count(block.new))} {what}, the same ···", f"··· {what} ···", "···"]
    said = pick([f"··· {says}: {where} ···", *short] if where else short, max(1, room))
    line = fit([(" " * max(0, view.half - room), "d" + shade), (said, "d" + shade)], view.half)
    if shade:
        line = [(text, "d" + shade) for text, _ in line]
    return _beside(line, line, view) if view.side else line


def _ruled(doc: Document, block: Block, w: int) -> Line:
    """A rule with words in it."""
    said: Sequence[str]
    match block.what:
        case What.CACHED:
            said, style = _cached(doc), "cached-device"
        case What.REUSABLE:
            known = doc.cached is not None
            said, style = _reusable(doc, known), "warn" if known else "cached-device"
        case What.BREAK:
            said, style = _break(doc), "computed" if doc.places.appended else "bad"
        case _:
            said, style = BEHIND, "d"
    text = pick(said, max(1, w - 6))
    bold = " bold" if block.what is What.BREAK else ""
    rule = "f" if style == "d" else style
    line: Line = [(" ── ", rule), (f"{text} ", style + bold)]
    if block.what is What.BREAK and not doc.places.appended:
        differ = _differ(doc)
        line += differ if width(line) + width(differ) + 3 <= w else []
    return fit([*line, ("─" * max(0, w - width(line)), rule)], w)


def _differ(doc: Document) -> Line:
    """The first piece of either side that is not the other's."""
    sheet, show = doc.sheet, shown(kept=False, exactly=doc.sheet.tokens, parted=True)
    line: Line = []
    for mark, style, pieces in (("-", "bad bold", sheet.old), ("+", "ok bold", sheet.new)):
        piece = pieces[doc.common][:WORD] if doc.common < len(pieces) else None
        said = "the end" if piece is None else clip("".join(text for text, _ in show(piece)), WORD)
        line += [(f" {mark} ", style), (said, "d" if piece is None else "t")]
    return [*line, (" ", "t")]


def _at(doc: Document, piece: int) -> int:
    """The number of the first token behind the pieces before it."""
    return doc.number(piece, new=True) if piece < len(doc.sheet.new) else _size(doc)


def _size(doc: Document) -> int:
    return doc.number(len(doc.sheet.new) - 1, new=True) + 1 if doc.sheet.new else 0


def _unit(doc: Document, tokens: int) -> str:
    unit = doc.sheet.diff.match_unit_tokens
    return f"block {exact(tokens // unit)} ends here: " if unit and tokens and tokens % unit == 0 else ""


def _nothing(doc: Document) -> list[str]:
    unit = doc.sheet.diff.match_unit_tokens
    whole = [f"no whole unit of {exact(unit)} tokens is the same: nothing can be reused"] if unit else []
    return [*whole, "nothing can be reused"]


def _cached(doc: Document) -> list[str]:
    at = _at(doc, doc.cached or 0)
    if at:
        return [f"{exact(at)}  {_unit(doc, at)}cached up to this token", f"{exact(at)}  cached up to here"]
    return ["nothing of this prompt was cached", "nothing was cached"] if doc.reusable else _nothing(doc)


def _reusable(doc: Document, cached_known: bool) -> list[str]:
    at = _at(doc, doc.reusable or 0)
    if not at:
        return _nothing(doc)
    tail = ", and was not cached" if cached_known else ""
    return [f"{exact(at)}  {_unit(doc, at)}reusable up to this token{tail}", f"{exact(at)}  reusable up to here{tail}"]


def _break(doc: Document) -> list[str]:
    at = f"{exact(_at(doc, doc.common))}  " if doc.sheet.tokens else ""
    if doc.places.appended:
        old = safe(doc.sheet.old_label)
        return [f"{at}{old} ends here: what follows is new", f"{at}what follows is new"] if old else [
            f"{at}the old prompt ends here: what follows is new", f"{at}what follows is new"
        ]  # fmt: skip
    what = "token" if doc.sheet.tokens else "word"
    return [f"{at}first {what} that differs", f"{at}the first difference", f"{at}differs"]


def _note(cause: Cause, n: int, w: int) -> list[Line]:
    room = max(1, w - 1)
    seen: Line = [(f" ({safe(cause.seen)})", "d")] if cause.seen else []
    rows = wrap([(f"{NBSP}{n + 1}{NBSP * 2}", "t bold"), (safe(cause.says), "t"), *seen], room, 4)
    if cause.fix:
        rows += wrap([(f"{NBSP * 4}fix{NBSP}", "ok"), (safe(cause.fix), "t")], room, 8)
    return rows
