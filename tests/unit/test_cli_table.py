"""Tables of the commands: what a line has no room for."""

from __future__ import annotations

import pytest

from kvtop.cli.table import cells, cut, room, show, wrapped

NAMES = ("turn", "prompt", "cached", "state")
LINES = [NAMES, ("812", "123,180", "10 %", "done, slow"), ("7", "1", "\u2013", "failed 400")]


def printed(
    capsys: pytest.CaptureFixture[str], w: int | None, spare: tuple[str, ...] = ("cached", "prompt")
) -> list[str]:
    show(LINES, left=1, w=w, spare=spare)
    return capsys.readouterr().out.splitlines()


def test_all_columns_where_there_is_room(capsys: pytest.CaptureFixture[str]) -> None:
    whole = [
        "turn   prompt  cached  state",
        " 812  123,180    10 %  done, slow",
        "   7        1       \u2013  failed 400",
    ]
    assert printed(capsys, None) == printed(capsys, 33) == whole


def test_the_least_important_go_first_and_no_line_is_longer(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, 32) == ["turn   prompt  state", " 812  123,180  done, slow", "   7        1  failed 400"]
    assert printed(capsys, 24) == ["turn  state", " 812  done, slow", "   7  failed 400"]
    assert printed(capsys, 12) == ["turn  state", " 812  done,\u2026", "   7  faile\u2026"]


def test_a_program_gets_all_of_it_unless_it_says_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert room() is None
    monkeypatch.setenv("COLUMNS", "80")
    assert room() == 80


def test_wide_characters_take_two_cells_and_move_no_column(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [("n", "name", "state"), ("12", "日本語", "ok"), ("7", "cafe\u0301", "no"), ("日", "–", "…")]
    show(lines, left=2)
    assert capsys.readouterr().out.splitlines() == [
        " n  name    state",
        "12  日本語  ok",
        " 7  cafe\u0301    no",
        "日  –       …",
    ]
    show(lines, left=2, w=9)
    assert capsys.readouterr().out.splitlines() == [" n  name…", "12  日本…", " 7  cafe\u0301…", "日  –…"]


@pytest.mark.parametrize(
    ("text", "w", "says"),
    [
        ("coder", 5, "coder"),
        ("coder", 4, "cod…"),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("日本語", 2, "…"),
        ("日本語", 0, ""),
    ],
)
def test_cut_to_cells(text: str, w: int, says: str) -> None:
    assert cut(text, w) == says and cells(says) <= w


def test_wrapped_to_cells() -> None:
    assert wrapped("coder: 日本語 日本語 and more", 14) == ["coder: 日本語", "  日本語 and", "  more"]
    assert wrapped("日本語日本語", 5) == ["日本", "  語", "  日", "  本", "  語"]
    assert wrapped("short", 14) == ["short"]
