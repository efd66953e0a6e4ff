"""Where files are, and one line where the environment names no place."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtop import paths
from kvtop.cli.main import main
from kvtop.errors import UsageError


def test_xdg_and_its_relative_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVTOP_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/cfg")
    monkeypatch.setenv("XDG_STATE_HOME", "rel")
    assert paths.config_dir() == Path("/cfg/kvtop")
    assert paths.state_dir() == Path("/home/me/.local/state/kvtop")
    monkeypatch.setenv("KVTOP_HOME", "~/k")
    assert paths.state_dir() == Path("/home/me/k/state")


@pytest.mark.parametrize(
    ("home", "words"),
    [("rel", "KVTOP_HOME is 'rel': a relative path"), ("~nobody-of-that-name/x", "no home folder for '~nobody")],
)
def test_a_home_that_is_no_whole_path(monkeypatch: pytest.MonkeyPatch, home: str, words: str) -> None:
    monkeypatch.setenv("KVTOP_HOME", home)
    with pytest.raises(UsageError) as error:
        paths.config_dir()
    assert words in error.value.what
    assert "KVTOP_HOME=/a/folder" in error.value.fix


def test_no_home_at_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def nobody() -> Path:
        raise RuntimeError

    monkeypatch.delenv("KVTOP_HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    for argv in (["snapshot", "8000"], ["doctor"], ["demo", "--headless"]):
        assert main(argv) == 2
        assert capsys.readouterr().err.splitlines() == [
            "kvtop: no home folder: HOME is not set to one",
            "  set HOME, or KVTOP_HOME=/a/folder",
        ]


@pytest.mark.parametrize(
    ("home", "path", "shown"),
    [
        ("/home/me", "/home/me/a", "~/a"),
        ("/home/me/", "/home/me", "~"),
        ("/home/me", "/home/men/a", "/home/men/a"),
        ("/", "/srv/a", "~/srv/a"),
    ],
)
def test_a_path_is_shown_from_the_home_folder_on(
    home: str, path: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", home)
    assert paths.with_tilde(Path(path)) == shown
