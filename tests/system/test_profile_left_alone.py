"""Nothing of a start is left to nobody: neither where its keeper is killed at the worst moment, nor what leaves its
server's session and loses its parent.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from profilebox import LOGS, Box, box, own, wait

from kvtop.profiles.launch import Launch, Secret
from kvtop.profiles.running import client, family, lock, logs, look, record, tools
from kvtop.profiles.running.order import Told
from kvtop.profiles.running.record import Who

GOOD = str(LOGS / "good-0.32.txt")
KILLED = """
import os, signal, sys
from kvtop.profiles.running import keeper, record
keeper_pid, write = os.getpid(), record.write

def write_and_kill(state):
    write(state)
    if os.getpid() != keeper_pid:  # in the new process, before it is the program
        os.kill(keeper_pid, signal.SIGKILL)

record.write = write_and_kill
sys.argv = sys.argv[-2:]
keeper.main()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    with box(tmp_path / "home", monkeypatch.setenv) as made:
        yield made


@pytest.fixture
def killed(home: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keepers are killed between the fork of the first process that they start and its program."""
    script, program = home.home / "killed.py", home.home / "python"
    script.write_text(KILLED)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    program.chmod(0o700)
    monkeypatch.setattr(client.sys, "executable", str(program))


def begun(home: Box, name: str) -> record.Record:
    """Its record when its keeper is gone."""
    wait(lambda: (now := record.read(name)) is not None and now.keeper is not None and not now.keeper.lives, "it lives")
    state = record.read(name)
    assert state is not None
    return state


@pytest.mark.usefixtures("killed")
def test_a_server_is_known_before_it_runs(home: Box) -> None:
    home.start(home.chosen("box", log=GOOD))
    state = begun(home, "box")
    assert state.server is not None and state.server.lives
    assert look.look("box").state in ("starting", "running")
    assert home.until("box", "running").pid == state.server.pid
    assert client.stop("box", "a test").state == "stopped"


@pytest.mark.usefixtures("killed")
def test_a_pre_start_command_is_known_before_it_runs(home: Box) -> None:
    home.start(home.chosen("box", profile={"start": {"before": ["sleep 600 & sleep 600"]}}))
    state = begun(home, "box")
    assert state.step is not None and state.step.lives and state.server is None
    seen = look.look("box")
    assert (seen.state, seen.pid) == ("starting", None)
    ended = client.stop("box", "a test")
    assert (ended.state, ended.why) == ("stopped", "it was stopped before it answered, by a test")


@pytest.mark.usefixtures("killed")
def test_a_pre_start_command_without_its_keeper_ends_by_itself(home: Box) -> None:
    go = home.home / "go"
    home.start(home.chosen("box", profile={"start": {"before": [f"until [ -e {go} ]; do sleep 0.05; done"]}}))
    begun(home, "box")
    assert look.look("box").state == "starting"
    go.touch()
    seen = home.until("box", "failed")
    assert seen.record is not None and seen.record.why == "its keeper ended before the server was started"


@pytest.mark.usefixtures("killed")
def test_a_sidecar_is_known_before_it_runs(home: Box) -> None:
    home.start(home.chosen("box", profile={"sidecar": [{"name": "cache", "command": "exec sleep 600"}]}))
    (sidecar,) = begun(home, "box").sidecars
    assert sidecar.lives
    client.stop("box", "a test")
    assert not sidecar.lives


def test_after_stop_is_known_while_it_runs(home: Box) -> None:
    profile = {"start": {"after_stop": ["sleep 600"]}}
    seen = home.ready(home.chosen("box", profile=profile))
    assert seen.record is not None and seen.record.keeper is not None
    os.kill(seen.record.keeper.pid, signal.SIGTERM)
    wait(lambda: (now := record.read("box")) is not None and now.step is not None, "after_stop does not run")
    os.kill(seen.record.keeper.pid, signal.SIGKILL)
    begun(home, "box")
    assert look.look("box").state == "stopping"
    ended = client.stop("box", "a test")
    assert ended.state == "stopped" and ended.after_owed


@pytest.mark.parametrize("kind", ["stray", "late"])
def test_what_a_failed_start_left_behind_is_ended(home: Box, kind: str) -> None:
    home.start(home.chosen("box", log=GOOD, pace_s="0.1", fail="3", **{kind: "1"}))
    seen = home.until("box", "failed")
    assert seen.record is not None and own(seen.record.notes) == ["1 process was left behind and killed"]


@pytest.mark.parametrize("how", ["dies", "is stopped"])
def test_what_is_left_behind_in_the_last_moment_is_ended(home: Box, how: str) -> None:
    die = home.home / "die"
    assert home.ready(home.chosen("box", log=GOOD, late="1", die=str(die))).state == "running"
    if how == "dies":
        die.touch()
        state = home.until("box", "failed").record
    else:
        state = client.stop("box", "a test")
    assert state is not None and own(state.notes) == ["1 process was left behind and killed"]


def test_what_a_pre_start_command_left_is_not_the_servers(home: Box) -> None:
    """Whoever starts a daemon there means to have it."""
    number = home.home / "number"
    daemon = f"setsid sh -c 'sleep 600 & echo $! > {number}; wait' & until [ -s {number} ]; do sleep 0.02; done"
    home.ready(home.chosen("box", profile={"start": {"before": [daemon]}}))
    client.stop("box", "a test")
    who = Who.of(int(number.read_text()))
    assert who is not None and who.lives
    os.killpg(os.getsid(who.pid), signal.SIGKILL)


ADOPTED = """
import os, subprocess, sys, time
from kvtop.profiles.running import family, orphans
from kvtop.profiles.running.record import Who

orphans.take()
beside = subprocess.Popen(["sleep", "600"], start_new_session=True)
leaves = "(true &); setsid true & setsid sleep 600 & setsid setsid sleep 600 & exec sleep 0.2"
server = subprocess.Popen(["sh", "-c", leaves])
who = Who.of(server.pid)
server.wait()
beside_child = f"/proc/self/task/{os.getpid()}/children"
while True:
    found = family.look(who, own={server.pid, beside.pid})
    orphans.reap({server.pid, beside.pid})
    children = [pid for pid in map(int, open(beside_child).read().split()) if pid != beside.pid]
    if len(found) == 2 and len(children) == 2:
        break
    time.sleep(0.02)
print(len(found), sorted(one.pid for one in found) == sorted(children), beside.poll())
print(family.end(who, found, 1, time.sleep, time.monotonic, own={server.pid, beside.pid}).killed, beside.poll())
orphans.reap({server.pid, beside.pid})
print(len(open(beside_child).read().split()))
beside.kill()
"""


def test_a_keeper_that_is_killed_while_it_ends_a_failed_server_takes_no_reason_with_it(home: Box) -> None:
    profile = {"start": {"timeout_s": 2.0, "stop_wait_s": 60.0}}
    home.start(home.chosen("box", profile=profile, never="1", deaf="1"))
    state = home.until("box", "stopping").record
    assert state is not None and state.keeper is not None and state.server is not None and state.server.lives
    os.kill(state.keeper.pid, signal.SIGKILL)
    state = begun(home, "box")
    state.stop_wait_s = 0.2
    record.write(state)
    ended = client.stop("box", "a test")
    assert (ended.state, ended.why) == ("stopped", "it did not answer within 2 s; it was at: process up")


def test_a_stop_that_was_killed_with_the_keeper_is_told_as_none(home: Box) -> None:
    state = home.ready(home.chosen("box")).record
    assert state is not None and state.keeper is not None
    os.kill(state.keeper.pid, signal.SIGKILL)
    state = begun(home, "box")
    state.state, state.ask = "stopping", record.Ask("a stop that was killed", 1.0)
    record.write(state)
    with lock.Lock("stops box"):
        assert look.look("box").state == "stopping"
    now = look.look("box")
    assert now.state == "running" and now.record is not None and now.record.ask is None
    assert client.stop("box", "a test").state == "stopped"


def test_a_word_that_was_left_long_ago_does_not_name_who_asks(home: Box) -> None:
    state = home.ready(home.chosen("box")).record
    assert state is not None and state.keeper is not None
    record.ask("box", "somebody else", 1.0)
    os.kill(state.keeper.pid, signal.SIGTERM)
    ended = home.until("box", "stopped").record
    assert ended is not None and ended.ask is not None and ended.ask.by == "a signal to its keeper"


def test_a_server_that_ended_while_its_keeper_was_ending_it_has_failed(home: Box) -> None:
    why, dead = "it did not answer within 2 s; it was at: process up", Who(os.getpid(), "another/1")
    record.write(record.Record(name="box", state="stopping", why=why, exit_code=3, keeper=dead, server=dead))
    now = look.look("box").record
    assert now is not None and (now.state, now.exit_code, now.why) == ("failed", 3, f"{why}; its keeper was gone")


def test_what_runs_after_the_stop_has_the_environment_of_the_profile(home: Box) -> None:
    said = home.home / "said"
    profile = {"start": {"after_stop": [f'echo "$STANDIN_WORD $PWD $PYTHONPATH" > {said}']}}
    chosen = home.chosen("box", profile=profile, word="set")
    launch = dataclasses.replace(chosen.launch, cwd=str(home.home))
    home.ready(dataclasses.replace(chosen, launch=launch))
    ended = client.stop("box", "a test")
    assert said.read_text() == f"set {home.home} {os.environ.get('PYTHONPATH', '')}\n"
    assert (ended.after_stop, ended.after_owed) == (0, False)


def test_bytes_that_are_no_text_in_the_environment_are_handed_on(home: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODD", os.fsdecode(b"a\xff\xc3"))
    seen = home.ready(home.chosen("box", log=GOOD))
    assert seen.state == "running" and seen.pid is not None
    assert b"ODD=a\xff\xc3" in Path(f"/proc/{seen.pid}/environ").read_bytes().split(b"\0")


@pytest.mark.parametrize("log", ["stays", "is moved away"])
def test_what_nobody_looked_at_is_known_when_keeper_and_server_are_gone(home: Box, log: str) -> None:
    """It was begun after the keeper's last look, and writes into the server's log."""
    chosen = home.chosen("box", log=GOOD)
    late = f"trap '' INT; {chosen.launch.argv[0]} {' '.join(chosen.launch.argv[1:])} & wait $!; sleep 600"
    seen = home.ready(dataclasses.replace(chosen, launch=dataclasses.replace(chosen.launch, argv=("sh", "-c", late))))
    state = seen.record
    assert state is not None and state.keeper is not None and state.server is not None
    os.kill(state.keeper.pid, signal.SIGKILL)
    begun(home, "box")
    (served,) = [who for who in state.family if who != state.server]
    os.kill(served.pid, signal.SIGKILL)
    wait(lambda: len(home.processes()) == 2 and not served.lives, "sleep is not begun")
    if log == "is moved away":
        logs.default("box").rename(home.home / "moved")
    os.kill(state.server.pid, signal.SIGKILL)
    wait(lambda: not state.server.lives, "it lives")
    now = look.look("box")
    assert now.record is not None and now.record.why.endswith(
        "1 of its processes lives still: kvtop profile stop box ends them"
    )
    assert client.stop("box", "a test").state == "stopped"


def test_orphans_of_a_server_never_pile_up(home: Box) -> None:
    """They end by the dozen, in the server's own session and in others, and in a sidecar's."""
    forks = "for i in 1 2 3 4 5 6 7 8 9; do (true &); (setsid true &); done"
    chosen = home.chosen("box", log=GOOD, profile={"sidecar": [{"name": "pushes", "command": f"{forks}; sleep 600"}]})
    served = " ".join(chosen.launch.argv)
    state = home.ready(
        dataclasses.replace(
            chosen, launch=dataclasses.replace(chosen.launch, argv=("sh", "-c", f"{forks}; exec {served}"))
        )
    ).record
    assert state is not None and state.keeper is not None and state.state == "running"
    children = Path(f"/proc/{state.keeper.pid}/task/{state.keeper.pid}/children")
    wait(lambda: len(children.read_text().split()) == 2, "they are not taken notice of")


def test_what_a_dead_sidecar_left_is_ended_without_the_keeper(home: Box) -> None:
    sidecar = {"name": "cache", "command": "sleep 600 & sleep 600; true"}
    state = home.ready(home.chosen("box", profile={"sidecar": [sidecar]})).record
    assert state is not None and state.keeper is not None and state.server is not None
    for who in (state.keeper, state.sidecars[0], state.server):
        os.kill(who.pid, signal.SIGKILL)
    begun(home, "box")
    wait(lambda: not state.server.lives and not state.sidecars[0].lives, "they live")
    now = look.look("box")
    assert now.record is not None and "2 of its processes live still" in now.record.why
    assert client.stop("box", "a test").state == "stopped"


def test_what_writes_into_the_log_of_a_server_that_lost_its_keeper_is_told(home: Box) -> None:
    home.start(home.chosen("box", stray="1", worker="1", never="1"))
    wait(lambda: (now := record.read("box")) is not None and len(family.writers(now.outputs())) == 3, "no stray")
    state = record.read("box")
    assert state is not None and state.keeper is not None and state.server is not None
    for who in (state.keeper, state.server):
        os.kill(who.pid, signal.SIGKILL)
    wait(lambda: not state.server.lives and not state.keeper.lives, "they live")
    state.family = []  # nobody has looked yet
    record.write(state)
    record.path_of("box").with_name(f".box.json.last.{state.keeper.pid}").touch()
    with Path(state.log).open("ab") as same:  # as of another profile with the same log
        other = subprocess.Popen(["sleep", "600"], stdout=same)
    record.write(record.Record(name="other", state="running", server=Who.of(other.pid)))
    ended = client.stop("box", "a test")
    other.kill()
    other.wait()
    (stray,) = family.writers(state.outputs())
    os.kill(stray, signal.SIGKILL)
    said = f"process {stray} writes into its log still, and is not known to be this server's"
    assert [note for note in ended.notes if "its log still" in note] == [said] and ended.family == []
    assert not list(record.folder().glob(".box*"))


def test_a_server_that_answered_though_nobody_looked_is_not_said_to_have_failed_its_start(home: Box) -> None:
    home.start(home.chosen("box", log=GOOD, pace_s="0.5"))
    wait(lambda: (now := record.read("box")) is not None and now.server is not None, "no server")
    state = record.read("box")
    assert state is not None and state.keeper is not None and state.server is not None
    os.kill(state.keeper.pid, signal.SIGKILL)
    wait(lambda: "startup complete" in logs.default("box").read_text(), "it does not come up")
    os.kill(state.server.pid, signal.SIGKILL)
    wait(lambda: not state.server.lives, "it lives")
    now = look.look("box")
    assert now.record is not None and now.record.why == "it ended; its log says no more; its keeper was gone"


@pytest.mark.parametrize("before", ["", "x" * 390])
def test_a_secret_that_a_server_says_is_not_said_again(home: Box, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """Nor a piece of it, where a line is cut."""
    monkeypatch.setenv("HOLDS_A_KEY", "words-of-no-shape")
    chosen = home.chosen("box", secrets={"KEY": Secret("env", "HOLDS_A_KEY")})
    trace = rf"Traceback (most recent call last):\n  File \"x.py\", line 1\nRuntimeError: {before}$KEY was rejected\n"
    argv = ("sh", "-c", f'printf "{trace}"; exit 3')
    home.start(dataclasses.replace(chosen, launch=dataclasses.replace(chosen.launch, argv=argv)))
    seen = home.until("box", "failed")
    assert seen.record is not None and ("*** was rejected" in seen.record.why or before)
    assert b"words-of" not in record.path_of("box").read_bytes()


def test_a_secret_that_a_server_says_is_not_said_again_where_its_keeper_is_gone(
    home: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDS_A_KEY", "words-of-no-shape")
    chosen = home.chosen("box", secrets={"KEY": Secret("env", "HOLDS_A_KEY")})
    argv = ("sh", "-c", 'read go < "$0"; echo "ValueError: $KEY was rejected"; exit 3', str(home.home / "go"))
    os.mkfifo(home.home / "go")
    home.start(dataclasses.replace(chosen, launch=dataclasses.replace(chosen.launch, argv=argv)))
    wait(lambda: (now := record.read("box")) is not None and now.server is not None, "no server")
    state = record.read("box")
    assert state is not None and state.keeper is not None and state.server is not None
    os.kill(state.keeper.pid, signal.SIGKILL)
    begun(home, "box")
    (home.home / "go").write_text("\n")
    wait(lambda: not state.server.lives, "it lives")
    now = look.look("box").record
    assert now is not None
    assert now.why == "it ended before it answered; its log may say why, and hold its secrets; its keeper was gone"
    assert b"words-of-no-shape" not in record.path_of("box").read_bytes()


@pytest.mark.parametrize("long", [0, 262, 3980])
def test_a_secret_that_a_command_before_the_start_says_is_not_said_again(
    home: Box, monkeypatch: pytest.MonkeyPatch, long: int
) -> None:
    """Nor a piece of it, where what it said is cut; nor in the form in which a screen would show it."""
    monkeypatch.setenv("HOLDS_A_KEY", "words-of\u202e-no-shape")
    before = {"before": [f'echo "error: cannot log in {"x" * long} $KEY" >&2; exit 3']}
    chosen = home.chosen("box", secrets={"KEY": Secret("env", "HOLDS_A_KEY")}, profile={"start": before})
    home.start(chosen)
    seen = home.until("box", "failed")
    assert seen.record is not None and (seen.record.why.endswith("***") or long)
    assert b"words-of" not in record.path_of("box").read_bytes()


@pytest.mark.parametrize("long", [100, 3_900, 4_500])
def test_no_piece_of_a_long_secret_is_said(long: int) -> None:
    secret = "".join(f"{n:04}" for n in range(long // 4))
    told = Told(Launch((), (), secrets={"KEY": Secret("env", "X")}), {"KEY": secret})
    for before in (0, 3, 3_000, 3_950):
        done = tools.Done(1, "", f"error: {'x' * before} {secret}")
        said = told.masked(f"it failed: {done.why}")
        assert secret[:8] not in said and len(said) <= 700


def test_a_secret_that_a_command_after_the_stop_says_is_not_said_again(
    home: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDS_A_KEY", "words-of-no-shape")
    after = {"after_stop": ["echo cannot log in with $KEY >&2; exit 3"]}
    chosen = home.chosen("box", secrets={"KEY": Secret("env", "HOLDS_A_KEY")}, log=GOOD, profile={"start": after})
    state = home.ready(chosen).record
    assert state is not None and state.keeper is not None
    os.kill(state.keeper.pid, signal.SIGKILL)
    begun(home, "box")
    assert client.stop("box", "a test").after_owed
    said = client.run_after_stop(chosen)
    assert said == ["after_stop command 1 of 1 failed with exit code 3: cannot log in with ***"]
    assert b"words-of-no-shape" not in record.path_of("box").read_bytes()


def test_a_log_that_becomes_a_pipe_holds_nobody(home: Box) -> None:
    home.start(home.chosen("box", never="1"))
    wait(lambda: (now := record.read("box")) is not None and now.server is not None, "no server")
    path = logs.default("box")
    path.unlink()
    os.mkfifo(path)
    assert logs.FileTail(path).read() == b"" and logs.since(path, 0, 10) == b""
    with pytest.raises(OSError, match="not a regular file"):
        logs.last_lines(path, 5)
    assert client.stop("box", "a test").state == "stopped"


def test_a_process_that_has_ended_is_told_until_its_parent_takes_notice() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    who = Who.of(child.pid, ended=True)
    assert who is not None and not who.lives and Who.of(child.pid) is None
    child.wait()
    assert Who.of(child.pid, ended=True) is None


def test_a_server_that_ends_at_once_and_leaves_a_process_has_failed_and_nothing_is_left(home: Box) -> None:
    chosen = home.chosen("box")
    launch = dataclasses.replace(chosen.launch, argv=("sh", "-c", "sleep 600 & exit 4"))
    for _ in range(5):
        home.start(dataclasses.replace(chosen, launch=launch))
        seen = home.until("box", "failed")
        assert seen.record is not None and (seen.record.exit_code, seen.record.server is None) == (4, False)
        assert own(seen.record.notes) == ["1 process was left behind and killed"]


def test_orphans_are_told_from_children_and_taken_notice_of() -> None:
    done = subprocess.run([sys.executable, "-c", ADOPTED], capture_output=True, text=True, timeout=60, check=True)
    assert re.sub(r"\s+", " ", done.stdout).strip() == "2 True None 2 None 1"
