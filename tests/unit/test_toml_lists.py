"""The line of each text of a list in TOML."""

from __future__ import annotations

import pytest

from kvtop.toml_text import lines_of_texts


@pytest.mark.parametrize(
    ("text", "line", "count", "lines"),
    [
        ('[serve]\nargs = [\n  "--a", "1",\n  # "not"\n  "--b",  # "nor this"\n  \'--c]\',\n]\n', 2, 4, [3, 3, 5, 6]),
        ('args = ["a", "b"]\nx = ["c"]\n', 1, 2, [1, 1]),
        ('args = [\n"""a\nb""", "c"]\n', 1, 2, [1, 1]),
        ('args = ["a",\n"b"', 1, 2, [1, 1]),
        ("args = []", 1, 0, []),
    ],
)
def test_lines(text: str, line: int, count: int, lines: list[int]) -> None:
    assert lines_of_texts(text, line, count) == lines
