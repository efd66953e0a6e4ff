"""Records on disk, states without a keeper, and which processes are a server's."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kvtop.errors import KvtopError
from kvtop.files import identity
from kvtop.profiles.running import adopt, aftermath, client, family, lock, look, record
from kvtop.profiles.running.family import End
from kvtop.profiles.running.ready import Answer
from kvtop.profiles.running.record import Ask, Record, Start, Who
from kvtop.profiles.running.runners import base, runner_of
from kvtop.readings import Gpu, GpuProcess, GpuReading, OffloadFile, VllmProcess
from kvtop.sources.processes import Processes

DEAF = "import signal,time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\nprint(1, flush=True)\ntime.sleep(60)"
CALM = "import signal,os,time\nsignal.signal(2, lambda *_: os._exit(0))\nprint(1, flush=True)\ntime.sleep(60)"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def program() -> Iterator[object]:
    made: list[subprocess.Popen[str]] = []

    def start(code: str, session: bool = True) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=session
        )
        made.append(child)
        assert child.stdout is not None and child.stdout.readline()
        return child

    yield start
    for child in made:
        if child.poll() is None:
            child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_a_record_comes_back() -> None:
    made = Record(name="a/b", argv=["vllm"], ask=Ask("me", 2.0), server=Who(7, "x/1"), notes=["n"])
    record.write(made)
    assert record.read("a/b") == made and record.every() == [made]
    assert record.path_of("a/b").parent == record.folder() and record.path_of("a/b").stat().st_mode & 0o777 == 0o600
    assert record.folder().stat().st_mode & 0o777 == 0o700


def test_what_is_no_record_is_none() -> None:
    record.folder().mkdir(parents=True)
    for name, text in (("torn", '{"name":'), ("list", "[]"), ("other", '{"name":"other","state":"odd"}')):
        record.path_of(name).write_text(text)
        assert record.read(name) is None
    assert record.every() == []


def test_the_last_five_starts_are_kept() -> None:
    for number in range(8):
        record.remember("x", Start(float(number), 1.0, {"weights": 1.0}))
    assert [start.at for start in record.starts("x")] == [3.0, 4.0, 5.0, 6.0, 7.0]
    assert record.every() == []  # no record itself


@pytest.mark.parametrize("name", ["coder.starts", "coder.ask"])
def test_a_name_that_ends_like_a_file_beside_a_record(name: str) -> None:
    record.remember("coder", Start(1.0, 1.0, {}))
    record.ask("coder", "a test", 5.0)
    made, other = Record(name="coder"), Record(name=name)
    record.write(made)
    record.write(other)
    assert (record.read("coder"), record.read(name)) == (made, other)
    assert sorted(one.name for one in record.every()) == ["coder", name]
    assert record.starts("coder") == [Start(1.0, 1.0, {})] and record.asked("coder") == Ask("a test", 5.0)


def test_a_copy_of_a_record_is_nobodys() -> None:
    record.write(Record(name="coder", state="starting"))
    record.path_of("copy").write_bytes(record.path_of("coder").read_bytes())
    assert record.read("copy") is None and look.look("copy").state == "stopped"


def test_what_was_found_by_looking_does_not_undo_what_another_did_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keeper ended in order, or another kvtop started it anew, between the reading of the record and the looking
    at its processes."""
    gone = Who(os.getpid(), "other/1")
    record.write(Record(name="x", state="running", keeper=gone, server=gone, ready_at=1.0))
    orderly = Record(
        name="x", state="stopped", keeper=gone, server=gone, ready_at=1.0, ended_at=2.0, ask=Ask("me", 1.5)
    )
    looked: list[str] = []

    def runner_of(state: Record) -> object:
        if not looked:
            record.write(orderly)
        looked.append(state.state)
        return real(state)

    real = look.runner_of
    monkeypatch.setattr(look, "runner_of", runner_of)
    assert look.look("x") == look.Seen("x", "stopped", orderly)
    assert record.read("x") == orderly and looked[0] == "running"


