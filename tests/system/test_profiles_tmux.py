"""The page of the profiles in a real terminal, with a stand-in for vLLM: a start outlives the screen that began it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from profilebox import LOGS, Box, box, free_port, wait
from tmuxpane import Pane

from kvtop.profiles.running import client, look

pytestmark = pytest.mark.tmux
WAIT_S = 60.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    with box(tmp_path / "home", monkeypatch.setenv) as made:
        yield made


def write(home: Box, name: str, port: int, **env: str) -> None:
    model = home.home / "models" / name
    model.mkdir(parents=True)
    folder = home.home / "config" / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    variables = "".join(f'STANDIN_{key.upper()} = "{value}"\n' for key, value in env.items())
    (folder / f"{name}.toml").write_text(
        f'[serve]\nmodel = "{model}"\nnames = ["tiny"]\nhost = "127.0.0.1"\nport = {port}\n'
        f'[venv]\ncommand = ["{sys.executable}", "{home.program}", "serve"]\n[env.set]\n{variables}'
    )


def kvtop(home: Box, width: int, height: int, *urls: str) -> Pane:
    command = [sys.executable, "-m", "kvtop", *urls]
    return Pane(command, width, height, KVTOP_HOME=str(home.home), KVTOP_TEST_BOX=home.mark)


def start(pane: Pane, *wanted: str) -> None:
    """Start the chosen profile; where check warns of something on this machine, in spite of it."""
    pane.keys("Enter")
    screen = pane.wait_until(
        lambda screen: "y yes" in screen or all(text in screen for text in wanted), repr(wanted), timeout_s=WAIT_S
    )
    if "y yes" in screen:
        pane.keys("y")
        pane.wait_for(*wanted, timeout_s=WAIT_S)


def test_a_start_goes_on_without_the_screen_and_is_there_again(home: Box) -> None:
    first, second = free_port(), free_port()
    good = str(LOGS / "good-0.32.txt")
    write(home, "alpha", first, log=good, pace_s="10")
    write(home, "beta", second, log=good, pace_s="2")
    url = f"http://127.0.0.1:{first}"
    with kvtop(home, 120, 36, url) as pane:
        pane.wait_for("p profiles", timeout_s=WAIT_S)
        pane.keys("p")
        pane.wait_for("alpha", "beta", "ready to start", timeout_s=WAIT_S)
        start(pane, "alpha starts", "Start alpha", "▸ process up")
        pane.keys("q")
        pane.wait_for("alpha is starting and goes on without kvtop", timeout_s=WAIT_S)
        pane.keys("q")
        assert pane.wait_dead() == 0
    assert look.look("alpha").state == "starting"
    with kvtop(home, 80, 24, url) as pane:
        pane.wait_for("LOADING", "profile alpha", "stage", timeout_s=WAIT_S)
        pane.keys("p")
        pane.wait_for("alpha runs for", timeout_s=WAIT_S)
        pane.keys("Down")
        pane.wait_for("▸○ beta", timeout_s=WAIT_S)
        pane.keys("s")
        pane.wait_for("stop alpha", "start beta", "?  y", timeout_s=WAIT_S)
        pane.keys("n")
        # An answer to a question that is not asked again yet is no answer.
        pane.wait_until(lambda screen: "?  y" not in screen, "end of the question", timeout_s=WAIT_S)
        assert look.look("alpha").state == "running"
        pane.keys("s")
        pane.wait_for("start beta", "?  y", timeout_s=WAIT_S)
        pane.keys("y")
        pane.wait_for("beta runs for", "by a switch", timeout_s=WAIT_S)
        pane.keys("x")
        pane.wait_for("stop beta (pid", timeout_s=WAIT_S)
        pane.keys("y")
        pane.wait_for("beta stopped after", timeout_s=WAIT_S)
        pane.keys("l")
        pane.wait_for("Log beta", "following", timeout_s=WAIT_S)
        pane.keys("/")
        pane.keys("-l", "kv cache size")
        pane.keys("Enter")
        pane.wait_for("1 of 1 with “kv cache size”", "2,097,152 tokens", timeout_s=WAIT_S)
        pane.keys("q")
        assert pane.wait_dead() == 0
    assert client.running() == []


def test_a_switch_goes_on_when_the_screen_is_killed(home: Box) -> None:
    first, second = free_port(), free_port()
    good = str(LOGS / "good-0.32.txt")
    write(home, "alpha", first, log=good, pace_s="0.2")
    write(home, "beta", second, log=good, pace_s="3")
    with kvtop(home, 120, 36, f"http://127.0.0.1:{first}") as pane:
        pane.wait_for("p profiles", timeout_s=WAIT_S)
        pane.keys("p")
        pane.wait_for("alpha", "ready to start", timeout_s=WAIT_S)
        start(pane, "alpha runs for")
        pane.keys("Down")
        pane.keys("s")
        pane.wait_for("start beta", "?  y", timeout_s=WAIT_S)
        pane.keys("y")
        pane.wait_for("switches to beta", timeout_s=WAIT_S)
    wait(lambda: look.look("beta").state == "running", "the switch ended with the screen")
    assert look.look("alpha").state == "stopped"
