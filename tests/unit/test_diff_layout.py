"""The rows of a diff: each fits, each piece of both sides is in one when all is unfolded, places are found again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diff_sheets import UNIT, big, of, sheet, sheets
from kvtop.triage.sheet import Hunk, Sheet
from kvtop.ui.diff.blocks import What
from kvtop.ui.diff.document import CHUNK, LONG, Document
from kvtop.ui.diff.layout import Layout
from kvtop.ui.diff.rows import Row, View
from kvtop.ui.draw import width

TEXT = (What.PAIR, What.OLD, What.NEW)
views = st.builds(View, st.integers(12, 140), st.booleans(), st.booleans())


def opened(doc: Document, view: View) -> Layout:
    """With nothing folded."""
    folds = {block.new.start for block in Layout(doc, view).blocks if block.what is What.FOLD}
    return Layout(doc, view, folds)


def every_row(layout: Layout) -> list[Row]:
    return [row for n in range(len(layout.blocks)) for row in layout.rows(n)]


def text(row: Row) -> str:
    return "".join(part for part, _ in row.line)


def shown(layout: Layout, h: int = 40) -> list[str]:
    return [text(row).rstrip() for row in layout.seen(layout.opening(h), h)]


# ---------------------------------------------------------------- properties
@given(sheets(), views)
def test_every_row_fits(made: Sheet, view: View) -> None:
    doc = Document(made)
    for layout in (Layout(doc, view), opened(doc, view)):
        for n in range(len(layout.blocks)):
            assert layout.rows(n)
        for row in every_row(layout):
            if view.w >= 30:
                assert width(row.line) <= view.w, (row.block.what, text(row))
            assert text(row).isprintable() or "\xa0" in text(row)


@given(sheets(), views)
def test_every_piece_of_both_sides_is_in_some_row(made: Sheet, view: View) -> None:
    doc = Document(made)
    layout = opened(doc, view)
    olds = [n for block in layout.blocks for n in block.old]
    news = [n for block in layout.blocks for n in block.new]
    assert news == list(range(len(doc.sheet.new)))
    assert olds == list(range(len(doc.sheet.old)))
    if view.w < 40:
        return  # the text has no room
    for n, block in enumerate(layout.blocks):
        if not block.old and not block.new:
            continue
        show = doc.show(block.hunk, view.parted)
        sides = [(doc.sheet.new, block.new)]
        if view.side or block.what is What.OLD:
            sides.append((doc.sheet.old, block.old))
        wanted = Counter(
            char for pieces, span in sides for i in span for line, _ in show(pieces[i]) for char in line if letter(char)
        )
        assert Counter(char for row in layout.rows(n) for char in text(row) if letter(char)) == wanted


def test_what_was_appended_is_no_change() -> None:
    def changed(*hunks: Hunk) -> int:
        old, new = hunks[-1].old.stop, hunks[-1].new.stop
        made = replace(sheet(), old=["a"] * old, new=["b"] * new, hunks=hunks, sections=())
        return Document(made).changed

    same, other = Hunk(range(0, 5), range(0, 5), True), Hunk(range(5, 7), range(5, 8), False)
    rest = Hunk(range(7, 9), range(8, 10), True)
    assert changed(same, other, rest, Hunk(range(9, 9), range(10, 14), False)) == 1
    assert changed(same, other, rest) == 1
    assert changed(same, other) == 1
    assert changed(same, Hunk(range(5, 5), range(5, 9), False)) == 0
    assert changed(same, other, rest, Hunk(range(9, 10), range(10, 14), False)) == 2
    end = Hunk(range(9, 11), range(14, 16), True)
    at_end = replace(
        sheet(), hunks=(same, other, rest, Hunk(range(9, 9), range(10, 14), False), end), sections=(),
        old=[*"aaaaaxxaa", "<end>", "<start>"], new=[*"aaaaayyyaa", "<end>", "<start>", *"yy", "<end>", "<start>"],
    )  # fmt: skip
    assert Document(at_end).changed == 1, "it was appended behind the end that every prompt has"
    put_in = replace(at_end, new=[*"aaaaayyyaa", "<start>", *"yyy", "<end>", "<start>"])
    assert Document(put_in).changed == 2


def letter(char: str) -> bool:
    """None that stands in the numbers and marks beside the text."""
    return char not in "0123456789,-+ \u258f\u23ce"


@given(sheets(), views, views, st.integers(1, 30), st.data())
def test_moving_about(made: Sheet, view: View, other: View, h: int, data: st.DataObject) -> None:
    doc = Document(made)
    layout, another = Layout(doc, view), opened(doc, other)
    rows = every_row(layout)
    assert layout.seen((0, 0), 10**6) == rows
    assert layout.seen(layout.last(h), 10**6) == rows[-h:]
    place = (0, 0)
    for _ in range(6):
        step = data.draw(st.integers(-40, 40))
        place = layout.settled(layout.moved(place, step), h)
        seen = layout.seen(place, h)
        assert len(seen) == min(h, len(rows))
        if seen:
            found = another.find(seen[0])
            assert another.seen(found, 1)
    if doc.places.changes:
        assert layout.opening(h) <= layout.change(0), "what is said of the first difference is read from its start"
    for n in range(len(doc.places.changes)):
        at = layout.change(n)
        assert layout.change_at(at) == n
        seen = layout.seen(layout.gone_to(n, h), h)
        assert any(row.block.hunk == doc.places.changes[n] and row.block.what in TEXT for row in seen)


@given(sheets(), st.integers(8, 60), st.booleans())
def test_it_opens_with_the_first_difference_in_view(made: Sheet, h: int, side: bool) -> None:
    doc = Document(made)
    layout = Layout(doc, View(120, side, False))
    seen = layout.seen(layout.opening(h), h)
    if doc.places.changes:
        assert any(row.block.what in TEXT for row in seen)
    elif layout.blocks:
        assert seen == layout.seen((0, 0), h)


# ---------------------------------------------------------------- what it looks like
def test_side_by_side() -> None:
    rows = shown(Layout(Document(sheet()), View(120, True, False)))
    start = next(n for n, row in enumerate(rows) if "first token that differs" in row)
    assert rows[start].startswith(" ── 795  first token that differs  - type + required ────")
    assert rows[start + 1] == (
        " 1  The keys of tools[4].function.parameters are in another order. (3 of the last 41 turns)"
    )
    assert rows[start + 2] == "    fix Sort the keys of tool schemas, or send them as they came."
    assert rows[start + 3][:58].strip() == '795 - type": "object",'
    assert rows[start + 3][58 + 3 :].strip().startswith('795 + required": [')
    assert rows[start + 5].startswith(" ── the same again, but behind the break: nothing here can be reused ──")
    edge = next(row for row in rows if "block 1 ends here" in row)
    assert edge.startswith(f" ── {UNIT}  block 1 ends here: cached up to this token ──")
    assert any(row.count(" tokens, the same on both sides ···") == 2 for row in rows)


def test_unified() -> None:
    rows = shown(Layout(Document(sheet()), View(80, False, False)))
    start = next(n for n, row in enumerate(rows) if "first token that differs" in row)
    assert [row[8:9] for row in rows[start + 4 : start + 6]] == ["-", "+"]


def test_words_have_no_numbers() -> None:
    rows = shown(Layout(Document(sheet(words=True)), View(80, False, False)))
    text_rows = [row for row in rows if row[1:2] in "-+ " and not row.startswith((" ──", "    ", " 1"))]
    assert text_rows and not any(row[3:4].isdigit() for row in text_rows)
    assert any(row.startswith(" ── first word that differs") for row in rows)
    assert not any("cached" in row for row in rows)


def test_appended() -> None:
    rows = shown(Layout(Document(sheet(appended=True)), View(80, False, False)))
    assert any("turn 811 ends here: what follows is new" in row for row in rows)
    assert not any("behind the break" in row for row in rows)


PIECES = [f" {n}" for n in range(200)]


def edges(**changes: object) -> list[str]:
    """The rules over a prompt of which 100 tokens are as they were, in units of 16."""
    made = of(PIECES, [*PIECES[:100], "x", *PIECES[101:]], match_unit_tokens=16, **changes)
    made = replace(made, diff=replace(made.diff, tokens=replace(made.diff.tokens, reusable=96)))
    rows = [text(row) for row in every_row(Layout(Document(made), View(90, False, False)))]
    return [row.strip(" ─") for row in rows if (row.startswith(" ── ") and "cache" in row) or "reus" in row]


@pytest.mark.parametrize(
    ("cached", "told"),
    [
        (None, ["96  block 6 ends here: reusable up to this token"]),
        (96, ["96  block 6 ends here: cached up to this token"]),
        (
            32,
            [
                "32  block 2 ends here: cached up to this token",
                "96  block 6 ends here: reusable up to this token, and was not cached",
            ],
        ),
        (
            0,
            [
                "nothing of this prompt was cached",
                "96  block 6 ends here: reusable up to this token, and was not cached",
            ],
        ),
        (99, ["99  cached up to this token"]),
        (150, ["96  block 6 ends here: reusable up to this token"]),
        (-4, ["96  block 6 ends here: reusable up to this token"]),
    ],
)
def test_where_the_cached_part_ends(cached: int | None, told: list[str]) -> None:
    assert edges(cached_tokens=cached)[: len(told)] == told
    assert len(edges(cached_tokens=cached)) == len(told) + 1  # and that what is behind the break is not reusable


def test_a_prompt_that_differs_from_the_start() -> None:
    made = of(["a", "b"], ["c", "b"], match_unit_tokens=16, cached_tokens=0)
    rows = [text(row).rstrip(" ─") for row in every_row(Layout(Document(made), View(90, False, False)))]
    assert rows[0] == " ── no whole unit of 16 tokens is the same: nothing can be reused"
    assert rows[1] == " ── 0  first token that differs  - a + c"


def test_what_is_cached_is_shaded() -> None:
    layout = opened(doc := Document(sheet()), View(80, False, False))
    for row in every_row(layout):
        if row.block.what is What.SAME:
            assert ("@cached" in row.line[0][1]) == (row.block.new.stop <= UNIT)
    assert doc.shaded == UNIT


def test_a_change_of_white_space_is_drawn() -> None:
    made = of(["a", " ", "b"], ["a", "\n", "  ", "b"])
    rows = [text(row) for row in every_row(Layout(Document(made), View(60, False, False)))]
    assert [row[8:].strip() for row in rows if row[8:9] in "-+"] == ["- ·", "+ ⏎", "+ ··"]


def test_a_long_piece_is_laid_out_in_parts_and_keeps_its_number() -> None:
    made = of(["a", "b" * 1_000_000, " c"], ["a", "b" * 1_000_000, " d"])
    doc = Document(made)
    assert max(map(len, doc.sheet.new)) <= LONG
    layout = opened(doc, View(80, False, False))
    rows = every_row(layout)
    assert sum(text(row).count("b") for row in rows if row.block.what is What.SAME) == 1_000_000
    assert [text(row)[:7].strip() for row in rows if row.block.what in (What.OLD, What.NEW)] == ["2", "2"]
    assert any("2  first token that differs  - ·c + ·d" in text(row) for row in rows)


# ---------------------------------------------------------------- large ones
@pytest.mark.parametrize("view", [View(200, True, False), View(80, False, True)])
def test_only_what_is_looked_at_is_laid_out(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvtop.ui.diff import layout as module

    laid_out = 0
    real = module.rows_of

    def counted(doc: Document, block: object, view: View) -> list[Row]:
        nonlocal laid_out
        laid_out += 1
        return real(doc, block, view)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "rows_of", counted)
    doc = Document(big())
    layout = opened(doc, view)
    layout.seen(layout.opening(40), 40)
    assert len(layout.blocks) > 120_000 // CHUNK
    assert laid_out < 20
    layout.seen(layout.last(40), 40)
    for n in range(3):
        layout.seen(layout.gone_to(n, 40), 40)
    assert laid_out < 60
