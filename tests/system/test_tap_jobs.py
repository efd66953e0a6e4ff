"""`kvtop tap` as processes: --detach, --status, --stop, and what is left when one is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from tapstandin import Program, free_ports, program

from kvtop.capture.control import running
from kvtop.capture.tap.ended import Missed
from kvtop.sources.discovery import DiscoverySource


@pytest.fixture
def kvtop(tmp_path: Path) -> Iterator[Program]:
    with program(tmp_path) as made:
        yield made


def status(kvtop: Program) -> list[dict[str, Any]]:
    done = kvtop.run("tap", "--status", "--json")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    assert done.returncode == (0 if rows else 1), done.stderr
    return rows


def gone(pid: int) -> None:
    """Wait for a process that is another's child."""
    if running.birth(pid) is not None:
        psutil.wait_procs([psutil.Process(pid)], timeout=10)
    assert running.birth(pid) is None


def test_detach_status_stop(kvtop: Program) -> None:
    one, up = free_ports(2)
    done = kvtop.run("tap", "--listen", f"127.0.0.1:{one}", "--upstream", f"http://127.0.0.1:{up}", "--detach")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"kvtop tap listens: http://127.0.0.1:{one} -> http://127.0.0.1:{up}\n"
    [row] = status(kvtop)
    assert row["name"] == f"127.0.0.1:{one}"
    assert row["mappings"] == [
        {"listen": f"127.0.0.1:{one}", "upstream": f"http://127.0.0.1:{up}", "upstream_answers": False}
    ]
    assert row["open_connections"] == 0 and row["detached"] is True
    assert row["since"].endswith("Z") and Path(row["store"]).name == "turns.db"
    assert os.getsid(row["pid"]) == row["pid"] != os.getsid(0)
    with socket.create_connection(("127.0.0.1", one)):
        held = kvtop.run("tap", "--status").stdout
        assert "1 open connection;" in held and f"process {row['pid']}, detached" in held
    stopped = kvtop.run("tap", "--stop")
    assert (stopped.returncode, stopped.stdout) == (0, f"127.0.0.1:{one} ended: nothing was cut\n")
    gone(row["pid"])
    none = kvtop.run("tap", "--status")
    assert none.returncode == 1 and none.stdout.startswith("no tap runs; start one: kvtop tap --detach; ")


def test_a_server_that_is_not_there_yet_is_said_and_is_no_fault(kvtop: Program) -> None:
    one, two, up = free_ports(3)
    done = kvtop.run("tap", "--listen", str(one), "--upstream", str(up), "--detach")
    assert done.returncode == 0 and f"kvtop: nothing answers at 127.0.0.1:{up} yet\n" in done.stderr
    shown = f"http://127.0.0.1:{one} -> http://127.0.0.1:{up}"
    assert f"{shown}: nothing answers there now\n" in kvtop.run("tap", "--status").stdout
    with socket.create_server(("127.0.0.1", up)):
        assert f"{shown}\n" in kvtop.run("tap", "--status").stdout
        other = kvtop.run("tap", "--listen", str(two), "--upstream", str(up), "--detach")
        assert "nothing answers" not in other.stderr


def test_the_command_that_ends_a_tap_names_it_where_others_run(kvtop: Program) -> None:
    one, two, three, up = free_ports(4)
    said = [kvtop.run("tap", "--listen", str(one), "--upstream", str(up), "--detach").stderr]
    said += [kvtop.run("tap", "--listen", str(two), "--upstream", str(up), "--detach").stderr]
    said += [kvtop.run("tap", "--listen", str(three), "--upstream", str(up), "--detach", "--name", "mine").stderr]
    stops = ["; kvtop tap --stop ends it", f"; kvtop tap --stop {two} ends it", "; kvtop tap --stop mine ends it"]
    assert [stop for stop, text in zip(stops, said, strict=True) if stop in text] == stops
    taken = kvtop.run("tap", "--listen", str(two), "--upstream", str(up)).stderr
    assert f"kvtop tap --stop {two} ends it" in taken
    assert kvtop.run("tap", "--stop", str(two)).returncode == 0


