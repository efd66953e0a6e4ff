"""The user's own files: never waited for, never larger or slower than they may be."""

from __future__ import annotations

import os
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop import config, files, paths


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_regular_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    made = config.load(file)
    assert made.settings == config.Settings() and made.exists
    assert [p.short for p in made.problems] == [
        "config.toml: cannot be read: not a regular file; the defaults are used"
    ]
    assert made.problems[0].fix == "make it a file that you may read"


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('theme = "kvtop-light"\n' + "#" * 300_000)
    assert [p.short for p in config.load(file).problems] == ["config.toml: larger than 256 kB; the defaults are used"]


@pytest.mark.parametrize(
    "text",
    [
        "a." * 50_000 + "b = 1",
        "[" + "a." * 50_000 + "b]",
        "x = { " + "a . " * 50_000 + "b = 1 }",
        'x = [{ a = """\n#""", ' + "a." * 50_000 + "b = 1 }]",
        "x = 1" + "\n" + "\t# " + '"' + "." * 1000,
    ],
    ids=["key", "table", "inline", "behind a text of two lines", "comment that may be none"],
)
def test_a_key_of_very_many_parts_is_not_parsed(text: str) -> None:
    began = time.process_time()
    with pytest.raises(files.Unusable, match="more than 50 dots in a line"):
        files.parse_toml(text)
    assert time.process_time() - began < 1


def test_a_line_of_dots_in_a_comment_is_fine() -> None:
    assert files.parse_toml("# " + "." * 1000 + "\nx = 1") == {"x": 1}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('x = 1\na = "b\nc = 1', 2),
        ('args = ["--x",\n"y]\n', 2),
        ("a = 'b\nc = 'd'\n", 1),
        ("x = 1\na = 'b\n", None),
        ('a = "b', None),
        ('a = """b\n', None),
        ("a = '''b", None),
    ],
)
def test_a_quote_that_is_not_closed(text: str, line: int | None) -> None:
    with pytest.raises(files.Unusable) as refused:
        files.parse_toml(text)
    assert (str(refused.value), refused.value.line) == ("not TOML: a quote that is not closed", line)


@pytest.mark.parametrize("table", ["", "[keys]\n", "[[server]]\n", "[poll]\n"])
def test_a_file_full_of_nonsense_is_told_in_bounded_time_and_length(table: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(table + "".join(f"metrics_{n} = {n}\n" for n in range(6_000)))
    began = time.process_time()
    problems = config.load(file).problems
    assert time.process_time() - began < 30
    assert len(problems) <= 102 and "more like these" in str(problems[-1])


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_as_tomllib_does_or_refused(text: str) -> None:
    try:
        made = files.parse_toml(text)
    except files.Unusable as error:
        assert "\n" not in str(error)
    else:
        assert repr(made) == repr(tomllib.loads(text))


def test_folders_that_are_made_are_private_with_those_above_them(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(0o755)
    (tmp_path / "there").chmod(0o755)
    paths.make_private(tmp_path / "there" / "state" / "taps")
    modes = {folder.name: folder.stat().st_mode & 0o777 for folder in tmp_path.rglob("*")}
    assert modes == {"there": 0o755, "state": 0o700, "taps": 0o700}
