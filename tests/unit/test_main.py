"""The door: slips and wrong use are one or two lines and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvtop.cli import slips
from kvtop.cli.main import COMMANDS, main


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
    host = f"{argv[0]}:8000"
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"kvtop: no command '{argv[0]}'; did you mean {near}?"
    assert second.strip() == f"a host of that name needs its port: kvtop {host}, or kvtop http://{host}"


@pytest.mark.parametrize("argv", [["nosuch"], ["statistics"], ["s"], ["8000", "gpubox"], ["--window", "1m", "gpubox"]])
def test_a_bare_word_that_is_no_command_is_no_host_either(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"kvtop: no command '{argv[-1]}': there are {', '.join(COMMANDS)}"
    assert f"kvtop {argv[-1]}:8000" in second


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("--theme kvtop-16 demo", "kvtop demo --theme kvtop-16"),
        ("--theme=kvtop-16 demo --headless", "kvtop demo --theme=kvtop-16 --headless"),
        ("--th kvtop-16 demo --seed 3", "kvtop demo --th kvtop-16 --seed 3"),
        ("--window 1m turns", "kvtop turns (it takes no --window)"),
        ("8000 demo", "kvtop demo (it takes no URL)"),
        ("8000 --window 1m tap --status", "kvtop tap --status (it takes no URL and no --window)"),
        ("8000 snapshot --json", "kvtop snapshot 8000 --json"),
        ("-- demo", "kvtop demo"),
        ("--json turns --last 3", "kvtop turns --json --last 3"),
        ("http://me:secret@gpu:8000 doctor", "kvtop doctor 'http://***@gpu:8000'"),
    ],
)
def test_a_command_behind_options_or_urls_comes_first(argv: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv.split()) == 2
    assert capsys.readouterr().err == f"kvtop: the command comes first: {line}\n"


@pytest.mark.parametrize("argv", [["--theme", "demo"], ["--window", "turns"], ["8000", "--theme", "tap"]])
def test_an_options_value_is_no_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert "comes first" not in capsys.readouterr().err


def test_what_etc_hosts_names_is_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_bytes(b"10.0.0.7 gpubox.lan GPUbox # snap\n\n\xff\n::1\n")
    monkeypatch.setattr(slips, "HOSTS", hosts)
    assert main(["gpubox"]) == 2
    assert "the dashboard needs a terminal" in capsys.readouterr().err
    assert main(["snap"]) == 2
    assert "no command 'snap'" in capsys.readouterr().err
    monkeypatch.setattr(slips, "HOSTS", tmp_path / "none")
    assert main(["gpubox"]) == 2
    assert "no command 'gpubox'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "host",
    [
        "gpubox:8000",
        "http://gpubox:8000",
        "http://gpubox",
        "snap.lan",
        "snap:8000",
        "snap1",
        "localhost",
        "LOCALHOST",
        "8000",
    ],
)
def test_hosts_are_hosts(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal the dashboard ends there, not at its name."""
    assert main([host]) == 2
    assert "the dashboard needs a terminal" in capsys.readouterr().err


@pytest.mark.parametrize("urls", [["foo:bar"], ["99999"], ["http://"], ["8000", "foo:bar"]])
def test_a_wrong_url_is_said_before_the_missing_terminal(urls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(urls) == 2
    said = capsys.readouterr().err
    assert said.startswith("kvtop: ") and "terminal" not in said and urls[-1].removeprefix("http://") in said


@pytest.mark.parametrize(
    "argv",
    [["--window", "3"], ["--what"], ["8000", "--theme"], ["demo", "--scenario", "\x1b[2J"], ["demo", "--seed", "x"],
     ["turns", "--what"], ["snapshot", "--what"], ["doctor", "--what"]],
)  # fmt: skip
def test_wrong_use_is_two_lines(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out = capsys.readouterr()
    said = out.err.splitlines()
    assert out.out == ""
    assert len(said) == 2 and said[0].startswith("kvtop: ") and said[1].endswith("--help tells more")
    assert "\x1b" not in out.err


@pytest.mark.parametrize("argv", [[], ["demo"], ["demo", "--headless"]])
def test_a_theme_that_is_not_there_is_one_line_with_those_that_are(
    argv: list[str], own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--theme", "no\x1bpe"]) == 2
    names = "kvtop-16, kvtop-colorblind, kvtop-dark, kvtop-light-colorblind, kvtop-light"
    assert capsys.readouterr().err == f"kvtop: no theme 'no\\x1bpe': choose one of {names}\n"
    mine = own_home / "config" / "themes"
    mine.mkdir(parents=True)
    (mine / "mine.toml").write_text("name = ")
    assert main([*argv, "--theme", "mine"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("kvtop: no theme 'mine'") and f"{mine}/mine.toml: not TOML" in second


def test_a_theme_that_is_there_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--theme", "kvtop-light"]) == 2
    assert "the dashboard needs a terminal" in capsys.readouterr().err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name:<10}  {words}\n" in out for name, words in COMMANDS.items())
    assert {"tap", "turns", "snapshot", "demo", "doctor"} <= set(COMMANDS)


def test_turns_says_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["turns"]) == 0
    out = capsys.readouterr()
    assert out.out.startswith("no turns were captured yet") and "kvtop tap" in out.out and out.err == ""
    with pytest.raises(SystemExit):
        main(["turns", "--help"])
    assert "usage: kvtop turns [-h] [--last N]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "module", ["kvtop.cli", "kvtop.cli.main", "kvtop.errors", "kvtop.cli.doctor", "kvtop.cli.checks"]
)
def test_ctrl_c_while_it_is_imported_is_130_without_a_word(module: str) -> None:
    code = (
        "import sys, signal\n"
        "class CtrlC:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, CtrlC())\n"
        "sys.argv = ['kvtop', 'doctor']\n"
        "from kvtop.__main__ import entry\n"
        "entry()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


COMPILED = "import signal; exec('import signal; signal.raise_signal(signal.SIGINT)'); print('not reached')"


def test_ctrl_c_in_the_middle_of_a_module_is_130_too() -> None:
    """There KeyboardInterrupt would come out of the compiler or of a C extension as something else, or not at all."""
    code = (
        "import sys\n"
        "class CtrlC:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'kvtop.cli.demo_watch':\n"
        f"            exec({COMPILED!r})\n"
        "sys.meta_path.insert(0, CtrlC())\n"
        "sys.argv = ['kvtop', 'demo', '--headless']\n"
        "from kvtop.__main__ import entry\n"
        "entry()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("before", ["SIG_IGN", "SIG_DFL", "default_int_handler"])
def test_only_pythons_own_way_with_ctrl_c_is_replaced(before: str) -> None:
    code = (
        "import signal\n"
        f"was = signal.{before}\n"
        "signal.signal(signal.SIGINT, was)\n"
        "from kvtop import interrupt\n"
        "interrupt.at_once()\n"
        "meanwhile = signal.getsignal(signal.SIGINT)\n"
        "interrupt.as_usual()\n"
        "print(meanwhile is was, signal.getsignal(signal.SIGINT) is was)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == f"{before != 'default_int_handler'} True\n"


def test_a_files_name_cannot_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(args: list[str]) -> int:
        raise FileNotFoundError(2, "No such file or directory", "a\x1b[31mb")

    monkeypatch.setattr("kvtop.cli.main._run", missing)
    assert main([]) == 1
    assert capsys.readouterr().err == "kvtop: a\\x1b[31mb: No such file or directory\n"
