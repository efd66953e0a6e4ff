"""However kvtop ends, the terminal is as it was; and it ends when the terminal does."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import sys
import termios

import pytest
from ptyscreen import PtyScreen

from kvtop.ui.terminal import UNSURE_S

KVTOP = (sys.executable, "-m", "kvtop")
DRAWN = "quit"
"""A word of the footer."""
OFF = ("?1049l", "?25h", "?1000l", "?1003l", "?1006l", "?2004l", "?1004l")
"""The main screen, the cursor, no mouse reports, no bracketed paste, no focus reports."""


def given_back(screen: PtyScreen) -> bool:
    on = [code for code in OFF if screen.written.rfind(f"\x1b[{code}".encode()) < screen.written.rfind(opposite(code))]
    return not on and termios.tcgetattr(screen.slave) == screen.attributes


def opposite(code: str) -> bytes:
    return f"\x1b[{code[:-1]}{'l' if code[-1] == 'h' else 'h'}".encode()


@pytest.fixture
def closed_port() -> str:
    """A URL where nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGALRM", "SIGTERM"])
def test_a_signal_leaves_the_terminal_as_it_was(closed_port: str, name: str) -> None:
    with PtyScreen([*KVTOP, closed_port]) as screen:
        screen.wait_for(DRAWN)
        screen.process.send_signal(getattr(signal, name))
        assert screen.wait_end(5) == 128 + getattr(signal, name)
        assert given_back(screen)
        assert b"Traceback" not in screen.written


def test_a_signal_ends_the_demo_and_its_box() -> None:
    with PtyScreen([*KVTOP, "demo"]) as screen:
        screen.wait_for(DRAWN)
        screen.process.send_signal(signal.SIGTERM)
        assert screen.wait_end(5) == 128 + signal.SIGTERM
        assert given_back(screen)


@pytest.mark.parametrize("after_s", [0.05, 0.3, 0.6])
def test_a_signal_while_it_starts_leaves_no_half_screen(closed_port: str, after_s: float) -> None:
    with PtyScreen([*KVTOP, closed_port]) as screen:
        screen.read(after_s)
        screen.process.send_signal(signal.SIGTERM)
        assert screen.wait_end(5) in (128 + signal.SIGTERM, -signal.SIGTERM)
        assert given_back(screen)


def test_a_signal_ends_it_though_nobody_reads_the_screen() -> None:
    with PtyScreen([*KVTOP, "demo"]) as screen:
        screen.wait_for(DRAWN)
        screen.wait_full()
        screen.process.send_signal(signal.SIGTERM)
        assert screen.wait_end(6, reading=False) == 128 + signal.SIGTERM
        assert termios.tcgetattr(screen.slave) == screen.attributes


@pytest.mark.parametrize("ignored", [False, True], ids=["hangup", "hangup-ignored"])
@pytest.mark.parametrize("demo", [False, True], ids=["server", "demo"])
def test_it_ends_with_its_terminal(closed_port: str, demo: bool, ignored: bool) -> None:
    with PtyScreen([*KVTOP, "demo" if demo else closed_port], ignore_hangup=ignored) as screen:
        screen.wait_for(DRAWN)
        screen.hang_up()
        assert screen.wait_end(5, reading=False) == 128 + signal.SIGHUP


def test_the_way_out_by_key_is_no_error(closed_port: str) -> None:
    with PtyScreen([*KVTOP, closed_port]) as screen:
        screen.wait_for(DRAWN)
        screen.press("q")
        assert screen.wait_end(5) == 0
        assert given_back(screen)


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "utf-16:strict"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["ascii", "utf-16", "C"],
)
def test_the_screen_is_utf_8_whatever_the_locale(closed_port: str, environment: dict[str, str]) -> None:
    with PtyScreen([*KVTOP, closed_port], **environment) as screen:
        screen.wait_for(DRAWN)
        screen.wait_for("─")
        assert b"\\u2" not in screen.written
        screen.press("q")
        assert screen.wait_end(5) == 0


@pytest.mark.parametrize(("columns", "lines"), [("200", "60"), ("99999", "99999"), ("20", "5"), ("0", "0")])
def test_the_terminal_knows_its_size_best(closed_port: str, columns: str, lines: str) -> None:
    with PtyScreen([*KVTOP, closed_port], COLUMNS=columns, LINES=lines) as screen:
        screen.wait_for(DRAWN)
        cursors = [(int(row), int(column)) for row, column in re.findall(rb"\x1b\[(\d+);(\d+)H", screen.written)]
        assert max(row for row, _ in cursors) == 30
        assert max(column for _, column in cursors) <= 100
        screen.press("q")
        assert screen.wait_end(5) == 0


