"""`kvtop profile start, stop, switch, logs` with a stand-in server: what they print, answer and leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
from commandbox import run, write
from profilebox import LOGS, Box, free_port, own, wait
from ptyscreen import PtyScreen

from kvtop.cli import profile_checks
from kvtop.cli.profile import checking, stop
from kvtop.cli.profile.answered import Answered
from kvtop.errors import KvtopError, UsageError
from kvtop.profiles.running import client, logs, look, record
from kvtop.profiles.running.record import Record, Who

GOOD = str(LOGS / "good-0.32.txt")


def test_start_follows_to_ready(home: Box, capsys: pytest.CaptureFixture[str]) -> None:
    port = write(home, "good", log=GOOD)
    assert run("start", "good") == 0
    said = capsys.readouterr()
    assert said.out.startswith("good is ready after ") and said.out.count("\n") == 1
    assert f": http://127.0.0.1:{port}, KV cache 2,097,152 tokens" in said.out
    with pytest.raises(KvtopError, match=rf"good is running already \(process \d+, port {port}\)"):
        run("start", "good")
    stages = [line.rsplit("  ", 1)[0].strip() for line in said.err.splitlines()]
    assert stages == ["process up", "weights, 1 of 1 shards", "KV cache", f"port {port} answers"]
    assert run("stop", "good") == 0
    assert capsys.readouterr().out.startswith("good stopped after ")
    with pytest.raises(KvtopError, match="good does not run"):
        run("stop", "good")


def test_start_as_json(home: Box, capsys: pytest.CaptureFixture[str]) -> None:
    port = write(home, "good", log=GOOD)
    assert run("start", "good", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["port"], told["kv_cache_tokens"], told["error"]) == ("running", port, 2_097_152, None)
    assert run("stop", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["pid"], told["exit_code"], own(told["notes"])) == ("stopped", None, 0, [])


def test_a_failed_start_says_why_and_where_the_log_is(home: Box) -> None:
    write(home, "bad", log=str(LOGS / "bad-flag.txt"), fail="2")
    with pytest.raises(KvtopError) as told:
        run("start", "bad")
    assert str(told.value).split("\n") == [
        "bad did not start: unrecognized arguments: --no-such-flag 3; it ended with exit code 2 before it answered",
        "  the whole log: kvtop profile logs bad",
    ]
    assert told.value.exit_code == 1


def test_a_failed_start_as_json_has_the_error_and_the_fix(home: Box, capsys: pytest.CaptureFixture[str]) -> None:
    write(home, "bad", log=str(LOGS / "bad-flag.txt"), fail="2")
    with pytest.raises(KvtopError):
        run("start", "bad", "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["exit_code"]) == ("failed", 2)
    assert told["error"].startswith("unrecognized arguments: --no-such-flag 3")
    assert told["fix"] == "the whole log: kvtop profile logs bad"


def test_start_detached_returns_at_once(home: Box, capsys: pytest.CaptureFixture[str]) -> None:
    write(home, "slow", never="1")
    assert run("start", "slow", "--detach") == 0
    assert capsys.readouterr().out == "slow starts; kvtop profile logs -f slow shows how it comes on\n"
    assert look.look("slow").state == "starting"
    with pytest.raises(KvtopError, match="starts slow"):
        run("start", "slow")
    assert run("stop") == 0


ALONE = """
import sys
from kvtop.cli.profile import checking, switch
checking.allowed = lambda entry, **_: True
switch.foreign = lambda: []
from kvtop.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""The program itself, without what check would say of the stand-in, and without servers of others."""


def kvtop(*argv: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ALONE, "profile", *argv]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_ctrl_c_of_a_start_leaves_it_starting_and_says_so(home: Box) -> None:
    port = write(home, "slow", never="1", log=GOOD, pace_s="0.2")
    with kvtop("start", "slow") as child:
        wait(lambda: (now := record.read("slow")) is not None and now.server is not None, "it does not start")
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (130, "")
    assert err.splitlines()[-3:] == [
        f"kvtop: slow goes on starting on port {port}, only this command has ended",
        "  kvtop profile logs -f slow shows how it comes on",
        "  kvtop profile stop slow ends it",
    ]
    assert look.look("slow").state == "starting"


def test_switch_stops_and_starts(home: Box, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    write(home, "old", port)
    write(home, "new", port, log=GOOD)
    assert run("start", "old") == 0
    capsys.readouterr()
    assert run("switch", "new") == 0
    said = capsys.readouterr()
    assert said.out.startswith("new is ready after") and said.err.startswith("stops old\n")
    old = look.look("old")
    assert old.state == "stopped" and old.record is not None and old.record.ask is not None
    assert old.record.ask.by == "a switch to new"
    assert look.look("new").state == "running"


@pytest.mark.parametrize("how", ["--fallback", "a yes", "a no", "nobody"])
def test_a_switch_that_fails(
    home: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    write(home, "old")
    write(home, "bad", log=str(LOGS / "large-tier.txt"), fail="1", pace_s="0.1")
    assert run("start", "old") == 0
    first = look.look("old").pid
    capsys.readouterr()
    if how.startswith("a "):
        typed = "y\n" if how == "a yes" else "\n"
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: typed))
    if how in ("--fallback", "a yes"):
        assert run("switch", "bad", *(["--fallback"] if how == "--fallback" else [])) == 1
        said = capsys.readouterr()
        assert "bad did not start: RuntimeError: Insufficient space in /dev/shm" in said.err
        assert "starts old again\n" in said.err
        assert ("Start old again? [y/N] " in said.err) == (how == "a yes")
        assert said.out.startswith("old runs again: old is ready after")
        assert look.look("old").state == "running" and look.look("old").pid != first
    else:
        with pytest.raises(KvtopError) as told:
            run("switch", "bad")
        assert str(told.value) == "nothing runs now\n  kvtop profile start old starts the former one"
        assert client.running() == []


def test_a_switch_to_what_runs_is_refused(home: Box) -> None:
    write(home, "one")
    assert run("start", "one") == 0
    with pytest.raises(KvtopError, match="one runs already"):
        run("switch", "one")


def test_a_switch_to_what_cannot_be_started_stops_nothing(home: Box) -> None:
    port = write(home, "old")
    folder = home.home / "config" / "profiles"
    (folder / "watched.toml").write_text(f'runner = "attach"\n[attach]\nurl = "http://127.0.0.1:{port}"\n')
    assert run("start", "old") == 0
    with pytest.raises(KvtopError, match="watched is only watched"):
        run("switch", "watched", "--yes", "--fallback")
    assert look.look("old").state == "running"


def test_a_restart_is_a_switch_to_itself(home: Box) -> None:
    write(home, "one", log=GOOD)
    assert run("start", "one") == 0
    before = look.look("one")
    assert run("switch", "one", "--restart") == 0
    after = look.look("one")
    assert before.pid is not None and after.state == "running" and after.pid != before.pid
    assert not Path(f"/proc/{before.pid}").exists()
    assert after.record is not None and after.record.ask is None


def ignores(pid: int, number: signal.Signals) -> bool:
    found = re.search(r"^SigIgn:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("how", ["start", "restart", "switch"])
def test_a_start_that_is_stopped_is_told_as_stopped(
    home: Box, capsys: pytest.CaptureFixture[str], how: Literal["start", "restart", "switch"]
) -> None:
    port = free_port()
    words = {"start": ["start", "one"], "restart": ["switch", "one", "--restart"], "switch": ["switch", "one"]}
    if how != "start":
        first = "one" if how == "restart" else "other"
        write(home, first, port)
        assert run("start", first) == 0
    write(home, "one", port, never="1", deaf="1")
    began = record.read("one")
    with kvtop(*words[how]) as child:
        wait(lambda: (now := record.read("one")) is not None and now != began and now.state == "starting", "no start")
        wait(lambda: (now := record.read("one")) is not None and now.server is not None, "no server")
        server = look.look("one").pid
        assert server is not None
        wait(lambda: ignores(server, signal.SIGINT), "it is not deaf yet")
        capsys.readouterr()
        assert run("stop", "one") == 0
        said = capsys.readouterr()
        out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (1, "")
    assert "did not start" not in err and "not answered yet" not in err
    assert err.splitlines()[-1] == "kvtop: one was stopped before it answered, by kvtop profile stop"
    assert said.out.startswith("one was killed after 2")
    assert "it did not end within 2 s of SIGINT and was killed" in said.err
    state = record.read("one")
    assert state is not None and (state.state, state.exit_code) == ("stopped", 137)
    assert state.why == "it was stopped before it answered, by kvtop profile stop"


def test_a_stop_without_a_name_is_for_servers_of_kvtop_alone(
    home: Box, by_hand: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    port = write(home, "mine")
    record.folder().mkdir(parents=True)
    child = by_hand("mine")
    wait(lambda: bool(stop.foreign()) and stop.foreign()[0].port == port, "it is not seen")
    only = rf"no server of kvtop's runs, only .*process {child.pid} on port {port}"
    with pytest.raises(KvtopError, match=only):
        run("stop", "--yes")
    assert child.poll() is None


def test_the_profile_of_a_server_that_kvtop_did_not_start_is_started_again(
    home: Box, by_hand: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    port = write(home, "old", log=GOOD)
    write(home, "bad", port, fail="3", log=GOOD)
    bad = home.home / "config" / "profiles" / "bad.toml"
    bad.write_text(bad.read_text().replace("[venv]", 'args = ["--seed", "1"]\n[venv]'))
    child = by_hand("old")
    wait(lambda: bool(stop.foreign()) and stop.foreign()[0].port == port, "it is not seen")
    assert run("switch", "bad", "--stop-foreign", "--fallback") == 1
    assert child.wait(10) == 0 and look.look("bad").state == "failed"
    assert look.look("old").state == "running"


def test_ctrl_c_of_a_switch_says_what_runs(home: Box) -> None:
    write(home, "old", deaf="1", start="")
    port = write(home, "new", never="1")
    assert run("start", "old") == 0
    with kvtop("switch", "new") as child:
        wait(lambda: look.look("old").state == "stopping", "it does not stop")
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert err.splitlines()[-2:] == [
        "kvtop: old is being stopped, and new was not started",
        "  kvtop profile start new, or kvtop profile start old",
    ]
    home.until("old", "stopped")  # the keeper goes on
    with kvtop("switch", "new") as child:
        wait(lambda: look.look("new").pid is not None, "it does not start")
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert f"kvtop: new goes on starting on port {port}, only this command has ended" in err
    assert "again" not in err, "nothing ran before it"


def no_room(*_: object, **__: object) -> record.Record:
    raise OSError(28, "No space left on device", "/state/keeper.log")


@pytest.mark.parametrize("fallback", ["--fallback", "--yes"])
def test_where_the_new_one_cannot_even_begin_the_former_one_is_started_again(
    home: Box, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fallback: str
) -> None:
    write(home, "old")
    write(home, "new")
    assert run("start", "old") == 0
    record.write(
        record.Record(name="new", state="failed", why="the story of an earlier start", started_at=1.0, ended_at=2.0)
    )
    really = client.start

    def start(one: client.Chosen, *more: object, **named: str) -> record.Record:
        return (no_room if one.name == "new" else really)(one, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(client, "start", start)
    if fallback == "--fallback":
        assert run("switch", "new", fallback) == 1
        assert look.look("old").state == "running"
        assert "kvtop: new was not started: /state/keeper.log: No space left on device" in capsys.readouterr().err
    else:
        with pytest.raises(Answered) as told:
            run("switch", "new", fallback)
        assert (told.value.document["state"], told.value.document["error"]) == ("stopped", None)
        assert str(told.value) == "nothing runs now\n  kvtop profile start old starts the former one"


def test_a_former_one_that_is_not_of_the_folder_is_named_by_its_file(home: Box, tmp_path: Path) -> None:
    write(home, "old")
    elsewhere = tmp_path / "els where" / "old.toml"
    elsewhere.parent.mkdir()
    (home.home / "config" / "profiles" / "old.toml").rename(elsewhere)
    write(home, "old")
    write(home, "bad", fail="3")
    assert run("start", str(elsewhere)) == 0
    with pytest.raises(KvtopError) as told:
        run("switch", "bad", "--yes")
    assert str(told.value) == f"nothing runs now\n  kvtop profile start '{elsewhere}' starts the former one"
    state = record.read("bad")
    assert state is not None and state.former == "", "the page knows another one by that name"


def test_a_switch_on_a_full_disk_stops_nothing(home: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, "old")
    write(home, "new")
    assert run("start", "old") == 0
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(
        KvtopError, match=r"new cannot be started: \S+ takes no file: No space left on device\n  nothing was"
    ):
        run("switch", "new")
    assert look.look("old").state == "running"


def test_ctrl_c_of_a_switch_says_that_its_fallback_is_gone(home: Box) -> None:
    write(home, "old")
    write(home, "new", never="1")
    assert run("start", "old") == 0
    with kvtop("switch", "new", "--fallback") as child:
        wait(lambda: look.look("new").pid is not None, "it does not start")
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert err.splitlines()[-1] == "  where it fails, nothing starts old again now"


@pytest.mark.parametrize("at", ["the old one's end", "the new one's start"])
def test_a_switch_outlives_its_terminal(home: Box, at: str) -> None:
    write(home, "old", deaf="1")
    write(home, "bad", never="1", start="timeout_s = 3.0")
    assert run("start", "old") == 0
    with PtyScreen([sys.executable, "-c", ALONE, "profile", "switch", "bad", "--fallback"]) as screen:
        if at == "the old one's end":
            wait(lambda: look.look("old").state == "stopping", "it does not stop")
        else:
            wait(lambda: look.look("bad").pid is not None, "it does not start")
        screen.hang_up()
        assert screen.process.wait(30) != -signal.SIGHUP
    seen = look.look("bad")
    assert (seen.state, look.look("old").state) == ("failed", "running"), "--fallback was carried out"
    assert seen.record is not None and seen.record.why == "it did not answer within 3 s; it was at: process up"


def test_before_it_stops_anything_a_switch_ends_with_its_terminal(home: Box) -> None:
    write(home, "old")
    write(home, "new")
    assert run("start", "old") == 0
    asks = ALONE.replace("True", "chosen.asked('Sure?', yes=False)").replace(
        "import checking", "import chosen, checking"
    )
    with PtyScreen([sys.executable, "-c", asks, "profile", "switch", "new"]) as screen:
        wait(lambda: (screen.read(0.05), b"Sure?" in screen.written)[1], "it does not ask")
        screen.hang_up()
        assert screen.process.wait(30) == -signal.SIGHUP
    assert look.look("old").state == "running" and look.look("new").record is None


def test_a_log_that_is_followed_goes_on_from_the_sidecars_to_the_servers(home: Box) -> None:
    go = home.home / "go"
    asked, until = free_port(), f"until [ -e {go} ]; do sleep 0.05; done"
    serves = f"echo warming up; {until}; exec {sys.executable} -m http.server --bind 127.0.0.1"
    sidecar = f'[[sidecar]]\nname = "cache"\ncommand = "{serves} {asked}"\nready_url = "http://127.0.0.1:{asked}/"\n'
    write(home, "one", log=GOOD)
    file = home.home / "config" / "profiles" / "one.toml"
    file.write_text(f"{file.read_text()}\n{sidecar}")
    assert run("start", "one", "--detach") == 0
    wait(lambda: (now := record.read("one")) is not None and bool(now.sidecar_log), "no sidecar")
    with kvtop("logs", "-f", "one") as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == "warming up\n"
        go.touch()
        while "Application startup complete" not in (line := child.stdout.readline()):
            assert line
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
    assert said.startswith("kvtop: its start is at a sidecar, whose log is /")
    assert said.endswith("kvtop: it is past its sidecars: the log of the server\n")


def test_a_log_that_is_followed_at_a_sidecar_goes_on_to_the_next_start(home: Box) -> None:
    go, asked = home.home / "go", free_port()
    sidecar = f'[[sidecar]]\nname = "cache"\ncommand = "COMMAND"\nready_url = "http://127.0.0.1:{asked}/"\n'
    write(home, "one", log=GOOD)
    file = home.home / "config" / "profiles" / "one.toml"
    first, until = file.read_text(), f"until [ -e {go} ]; do sleep 0.05; done"
    file.write_text(f"{first}\n{sidecar.replace('COMMAND', f'echo the first; {until}; exit 3')}")
    assert run("start", "one", "--detach") == 0
    wait(lambda: (now := record.read("one")) is not None and bool(now.sidecar_log), "no sidecar")
    with kvtop("logs", "-f", "one") as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == "the first\n"
        assert child.stderr.readline().startswith("kvtop: its start is at a sidecar, whose log is /")
        go.touch()
        assert child.stderr.readline().startswith("kvtop: its start failed: the sidecar cache ended with exit code 3")
        serves = f"echo the second; exec {sys.executable} -m http.server --bind 127.0.0.1 {asked}"
        file.write_text(f"{first}\n{sidecar.replace('COMMAND', serves)}")
        assert run("start", "one") == 0
        while "Application startup complete" not in (line := child.stdout.readline()):
            assert line
        child.send_signal(signal.SIGINT)
        said = child.stderr.read().splitlines()
    assert said[0] == "kvtop: it was started anew"
    assert said[-1] == "kvtop: it is past its sidecars: the log of the server"


def test_whoever_reads_only_the_head_of_a_log_is_told_nothing_else(home: Box) -> None:
    write(home, "one")
    path = logs.default("one")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a line of it\n" * 100_000)
    record.write(Record(name="one", state="stopped", log=str(path)))
    with kvtop("logs", "one", "-n", "100000") as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == "a line of it\n"
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(20) in (0, 128 + signal.SIGPIPE, -signal.SIGPIPE)


def test_a_stop_says_at_a_terminal_what_it_waits_for(home: Box) -> None:
    port = write(home, "slow", deaf="1")
    assert run("start", "slow") == 0
    pid = look.look("slow").pid
    with PtyScreen([sys.executable, "-c", ALONE, "profile", "stop"]) as screen:
        screen.wait_for(f"\r\x1b[Kstops slow (process {pid}, port {port})")
        assert look.look("slow").state != "stopped"
        screen.wait_for("\r\x1b[Kslow was killed after ")
        assert screen.process.wait(30) == 0


def test_a_server_that_kvtop_did_not_start_is_stopped_after_a_yes(
    home: Box, by_hand: Callable[[str], subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    port = write(home, "mine")
    write(home, "else")
    child = by_hand("mine")
    wait(lambda: any(one.process.ports for one in stop.foreign()), "it does not listen")
    (found,) = stop.foreign()
    assert (found.profile, found.who) == ("mine", Who.of(child.pid))
    with pytest.raises(UsageError) as told:
        run("stop", "mine")
    assert str(told.value).startswith(
        f"kvtop did not start process {child.pid} on port {port}, which is the command line"
    )
    assert child.poll() is None
    assert run("stop", "mine", "--yes") == 0
    assert capsys.readouterr().out.startswith(f"process {child.pid} on port {port} stopped after")
    assert child.wait(5) == 0
    with pytest.raises(KvtopError, match="no server runs that kvtop could stop"):
        run("stop")


def test_a_switch_stops_a_server_of_others_only_in_its_way_and_after_a_yes(
    home: Box, by_hand: Callable[[str], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = write(home, "mine")
    write(home, "same", port, log=GOOD)
    write(home, "apart")
    child = by_hand("mine")
    wait(lambda: any(one.port == port for one in stop.foreign()), "it is not found")

    # --yes is for warnings: it stops nothing that kvtop did not start
    for typed in (None, "\n"):
        stdin = SimpleNamespace(isatty=lambda typed=typed: typed is not None, readline=lambda: "\n")
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(KvtopError) as told:
            run("switch", "same", "--yes")
        if typed is None:
            assert str(told.value) == (
                f"process {child.pid} on port {port}, with the flags of mine or same, which kvtop did not start, "
                f"holds port {port}. Stop it for same? There is no terminal to ask at\n  --stop-foreign says yes"
            )
        else:
            assert str(told.value) == "nothing was stopped or started"
        assert child.poll() is None

    # one that holds neither port nor card is left alone, and nobody is asked
    assert run("switch", "apart", "--stop-foreign") == 0
    assert child.poll() is None
    assert run("stop", "apart") == 0

    assert run("switch", "same", "--stop-foreign") == 0
    assert child.wait(5) == 0
    assert look.look("same").state == "running"


@pytest.mark.parametrize("together", [True, False])
def test_after_stop_of_a_killed_keeper_is_offered_and_never_run_by_looking(
    home: Box, capsys: pytest.CaptureFixture[str], tmp_path: Path, together: bool
) -> None:
    trace = tmp_path / "trace"
    write(home, "kept", start=f"after_stop = ['echo $STANDIN_WORD >> {trace}', 'exit 3']", word="after")
    assert run("start", "kept") == 0
    state = record.read("kept")
    assert state is not None and state.keeper is not None and state.server is not None
    keeper, server = state.keeper, state.server
    os.kill(keeper.pid, signal.SIGKILL)
    if together:
        os.kill(server.pid, signal.SIGKILL)
        wait(lambda: not keeper.lives and not server.lives, "they live")
        assert run("list", "--json") == 0
        assert look.look("kept").state == "failed"
    else:
        wait(lambda: not keeper.lives, "it lives")
    capsys.readouterr()
    assert run("stop", "kept") == (1 if together else 0)  # there is nobody to ask: the stop itself went well
    said = capsys.readouterr().err
    assert "kept is gone, and its keeper was: 2 after_stop commands did not run to the end. Run now?" in said
    assert not trace.exists()
    assert run("stop", "kept", "--yes") == 0
    assert trace.read_text() == "after\n"
    assert "after_stop command 2 of 2 failed with exit code 3" in capsys.readouterr().err
    with pytest.raises(KvtopError, match="kept does not run"):
        run("stop", "kept", "--yes")


def test_after_stop_that_is_run_leaves_one_document(home: Box, capsys: pytest.CaptureFixture[str]) -> None:
    write(home, "kept", start="after_stop = ['true']")
    assert run("start", "kept") == 0
    state = record.read("kept")
    assert state is not None and state.keeper is not None
    os.kill(state.keeper.pid, signal.SIGKILL)
    wait(lambda: not state.keeper.lives, "it lives")
    capsys.readouterr()
    assert run("stop", "kept", "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "stopped"
    now = record.read("kept")
    assert now is not None and not now.after_owed
    assert not any("offers it" in note for note in now.notes)


def test_a_restart_runs_the_after_stop_that_the_new_start_would_forget(home: Box) -> None:
    trace = home.home / "trace"
    write(home, "kept", start=f"after_stop = ['echo after >> {trace}']")
    assert run("start", "kept") == 0
    state = record.read("kept")
    assert state is not None and state.keeper is not None
    os.kill(state.keeper.pid, signal.SIGKILL)
    wait(lambda: not state.keeper.lives, "it lives")
    assert run("switch", "kept", "--restart") == 0
    assert trace.read_text() == "after\n" and look.look("kept").state == "running"


def owed(home: Box, name: str, trace: Path, port: int | None = None, after: str = "true") -> None:
    """Its server and its keeper are gone, and its after_stop was not run."""
    write(home, name, port, start=f"after_stop = ['echo after >> {trace}; {after}']", log=GOOD)
    assert run("start", name) == 0
    state = record.read(name)
    assert state is not None and state.keeper is not None and state.server is not None
    for who in (state.keeper, state.server):
        os.kill(who.pid, signal.SIGKILL)
        wait(lambda who=who: not who.lives, "it lives")  # type: ignore[misc]
    seen = look.look(name)
    assert seen.record is not None and seen.record.after_owed


@pytest.mark.parametrize("words", [["start", "kept"], ["start", "kept", "--detach"], ["switch", "kept"]], ids=" ".join)
def test_a_new_start_runs_what_the_end_of_the_last_server_owes(
    home: Box, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    trace = home.home / "trace"
    owed(home, "kept", trace, after="exit 3")
    capsys.readouterr()
    assert run(*words) == 0
    assert trace.read_text() == "after\n"
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "runs what the last server of kept owes: 1 after_stop command"
    assert told[1] == "  after_stop command 1 of 1 failed with exit code 3"
    now = record.read("kept")
    assert now is not None and not now.after_owed and now.after_stop == 1
    assert run("stop") == 0 and trace.read_text() == "after\nafter\n"


def test_a_server_that_a_switch_goes_back_to_owes_nothing_any_more(home: Box) -> None:
    trace, port = home.home / "trace", free_port()
    write(home, "old", port, start=f"after_stop = ['echo after >> {trace}']", log=GOOD)
    write(home, "bad", port, fail="3", log=GOOD)
    assert run("start", "old") == 0
    state = record.read("old")
    assert state is not None and state.keeper is not None
    keeper = state.keeper
    os.kill(keeper.pid, signal.SIGKILL)
    wait(lambda: not keeper.lives, "it lives")
    assert run("switch", "bad", "--fallback") == 1
    assert look.look("old").state == "running" and trace.read_text() == "after\n"


def test_while_what_is_owed_runs_the_profile_is_stopping(home: Box, capsys: pytest.CaptureFixture[str]) -> None:
    trace, go = home.home / "trace", home.home / "go"
    os.mkfifo(go)
    owed(home, "kept", trace, after=f"read x < {go}")
    with kvtop("stop", "kept", "--yes") as child:
        wait(trace.exists, "it does not run")
        assert look.look("kept").state == "stopping" and look.look("kept").pid is None
        capsys.readouterr()
        assert run("list", "--json") == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["state"], row["after_stop_owed"], row["keeper_gone"]) == ("stopping", False, False)
        for words in (["stop", "kept"], ["start", "kept"], ["switch", "kept"]):
            with pytest.raises(KvtopError, match="runs after_stop of kept"):
                run(*words)
        with pytest.raises(KvtopError, match="no server runs"):
            run("stop")
        now = record.read("kept")
        assert now is not None and not list(profile_checks._of_record(now, {"kept"}))
        go.write_text("x\n")
        assert child.wait(20) == 0
    assert look.look("kept").state == "failed"
    now = record.read("kept")
    assert now is not None and not now.after_owed and now.step is None


def test_what_is_owed_and_was_cut_short_is_owed_still(home: Box, capsys: pytest.CaptureFixture[str]) -> None:
    trace, go = home.home / "trace", home.home / "go"
    os.mkfifo(go)
    owed(home, "kept", trace, after=f"read x < {go}")
    write(home, "other", log=GOOD)
    with kvtop("stop", "kept", "--yes") as child:
        wait(trace.exists, "it does not run")
        child.kill()
        child.wait(20)
    state = look.look("kept").record
    assert state is not None and state.step is not None and state.step.lives, "it runs on"
    assert look.look("kept").state == "failed"
    with pytest.raises(KvtopError, match="1 process of kept's last start live still"):
        run("start", "kept")
    assert run("switch", "other") == 0 and state.step.lives, "a switch breaks nothing off"
    assert run("stop") == 0, "one server runs"
    assert run("stop", "kept") == 0, "without a yes, and nobody to ask"
    assert not state.step.lives and look.look("kept").state == "stopped"
    trace.unlink()
    file = home.home / "config" / "profiles" / "kept.toml"
    file.write_text(file.read_text().replace(f"read x < {go}", "true"))
    assert run("stop", "kept", "--yes") == 0 and trace.read_text() == "after\n"


def test_ctrl_c_of_what_is_owed_says_so(home: Box) -> None:
    trace, go = home.home / "trace", home.home / "go"
    os.mkfifo(go)
    owed(home, "kept", trace, after=f"read x < {go}")
    with kvtop("stop", "kept", "--yes") as child:
        wait(trace.exists, "it does not run")
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (130, "kvtop: the after_stop of kept was broken off, and is owed still\n")
    seen = look.look("kept")
    assert seen.state == "failed" and seen.record is not None and not seen.record.left()


def test_what_is_owed_is_run_as_its_own_file_has_it(home: Box, tmp_path: Path) -> None:
    trace = home.home / "trace"
    owed(home, "kept", trace)
    file = home.home / "config" / "profiles" / "kept.toml"
    other = tmp_path / "kept.toml"
    other.write_text(file.read_text().replace("echo after", "echo other"))
    assert run("start", str(other)) == 0
    assert trace.read_text() == "after\n"


@pytest.mark.parametrize("by_kvtop", [True, False])
def test_ctrl_c_of_a_switch_that_has_changed_nothing_says_so(
    home: Box,
    by_hand: Callable[[str], subprocess.Popen[bytes]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    by_kvtop: bool,
) -> None:
    port = write(home, "old")
    write(home, "new", port)
    if by_kvtop:
        assert run("start", "old") == 0
    else:
        child = by_hand("old")
        wait(lambda: bool(stop.foreign()) and stop.foreign()[0].port == port, "it is not seen")

    def interrupted(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(checking, "allowed", interrupted)
    capsys.readouterr()
    assert run("switch", "new", "--stop-foreign") == 130
    told = capsys.readouterr().err
    if by_kvtop:
        assert re.fullmatch(rf"kvtop: nothing was changed: old runs \(process \d+, port {port}\)\n", told)
    else:
        assert told == f"kvtop: nothing was changed: process {child.pid} on port {port} runs\n"
        assert child.poll() is None


def test_the_list_has_their_states(
    home: Box, by_hand: Callable[[str], subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    write(home, "bad", log=str(LOGS / "bad-flag.txt"), fail="2")
    write(home, "mine")
    write(home, "never")
    port = write(home, "runs")
    with pytest.raises(KvtopError):
        run("start", "bad")
    assert run("start", "runs") == 0
    child = by_hand("mine")
    wait(lambda: bool(stop.foreign()), "it is not found")
    capsys.readouterr()
    assert run("list", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {name: row["state"] for name, row in rows.items()} == {
        "bad": "failed",
        "mine": "foreign",
        "never": "stopped",
        "runs": "running",
    }
    assert rows["bad"]["error"].startswith("unrecognized arguments: --no-such-flag 3")
    assert (rows["mine"]["pid"], rows["runs"]["port"]) == (child.pid, port)
    assert rows["runs"]["pid"] == look.look("runs").pid and rows["runs"]["since"] is not None


def test_the_list_shows_what_runs_and_not_what_its_file_says_by_now(
    home: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed() -> tuple[object, ...]:
        capsys.readouterr()
        assert run("list", "--json") == 0
        (row,) = json.loads(capsys.readouterr().out)
        return row["state"], row["port"], row["changed"]

    def told() -> str:
        run("list")
        return " ".join(capsys.readouterr().out.split())

    port = write(home, "runs")
    assert listed() == ("stopped", port, None)
    assert run("start", "runs") == 0
    assert listed() == ("running", port, False) and "changed" not in told()
    other = write(home, "runs")
    assert listed() == ("running", port, True)
    assert f"{port} " in (said := told()) and str(other) not in said
    assert said.endswith("; its profile was changed since, a restart takes that over")
    (home.home / "config" / "profiles" / "runs.toml").write_text("[serve]\nport = ")
    assert listed() == ("running", port, None)
    assert "pid " in (said := told()) and "; runs.toml: not TOML" in said
    other = write(home, "runs")
    assert run("switch", "runs", "--restart") == 0
    assert listed() == ("running", other, False)


def test_logs_from_the_end(home: Box, capsys: pytest.CaptureFixture[str]) -> None:
    write(home, "good", log=GOOD)
    assert run("start", "good") == 0
    capsys.readouterr()
    assert run("logs", "good", "-n", "2", "--grep", "kv CACHE SIZE") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("Maximum concurrency for 32,768 tokens per request: 64.00x")
    with logs.default("good").open("ab") as file:
        file.write(b"\x1b]0;title\x07a\x1b[2Jb\x00c \xe2\x80\xaed\n")
    assert run("logs", "-n", "1") == 0
    assert capsys.readouterr().out == "ab\\x00c \\u202ed\n"
    with pytest.raises(UsageError, match="there is no profile 'nope'"):
        run("logs", "nope")


def test_answered_polls_are_left_out_and_counted(home: Box, capsys: pytest.CaptureFixture[str]) -> None:
    write(home, "good", log=GOOD)
    assert run("start", "good") == 0
    assert run("stop", "good") == 0
    with logs.default("good").open("ab") as file:
        file.write(b'INFO:     127.0.0.1:2 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n')
        file.write(b'INFO:     127.0.0.1:1 - "GET /metrics HTTP/1.1" 200 OK\n' * 1200)
        file.write(b'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable\n')
    capsys.readouterr()
    assert run("logs", "good", "-n", "2") == 0
    said = capsys.readouterr()
    assert [line.split('"')[1] for line in said.out.splitlines()] == [
        "POST /v1/chat/completions HTTP/1.1",
        "GET /health HTTP/1.1",
    ]
    assert said.err == "kvtop: 1,200 answered polls left out (GET /metrics, /v1/models and such); --all shows them\n"
    for asked in (["--all"], ["--grep", "/metrics"]):
        assert run("logs", "good", "-n", "1000", *asked) == 0
        said = capsys.readouterr()
        assert said.out.count("GET /metrics") >= 999 and not said.err


def test_logs_follow(home: Box) -> None:
    write(home, "good", log=GOOD)
    assert run("start", "good") == 0
    with kvtop("logs", "good", "-f", "-n", "1") as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        with logs.default("good").open("ab") as file:
            file.write(b"one more\n")
        while (line := child.stdout.readline()) != "one more\n":
            assert line
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 130


def test_on_a_terminal_the_line_is_drawn_over_itself(home: Box) -> None:
    write(home, "good", log=GOOD, pace_s="1.5")
    master, terminal = os.openpty()
    code = "import sys\nfrom kvtop.cli.profile import checking\nchecking.allowed = lambda entry, **_: True\n"
    code += "from kvtop.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "profile", "start", "good"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, text=True) as child:
        os.close(terminal)
        drawn = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            drawn += piece
        out, _ = child.communicate(timeout=30)
    os.close(master)
    assert child.returncode == 0 and out.startswith("good is ready after")
    shown = drawn.decode().split("\r\x1b[K")
    assert any(
        re.fullmatch(
            r"good starts: (process up|weights.*|KV cache|port \d+ answers); \d s so far, time left not known: "
            r"no good start yet",
            piece,
        )
        for piece in shown
    ), shown
    assert drawn.decode().replace("\r\n", "\n").count("\n") == 4  # a line for each stage stays