def test_the_tap_whose_server_answers_is_the_one_that_agents_are_pointed_at(kvtop: Program) -> None:
    dead, alive, none, up = free_ports(4)
    kvtop.run("tap", "--listen", str(dead), "--upstream", str(none), "--detach")
    with socket.create_server(("127.0.0.1", up)):
        kvtop.run("tap", "--listen", str(alive), "--upstream", str(up), "--detach")
        told = kvtop.run("tap", "--how", "claude").stdout
        assert f"export ANTHROPIC_BASE_URL=http://127.0.0.1:{alive} " in told
        assert f"# another one, chosen by --listen 127.0.0.1:{dead}: http://127.0.0.1:{dead} -> " in told
        chosen = kvtop.run("tap", "--how", "claude", "--listen", str(dead)).stdout
        assert f"export ANTHROPIC_BASE_URL=http://127.0.0.1:{dead} " in chosen


def test_files_are_the_users_alone_and_the_log_tells_when(kvtop: Program, own_home: Path) -> None:
    one, up = free_ports(2)
    kvtop.run("tap", "--map", f"{one}=http://127.0.0.1:{up}", "--detach", "--name", "mine")
    kvtop.run("tap", "--stop", "mine")
    taps = own_home / "state" / "taps"
    assert stat.S_IMODE(taps.stat().st_mode) == 0o700
    assert {path.name for path in taps.iterdir()} == {"mine.log", ".lock"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in taps.iterdir()} == {0o600}
    said = (taps / "mine.log").read_text().splitlines()
    assert len(said) == 2
    assert said[0].endswith(f" info listens: http://127.0.0.1:{one} -> http://127.0.0.1:{up}")
    assert said[1].endswith(" info ended: 0 served, 0 cut")


def test_what_was_missed_is_told(kvtop: Program) -> None:
    one, up = free_ports(2)
    way = ("--listen", f"127.0.0.1:{one}", "--upstream", f"http://127.0.0.1:{up}")
    since = 1_750_000_000.0
    missed = Missed(connections=201, bytes=41_943_040, first_at=since, last_at=since + 5, behind_since=since + 1)
    none = {"connections": 0, "bytes": 0, "first_at": None, "last_at": None, "behind_since": None}
    assert kvtop.run("tap", *way, "--detach", env={"TAP_MISSED": msgspec.json.encode(missed).decode()}).returncode == 0
    while (row := status(kvtop)[0])["missed"] == none:  # it is written beside the traffic
        pass
    assert row["missed"] == {
        "connections": 201,
        "bytes": 41_943_040,
        "first_at": "2025-06-15T15:06:40Z",
        "last_at": "2025-06-15T15:06:45Z",
        "behind_since": "2025-06-15T15:06:41Z",
    }
    said = "  not recorded: 41,943,040 bytes, of 201 connections, from 2025-06-15T15:06:40Z to 2025-06-15T15:06:45Z"
    lines = kvtop.run("tap", "--status").stdout.splitlines()
    assert lines[-1] == f"{said}; the recorder has not kept up since 2025-06-15T15:06:41Z"
    end = "not recorded: 41,943,040 bytes, of 201 connections"
    assert kvtop.run("tap", "--stop").stdout == f"127.0.0.1:{one} ended: nothing was cut; {end}\n"
    assert Path(row["log"]).read_text().splitlines()[-1].endswith(f" info {end}")


