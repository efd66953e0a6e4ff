"""The dashboard in a real terminal: sizes, resizing, detaching, keys, the mouse, a server that comes and goes."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tmuxpane import Pane

from kvtop.sim.server import Mode, SimBox

pytestmark = [pytest.mark.tmux, pytest.mark.xdist_group("tmux")]

KVTOP = (sys.executable, "-m", "kvtop")
PANELS = ("Cache", "Offload", "Queue", "TTFT", "GPU", "Turns")


@pytest.fixture(autouse=True)
def tmux() -> None:
    """tmux is there; where it is not, tests are skipped, but never in CI."""
    if shutil.which("tmux") is None:
        why = "no tmux: install it (Debian, Ubuntu: apt-get install tmux)"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)


@pytest.fixture
def pane(own_home: Path, tmp_path: Path) -> Callable[..., Pane]:
    """`with pane("demo", size=(80, 24)) as p`: kvtop in a terminal, with a home and a working folder of its own."""

    def make(*arguments: str, size: tuple[int, int] = (80, 24), **environment: str) -> Pane:
        here = ("env", "--chdir", str(tmp_path))
        return Pane([*here, *KVTOP, *arguments], *size, KVTOP_HOME=str(own_home), **environment)

    return make


def shows_panels_of_a_server(screen: str) -> bool:
    return all(name in screen for name in PANELS)


def shows_panels(screen: str) -> bool:
    return "DEMO" in screen and shows_panels_of_a_server(screen)


def past_is_told(screen: str) -> bool:
    """The demo begins with half an hour that it tells in its first second: rows run by until then."""
    captured = re.search(r"(\d+) captured", screen)
    return captured is not None and int(captured[1]) > 50


def fits(screen: str, width: int) -> bool:
    return all(len(line) <= width for line in screen.splitlines())


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_demo_shows_everything(pane: Callable[..., Pane], size: tuple[int, int]) -> None:
    with pane("demo", size=size) as p:
        screen = p.wait_until(shows_panels, "all panels")
        screen = p.wait_for("% cached", "q quit")
        assert "Traceback" not in screen
        assert len(screen.splitlines()) == size[1]
        assert screen.splitlines()[0].strip(), "the sentence is on top"
        p.keys("q")
        assert p.wait_dead() == 0
        assert "Traceback" not in p.screen()


def test_small_pane_still_says_the_sentence_and_the_share(pane: Callable[..., Pane]) -> None:
    with pane("demo", size=(40, 15)) as p:
        screen = p.wait_for("cached", "DEMO")
        assert "Traceback" not in screen
        p.keys("q")
        assert p.wait_dead() == 0


def test_resizing(pane: Callable[..., Pane]) -> None:
    """Down to where nothing fits and up again."""
    with pane("demo", size=(80, 24)) as p:
        p.wait_until(shows_panels, "all panels")
        for width, height in ((40, 15), (20, 5), (200, 50), (10, 3), (79, 23), (80, 24)):
            p.resize(width, height)
            p.wait_until(
                lambda screen, w=width, h=height: (
                    fits(screen, w) and len(screen.splitlines()) <= h and screen.strip() != ""
                ),
                f"a screen of {width}x{height}",
            )
        screen = p.wait_until(shows_panels, "all panels again")
        assert "Traceback" not in screen
        p.keys("q")
        assert p.wait_dead() == 0


def test_attaching_and_detaching(pane: Callable[..., Pane]) -> None:
    """A terminal of another size comes and goes; the dashboard follows it and goes on."""
    with pane("demo", size=(80, 24)) as p:
        p.wait_until(shows_panels, "all panels")
        with p.attached(130, 40):
            p.wait_until(
                lambda screen: len(screen.splitlines()) >= 38 and shows_panels(screen), "the size of the terminal"
            )
        before = p.screen()
        p.wait_until(lambda screen: screen != before and shows_panels(screen), "a screen that moved while detached")
        p.keys("q")
        assert p.wait_dead() == 0


def test_keys(pane: Callable[..., Pane], tmp_path: Path) -> None:
    with pane("demo", size=(120, 40)) as p:
        p.wait_until(lambda screen: shows_panels(screen) and past_is_told(screen), "all panels and the past")
        p.keys("?")
        p.wait_for("Help", "open the chosen turn")
        p.keys("Escape")
        p.wait_until(shows_panels, "the dashboard after help")
        p.keys("h")
        p.wait_for("History", "TTFT p50")
        p.keys("Escape")
        p.wait_until(shows_panels, "the dashboard after history")
        p.wait_for("5 min, n=")
        p.keys("w")
        p.wait_until(lambda screen: "5 min, n=" not in screen, "the next window")
        p.keys("5")
        p.wait_until(lambda screen: "⁵GPU" not in screen, "no GPU panel")
        p.keys("5")
        p.wait_for("⁵GPU")
        p.keys("Space")
        p.wait_for("frozen since")
        p.keys("Space")
        p.wait_until(lambda screen: "frozen" not in screen, "a moving screen")
        p.keys("Down", "Enter")
        p.wait_for("esc back")
        p.keys("Escape")
        p.wait_until(shows_panels, "the dashboard after a turn")
        p.keys("e")
        end = time.monotonic() + 20
        while len(list(tmp_path.glob("kvtop-*"))) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        assert {path.suffix for path in tmp_path.glob("kvtop-*")} == {".svg", ".json"}
        p.keys("C-c")
        p.wait_dead()
        assert "Traceback" not in p.screen()


def test_mouse_chooses_a_turn(pane: Callable[..., Pane]) -> None:
    with pane("demo", size=(100, 40)) as p:
        p.wait_until(past_is_told, "the whole past")
        p.keys("Space")
        screen = p.wait_for("frozen since", "· ok")
        row = next(n for n, line in enumerate(screen.splitlines(), 1) if "· ok" in line)
        p.click(20, row + 1)
        p.wait_until(lambda now: now.splitlines()[row].startswith("▸"), "the clicked row chosen")


@pytest.mark.parametrize("term", ["xterm", "screen", "linux", "xterm-256color"])
def test_other_terminals(pane: Callable[..., Pane], term: str) -> None:
    with pane("demo", TERM=term) as p:
        assert "Traceback" not in p.wait_until(shows_panels, "all panels")
        p.keys("q")
        assert p.wait_dead() == 0


def test_no_color(pane: Callable[..., Pane]) -> None:
    with pane("demo", NO_COLOR="1", COLORTERM="truecolor") as p:
        p.wait_until(shows_panels, "all panels")
        reds = [code for code in p.colours().split("\x1b[") if code.startswith("38;2;")]
        levels = [code.split("m")[0].split(";")[2:5] for code in reds]
        assert all(len(set(level)) == 1 for level in levels), "only greys"


async def test_server_that_comes_and_goes(pane: Callable[..., Pane]) -> None:
    """Refused, hung, dead, asleep and back: each has its word on the screen, and the numbers return."""
    box = SimBox()
    url = await box.start()
    try:
        with pane(url, size=(100, 30)) as p:
            await asyncio.to_thread(p.wait_until, shows_panels_of_a_server, "all panels")
            for mode, word in ((Mode.DOWN, "refuse"), (Mode.HANG, "answer"), (Mode.DEAD_ENGINE, "dead")):
                await box.be(mode)
                screen = await asyncio.to_thread(
                    p.wait_until, lambda now, w=word: w in now.lower(), f"{mode}: {word!r}"
                )
                assert "Traceback" not in screen
                await box.be(Mode.UP)
                await asyncio.to_thread(p.wait_until, lambda now, w=word: w not in now.lower(), f"no {word!r} any more")
            p.keys("q")
            assert await asyncio.to_thread(p.wait_dead) == 0
    finally:
        await box.stop()


def test_no_server_is_said_and_left(pane: Callable[..., Pane]) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pane(url) as p:
            screen = p.wait_until(lambda now: "refuse" in now.lower(), "the word of a closed port")
            assert "Traceback" not in screen
            p.keys("q")
            assert p.wait_dead() == 0


@pytest.mark.parametrize(
    ("arguments", "instead"), [(["http://127.0.0.1:9"], "snapshot"), (["demo"], "demo --headless")]
)
def test_without_a_terminal(arguments: list[str], instead: str) -> None:
    command = [*KVTOP, *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert instead in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_an_idle_dashboard_writes_nothing(pane: Callable[..., Pane], own_home: Path, tmp_path: Path) -> None:
    with pane("demo") as p:
        p.wait_until(shows_panels, "all panels")
        before = p.screen()
        p.wait_until(lambda screen: screen != before, "a second frame")
        p.keys("q")
        assert p.wait_dead() == 0
    assert not own_home.exists()
    assert list(tmp_path.iterdir()) == []
