"""The runners docker, compose and systemd, with stand-ins for their tools on PATH: the exact words that these get."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from profilebox import HERE, LOGS, Box, box, free_port, own, wait

from kvtop.cli import profile as profile_command
from kvtop.cli.profile import following
from kvtop.errors import KvtopError
from kvtop.profiles.launch import launch
from kvtop.profiles.profile import Profile
from kvtop.profiles.running import client, look, record
from kvtop.profiles.running import tools as tools_of
from kvtop.profiles.running.client import Chosen
from kvtop.profiles.running.record import Who
from kvtop.profiles.running.runners import runner_of
from kvtop.profiles.running.runners.container import Inspected
from kvtop.profiles.running.tools import QUICK_S

GOOD = str(LOGS / "good-0.32.txt")


class Tools(Box):
    """A box with fake tools."""

    port = 0

    def calls(self, kind: str) -> list[list[str]]:
        """What the tools were called with, without questions, ids shortened to <id> and times to <time>."""
        rows = [json.loads(line) for line in (self.home / kind / "calls").read_text().splitlines()]
        shown = []
        for row in rows:
            words = [re.sub(r"^[0-9a-f]{64}$", "<id>", word) for word in row]
            words = [
                re.sub(r"^(--since=@)?\d{4}-\d\d-\d\dT[\d:]+Z$|(?<=--since=@)\d+$", "<time>", word) for word in words
            ]
            if "inspect" not in words and "show" not in words:
                shown.append(words)
        return shown

    def chosen_of(self, name: str, **tables: object) -> Chosen:
        made = msgspec.convert({"serve": {"model": "tiny", "port": self.port}, **tables}, Profile)
        return Chosen(name, "", made, launch(name, made), ["tiny"])


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tools]:
    with box(tmp_path / "home", monkeypatch.setenv) as plain:
        made = Tools.__new__(Tools)
        made.__dict__.update(plain.__dict__)
        made.port = free_port()
        for name, source in (("docker", "fakedocker"), ("systemctl", "fakesystemd"), ("journalctl", "fakesystemd")):
            file = made.program.parent / name
            file.write_text(f"#!{sys.executable}\n" + (HERE / f"{source}.py").read_text())
            file.chmod(0o700)
        for kind in ("docker", "systemd"):
            (made.home / kind).mkdir()
            monkeypatch.setenv(f"FAKE_{kind.upper()}", str(made.home / kind))
        monkeypatch.setenv("FAKE_IMAGE", str(made.program))
        monkeypatch.setenv("FAKE_PORT", str(made.port))
        monkeypatch.setenv("PATH", f"{made.program.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("STANDIN_LOG", GOOD)
        yield made
        made.close()


DOCKER = {"image": "vllm/vllm-openai:v0.32.0", "options": ["--ipc=host"]}


def docker(tools: Tools, profile: str = "box", **more: object) -> Chosen:
    options = ["--ipc=host", "-p", f"127.0.0.1:{tools.port}:{tools.port}"]
    table = {"image": "vllm/vllm-openai:v0.32.0", "options": options, **more}
    start = {"stop_wait_s": 3.0}
    return tools.chosen_of(
        profile, runner="docker", docker=table, start=start, env={"from_env": {"VLLM_API_KEY": "A_KEY"}}
    )


def test_docker(tools: Tools, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("A_KEY", "sk-secret-1")
    chosen = docker(tools)
    seen = tools.ready(chosen)
    assert seen.state == "running" and seen.record is not None
    assert [stage.name for stage in seen.record.stages] == ["process", "weights", "kv_cache", "port"]
    assert seen.record.kv_cache_tokens == 2_097_152 and len(seen.record.container) == 64
    assert seen.pid is not None and seen.pid in tools.processes()
    port = str(tools.port)
    ran = ["docker", "run", "-d", "--name", "kvtop-box", "--ipc=host", "-p", f"127.0.0.1:{port}:{port}"]
    ran += ["-e", "VLLM_ENGINE_READY_TIMEOUT_S=1800", "-e", "VLLM_API_KEY", "vllm/vllm-openai:v0.32.0"]
    ran += ["tiny", "--port", port]
    assert tools.calls("docker") == [ran, ["docker", "logs", "--since", "<time>", "-f", "<id>"]]
    assert not [file for file in tools.home.rglob("*") if file.is_file() and b"sk-secret-1" in file.read_bytes()]

    assert profile_command.main(["logs", "box", "-n", "3", "--grep", "startup complete"]) == 0
    assert "Application startup complete." in capsys.readouterr().out
    assert profile_command.main(["logs", "box", "-n", "1"]) == 0
    said = capsys.readouterr()
    assert "GET " not in said.out and said.out.count("\n") == 1
    assert re.search(r"^kvtop: \d+ answered polls left out .*; --all shows them$", said.err, re.MULTILINE)
    assert profile_command.main(["logs", "box", "-n", "1", "--all"]) == 0
    assert "GET " in capsys.readouterr().out
    assert followed("box", "-n", "2", "--grep", "INFO", lines=2)[1]
    ended = client.stop("box", "a test")
    assert (ended.state, ended.exit_code, own(ended.notes)) == ("stopped", 0, [])
    assert tools.calls("docker")[-1] == ["docker", "stop", "-t", "3", "<id>"]

    tools.ready(chosen)  # its container of the last time is removed
    assert tools.calls("docker")[-3:] == [
        ["docker", "rm", "<id>"],
        ran,
        ["docker", "logs", "--since", "<time>", "-f", "<id>"],
    ]


def inspected(pid: int) -> Inspected:
    return msgspec.json.decode(f'{{"State": {{"Running": true, "Pid": {pid}}}}}', type=Inspected)


def test_the_number_of_a_process_in_another_namespace_is_nobodys_here() -> None:
    """docker runs elsewhere, or beside this container: its number is an innocent process's."""
    id = "0123456789ab" + 52 * "c"
    with subprocess.Popen(["sleep", "600"], env={"HOSTNAME": id[:12]}) as its:
        try:
            found = inspected(its.pid)
            assert found.process(id) == Who.of(its.pid) and found.process("f" * 64) is None
            assert all(inspected(pid).process(id) is None for pid in (os.getpid(), 1, 0, -1, 10**26))
        finally:
            its.kill()