def test_a_store_that_cannot_be_written_is_told_while_turns_wait(kvtop: Program) -> None:
    one, up = free_ports(2)
    way = ("--listen", f"127.0.0.1:{one}", "--upstream", f"http://127.0.0.1:{up}")
    waits = Missed(unwritten="turns.db cannot be written or read: full", unwritten_since=1_750_000_000.0)
    assert kvtop.run("tap", *way, "--detach", env={"TAP_MISSED": msgspec.json.encode(waits).decode()}).returncode == 0
    while (row := status(kvtop)[0])["store_problem"] is None:  # it is written beside the traffic
        pass
    why = "the store cannot be written: turns.db cannot be written or read: full"
    assert row["store_problem"] == f"turns wait since 2025-06-15T15:06:40Z: {why}"
    assert f"  {row['store_problem']}\n" in kvtop.run("tap", "--status").stdout
    assert kvtop.run("tap", "--stop").returncode == 0


def test_a_tap_that_records_nothing_misses_nothing(kvtop: Program) -> None:
    one, up = free_ports(2)
    way = ("--listen", f"127.0.0.1:{one}", "--upstream", f"http://127.0.0.1:{up}")
    assert kvtop.run("tap", *way, "--no-record", "--detach").returncode == 0
    assert status(kvtop)[0]["missed"] is None
    assert "not recorded" not in kvtop.run("tap", "--status").stdout


def test_stop_says_which_were_cut(kvtop: Program, own_home: Path) -> None:
    one, up = free_ports(2)
    kvtop.run("tap", "--map", f"{one}=http://127.0.0.1:{up}", "--detach", "--drain", "0.2")
    with socket.create_connection(("127.0.0.1", one)) as client, socket.create_connection(("127.0.0.1", one)) as other:
        client.sendall(b"x")
        while status(kvtop)[0]["open_connections"] != 2:
            pass
        peers = ["{}:{}".format(*sock.getsockname()) for sock in (client, other)]
        stopped = kvtop.run("tap", "--stop", str(one))
    assert stopped.returncode == 0
    first, *rest = stopped.stdout.splitlines()
    assert first == f"127.0.0.1:{one} ended: 2 open connections cut"
    told = [re.fullmatch(r"  cut: (\S+) -> (\S+), [0-9]+\.[0-9] s after it asked", line) for line in rest]
    assert {line and line.groups() for line in told} == {(peer, f"http://127.0.0.1:{up}") for peer in peers}
    said = (own_home / "state" / "taps" / f"127.0.0.1%3A{one}.log").read_text()
    assert all(f"info cut: {peer} -> http://127.0.0.1:{up}, " in said for peer in peers)


def test_a_shorter_drain_of_stop_ends_it_at_once(kvtop: Program) -> None:
    one, up = free_ports(2)
    kvtop.run("tap", "--map", f"{one}=http://127.0.0.1:{up}", "--detach", "--drain", "3600")
    with socket.create_connection(("127.0.0.1", one)):
        while status(kvtop)[0]["open_connections"] != 1:
            pass
        stopped = kvtop.run("tap", "--stop", f"127.0.0.1:{one}", "--drain", "0.1")
    assert stopped.stdout.startswith(f"127.0.0.1:{one} ended: 1 open connection cut\n")


def test_the_foreground_is_seen_and_ends_by_ctrl_c(kvtop: Program) -> None:
    one, up = free_ports(2)
    child = kvtop.start("tap", "--listen", str(one), "--upstream", str(up), "--no-record")
    assert kvtop.first_line == f"kvtop tap listens: http://127.0.0.1:{one} -> http://127.0.0.1:{up}\n"
    [row] = status(kvtop)
    assert (row["pid"], row["detached"], row["log"], row["store"]) == (child.pid, False, None, None)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    silent = f"kvtop: nothing answers at 127.0.0.1:{up} yet\n"
    assert (child.returncode, err) == (0, f"{silent}kvtop tap ended: 0 connections served, 0 cut\n")
    assert status(kvtop) == []