@pytest.mark.parametrize("command", ["http://127.0.0.1:9", "demo"])
def test_a_screen_that_nobody_would_see_is_refused(command: str) -> None:
    with PtyScreen(["bash", "-c", f"{shlex.join(KVTOP)} {command} 2>/dev/null"]) as screen:
        assert screen.wait_end(10) == 2
        assert screen.written == b"kvtop: the dashboard needs a terminal on stderr too: it draws there\r\n"


@pytest.mark.parametrize("command", ["http://127.0.0.1:9", "demo"])
def test_a_terminal_that_cannot_move_its_cursor_is_refused(command: str) -> None:
    with PtyScreen([*KVTOP, command], TERM="dumb") as screen:
        assert screen.wait_end(10) == 2
        assert screen.written.startswith(b"kvtop: the dashboard needs a terminal that can move its cursor")
        assert b"\x1b" not in screen.written


def test_it_stops_and_goes_on_as_the_shell_asks(closed_port: str) -> None:
    with PtyScreen([*KVTOP, closed_port]) as screen:
        screen.wait_for(DRAWN)
        screen.process.send_signal(signal.SIGTSTP)
        screen.wait_for("\x1b[?1049l")
        screen.written = b""
        screen.process.send_signal(signal.SIGCONT)
        screen.wait_for(DRAWN)
        screen.press("q")
        assert screen.wait_end(5) == 0
        assert given_back(screen)


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "stray"])
@pytest.mark.parametrize("changed", [True, False], ids=["shell-took-it", "as-it-was"])
def test_it_goes_on_though_it_was_not_told_of_a_stop(closed_port: str, stopped: bool, changed: bool) -> None:
    with PtyScreen([*KVTOP, closed_port]) as screen:
        screen.wait_for(DRAWN)
        raw = termios.tcgetattr(screen.slave)
        if stopped:
            screen.process.send_signal(signal.SIGSTOP)
        if changed:
            termios.tcsetattr(screen.slave, termios.TCSANOW, screen.attributes)
        screen.written = b""
        screen.process.send_signal(signal.SIGCONT)
        screen.wait_for("\x1b[?1049h")
        screen.wait_for(DRAWN)
        assert termios.tcgetattr(screen.slave) == raw
        screen.press("?")
        screen.wait_for("back")
        screen.press("q")
        assert screen.wait_end(5) == 0
        assert given_back(screen)


def test_a_lone_escape_is_a_key(closed_port: str) -> None:
    with PtyScreen([*KVTOP, closed_port]) as screen:
        screen.wait_for(DRAWN)
        screen.press("?")
        screen.wait_for("back")
        screen.written = b""
        screen.press("\x1b")
        screen.wait_for("Offload")


def test_a_paste_that_never_ends_holds_no_key_for_ever(closed_port: str) -> None:
    with PtyScreen([*KVTOP, closed_port]) as screen:
        screen.wait_for(DRAWN)
        screen.press("\x1b[200~what is pasted here")
        screen.read(UNSURE_S + 1)
        screen.press("q")
        assert screen.wait_end(5) == 0
        assert given_back(screen)


@pytest.mark.parametrize("typing", ["", "/slow", "\x10the"], ids=["dashboard", "filter", "palette"])
def test_ctrl_z_gives_the_terminal_to_the_shell_till_fg(closed_port: str, typing: str) -> None:
    with PtyScreen(["bash", "--norc", "--noprofile", "-i"]) as screen:
        screen.press(f"{shlex.join([*KVTOP, closed_port])}\n")
        screen.wait_for(DRAWN)
        screen.press(typing)
        screen.read(0.5)
        screen.press("\x1a")
        screen.wait_for("Stopped")
        assert screen.written.rfind(b"\x1b[?1049l") > screen.written.rfind(b"\x1b[?1049h")
        screen.press("echo $((20 + 3))shell\n")
        screen.wait_for("23shell")
        screen.written = b""
        screen.press("fg\n")
        screen.wait_for("\x1b[?1049h")
        screen.wait_for("─")
        screen.press("\x03")
        screen.wait_for("\x1b[?1049l")
        screen.press("echo $((20 + 4))shell $?; exit\n")
        screen.wait_for("24shell 0")
        assert screen.wait_end(5) == 0


def test_ctrl_z_where_no_shell_could_let_it_go_on(closed_port: str) -> None:
    with PtyScreen([*KVTOP, closed_port]) as screen:
        screen.wait_for(DRAWN)
        screen.written = b""
        screen.press("\x1a")
        screen.wait_for("\x1b[?1049h")
        screen.wait_for(DRAWN)
        screen.press("q")
        assert screen.wait_end(5) == 0
        assert given_back(screen)
