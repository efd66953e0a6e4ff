"""What the page of the profiles asks before its user: requests of a server, its output, its processes, what is in the
way."""

from __future__ import annotations

import asyncio
import http.server
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtop.live import profile_asks
from kvtop.live.profile_look import ProfileLook
from kvtop.live.profile_view import Foreign
from kvtop.profiles.check import facts
from kvtop.profiles.check.seen import Server
from kvtop.profiles.folder import Entry
from kvtop.profiles.launch import launch
from kvtop.profiles.profile import Profile, Systemd
from kvtop.profiles.running import adopt, record
from kvtop.profiles.running.adopt import Foreign as Adopted
from kvtop.profiles.running.record import Ask, Record, Who
from kvtop.profiles.running.stages import starting
from kvtop.profiles.standing import Known, Standing, stranger
from kvtop.readings import VllmProcess

METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
"""


@pytest.fixture
def answers() -> Iterator[tuple[str, list[tuple[int, bytes]]]]:
    said: list[tuple[int, bytes]] = [(200, METRICS)]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = said[0] if self.path == "/metrics" else (404, b"")
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", said
    server.shutdown()
    thread.join()
    server.server_close()


def test_requests_are_those_of_all_engines_or_not_known(answers: tuple[str, list[tuple[int, bytes]]]) -> None:
    url, said = answers

    def count() -> int | None:
        return asyncio.run(profile_asks.running(url))

    assert count() == 3
    said[0] = (200, b"")
    assert count() is None
    said[0] = (200, METRICS.replace(b"1.0", b"NaN"))
    assert count() is None, "a part is no sum"
    said[0] = (401, METRICS)
    assert count() is None
    assert asyncio.run(profile_asks.running("http://127.0.0.1:1")) is None
    assert asyncio.run(profile_asks.running("nonsense://")) is None


def test_the_output_of_a_foreign_server_is_its_log_where_it_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.log"
    with file.open("w") as out:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=out)
    known = Known("adopted", tmp_path / "adopted.toml", "venv", port=8000)
    mine = Record(name="adopted", log="/of/an/earlier/start.log")
    try:
        row = Standing(known, "foreign", child.pid, None, mine)
        found = profile_asks.logged(row)
        assert found is not None and (found.log, found.log_offset) == (str(file), 0)
        assert profile_asks.logged(Standing(known, "stopped", None, None, mine)) is mine
        file.unlink()
        file.write_text("another file of that name")
        assert profile_asks.logged(row) is None
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
    assert profile_asks.logged(row) is None


def test_the_journal_of_a_unit_is_the_log_of_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = launch("unit", Profile(runner="systemd", systemd=Systemd(unit="vllm", user=False)))
    row = Standing(Known("unit", tmp_path / "unit.toml", "systemd", launch=run), "foreign", 4_000_000, 100.5)
    monkeypatch.setattr("psutil.PROCFS_PATH", str(tmp_path))
    assert profile_asks.logged(row) is None
    groups = tmp_path / "4000000" / "cgroup"
    groups.parent.mkdir()
    groups.write_text("12:pids:/system.slice/vllm.service\n1:name=systemd:/system.slice/vllm.service\n")
    found = profile_asks.logged(row)
    assert found is not None
    assert (found.runner, found.unit, found.user_unit, found.started_at) == ("systemd", "vllm", False, 100.5)
    groups.write_text("0::/system.slice/vllm.service.d\n")
    assert profile_asks.logged(row) is None


def test_the_processes_of_a_foreign_server_are_it_and_its_children(tmp_path: Path) -> None:
    script = "import subprocess as s; p = s.Popen(['sleep', '60']); print(p.pid, flush=True); input(); p.kill()"
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    try:
        grandchild = int(child.stdout.readline())
        row = Standing(Known("x", tmp_path / "x.toml", "venv"), "foreign", child.pid)
        assert profile_asks.family(row) == {child.pid, grandchild}
    finally:
        child.stdin.close()
        child.wait()
        child.stdout.close()
    assert profile_asks.family(row) == frozenset()


def test_the_processes_of_a_start_are_known_before_its_record_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path))
    keeper = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True)
    assert keeper.stdout is not None
    child = int(keeper.stdout.readline())
    try:
        record.write(Record(name="tiny", state="starting", keeper=Who.of(keeper.pid)))
        row = Standing(Known("tiny", tmp_path / "tiny.toml", "venv"), "starting")
        assert child in profile_asks.family(row)
    finally:
        os.killpg(keeper.pid, signal.SIGKILL)
        keeper.wait()
        keeper.stdout.close()


def test_in_the_way_is_what_holds_its_port_among_servers_that_kvtop_did_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = VllmProcess(77, "api", ("vllm", "serve", "m"), 8000, ports=(8000,))
    asked: list[bool] = []

    class Held:
        port, listeners, cards = 8000, None, ()
        servers = (Server(77, frozenset((77,)), port=8000), Server(78, frozenset((78,)), port=8000))

    def gather(entry: Entry, *, ask_vllm: bool) -> object:
        asked.append(ask_vllm)
        return Held()

    monkeypatch.setattr(adopt, "foreign", lambda launches: [Adopted(one, Who(77, "b"), ("tiny",))])
    monkeypatch.setattr(facts, "gather", gather)
    monkeypatch.setattr("kvtop.profiles.check.sizes.cards", lambda facts: ())
    entry = Entry("a", Path("/p/a.toml"), None)
    (found,) = profile_asks.in_the_way(entry, ())
    assert (found.server, found.holds, asked) == (Foreign(77, 8000, "tiny"), "port 8000", [False])
    monkeypatch.setattr(adopt, "foreign", lambda launches: [])
    assert profile_asks.in_the_way(entry, ()) == ()


def test_a_server_of_no_profile_is_named_by_its_process() -> None:
    command = ("vllm", "serve", "/m/qwen", "--port", "9000", "--host", "0.0.0.0")
    row = stranger(VllmProcess(9, "api", command, 9000, "0.0.0.0", 5.0, tier_bytes=1 << 30), 9000)
    assert (row.name, row.stranger, row.pid, row.since) == ("process 9", True, 9, 5.0)
    assert (row.known.model, row.known.url, row.known.tier_bytes) == ("/m/qwen", "http://127.0.0.1:9000", 1 << 30)
    two = stranger(VllmProcess(9, "api", (*command, "--data-parallel-size", "2"), 9000, tier_bytes=1 << 30), 9000)
    assert two.known.tier_bytes == 2 << 30, "each engine has one of that size"


def test_a_log_panel_has_this_start_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path))
    folder = tmp_path / "config" / "profiles"
    folder.mkdir(parents=True)
    (folder / "a.toml").write_text('[serve]\nmodel = "/m/x"\n')
    log = tmp_path / "a.log"
    log.write_text("ERROR of the run before\n")
    look = ProfileLook(lambda: 1_000.0)
    first = Record(name="a", state="failed", started_at=900.0, ended_at=950.0, log=str(log))
    record.write(first)
    assert look.look("a", ()).tail.lines == ("ERROR of the run before",)
    again = Record(name="a", state="stopped", started_at=960.0, ended_at=970.0, log=str(log), log_offset=24)
    record.write(again)
    tail = look.look("a", ()).tail
    assert (tail.lines, tail.since) == ((), 960.0), "though the file has not changed"
    with log.open("a") as out:
        out.write("of this one\n")
    assert look.look("a", ()).tail.lines == ("of this one",)


def test_a_start_that_is_ended_counts_no_further() -> None:
    state = Record(name="a", state="stopping", started_at=100.0, ask=Ask("kvtop profile stop", 164.0))
    row = Standing(Known("a", Path("/p/a.toml"), "venv"), "stopping", record=state)
    assert row.seen is not None
    for now in (165.0, 169.0):
        made = starting(row.seen, (), now)
        assert made is not None and made.over and made.elapsed_s == 64.0