def test_several_maps_are_one_tap_and_two_taps_are_two(kvtop: Program) -> None:
    a, b, c, up = free_ports(4)
    first = kvtop.run("tap", "--map", f"{a}=127.0.0.1:{up}", "--map", f"{b}=127.0.0.1:{up}", "--detach")
    assert len(first.stdout.splitlines()) == 2
    kvtop.run("tap", "--map", f"{c}=127.0.0.1:{a}", "--detach", "--name", "second")
    assert {len(row["mappings"]) for row in status(kvtop)} == {1, 2}
    unclear = kvtop.run("tap", "--stop")
    assert unclear.returncode == 2
    assert "2 taps run" in unclear.stderr and "second" in unclear.stderr
    assert kvtop.run("tap", "--stop", "third").returncode == 2
    assert kvtop.run("tap", "--stop", str(b)).returncode == 0  # by its second address
    assert [row["name"] for row in status(kvtop)] == ["second"]
    assert kvtop.run("tap", "--stop", "all").returncode == 0
    none = kvtop.run("tap", "--stop")
    assert (
        none.stderr.startswith("kvtop: no tap runs\n  start one: kvtop tap --detach; ") and ":8000" not in none.stderr
    )


def test_a_way_back_through_a_tap_that_runs(kvtop: Program) -> None:
    a, b = free_ports(2)
    kvtop.run("tap", "--map", f"{a}=127.0.0.1:{b}", "--detach")
    done = kvtop.run("tap", "--map", f"{b}=127.0.0.1:{a}", "--detach")
    assert done.returncode == 2
    way = f"127.0.0.1:{b} -> http://127.0.0.1:{a} -> http://127.0.0.1:{b}"
    assert done.stderr.startswith(f"kvtop: this way leads back to itself through other taps: {way}\n")


def test_killed_without_a_word(kvtop: Program, own_home: Path) -> None:
    one, up = free_ports(2)
    kvtop.run("tap", "--map", f"{one}=127.0.0.1:{up}", "--detach")
    [row] = status(kvtop)
    os.kill(row["pid"], signal.SIGKILL)
    gone(row["pid"])
    assert list((own_home / "state" / "taps").glob("*.json"))
    assert status(kvtop) == []
    assert list((own_home / "state" / "taps").glob("*.json")) == []
    assert kvtop.run("tap", "--map", f"{one}=127.0.0.1:{up}", "--detach").returncode == 0


def test_another_process_of_that_number_is_left_alone(kvtop: Program) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        record = running.Running(
            name="old",
            pid=other.pid,
            birth=f"{running.birth(other.pid)}0",
            since="2026-01-01T00:00:00Z",
            mappings=[running.Mapped("127.0.0.1:8001", "http://127.0.0.1:8000")],
            drain_s=1.0,
        )
        running.claim(record)
        assert running.stop(record, 1.0) == (True, None)
        running.claim(record)
        assert kvtop.run("tap", "--stop", "old").stderr.startswith("kvtop: no tap runs")
        assert status(kvtop) == []
        assert other.poll() is None
        other.communicate(b"\n")
        assert other.returncode == 0


