"""Servers as processes, with a stand-in that prints what a real vLLM prints: start, ready, stop, each way to fail."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from profilebox import LOGS, Box, box, free_port, own, wait

from kvtop.cli import profile as profile_command
from kvtop.cli.profile.chosen import failed
from kvtop.errors import KvtopError
from kvtop.profiles.launch import Secret
from kvtop.profiles.running import client, family, lock, logs, look, record
from kvtop.profiles.running.asking import listens
from kvtop.profiles.running.lock import Busy, Lock
from kvtop.profiles.running.record import Who
from kvtop.profiles.running.stages import stage_words

GOOD = str(LOGS / "good-0.32.txt")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    with box(tmp_path / "home", monkeypatch.setenv) as made:
        yield made


def environ(seen: look.Seen) -> dict[str, str]:
    assert seen.record is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{seen.record.port}/environ", timeout=5) as answer:
        found: dict[str, str] = json.load(answer)
    return found


def log_of(name: str) -> str:
    return logs.default(name).read_text()


def test_a_start_is_followed_to_ready_and_stopped(home: Box) -> None:
    chosen = home.chosen("good", log=GOOD, pace_s="1.0")
    home.start(chosen)
    seen_at = []
    for step in client.follow("good", lambda seen: seen.state != "starting"):
        assert step.seen.record is not None
        seen_at += [stage.name for stage in step.seen.record.stages if stage.ended_at is None]
        assert step.left is None  # never started before
    state = step.seen.record
    assert step.seen.state == "running" and state is not None
    assert list(dict.fromkeys(seen_at)) == ["process", "weights", "kv_cache", "port"] or "process" in seen_at
    assert [stage.name for stage in state.stages] == ["process", "weights", "kv_cache", "port"]
    assert all(stage.took_s is not None for stage in state.stages)
    assert (state.shards_done, state.shards) == (1, 1)
    assert (state.kv_cache_tokens, state.block_tokens) == (2_097_152, 128)
    assert state.server is not None and state.server.lives and os.getsid(state.server.pid) == state.server.pid
    assert state.keeper is not None and os.getsid(state.keeper.pid) == state.keeper.pid
    (start,) = record.starts("good")
    assert start.took_s > 0.5 and set(start.stages) == {"process", "weights", "kv_cache", "port"}

    ended = client.stop("good", "a test")
    assert (ended.state, ended.exit_code, own(ended.notes)) == ("stopped", 0, [])
    assert ended.ask is not None and ended.ask.by == "a test"
    assert not state.server.lives and not state.keeper.lives

    home.start(chosen)
    (left,) = [step.left for step in client.follow("good", lambda _: True)]
    assert left is None or left.of_starts == 1
    lefts = [step.left for step in client.follow("good", lambda seen: seen.state == "running")]
    assert any(left is not None and left.of_starts == 1 and 0 < left.seconds < 3 for left in lefts)


def test_the_environment_is_exact(home: Box, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-file-5d3f\nsecond line\n")
    monkeypatch.setenv("HOLDS_A_KEY", "sk-env-77aa")
    monkeypatch.setenv("NOT_WANTED", "1")
    secrets = {"FROM_FILE": Secret("file", str(key)), "FROM_ENV": Secret("env", "HOLDS_A_KEY")}
    chosen = home.chosen(
        "env", "--api-key", "sk-word-91bc", secrets=secrets, unset=("NOT_WANTED", "HOLDS_A_KEY"), log=GOOD
    )
    seen = home.ready(chosen)
    assert seen.state == "running"
    found = environ(seen)
    assert (found["FROM_FILE"], found["FROM_ENV"]) == ("sk-file-5d3f", "sk-env-77aa")
    assert "NOT_WANTED" not in found and "HOLDS_A_KEY" not in found
    expected = {**os.environ, **chosen.launch.set, "FROM_FILE": "", "FROM_ENV": ""}
    assert set(found) == set(expected) - {"NOT_WANTED", "HOLDS_A_KEY"} | ({"LC_CTYPE"} & set(found))

    assert seen.record is not None and seen.record.keeper is not None
    told = [file.read_bytes() for file in home.home.rglob("*") if file.is_file() and file != home.program]
    told.append(Path(f"/proc/{seen.record.keeper.pid}/cmdline").read_bytes())
    for secret in (b"sk-file-5d3f", b"sk-env-77aa", b"sk-word-91bc"):
        assert not [text for text in told if secret in text]
    assert "***" in seen.record.argv
    for file in record.folder().iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file
    assert logs.default("env").stat().st_mode & 0o777 == 0o600


def test_a_secret_that_is_not_there_ends_the_start(home: Box) -> None:
    secrets = {"VLLM_API_KEY": Secret("file", "/nowhere/key")}
    home.start(home.chosen("secret", secrets=secrets))
    seen = home.until("secret", "failed")
    assert seen.record is not None
    assert seen.record.why == "VLLM_API_KEY is to come from /nowhere/key: No such file or directory"
    assert seen.record.server is None


@pytest.mark.parametrize(
    ("log", "code", "why"),
    [
        ("bad-flag", "2", "unrecognized arguments: --no-such-flag 3; it ended with exit code 2 before it answered"),
        (
            "large-tier",
            "1",
            "RuntimeError: Insufficient space in /dev/shm for CPU KV offload shared region in /dev/shm: 104857600 MiB "
            "required, 24106 MiB free. Increase /dev/shm (e.g. --shm-size or --ipc=host); it ended with exit code 1 "
            "before it answered",
        ),
    ],
)
def test_a_failed_start_tells_the_root_cause(home: Box, log: str, code: str, why: str) -> None:
    home.start(home.chosen("bad", log=str(LOGS / f"{log}.txt"), pace_s="0.1", fail=code))
    seen = home.until("bad", "failed")
    assert seen.record is not None
    assert (seen.record.why, seen.record.exit_code) == (why, int(code))
    assert record.starts("bad") == []
    with pytest.raises(KvtopError, match="does not run"):
        client.stop("bad", "a test")


def test_a_program_that_is_not_there(home: Box) -> None:
    chosen = home.chosen("none")
    launch = chosen.launch.__class__(argv=("/nowhere/vllm", "serve"), serve=(), port=chosen.launch.port)
    home.start(client.Chosen("none", "", chosen.profile, launch))
    seen = home.until("none", "failed")
    assert seen.record is not None and seen.record.why.startswith("there is no program /nowhere/vllm")


def test_the_start_timeout_ends_it(home: Box) -> None:
    home.start(home.chosen("slow", profile={"start": {"timeout_s": 3.0, "stop_wait_s": 2.0}}, never="1", log=GOOD))
    seen = home.until("slow", "failed")
    assert seen.record is not None
    assert seen.record.why == "it did not answer within 3 s; it was at: the wait for its port"


def test_a_stop_in_the_middle_of_a_start(home: Box) -> None:
    home.start(home.chosen("half", never="1"))
    ended = client.stop("half", "a test")
    assert (ended.state, ended.why) == ("stopped", "it was stopped before it answered, by a test")


def test_a_resistant_server_is_killed(home: Box) -> None:
    seen = home.ready(home.chosen("deaf", profile={"start": {"stop_wait_s": 1.0}}, deaf="1"))
    assert seen.state == "running"
    began = time.monotonic()
    ended = client.stop("deaf", "a test")
    assert 1.0 <= time.monotonic() - began < 8
    assert (ended.state, ended.exit_code) == ("stopped", 137)
    assert own(ended.notes) == ["it did not end within 1 s of SIGINT and was killed"]


@pytest.mark.parametrize("kind", ["stray", "worker"])
def test_workers_that_stay_behind_are_killed(home: Box, kind: str) -> None:
    seen = home.ready(home.chosen("left", profile={"start": {"stop_wait_s": 0.5}}, **{kind: "1"}))
    assert seen.record is not None and len(seen.record.family) == 2
    ended = client.stop("left", "a test")
    assert (ended.state, ended.exit_code) == ("stopped", 0)
    assert own(ended.notes) == ["1 process was left behind and killed"]


def test_an_end_that_nobody_asked_for_is_a_failure_though_its_code_is_0(home: Box) -> None:
    die = home.home / "die"
    assert home.ready(home.chosen("crash", die=str(die), worker="1")).state == "running"
    die.touch()
    seen = home.until("crash", "failed")
    assert seen.record is not None and seen.record.exit_code == 0
    assert seen.record.why == (
        "Engine core proc EngineCore died unexpectedly, shutting down client. "
        "(its log does not say why: killed, or out of memory?); "
        "it ended with exit code 0 though nobody asked for that"
    )


def test_the_server_outlives_its_keeper(home: Box) -> None:
    seen = home.ready(home.chosen("orphan", log=GOOD))
    assert seen.record is not None and seen.record.keeper is not None and seen.record.server is not None
    os.kill(seen.record.keeper.pid, signal.SIGKILL)
    wait(lambda: not seen.record.keeper.lives, "the keeper does not die")
    assert look.look("orphan").state == "running" and environ(seen)
    assert "GET /environ" in log_of("orphan")  # its output still arrives
    ended = client.stop("orphan", "a test")
    assert ended.state == "stopped" and not seen.record.server.lives


def test_a_start_goes_on_without_its_keeper(home: Box) -> None:
    home.start(home.chosen("start", log=GOOD, pace_s="2"))
    wait(lambda: (now := record.read("start")) is not None and now.server is not None, "no server")
    state = record.read("start")
    assert state is not None and state.keeper is not None
    os.kill(state.keeper.pid, signal.SIGKILL)
    wait(lambda: not state.keeper.lives, "the keeper does not die")
    assert look.look("start").state == "starting"
    home.until("start", "running")


def test_a_server_that_died_with_its_keeper_is_told(home: Box) -> None:
    seen = home.ready(home.chosen("both"))
    assert seen.record is not None and seen.record.keeper is not None and seen.record.server is not None
    for who in (seen.record.keeper, seen.record.server):
        os.kill(who.pid, signal.SIGKILL)
    wait(lambda: not seen.record.keeper.lives and not seen.record.server.lives, "they live")
    now = look.look("both")
    assert now.state == "failed" and now.record is not None
    assert now.record.why == "it ended; its log says no more; its keeper was gone"


def test_a_reused_number_is_never_taken_for_the_server(home: Box) -> None:
    seen = home.ready(home.chosen("reused"))
    state = seen.record
    assert state is not None and state.keeper is not None and state.server is not None
    for who in (state.keeper, state.server):
        os.kill(who.pid, signal.SIGKILL)
    wait(lambda: not state.keeper.lives and not state.server.lives, "they live")
    # now this very process has those numbers, with another birth
    state.keeper = Who(os.getpid(), state.keeper.birth)
    state.server = Who(os.getpid(), state.server.birth)
    state.family = [Who(os.getpid(), "another/1")]
    record.write(state)
    assert look.look("reused").state == "failed"
    assert family.look(state.server, state.family) == []
    assert not family.send(state.server, signal.SIGKILL)
    with pytest.raises(KvtopError, match="does not run"):
        client.stop("reused", "a test")


def test_two_cannot_start_at_once(home: Box) -> None:
    home.start(home.chosen("one", log=GOOD, pace_s="1.5"))
    state = record.read("one")
    assert state is not None and state.keeper is not None
    with pytest.raises(Busy) as told:  # the command that started it has let go, its keeper has not
        home.start(home.chosen("two"))
    who, what = str(told.value).split("\n")
    assert re.fullmatch(rf"kvtop \(process {state.keeper.pid}\) starts one, since \S+Z", who)
    assert what == "  wait for it, or end it: kvtop profile stop one"
    home.until("one", "running")
    with Lock("starts two"):
        pass
    with pytest.raises(KvtopError, match=r"one is running already \(process \d+, port \d+\)"):
        home.start(home.chosen("one"))


def test_an_old_server_on_the_port_is_never_taken_for_ours(home: Box) -> None:
    port = free_port()
    assert home.ready(home.chosen("old", port=port)).state == "running"
    home.start(
        home.chosen("new", port=port, log=GOOD, pace_s="0.3", never="1", profile={"start": {"stop_wait_s": 1.0}})
    )
    seen = home.until("new", "failed")
    assert seen.record is not None
    assert re.fullmatch(rf"port {port} is held by process \d+ \(\S+\), not by this server", seen.record.why)
    assert look.look("old").state == "running"


def test_another_model_on_the_port_is_told(home: Box) -> None:
    chosen = home.chosen("other", model="llama", profile={"start": {"timeout_s": 1.5, "stop_wait_s": 1.0}})
    home.start(chosen)
    seen = home.until("other", "failed")
    assert seen.record is not None
    assert "it serves llama, not tiny, which its profile names" in seen.record.why


def test_the_log_is_rotated_while_it_runs(home: Box) -> None:
    seen = home.ready(home.chosen("loud", spam="200000", profile={"log": {"max_bytes": 100_000}}))
    path = logs.default("loud")
    wait(lambda: logs.older(path).exists() and path.stat().st_size < 100_000, "it is not rotated")
    assert logs.older(path).stat().st_size >= 100_000 and logs.older(path).stat().st_mode & 0o777 == 0o600
    environ(seen)
    wait(lambda: b"GET /environ" in path.read_bytes(), "what it writes does not arrive")
    assert logs.last_lines(path, 1, "environ") == ['INFO:     127.0.0.1:1 - "GET /environ HTTP/1.1" 200']
    assert len(logs.last_lines(path, 500)) == 500  # from the older file too


def test_a_tier_file_is_removed_only_if_it_is_stale_and_ours(home: Box) -> None:
    mine, other = f"vllm_offload_{os.getpid()}a.mmap", f"vllm_offload_{os.getpid()}b.mmap"
    foreign = Path("/dev/shm", other)
    foreign.write_bytes(b"x" * 4096)
    os.utime(foreign, (0, 0))  # a young one may be about to be mapped
    try:
        seen = home.ready(home.chosen("tier", tier=mine))
        assert seen.record is not None and [file.path for file in seen.record.tier_files] == [f"/dev/shm/{mine}"]
        ended = client.stop("tier", "a test")
        assert f"removed its tier file /dev/shm/{mine} (1 MiB)" in ended.notes
        assert any(note.endswith(f"rm /dev/shm/{other}") for note in ended.notes)
        assert not Path("/dev/shm", mine).exists() and foreign.exists()
    finally:
        foreign.unlink()


def test_a_tier_file_of_a_start_that_is_soon_over_is_removed(home: Box) -> None:
    mine = f"vllm_offload_{os.getpid()}c.mmap"
    home.start(home.chosen("quick", tier=mine, fail="1", log=GOOD, pace_s="0.1"))
    seen = home.until("quick", "failed")
    assert seen.record is not None
    assert f"removed its tier file /dev/shm/{mine} (1 MiB)" in seen.record.notes
    home.start(home.chosen("cut", tier=mine, log=GOOD, pace_s="9"))
    wait(Path("/dev/shm", mine).exists, "it makes none")
    assert f"removed its tier file /dev/shm/{mine} (1 MiB)" in client.stop("cut", "a test").notes


def test_a_tier_file_of_one_whose_keeper_was_killed_is_removed(home: Box) -> None:
    mine = f"vllm_offload_{os.getpid()}d.mmap"
    state = home.start(home.chosen("alone", tier=mine, log=GOOD, pace_s="0.5"))
    wait(lambda: (now := record.read("alone")) is not None and now.server is not None, "no server")
    assert state.keeper is not None
    os.kill(state.keeper.pid, signal.SIGKILL)
    home.until("alone", "running")
    assert f"removed its tier file /dev/shm/{mine} (1 MiB)" in client.stop("alone", "a test").notes


def test_a_start_says_what_it_waits_for_before_its_server(home: Box, capsys: pytest.CaptureFixture[str]) -> None:
    profile: dict[str, object] = {"start": {"before": ["true", "sleep 600"]}}
    home.start(home.chosen("waits", profile=profile))
    wait(lambda: (now := record.read("waits")) is not None and now.doing == "pre-start command 2 of 2", "not told")
    seen = look.look("waits")
    assert seen.record is not None
    assert stage_words(seen.record.stages[0], seen.record) == "pre-start command 2 of 2"
    client.stop("waits", "a test")
    url = f"http://127.0.0.1:{free_port()}/"
    sidecar = {"name": "cache", "command": "echo warming up; sleep 600", "ready_url": url}
    home.start(home.chosen("beside", profile={"sidecar": [sidecar]}))
    doing = f"sidecar cache, asked at {url}"
    wait(lambda: (now := record.read("beside")) is not None and now.doing == doing, "not told")
    wait(lambda: b"warming up" in logs.since(logs.default("beside", "cache"), 0, 100), "its log is not there")
    client.stop("beside", "a test")
    assert profile_command.main(["logs", "beside"]) == 0
    said = capsys.readouterr()
    assert said.out == "warming up\n"
    assert said.err.startswith("kvtop: its start came no further than a sidecar, whose log is /")


def test_a_sidecar_that_fails_is_told_with_what_it_said(home: Box) -> None:
    sidecar = {"name": "cache", "command": "echo starts; echo cannot bind; exit 3", "ready_url": "http://127.0.0.1:1/"}
    for _ in range(2):  # of this start alone
        home.start(home.chosen("beside", profile={"sidecar": [sidecar]}))
        seen = home.until("beside", "failed")
        assert seen.record is not None
        assert seen.record.why.startswith("the sidecar cache ended with exit code 3: cannot bind; its log: /")
        assert "kvtop profile logs" not in str(failed(seen)), "that is the server's"


def test_an_older_process_does_not_answer_for_a_sidecar(home: Box) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    serves = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "-d", str(home.program.parent), str(port)]
    older = subprocess.Popen(serves, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait(lambda: listens("127.0.0.1", port), "nobody listens")
        taken = {"name": "cache", "command": f"sleep 1; exec {shlex.join(serves)}", "ready_url": url}
        home.start(home.chosen("taken", profile={"sidecar": [taken]}))
        doing = f"sidecar cache, asked at {url}: process {older.pid} answers, which is not its own"
        wait(lambda: (now := record.read("taken")) is not None and now.doing == doing, "not told")
        state = home.until("taken", "failed").record
        assert state is not None and state.why.startswith("the sidecar cache ended with exit code 1: ")
        assert "Address already in use" in state.why and state.server is None
        waits = {"name": "cache", "command": "exec sleep 600", "ready_url": url}
        home.start(home.chosen("late", profile={"sidecar": [waits], "start": {"timeout_s": 2.0}}))
        state = home.until("late", "failed").record
        said = f"does not answer at {url}: process {older.pid}, which is not its own, does; its log: /"
        assert state is not None and state.why.startswith(f"the sidecar cache {said}")
        takes_over = f"kill {older.pid}; sleep 0.5; exec {shlex.join(serves)}"
        seen = home.ready(home.chosen("own", profile={"sidecar": [waits | {"command": takes_over}]}))
        assert seen.state == "running" and seen.record is not None and seen.record.sidecars[0].lives
    finally:
        older.kill()
        older.wait()


def test_a_sidecar_that_ends_while_its_server_runs_is_told(home: Box, capsys: pytest.CaptureFixture[str]) -> None:
    """Its keeper takes no notice of it: an ended child of it is none that lives."""
    sidecars = [{"name": name, "command": "exec sleep 600"} for name in ("cache", "other")]
    state = home.ready(home.chosen("beside", profile={"sidecar": sidecars})).record
    assert state is not None and look.look("beside").state == "running"
    os.kill(state.sidecars[1].pid, signal.SIGTERM)
    wait(lambda: not state.sidecars[1].lives, "it does not end")
    assert profile_command.main(["list"]) == 0
    assert "1 of 2 sidecars has ended" in capsys.readouterr().out


def test_commands_around_the_start_and_sidecars(home: Box) -> None:
    trace = home.home / "trace"
    profile = {
        "start": {
            "before": [f"echo before >> {trace}", ["sh", "-c", f"echo second >> {trace}"]],
            "after_stop": [f"echo after >> {trace}", "exit 3"],
        },
        "sidecar": [{"name": "cache", "command": f"echo sidecar >> {trace}; sleep 600"}],
    }
    seen = home.ready(home.chosen("around", profile=profile))
    assert seen.record is not None and len(seen.record.sidecars) == 1 and seen.record.sidecars[0].lives
    assert seen.record.stages[0].name == "before"
    ended = client.stop("around", "a test")
    assert (seen.record.doing, seen.record.sidecar_log) == ("", "")
    assert trace.read_text().split() == ["before", "second", "sidecar", "after"]
    assert "after_stop command 2 of 2 failed with exit code 3" in ended.notes
    assert ended.sidecars == []


def test_a_flood_of_output_keeps_nobody_from_ending_it_and_no_disk_is_filled(home: Box) -> None:
    profile = {"log": {"max_bytes": 2_000_000}, "start": {"stop_wait_s": 1.0}}
    home.start(home.chosen("flood", profile=profile, flood="1"))
    path = logs.default("flood")
    wait(logs.older(path).exists, "it is not rotated while it starts")
    ended = client.stop("flood", "a test")
    assert (ended.state, ended.why) == ("stopped", "it was stopped before it answered, by a test")


@pytest.mark.parametrize("who", ["before", "sidecar", "after"])
def test_what_a_flood_says_last_is_told(home: Box, who: str) -> None:
    """Also where the log was rotated meanwhile, or by its very last word."""
    words = "head -c 3000000 /dev/zero | tr '\\0' x | fold -w 99; sleep 0.5; echo; echo 'Error: no such disk'; exit 7"
    start = {"before": [words]} if who == "before" else {"after_stop": [words]} if who == "after" else {}
    sidecar = [{"name": "cache", "command": words, "ready_url": "http://127.0.0.1:1/"}] if who == "sidecar" else []
    chosen = home.chosen("flood", profile={"log": {"max_bytes": 1_000_000}, "start": start, "sidecar": sidecar})
    if who == "after":
        home.ready(chosen)
        said = "; ".join(client.stop("flood", "a test").notes)
    else:
        home.start(chosen)
        seen = home.until("flood", "failed")
        assert seen.record is not None
        said = seen.record.why
    assert "exit code 7: Error: no such disk" in said
    log = logs.default("flood", "cache" if who == "sidecar" else "")
    assert logs.older(log).exists() and log.stat().st_size < 1_000_000


@pytest.mark.parametrize("who", ["before", "sidecar"])
def test_why_it_failed_is_told_though_its_log_was_taken_away(home: Box, who: str) -> None:
    log = logs.default("gone", "cache" if who == "sidecar" else "")
    words = f"rm {log}; echo of another file > {log}; echo 'Error: no such disk'; exit 7"
    start = {"before": [words]} if who == "before" else {}
    sidecar = [{"name": "cache", "command": words, "ready_url": "http://127.0.0.1:1/"}] if who == "sidecar" else []
    home.start(home.chosen("gone", profile={"start": start, "sidecar": sidecar}))
    seen = home.until("gone", "failed")
    assert seen.record is not None and "exit code 7: Error: no such disk" in seen.record.why


@pytest.mark.parametrize("who", ["before", "sidecar"])
def test_a_flood_before_its_server_fills_no_disk(home: Box, who: str) -> None:
    flood = "yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
    sidecar = {"name": "cache", "command": f"exec {flood}", "ready_url": f"http://127.0.0.1:{free_port()}/"}
    more: dict[str, object] = {"start": {"before": [flood]}} if who == "before" else {"sidecar": [sidecar]}
    home.start(home.chosen("flood", profile={"log": {"max_bytes": 2_000_000}, **more}))
    wait(logs.older(logs.default("flood", "cache" if who == "sidecar" else "")).exists, "it is not rotated")
    assert client.stop("flood", "a test").state == "stopped"


def test_sidecars_are_known_before_they_are_ready_and_end_without_their_keeper(home: Box) -> None:
    sidecar = {"name": "cache", "command": "exec sleep 600", "ready_url": f"http://127.0.0.1:{free_port()}/"}
    home.start(home.chosen("beside", profile={"sidecar": [sidecar]}))
    wait(lambda: bool((now := record.read("beside")) and now.sidecars), "no sidecar in the record")
    state = record.read("beside")
    assert state is not None and state.keeper is not None and state.server is None
    os.kill(state.keeper.pid, signal.SIGKILL)
    wait(lambda: not state.keeper.lives, "the keeper does not die")
    assert look.look("beside").state == "failed" and state.sidecars[0].lives
    ended = client.stop("beside", "a test")
    assert ended.sidecars == [] and not state.sidecars[0].lives


def test_a_start_ends_the_sidecars_that_the_last_one_left(home: Box) -> None:
    chosen = home.chosen("again", profile={"sidecar": [{"name": "cache", "command": "exec sleep 600"}]})
    state = home.ready(chosen).record
    assert state is not None and state.keeper is not None and state.server is not None
    for who in (state.keeper, state.server):
        os.kill(who.pid, signal.SIGKILL)
    wait(lambda: not state.keeper.lives and not state.server.lives, "they live")
    (left,) = state.sidecars
    assert left.lives
    now = home.ready(chosen).record
    assert now is not None and now.state == "running"
    assert not left.lives and [who.lives for who in now.sidecars] == [True] and now.sidecars != [left]


def test_workers_that_outlived_server_and_keeper_are_ended(home: Box) -> None:
    state = home.ready(home.chosen("left", stray="1")).record
    assert state is not None and state.keeper is not None and state.server is not None
    (worker,) = [who for who in state.family if who != state.server]
    for who in (state.keeper, state.server):
        os.kill(who.pid, signal.SIGKILL)
    wait(lambda: not state.keeper.lives and not state.server.lives, "they live")
    assert look.look("left").state == "failed" and worker.lives
    client.stop("left", "a test")
    assert not worker.lives


def test_ctrl_c_while_the_keeper_comes_up_is_told_when_it_is_there(home: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads the record then finds the start that goes on."""
    real = select.poll
    looked: list[record.Record | None] = []

    class Poll:
        def __init__(self) -> None:
            self._poll = real()
            self.register = self._poll.register

        def poll(self, wait_ms: float) -> list[tuple[int, int]]:
            looked.append(record.read("soon"))
            if len(looked) == 1:
                signal.raise_signal(signal.SIGINT)
            return self._poll.poll(wait_ms)

    with monkeypatch.context() as patch:
        patch.setattr(select, "poll", Poll)
        with pytest.raises(KeyboardInterrupt):
            home.start(home.chosen("soon", never="1"))
    assert looked[0] is None and look.look("soon").state == "starting"


