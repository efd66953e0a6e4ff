"""The door: slips and wrong use are one or two lines and exit code 2."""

from __future__ import annotations

import pytest

from kvtop.cli.main import main


@pytest.mark.parametrize(
    ("argv", "near"),
    [
        (["snap"], "snapshot"),
        (["snap", "--json"], "snapshot"),
        (["docter"], "doctor"),
        (["turn"], "turns"),
        (["Demo"], "demo"),
        (["snapshto", "8000"], "snapshot"),
    ],
)
def test_a_bare_word_that_is_nearly_a_command(argv: list[str], near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    line = f"kvtop: no command '{argv[0]}'; did you mean {near}? For a host of that name: http://{argv[0]}:8000\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("host", ["gpubox", "turing", "snap.lan", "snap:8000", "snap1", "s", "localhost", "8000"])
def test_hosts_are_hosts(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal the dashboard ends there, not at its name."""
    assert main([host]) == 2
    assert "the dashboard needs a terminal" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [["--window", "3"], ["--what"], ["8000", "--theme"], ["demo", "--scenario", "\x1b[2J"], ["demo", "--seed", "x"],
     ["turns", "--what"], ["snapshot", "--what"], ["doctor", "a", "b"]],
)  # fmt: skip
def test_wrong_use_is_two_lines(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out = capsys.readouterr()
    said = out.err.splitlines()
    assert out.out == ""
    assert len(said) == 2 and said[0].startswith("kvtop: ") and said[1].endswith("--help tells more")
    assert "\x1b" not in out.err


def test_turns_says_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["turns"]) == 0
    out = capsys.readouterr()
    assert out.out.startswith("no turns were captured yet") and "kvtop tap" in out.out and out.err == ""
    with pytest.raises(SystemExit):
        main(["turns", "--help"])
    assert "usage: kvtop turns [-h] [--last N]" in capsys.readouterr().out
