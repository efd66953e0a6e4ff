"""The layout is a table: sizes in, rectangles out."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.ui.layout import PANELS, Rect, plan

ALL = frozenset(PANELS)


def overlap(a: Rect, b: Rect) -> bool:
    return a.x < b.x + b.w and b.x < a.x + a.w and a.y < b.y + b.h and b.y < a.y + a.h


@pytest.mark.parametrize(
    ("size", "gpus", "lines", "wanted"),
    [
        ((80, 24), 2, 0, {"head": (0, 0, 80, 2), "cache": (0, 2, 39, 6), "offload": (41, 2, 39, 6),
                          "queue": (0, 8, 39, 4), "ttft": (41, 8, 39, 4), "gpu": (0, 12, 80, 3),
                          "turns": (0, 15, 80, 8), "foot": (0, 23, 80, 1)}),
        ((120, 36), 2, 0, {"cache": (0, 2, 59, 10), "offload": (61, 2, 59, 10), "queue": (0, 12, 34, 7),
                           "ttft": (36, 12, 41, 7), "gpu": (79, 12, 41, 7), "turns": (0, 19, 120, 16)}),
        ((200, 50), 2, 0, {"cache": (0, 2, 99, 14), "queue": (0, 16, 58, 9), "turns": (0, 25, 130, 24),
                           "preview": (132, 25, 68, 24)}),
        ((40, 15), 2, 0, {"head": (0, 0, 40, 3), "facts": (0, 3, 40, 6), "turns": (0, 9, 40, 5),
                          "foot": (0, 14, 40, 1)}),
        ((80, 24), 0, 0, {"gpu": (0, 12, 80, 1), "turns": (0, 13, 80, 10)}),
        ((120, 36), 0, 0, {"queue": (0, 12, 53, 7), "ttft": (55, 12, 65, 7), "gpu": (0, 19, 120, 1),
                           "turns": (0, 20, 120, 15)}),
        ((80, 24), 2, 2, {"strip": (0, 2, 80, 2), "cache": (0, 4, 39, 6), "turns": (0, 17, 80, 6)}),
        ((80, 24), 2, 9, {"strip": (0, 2, 80, 4), "turns": (0, 19, 80, 4)}),
        ((40, 15), 2, 4, {"strip": (0, 3, 40, 1), "facts": (0, 4, 40, 6), "turns": (0, 10, 40, 4)}),
        ((75, 24), 2, 0, {"head": (0, 0, 75, 3), "facts": (0, 3, 75, 10), "turns": (0, 13, 75, 10)}),
        ((76, 19), 2, 0, {"head": (0, 0, 76, 2), "facts": (0, 2, 76, 8)}),
        ((76, 20), 2, 0, {"cache": (0, 2, 37, 6), "gpu": (0, 12, 76, 1), "turns": (0, 13, 76, 6)}),
        ((115, 30), 2, 0, {"gpu": (0, 19, 115, 3), "turns": (0, 22, 115, 7)}),
        ((116, 29), 2, 0, {"gpu": (77, 8, 39, 4), "turns": (0, 12, 116, 16)}),
        ((159, 45), 2, 0, {"cache": (0, 2, 78, 14), "turns": (0, 25, 159, 19)}),
        ((160, 45), 2, 0, {"turns": (0, 25, 104, 19), "preview": (106, 25, 54, 19)}),
        ((160, 30), 2, 0, {"turns": (0, 19, 160, 10)}),
        ((80, 24), 8, 0, {"gpu": (0, 12, 80, 3)}),
        ((20, 5), 2, 3, {"head": (0, 0, 20, 3), "facts": (0, 3, 20, 2)}),
    ],
)  # fmt: skip
def test_sizes(size: tuple[int, int], gpus: int, lines: int, wanted: dict[str, tuple[int, int, int, int]]) -> None:
    rects = plan(*size, ALL, gpus, lines)
    assert {name: tuple(rects[name]) for name in wanted} == wanted


@pytest.mark.parametrize("size", [(160, 30), (159, 45), (120, 36)])
def test_no_preview_where_twelve_rows_are_not_free_or_the_screen_is_narrow(size: tuple[int, int]) -> None:
    assert "preview" not in plan(*size, ALL, 2, 0)


def test_the_room_of_a_hidden_panel_goes_to_its_neighbour_and_an_empty_band_to_the_turns() -> None:
    assert plan(80, 24, ALL - {"cache"}, 2)["offload"] == (0, 2, 80, 6)
    assert plan(80, 24, ALL - {"cache", "offload"}, 2)["turns"].h == 8 + 6
    assert plan(120, 36, ALL - {"gpu"}, 2)["ttft"].w > plan(120, 36, ALL, 2)["ttft"].w


def test_with_the_turns_hidden_the_charts_grow() -> None:
    rects = plan(120, 36, ALL - {"turns"}, 2)
    assert rects["cache"].h == 36 - 3 - 7
    rects = plan(120, 36, {"queue", "gpu"}, 2)
    assert rects["queue"].h == 36 - 3


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    w=st.integers(1, 260), h=st.integers(1, 90), shown=st.frozensets(st.sampled_from(PANELS)),
    gpus=st.integers(0, 16), lines=st.integers(0, 20),
)  # fmt: skip
def test_nothing_overlaps_nothing_leaves_the_screen_and_the_sentence_stays(
    w: int, h: int, shown: frozenset[str], gpus: int, lines: int
) -> None:
    rects = plan(w, h, shown, gpus, lines)
    for name, rect in rects.items():
        assert rect.w > 0 and rect.h > 0, name
        assert rect.x >= 0 and rect.y >= 0 and rect.x + rect.w <= w and rect.y + rect.h <= h, name
    for (a, one), (b, other) in combinations(rects.items(), 2):
        assert not overlap(one, other), (a, b)
    assert "head" in rects
    assert h < 3 or "facts" in rects or "cache" in rects or "cache" not in shown
    assert set(rects) <= {*shown, "head", "foot", "strip", "facts", "preview", "hidden"}
    assert ("hidden" in rects) <= (not shown)
