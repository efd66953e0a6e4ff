"""A file that holds an API key: a small regular one, or none."""

from __future__ import annotations

import os
from pathlib import Path

from kvtop.config import Server


def key(file: Path | str) -> str | None:
    return Server("http://h:1", api_key_file=str(file)).api_key()


def test_its_first_line_is_the_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("\n  geheim\nmore\n")
    assert key(tmp_path / "key") == "geheim"


def test_what_is_no_file_is_no_key(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")  # reading it would wait for ever
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for file in (tmp_path / "fifo", tmp_path, "/dev/zero", "/no/such", tmp_path / "empty", tmp_path / "binary", "\0"):
        assert key(file) is None


def test_no_more_than_the_beginning_is_read(tmp_path: Path) -> None:
    (tmp_path / "huge").write_bytes(b"geheim\n" + b"x" * 1_000_000)
    assert key(tmp_path / "huge") == "geheim"