@pytest.mark.parametrize("ends", ["in time", "when it is killed", "never"])
def test_what_outlives_its_container_is_killed(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """Only what is in it, whatever its record says."""
    id = "0123456789ab" + 52 * "c"
    env = {"HOSTNAME": id[:12]} if ends != "never" else None
    with subprocess.Popen(["sleep", "600"], start_new_session=True, env=env) as its:
        who, waited = Who.of(its.pid), 0.0
        assert who is not None

        def pause(seconds: float) -> None:
            nonlocal waited
            waited += seconds
            if ends == "in time" and waited > 2:
                its.kill()
            time.sleep(0.001)

        program = [str(Path(sys.executable).with_name("no-docker"))]
        state = record.Record(name="box", runner="docker", program=program, family=[who], container=id, ready_at=1.0)
        runner = runner_of(state)
        monkeypatch.setattr(runner, "inspect", lambda: None)
        done = runner.end(3.0, pause, lambda: waited)
        assert its.poll() == (None if ends == "never" else -signal.SIGKILL)
        its.kill()
    left = [its.pid] if ends == "never" else []
    assert (done.killed, done.left, done.too_long) == (int(ends == "when it is killed"), left, "")


def test_a_docker_that_knows_nothing_of_a_server_that_lives_ends_it_not(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "x")
    seen = tools.ready(docker(tools))
    assert seen.record is not None and seen.record.server is not None
    other = tools.home / "other-docker"
    (tools.home / "docker").rename(other)
    (tools.home / "docker").mkdir()
    calls = tools.home / "docker" / "calls"
    wait(lambda: calls.exists() and calls.read_text().count("inspect") > 2, "it is not asked")
    assert look.look("box").state == "running" and seen.record.server.lives
    shutil.rmtree(tools.home / "docker")
    other.rename(tools.home / "docker")
    assert client.stop("box", "a test").state == "stopped"


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("kept", [True, False])
def test_a_server_that_no_docker_knows_any_more_is_ended_all_the_same(
    tools: Tools, monkeypatch: pytest.MonkeyPatch, kept: bool, deaf: bool
) -> None:
    monkeypatch.setenv("A_KEY", "x")
    if deaf:
        monkeypatch.setenv("STANDIN_DEAF", "1")
    state = tools.ready(docker(tools)).record
    assert state is not None and state.server is not None and state.keeper is not None
    if not kept:
        os.kill(state.keeper.pid, signal.SIGKILL)
        keeper = state.keeper
        wait(lambda: not keeper.lives, "its keeper lives")
    shutil.rmtree(tools.home / "docker")
    (tools.home / "docker").mkdir()
    ended = client.stop("box", "a test")
    assert ended.state == "stopped" and not state.server.lives and not ended.left()
    assert own(ended.notes) == (["it did not end within 3 s of SIGINT and was killed"] if deaf else [])


def test_a_process_that_is_in_no_known_container_is_not_ended_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        who = Who.of(other.pid)
        state = record.Record(name="box", runner="docker", program=["false"], server=who, container=64 * "a")
        runner = runner_of(state)
        monkeypatch.setattr(runner, "inspect", lambda: None)
        said = (
            f"false knows no container aaaaaaaaaaaa, and process {other.pid}, which lives, does not say that it is in"
        )
        with pytest.raises(tools_of.Failed, match=said):
            runner.end(3.0, time.sleep, time.monotonic)
        assert other.poll() is None
        other.kill()


def test_a_docker_that_does_not_answer_keeps_no_stop_from_being_heard(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "x")
    monkeypatch.setenv("STANDIN_NEVER", "1")
    tools.start(docker(tools))
    wait(lambda: (now := record.read("box")) is not None and now.server is not None, "no container")
    state, hangs = record.read("box"), tools.home / "docker" / "hangs"
    assert state is not None and state.keeper is not None
    hangs.touch()
    wait(lambda: hangs.read_text() == "asked", "it is not asked")
    asked = time.monotonic()
    os.kill(state.keeper.pid, signal.SIGTERM)
    wait(lambda: (now := record.read("box")) is not None and now.state == "stopping", "it does not hear")
    assert time.monotonic() - asked < QUICK_S / 2
    hangs.unlink()
    tools.until("box", "stopped")


def test_docker_that_refuses(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "x")
    tools.start(docker(tools, image="no/such:image"))
    seen = tools.until("box", "failed")
    assert seen.record is not None
    assert seen.record.why.startswith("docker did not start it: pull access denied for no/such, repository does not")
    tools.ready(docker(tools, "one", name="same"))
    tools.start(docker(tools, "two", name="same"))
    seen = tools.until("two", "failed")
    assert seen.record is not None
    assert seen.record.why.startswith('docker did not start it: Conflict. The container name "/same" is already in use')


def test_docker_that_fails_in_the_container(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "x")
    monkeypatch.setenv("STANDIN_LOG", str(LOGS / "bad-flag.txt"))
    monkeypatch.setenv("STANDIN_FAIL", "2")
    tools.start(docker(tools))
    seen = tools.until("box", "failed")
    assert seen.record is not None
    assert seen.record.why == "unrecognized arguments: --no-such-flag 3; it ended with exit code 2 before it answered"
    assert seen.record.exit_code == 2


def test_a_container_that_does_not_publish_the_port(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "x")
    chosen = docker(tools, options=["-p", f"127.0.0.1:{free_port()}:1"])
    late = msgspec.structs.replace(chosen.profile, start=msgspec.structs.replace(chosen.profile.start, timeout_s=4.0))
    tools.start(Chosen("box", "", late, chosen.launch, ["tiny"]))
    seen = tools.until("box", "failed")
    assert seen.record is not None
    assert re.search(rf"the container [0-9a-f]{{12}} does not publish port {tools.port}", seen.record.why)


def test_docker_without_its_keeper(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "x")
    seen = tools.ready(docker(tools))
    assert seen.record is not None and seen.record.keeper is not None
    os.kill(seen.record.keeper.pid, 9)
    wait(lambda: not seen.record.keeper.lives, "it lives")
    assert look.look("box").state == "running"
    assert client.stop("box", "a test").state == "stopped"
    assert tools.calls("docker")[-1] == ["docker", "stop", "-t", "3", "<id>"]


def test_a_container_that_is_removed_at_its_end_ended_in_time(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "x")
    tools.ready(docker(tools))
    (tools.home / "docker" / "rm").touch()
    ended = client.stop("box", "a test")
    assert (ended.state, ended.exit_code, own(ended.notes)) == ("stopped", None, [])


def followed(*words: str, lines: int) -> list[str]:
    """The first lines of `kvtop profile logs -f`, and none that came with them."""
    code = "import sys\nfrom kvtop.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "profile", "logs", "-f", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(lines)]
        child.send_signal(signal.SIGINT)
        assert (child.stdout.read(), child.wait(20)) == ("", 130)
    return said


@pytest.mark.parametrize("keeper", ["is asked", "is killed"])
def test_a_container_whose_tool_had_not_answered_is_ended(
    tools: Tools, monkeypatch: pytest.MonkeyPatch, keeper: str
) -> None:
    monkeypatch.setenv("A_KEY", "x")
    monkeypatch.setenv("STANDIN_NEVER", "1")
    folder = tools.home / "docker"
    (folder / "slow").touch()
    tools.start(docker(tools))
    wait((folder / "asked").exists, "no container")
    state = record.read("box")
    assert state is not None and state.keeper is not None and state.container == ""
    if keeper == "is killed":
        os.kill(state.keeper.pid, 9)
        wait(lambda: not state.keeper.lives, "it lives")
        seen = look.look("box")
        assert seen.state == "starting" and seen.record is not None and len(seen.record.container) == 64
        assert seen.record.step is not None and seen.record.step.lives  # it goes on waiting for its daemon
    assert client.stop("box", "a test").state == "stopped"
    assert tools.calls("docker")[-1] == ["docker", "stop", "-t", "3", "<id>"]


def test_a_container_of_somebody_else_with_that_name_is_left_alone(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "x")
    first = tools.ready(docker(tools, "one", name="same"))
    assert first.record is not None and first.record.server is not None
    later = first.record.started_at + 3600
    argv = ["docker", "run", "-d", "--name", "same"]
    record.write(
        record.Record(name="two", runner="docker", program=["docker"], argv=argv, started_at=later, state="starting")
    )
    assert look.look("two").state == "failed"
    assert first.record.server.lives


def test_a_container_of_that_name_that_came_meanwhile_is_left_alone(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "x")
    pull = tools.home / "docker" / "pull"
    pull.touch()
    tools.start(docker(tools, name="same"))
    wait(lambda: (now := record.read("box")) is not None and now.step is not None, "docker is not run")
    program = str(tools.program.parent / "docker")
    words = [program, "run", "-d", "--name", "same", "img", "tiny", "--port", str(free_port())]
    pulled = {**os.environ, "KVTOP_TEST_PULLED": "1"}
    made = subprocess.run(words, check=True, capture_output=True, text=True, env=pulled).stdout.strip()
    pull.unlink()
    seen = tools.until("box", "failed")
    assert seen.record is not None and seen.record.why.startswith("docker did not start it: Conflict.")
    assert [words for words in tools.calls("docker") if words[1] == "stop"] == []
    subprocess.run([program, "stop", "-t", "1", made], check=True, capture_output=True)


def test_compose(tools: Tools, capsys: pytest.CaptureFixture[str]) -> None:
    table = {"files": ["/srv/compose.yml"], "service": "vllm", "project": "proj"}
    chosen = tools.chosen_of("comp", runner="compose", compose=table, start={"stop_wait_s": 3.0})
    seen = tools.ready(chosen)
    assert seen.state == "running" and seen.record is not None and seen.record.kv_cache_tokens == 2_097_152
    front = ["docker", "compose", "-f", "/srv/compose.yml", "-p", "proj"]
    assert tools.calls("docker") == [
        [*front, "up", "-d", "vllm"],
        [*front, "ps", "-a", "-q", "vllm"],
        [*front, "logs", "--no-color", "--no-log-prefix", "--since", "<time>", "-f", "vllm"],
    ]
    assert profile_command.main(["logs", "comp", "-n", "1"]) == 0
    assert tools.calls("docker")[-1] == [*front, "logs", "--no-color", "--no-log-prefix", "-n", "100000", "vllm"]
    assert client.stop("comp", "a test").exit_code == 0
    assert tools.calls("docker")[-1] == [*front, "stop", "-t", "3", "vllm"]


def test_a_service_that_is_not_there(tools: Tools) -> None:
    tools.start(tools.chosen_of("comp", runner="compose", compose={"service": "nope"}))
    seen = tools.until("comp", "failed")
    assert seen.record is not None and seen.record.why == "docker compose failed: no such service: nope"


@pytest.mark.parametrize("user", [True, False])
def test_systemd(tools: Tools, user: bool, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = tools.chosen_of("unit", runner="systemd", systemd={"unit": "vllm.service", "user": user})
    seen = tools.ready(chosen)
    assert seen.state == "running" and seen.record is not None and seen.record.kv_cache_tokens == 2_097_152
    assert seen.pid is not None and seen.pid in tools.processes()
    which = ["--user"] if user else []
    journal = ["journalctl", *which, "-u", "vllm.service", "-o", "cat", "--no-pager"]
    assert tools.calls("systemd") == [
        ["systemctl", *which, "start", "vllm.service"],
        [*journal, "-n", "all", "--since=@<time>", "-f"],
    ]
    capsys.readouterr()
    assert profile_command.main(["logs", "unit", "-n", "2"]) == 0
    assert capsys.readouterr().out.count("\n") == 2
    assert tools.calls("systemd")[-1] == [*journal, "-n", "100000"]
    ended = client.stop("unit", "a test")
    assert (ended.state, ended.exit_code) == ("stopped", 0)
    assert tools.calls("systemd")[-1] == ["systemctl", *which, "stop", "vllm.service"]


def test_a_unit_that_does_not_start(tools: Tools) -> None:
    tools.start(tools.chosen_of("none", runner="systemd", systemd={"unit": "nope.service"}))
    seen = tools.until("none", "failed")
    assert seen.record is not None
    assert (
        seen.record.why
        == "systemd did not start nope.service: Failed to start nope.service: Unit nope.service not found."
    )
    (tools.home / "systemd" / "refuse").write_text("1")
    tools.start(tools.chosen_of("bad", runner="systemd", systemd={"unit": "vllm.service"}))
    seen = tools.until("bad", "failed")
    assert seen.record is not None and "Job for vllm.service failed" in seen.record.why


def test_a_unit_of_a_machine_that_has_no_systemd_any_more_does_not_run(tools: Tools) -> None:
    state = record.Record(
        name="unit", runner="systemd", unit="vllm.service", started_at=1.0, keeper=record.Who(1, "gone")
    )
    record.write(state)
    (tools.home / "systemd" / "away").write_text("1")
    assert look.look("unit").state == "failed"


def test_a_machine_without_systemd_holds_no_start(tools: Tools) -> None:
    (tools.home / "systemd" / "away").write_text("1")
    for _ in range(2):
        tools.start(tools.chosen_of("unit", runner="systemd", systemd={"unit": "vllm.service"}))
        seen = tools.until("unit", "failed")
        assert seen.record is not None and seen.record.unended is None
        assert seen.record.why == (
            "systemd did not start vllm.service: "
            "System has not been booted with systemd as init system (PID 1). Can't operate."
        )


@pytest.mark.parametrize("keeper", ["is there", "is gone"])
def test_a_unit_that_may_not_be_stopped_goes_on(tools: Tools, keeper: str) -> None:
    after = tools.home / "after"
    start = {"after_stop": [f"echo ran >> {after}"]}
    seen = tools.ready(tools.chosen_of("unit", runner="systemd", systemd={"unit": "vllm.service"}, start=start))
    assert seen.record is not None and seen.record.keeper is not None and seen.record.server is not None
    if keeper == "is gone":
        os.kill(seen.record.keeper.pid, 9)
        wait(lambda: not seen.record.keeper.lives, "it lives")
    denied = tools.home / "systemd" / "denied"
    denied.touch()
    why = "unit does not end: systemctl stop failed: Failed to stop vllm.service: Interactive authentication required"
    for _ in range(2):
        with pytest.raises(KvtopError, match=why):
            client.stop("unit", "a test")
        now = look.look("unit")
        assert (now.state, now.pid) == ("running", seen.record.server.pid) and not after.exists()
    denied.unlink()
    ended = client.stop("unit", "a test")
    assert ended.state == "stopped" and not seen.record.server.lives
    assert ended.after_owed == (keeper == "is gone") and after.exists() == (keeper == "is there")


def test_a_unit_that_takes_too_long_and_may_not_be_stopped_goes_on(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_NEVER", "1")
    denied = tools.home / "systemd" / "denied"
    denied.touch()
    start = {"timeout_s": 2.0}
    tools.start(tools.chosen_of("unit", runner="systemd", systemd={"unit": "vllm.service"}, start=start))
    wait(lambda: (now := record.read("unit")) is not None and now.unended is not None, "it is not told")
    seen = following.follow("unit")  # has an end
    assert seen.state == "starting" and seen.record is not None
    assert seen.record.why.startswith("it did not answer within 2 s; it was at: ")
    assert "it cannot be ended: systemctl stop failed: Failed to stop vllm.service: Interactive" in seen.record.why
    denied.unlink()
    assert client.stop("unit", "a test").state == "stopped"


def test_a_unit_that_is_killed(tools: Tools) -> None:
    seen = tools.ready(tools.chosen_of("unit", runner="systemd", systemd={"unit": "vllm.service"}))
    assert seen.pid is not None
    os.kill(seen.pid, 9)
    seen = tools.until("unit", "failed")
    assert seen.record is not None and seen.record.exit_code == 137
    assert seen.record.why == "it was killed by SIGKILL (out of memory?); its log says no more"


def test_attach_is_only_watched(tools: Tools) -> None:
    chosen = tools.chosen_of("far", runner="attach", attach={"url": "http://127.0.0.1:1"})
    with pytest.raises(KvtopError, match="far is only watched: its runner is attach"):
        tools.start(chosen)
    assert record.read("far") is None