def test_a_pre_start_command_that_fails_ends_the_start(home: Box) -> None:
    profile = {"start": {"before": ["true", "echo the disk is not there >&2; exit 7"]}}
    home.start(home.chosen("before", profile=profile))
    seen = home.until("before", "failed")
    assert seen.record is not None and seen.record.server is None
    assert seen.record.why == "pre-start command 2 of 2 failed with exit code 7: the disk is not there"
    assert "the disk is not there" in log_of("before")


def test_the_lock_says_who_holds_it(home: Box) -> None:
    with Lock("switches to x", "wait for it") as held:
        with pytest.raises(Busy, match=rf"kvtop \(process {os.getpid()}\) switches to x, since"):
            Lock("starts y")
        os.ftruncate(held.fd, 0)
        with pytest.raises(Busy, match="another kvtop starts or stops a server"):
            Lock("starts y")
    assert lock.Lock("starts y").close() is None


def test_the_keeper_is_small(home: Box) -> None:
    seen = home.ready(home.chosen("small"))
    assert seen.record is not None and seen.record.keeper is not None
    status = Path(f"/proc/{seen.record.keeper.pid}/status").read_text()
    rss_kb = int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])
    print(f"keeper: {rss_kb} kB", file=sys.stderr)
    assert rss_kb < 32_000