def test_what_outlived_server_and_keeper_can_be_stopped(program) -> None:  # type: ignore[no-untyped-def]
    worker, sidecar = (Who.of(program(CALM).pid) for _ in range(2))
    gone = Who(os.getpid(), "other/1")
    assert worker is not None and sidecar is not None
    made = Record(name="x", state="running", keeper=gone, server=gone, family=[gone, worker], sidecars=[sidecar])
    record.write(made)
    assert look.look("x").state == "failed" and client.stoppable(look.look("x"))
    ended = client.stop("x", "a test")
    assert (ended.state, ended.family, ended.sidecars) == ("stopped", [], [])
    assert not worker.lives and not sidecar.lives
    assert ended.why.endswith("its keeper was gone"), "how it ended, less what is ended now"
    with pytest.raises(KvtopError, match="x does not run"):
        client.stop("x", "a test")


def test_whose_session_a_number_means(tmp_path: Path) -> None:
    """Once a session was empty its number may be another's: who is in one of that number need not be the server's."""
    log = tmp_path / "log"
    leader = subprocess.Popen(
        ["sh", "-c", f"sleep 60 >{log} & echo $!; sleep 60 >&- & echo $!; read end"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert leader.stdin is not None and leader.stdout is not None
    writes, quiet = (Who.of(int(leader.stdout.readline())) for _ in range(2))
    born = Who.of(leader.pid)
    leader.stdin.write("\n")
    leader.stdin.close()
    assert writes is not None and quiet is not None and born is not None
    both = sorted((writes, quiet), key=lambda who: who.pid)
    try:
        os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
        assert family.look(born) == both, "its parent has not taken notice of its end"
        leader.wait()
        leader.stdout.close()
        assert family.look(born) == [] and family.look(born, logs=[str(tmp_path)]) == []
        assert family.look(born, logs=[identity(log) or ""]) == [writes], "its output goes into the server's log"
        assert family.look(born, [quiet]) == both, "one that is known is in it still"
        old = Who(born.pid, f"another-boot/{born.birth.partition('/')[2]}")
        assert family.look(old, logs=[identity(log) or ""]) == []
    finally:
        for who in both:
            os.kill(who.pid, signal.SIGKILL)


def test_a_stop_leaves_what_another_kvtop_started_anew_alone(program) -> None:  # type: ignore[no-untyped-def]
    server = Who.of(program(CALM).pid)
    gone = Who(os.getpid(), "other/1")
    assert server is not None
    old = Record(name="x", state="running", keeper=gone, server=server, started_at=1.0)
    new = Record(name="x", state="running", keeper=gone, server=server, started_at=2.0)
    record.write(new)
    with pytest.raises(KvtopError, match="another kvtop started x anew"):
        client._alone(old, "a test", time.sleep, False)
    assert server.lives and record.read("x") == new


def test_after_stop_is_run_once_though_two_are_asked() -> None:
    from kvtop.profiles.launch import Launch
    from kvtop.profiles.profile import Profile
    from kvtop.profiles.profile import Start as Started

    profile = Profile(start=Started(after_stop=["exit 3"]))
    chosen = client.Chosen("x", "", profile, Launch(argv=(), serve=()))
    record.write(Record(name="x", state="stopped", after_stop=1, after_owed=True))
    assert client.run_after_stop(chosen) == ["after_stop command 1 of 1 failed with exit code 3"]
    with pytest.raises(KvtopError, match="after_stop of x is not owed any more"):
        client.run_after_stop(chosen)


def test_a_keeper_gets_the_time_that_its_profile_may_take() -> None:
    one = Record(name="x", stop_wait_s=15.0, after_stop=2, sidecars=[Who(1, "a/1")])
    assert client._patience_s(one) == 15 + 60 + 15 + 2 * 300 + 10 + 10
    assert client._patience_s(Record(name="x", runner="systemd", unit="u", stop_wait_s=15.0)) == 15 + 60 + 15 + 120


def test_a_word_for_the_keeper_is_read_once() -> None:
    record.ask("x", "a test", 5.0)
    assert record.asked("x") == Ask("a test", 5.0)
    assert record.asked("x") is None


def test_a_start_whose_keeper_died_at_once() -> None:
    record.write(Record(name="x", state="starting", keeper=Who(os.getpid(), "other/1")))
    seen = look.look("x")
    assert (seen.state, seen.pid) == ("failed", None)
    assert seen.record is not None and seen.record.why == "its keeper ended before the server was started"
    assert record.read("x") == seen.record


def test_a_stop_whose_keeper_died() -> None:
    record.write(Record(name="x", state="stopping", ask=Ask("me", 1.0), server=Who(os.getpid(), "other/1")))
    assert look.look("x").state == "stopped"


def test_what_was_never_started_is_stopped() -> None:
    assert look.look("never") == look.Seen("never", "stopped")


def test_no_record_makes_this_process_or_those_above_it_a_server(program) -> None:  # type: ignore[no-untyped-def]
    beside = program(CALM)
    above = [who for pid in (1, os.getpid(), os.getppid()) if (who := Who.of(pid)) is not None]
    for who in above:
        assert family.look(who) == [] and family.look(who, above) == []
        assert family.end(who, above, 0.0, time.sleep, time.monotonic) == End(took_s=pytest.approx(0.0, abs=5.0))
        state = Record(name="forged", state="running", ready_at=1.0, started_at=1.0, server=who, family=above)
        record.write(state)
        assert client.stop("forged", "a test").state == "stopped"
    with pytest.raises(KvtopError, match="this kvtop runs under process"):
        adopt.end(adopt.Foreign(VllmProcess(above[1].pid, "api", ("vllm", "serve"), port=8003), above[1]), 1.0)
    assert beside.poll() is None


def test_a_name_that_is_no_text_has_a_record() -> None:
    made = Record(name="\udcff")
    assert record.path_of("\udcff").name == "%FF.json" and record.read("\udcff") is None
    assert look.look("\udcff").state == "stopped" and made.name


def test_a_server_is_its_session_and_its_descendants(program) -> None:  # type: ignore[no-untyped-def]
    code = (
        "import subprocess, sys, time\n"
        "a = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "b = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "print(a.pid, b.pid, flush=True)\ntime.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stdout is not None
    pids = {child.pid, *map(int, child.stdout.readline().split())}
    who = Who.of(child.pid)
    assert who is not None
    known = family.look(who)
    assert {one.pid for one in known} == pids
    child.kill()
    child.wait()
    child.stdout.close()
    left = family.look(who, known)  # one by the session, one because it was known
    assert {one.pid for one in left} == pids - {child.pid}
    done = family.end(who, known, 1.0, time.sleep, time.monotonic)
    assert (done.killed, done.left) == (2, []) and family.look(who, known) == []


def test_one_signal_then_the_wait_then_the_end(program) -> None:  # type: ignore[no-untyped-def]
    calm = Who.of(program(CALM).pid)
    assert calm is not None
    done = family.end(calm, (), 5.0, time.sleep, time.monotonic)
    assert not done.too_long and done.took_s < 3 and not calm.lives
    deaf = Who.of(program(DEAF).pid)
    assert deaf is not None
    done = family.end(deaf, (), 0.3, time.sleep, time.monotonic)
    assert done.too_long == "within 0.3 s of SIGINT" and done.took_s >= 0.3 and done.killed == 0 and not deaf.lives


def test_a_polite_end_asks_each_once_also_without_the_leader(program) -> None:  # type: ignore[no-untyped-def]
    said = (
        "import signal, sys, time\n"
        "signal.signal(15, lambda *_: (print('asked', flush=True), time.sleep(0.3), sys.exit()))\n"
        "print('up', flush=True)\ntime.sleep(60)"
    )
    code = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {said!r}])\ntime.sleep(60)"
    leader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert leader.stdout is not None and leader.stdout.readline() == "up\n"
    who = Who.of(leader.pid)
    assert who is not None
    leader.kill()
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    done = family.end(who, (), 5.0, time.sleep, time.monotonic, politely=True)
    assert (leader.stdout.read(), done.killed, leader.wait()) == ("asked\n", 0, -signal.SIGKILL)
    leader.stdout.close()
    alone = subprocess.Popen([sys.executable, "-c", said], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert alone.stdout is not None and alone.stdout.readline() == "up\n"
    who = Who.of(alone.pid)
    assert who is not None
    family.end(who, (), 5.0, lambda seconds: (alone.poll(), time.sleep(seconds)), time.monotonic, politely=True)
    assert (alone.stdout.read(), alone.wait()) == ("asked\n", 0)
    alone.stdout.close()


def test_without_its_keeper_a_server_is_asked_where_its_profile_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(base, "listens", lambda host, port: True)

    def answer(host: str, port: int, **more: str) -> Answer:
        asked.append(more["health_url"])
        return Answer(True)

    monkeypatch.setattr(base.ready, "ask", answer)
    assert runner_of(Record(name="x", health_url="http://127.0.0.1:9/up")).answers().ready
    assert set(asked) == {"http://127.0.0.1:9/up"}


@pytest.mark.parametrize("field", ["log", "container", "host"])
def test_a_record_whose_words_nobody_can_use_is_none(field: str) -> None:
    record.write(msgspec.structs.replace(Record(name="x"), **{field: "/tmp/\0x"}))
    assert record.read("x") is None and record.unreadable() == [record.path_of("x")]
    assert look.every() == []


def test_the_session_of_a_terminal_is_not_ended(program) -> None:  # type: ignore[no-untyped-def]
    neighbour, server = program(DEAF, session=False), program(DEAF, session=False)
    who = Who.of(server.pid)
    assert who is not None
    family.end(who, (), 0.1, time.sleep, time.monotonic, session=False)
    assert not who.lives and neighbour.poll() is None


def test_a_signal_reaches_nobody_else(program) -> None:  # type: ignore[no-untyped-def]
    child = program(DEAF)
    assert not family.send(Who(child.pid, "another/1"), signal.SIGKILL)
    assert child.poll() is None


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (End(), []),
        (End("within 10 s of SIGINT", killed=3), ["it did not end within 10 s of SIGINT and was killed"]),
        (End(killed=1), ["1 process was left behind and killed"]),
        (End(killed=2), ["2 processes were left behind and killed"]),
        (End(left=[7, 8]), ["cannot be killed: process 7, process 8"]),
    ],
)
def test_how_it_ended_in_words(end: End, said: list[str]) -> None:
    assert aftermath.told(end) == said