def test_a_port_that_is_taken(kvtop: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for more in ((), ("--detach",)):
            done = kvtop.run("tap", "--listen", str(port), "--upstream", "1", *more)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith(f"kvtop: 127.0.0.1:{port} is taken by process {os.getpid()} (")
            assert len(done.stderr.splitlines()) == 2


def test_a_port_and_a_name_that_a_tap_has(kvtop: Program) -> None:
    one, two, up = free_ports(3)
    kvtop.run("tap", "--map", f"{one}=127.0.0.1:{up}", "--detach", "--name", "mine")
    [row] = status(kvtop)
    port = kvtop.run("tap", "--map", f"{one}=127.0.0.1:{up}", "--detach")
    assert port.stderr.startswith(f"kvtop: 127.0.0.1:{one} is taken by a kvtop tap (process {row['pid']})\n")
    name = kvtop.run("tap", "--map", f"{two}=127.0.0.1:{up}", "--detach", "--name", "mine")
    assert name.stderr.startswith(f"kvtop: a tap named mine runs (process {row['pid']})\n")
    assert (port.returncode, name.returncode) == (1, 1)


def test_one_that_fails_after_its_checks_says_why(kvtop: Program, own_home: Path) -> None:
    one, up = free_ports(2)
    done = kvtop.run("tap", "--map", f"{one}=127.0.0.1:{up}", "--detach", env={"TAP_FAULT": "POST /secret"})
    assert done.returncode == 1
    log = own_home / "state" / "taps" / f"127.0.0.1%3A{one}.log"
    assert done.stderr == f"kvtop: the tap ended with RuntimeError\n  where, is in its log: {log}\n"
    [said] = log.read_text().splitlines()
    assert "critical ended by an error: RuntimeError at tapstandin.py:" in said and "secret" not in said
    assert status(kvtop) == []


def test_a_folder_that_cannot_be_written_stops_no_traffic(kvtop: Program, own_home: Path) -> None:
    own_home.mkdir()
    (own_home / "state").write_text("a file")
    one, up = free_ports(2)
    child = kvtop.start("tap", "--listen", str(one), "--upstream", str(up))
    socket.create_connection(("127.0.0.1", one)).close()
    child.terminate()
    _, err = child.communicate(timeout=20)
    assert child.returncode == 0
    assert "it runs, but --status and --stop will not know it" in err
    detached = kvtop.run("tap", "--listen", str(one), "--upstream", str(up), "--detach")
    assert detached.returncode == 1 and "a detached tap writes its log there" in detached.stderr


def test_a_log_is_bounded(kvtop: Program, own_home: Path) -> None:
    log = own_home / "state" / "taps" / "mine.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * 300_000)
    one, up = free_ports(2)
    kvtop.run("tap", "--map", f"{one}=127.0.0.1:{up}", "--detach", "--name", "mine")
    assert log.stat().st_size < 1000
    assert log.with_name("mine.log.1").stat().st_size == 300_000


def test_nonsense_in_the_folder_is_no_tap(kvtop: Program, own_home: Path) -> None:
    taps = own_home / "state" / "taps"
    taps.mkdir(parents=True)
    for number, text in enumerate((b"", b"{", b"[]", b'{"name":1}', b"\xff\xfe", msgspec.json.encode({"pid": 1}))):
        (taps / f"{number}.json").write_bytes(text)
    assert status(kvtop) == []
    assert list(taps.glob("*.json")) == []


def test_pipes_in_the_folder_are_not_waited_for(kvtop: Program, own_home: Path) -> None:
    taps = own_home / "state" / "taps"
    taps.mkdir(parents=True)
    for name in ("a.json", "mine.new", "mine.log"):
        os.mkfifo(taps / name)
    one, up = free_ports(2)
    words = ("tap", "--map", f"{one}=127.0.0.1:{up}", "--detach", "--name", "mine")
    refused = kvtop.run(*words)
    assert refused.returncode == 1 and "mine.log: not a regular file\n  a detached tap writes" in refused.stderr
    (taps / "mine.log").unlink()
    done = kvtop.run(*words)
    assert (done.returncode, [row["name"] for row in status(kvtop)]) == (0, ["mine"])
    assert kvtop.run("tap", "--stop").returncode == 0
    os.mkfifo(taps / "mine.json")
    stopped = kvtop.run("tap", "--stop")
    assert (stopped.returncode, stopped.stderr.splitlines()[0]) == (1, "kvtop: no tap runs")


@pytest.mark.parametrize("how", ["map", "listen"])
async def test_a_tap_is_no_server(kvtop: Program, how: str) -> None:
    one, up = free_ports(2)
    where = ["--map", f"{one}=127.0.0.1:{up}"] if how == "map" else ["--listen", str(one), "--upstream", str(up)]
    kvtop.start("tap", *where)
    discovery = await DiscoverySource(ports=(one,)).read(None)
    assert discovery.found == ()
    assert dict(discovery.looked)[f"port {one}"] == "a kvtop tap"