def test_a_record_that_cannot_be_written_ends_the_start_before_the_server(home: Box) -> None:
    record.path_of("full").mkdir(parents=True)  # nothing can be put in its place
    with pytest.raises(KvtopError) as told:
        home.start(home.chosen("full"))
    log = record.folder() / "keeper.log"
    assert re.fullmatch(
        rf"the keeper of full did not come up: /\S+full\.json\S*: Is a directory\n  its log: {re.escape(str(log))}",
        str(told.value),
    )
    assert "Is a directory" in log.read_text()
    record.path_of("full").rmdir()


def test_a_log_that_cannot_be_opened_is_told(home: Box) -> None:
    home.start(home.chosen("nolog", profile={"log": {"file": "/proc/nolog"}}))
    seen = home.until("nolog", "failed")
    assert seen.record is not None and seen.record.why == "/proc/nolog: No such file or directory"
    assert seen.record.server is None


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("keeper", ["lives", "is gone"])
def test_a_full_disk_keeps_nobody_from_stopping_a_server(
    home: Box, monkeypatch: pytest.MonkeyPatch, keeper: str
) -> None:
    seen = home.ready(home.chosen("full"))
    assert seen.record is not None and seen.record.keeper is not None and seen.pid is not None
    if keeper == "is gone":
        family.send(seen.record.keeper, signal.SIGKILL)
        wait(lambda: not seen.record.keeper.lives, "the keeper lives")
    with monkeypatch.context() as full:
        full.setattr(record, "_put", no_space)
        ended = client.stop("full", "a test")
    assert ended.state == "stopped" and Who.of(seen.pid) is None
    notes = ["its record could not be written: No space left on device"] if keeper == "is gone" else []
    assert own(ended.notes) == notes
    assert look.look("full").state in ("stopped", "failed")


def test_a_halted_keeper_still_ends_its_server(home: Box) -> None:
    seen = home.ready(home.chosen("halted"))
    assert seen.record is not None and seen.record.keeper is not None
    os.kill(seen.record.keeper.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert client.stop("halted", "a test").state == "stopped"
    assert time.monotonic() - began < 10


def test_ctrl_c_waits_until_the_record_of_a_start_stands(home: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn = subprocess.Popen

    def interrupted(*words: object, **more: object) -> object:
        signal.raise_signal(signal.SIGINT)
        child = spawn(*words, **more)  # type: ignore[call-overload]
        signal.raise_signal(signal.SIGINT)
        return child

    chosen = home.chosen("late", never="1")
    with monkeypatch.context() as made, pytest.raises(KeyboardInterrupt):
        made.setattr(client.subprocess, "Popen", interrupted)
        home.start(chosen)
    assert look.look("late").state == "starting"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
