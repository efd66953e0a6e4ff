"""The editor of a profile has the terminal, and kvtop goes on beneath it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from profilebox import free_port
from ptyscreen import PtyScreen

LEAVES_S = 2.5
"""Longer than kvtop lets itself be held up once a signal has told it to leave."""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of no server; a profile `alpha` is there."""
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "config" / "profiles"
    folder.mkdir(parents=True)
    port = free_port()
    (folder / "alpha.toml").write_text(f'[serve]\nmodel = "/m/x"\nport = {port}\n')
    return f"http://127.0.0.1:{port}"


def opened(screen: PtyScreen) -> None:
    screen.wait_for(" profiles")
    screen.press("p")
    screen.wait_for("alpha")
    screen.press("o")


def test_what_interrupts_is_for_the_editor_and_nothing_is_drawn_over_it(url: str, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\ntrap 'echo interr''upted' INT\necho ed''its $1\nread a\nread b\n")
    editor.chmod(0o700)
    with PtyScreen([sys.executable, "-m", "kvtop", url], VISUAL=str(editor)) as screen:
        opened(screen)
        screen.wait_for(f"edits {tmp_path}/home/config/profiles/alpha.toml")
        screen.press("\x03")
        screen.wait_for("interrupted")
        screen.written = b""
        screen.read(LEAVES_S)
        assert screen.process.poll() is None and b"\x1b[" not in screen.written, screen.written
        screen.press("\r\r")
        screen.wait_for("alpha")
        screen.press("q")
        assert screen.wait_end(30) == 0


def test_an_editor_that_is_not_there_is_said_and_the_screen_is_back(url: str) -> None:
    with PtyScreen([sys.executable, "-m", "kvtop", url], VISUAL="no-such-editor") as screen:
        opened(screen)
        screen.wait_for("no-such-editor")
        assert screen.written.rfind(b"\x1b[?1049h") > screen.written.rfind(b"\x1b[?1049l")
        screen.press("q")
        assert screen.wait_end(30) == 0