def test_files_of_others_are_told_and_left(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other, held, again = (home / f"vllm_offload_{name}.mmap" for name in ("a", "b", "c", "d"))
    young = home / "vllm_offload_e.mmap"
    for file in (mine, other, held, again, young):
        file.write_bytes(b"x")
    state = Record(name="x")
    monkeypatch.setattr(aftermath, "_SHM", home)
    monkeypatch.setattr(aftermath, "_age_s", lambda path: 0.0 if path == str(young) else 90.0)
    found = [
        OffloadFile(str(mine), 1 << 30, stale=True, shell_path=str(mine)),
        OffloadFile(str(other), 1 << 30, stale=True, shell_path=str(other)),
        OffloadFile(str(held), 1 << 30, mapped_by=(77,)),
        OffloadFile(str(again), 1 << 30, stale=True, shell_path=str(again)),
        OffloadFile(str(young), 1 << 30, stale=True, shell_path=str(young)),
    ]
    monkeypatch.setattr(aftermath, "_offload_files", lambda: tuple(found))
    state.family = [Who(77, "x")]
    tiers = aftermath.Tiers(state)
    tiers.look([str(mine), str(again), str(home / "vllm_offload_gone.mmap")])
    assert [Path(file.path).name for file in state.tier_files] == [mine.name, again.name, held.name]
    again.unlink()
    filler = home / "filler"
    filler.write_bytes(b"")  # takes the inode that became free
    again.write_bytes(b"another file of that name")
    said = aftermath.left_over(state)
    assert f"removed its tier file {mine} (1.0 GiB)" in said
    assert f"{other} (1.0 GiB) is mapped by nobody, and not known to be this server's: rm {other}" in said
    assert f"its tier file {held} (1.0 GiB) is still mapped by process 77" in said
    assert not any(str(young) in note for note in said)
    assert not mine.exists() and other.exists() and held.exists() and again.exists()


def test_what_a_killed_writer_left_is_removed(own_home: Path) -> None:
    record.write(Record(name="a"))
    gone, mine = (record.folder() / f".a.json.{pid}" for pid in (4194305, os.getpid()))
    other = record.folder() / ".a.json.swp"
    for file in (gone, mine, other):
        file.write_text("{")
    record.tidy()
    assert not gone.exists() and mine.exists() and other.exists() and record.read("a") is not None


@pytest.mark.parametrize("given_back", [True, False])
def test_the_memory_of_a_card_is_waited_for(monkeypatch: pytest.MonkeyPatch, given_back: bool) -> None:
    """Of processes that are gone: a driver takes a moment. What it keeps is told."""
    now = [0.0]
    one = Gpu(0, "card", processes=(GpuProcess(4194305, 1 << 30), GpuProcess(9, 1 << 30)))

    class Source:
        def read(self, *, pcie: bool) -> GpuReading:
            return GpuReading(() if given_back and now[0] > 2 else (one,))

        def close(self) -> None:
            now.append(-1)

    def pause(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("kvtop.sources.nvml.NvmlSource", Source)
    monkeypatch.setattr(aftermath.time, "monotonic", lambda: now[0])
    said = aftermath.left_over(record.Record(name="a", family=[Who(4194305, "x")]), pause)
    held = [] if given_back else ["process 4194305 still holds 1.0 GiB of GPU 0"]
    assert [note for note in said if "GPU" in note] == held
    assert 2 < now[0] < 3 if given_back else 15 <= now[0] < 16
    assert now[1:] == [-1]
    assert aftermath.left_over(record.Record(name="a"), pause) == [note for note in said if "GPU" not in note]


def test_after_an_end_the_cards_of_those_that_are_gone_are_looked_at(program) -> None:  # type: ignore[no-untyped-def]
    server = Who.of(program(CALM).pid)
    assert server is not None
    gone = Who(4194305, "x")
    state = Record(name="a", server=server, family=[server, gone])
    runner_of(state).end(5.0, time.sleep, time.monotonic)
    assert not server.lives and state.family == [server, gone]


def test_a_look_holds_nobody_up() -> None:
    """Whoever only sees whether anybody starts or stops has the lock for a moment."""
    lock.Lock("starts x").close()
    looking = os.open(record.folder() / "lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.03, os.close, [looking]).start()
    lock.Lock("starts y").close()


def test_foreign_servers(monkeypatch: pytest.MonkeyPatch, program) -> None:  # type: ignore[no-untyped-def]
    from kvtop.profiles.launch import Launch

    ours, theirs, worker = (program(CALM).pid for _ in range(3))
    command = ("vllm", "serve", "/m/x", "--port", "8003", "--block-size", "32")
    rows = (
        VllmProcess(ours, "api", command),
        VllmProcess(theirs, "api", command, port=8003, ports=(8003,)),
        VllmProcess(worker, "api", command, parent=theirs),
        VllmProcess(worker, "engine", command, parent=theirs),
        VllmProcess(theirs, "api", command, contained=True),
    )
    monkeypatch.setattr(adopt.ProcessTable, "read", lambda self: Processes(rows, 9, ()))
    who = Who.of(ours)
    assert who is not None
    record.write(Record(name="mine", state="running", server=who, family=[who]))
    same = Launch(argv=(), serve=("/m/x", "--block_size=32", "--port", "8003"))
    (found,) = adopt.foreign({"other": Launch(argv=(), serve=("/m/y",)), "same": same})
    assert (found.who.pid, found.profile, found.words) == (theirs, "same", f"process {theirs} on port 8003")


def test_a_server_of_another_user(monkeypatch: pytest.MonkeyPatch, program) -> None:  # type: ignore[no-untyped-def]
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    who = Who.of(program(CALM).pid)
    assert who is not None
    monkeypatch.setattr(family.signal, "pidfd_send_signal", refused)
    one = adopt.Foreign(VllmProcess(who.pid, "api", ("vllm", "serve"), port=8003), who)
    with pytest.raises(KvtopError) as told:
        adopt.end(one, 1.0)
    assert str(told.value) == f"process {who.pid} on port 8003 is another user's\n  stop it as that user"


def test_what_lived_on_and_has_ended_since_is_told_no_more(program) -> None:  # type: ignore[no-untyped-def]
    child = program(CALM)
    who = Who.of(child.pid)
    assert who is not None
    why = "it was killed by SIGKILL; 1 of its processes lives still: kvtop profile stop x ends them"
    record.write(Record(name="x", state="failed", why=why, family=[who]))
    seen = look.look("x")
    assert seen.record is not None and seen.record.why == why
    child.kill()
    child.wait()
    seen, state = look.look("x"), record.read("x")
    assert seen.record is not None and state is not None
    assert seen.record.why == state.why == "it was killed by SIGKILL"
