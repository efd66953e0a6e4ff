"""The host source on a /proc of our own making, and on real processes."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fixed_clock import FixedClock
from kvtop.readings import VllmProcess
from kvtop.sources.host import MAPS_YOUNG_S, HostSource
from kvtop.sources.processes import RESCAN_OLD_READS, RESCAN_READS, ProcessTable

BTIME = 1_795_900_000
TCP = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    "   0: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 111 1 0 100 0\n"
)


class Machine:
    """A made-up /proc and /dev/shm."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.shm = root / "shm"
        self.shm.mkdir()
        (self.proc / "pressure").mkdir(parents=True)
        (self.proc / "self" / "ns").mkdir(parents=True)
        (self.proc / "net").mkdir()
        (self.proc / "net" / "tcp").write_text(TCP.format(port=0))
        (self.proc / "self" / "ns" / "net").symlink_to("net:[1]")
        (self.proc / "stat").write_text(f"cpu 1 2 3\nbtime {BTIME}\n")
        (self.proc / "meminfo").write_text(
            "MemTotal: 1000 kB\nMemFree: 500 kB\nMemAvailable: 600 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\n"
        )
        (self.proc / "pressure" / "memory").write_text(
            "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00\n"
        )
        self.clock = FixedClock(BTIME + 5000.0)
        self.source = HostSource(self.clock, shm=self.shm)

    def process(self, pid: int, *command: str, parent: int = 1, port: int = 0, net: str = "net:[1]") -> Path:
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "ns").mkdir()
        (folder / "cmdline").write_bytes(b"\0".join(word.encode() for word in command) + b"\0")
        ticks = 100 * os.sysconf("SC_CLK_TCK")
        (folder / "stat").write_text(f"{pid} (VLLM) x) S {parent} " + "0 " * 17 + f"{ticks} " + "0 " * 30 + "\n")
        (folder / "maps").write_text("")
        (folder / "ns" / "net").symlink_to(net)
        if port:
            (folder / "fd" / "7").symlink_to("socket:[111]")
            (self.proc / "net" / "tcp").write_text(TCP.format(port=port))
        return folder

    def tier(self, name: str = "vllm_offload_e1.mmap", size: int = 4096) -> Path:
        file = self.shm / name
        file.write_bytes(bytes(size))
        return file

    def maps(self, pid: int, path: str, file: Path | None = None, size: int = 8192, deleted: bool = False) -> None:
        status = file.stat() if file else None
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}" if status else "00:1b"
        inode = status.st_ino if status else 77
        line = f"7f0000000000-{0x7F0000000000 + size:x} rw-s 00000000 {device} {inode}       {path}"
        text = f"55d0-55e0 r-xp 00000000 08:01 5   /usr/bin/python\n{line}{' (deleted)' if deleted else ''}\n"
        (self.proc / str(pid) / "maps").write_text(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(made.proc))
    return made


def test_memory(machine: Machine) -> None:
    reading = machine.source.read()
    assert (reading.memory_total_bytes, reading.memory_available_bytes) == (1000 * 1024, 600 * 1024)
    assert reading.swap_used_bytes == 60 * 1024
    assert reading.pressure == pytest.approx(0.125)
    assert reading.shm_total_bytes is not None and reading.shm_total_bytes > 0
    assert reading.at == machine.clock.now


def test_what_is_not_told_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "no"))
    reading = HostSource(FixedClock(), shm=tmp_path / "neither").read()
    assert (reading.memory_total_bytes, reading.swap_used_bytes, reading.pressure, reading.shm_used_bytes) == (
        None,
    ) * 4
    assert (reading.processes, reading.processes_seen, reading.offload_files) == ((), None, ())


def test_the_processes_of_a_server(machine: Machine) -> None:
    machine.process(10, "python3", "/v/bin/vllm", "serve", "m", "--port", "8001", "--api-key", "geheim", port=8001)
    machine.process(11, "VLLM::EngineCore", parent=10)
    machine.process(12, "VLLM::Worker_TP0", parent=11)
    machine.process(13, "bash")
    machine.process(14, "/usr/bin/docker-proxy", "-proto", "tcp", "-host-ip", "0.0.0.0", "-host-port", "8010")
    reading = machine.source.read()
    assert [(p.pid, p.role, p.parent, p.port, p.ports) for p in reading.processes] == [
        (10, "api", 1, 8001, (8001,)),
        (11, "engine", 10, None, ()),
        (12, "worker", 11, None, ()),
    ]
    assert reading.processes[0].started_at == BTIME + 100
    assert "geheim" not in repr(reading)
    assert (reading.processes_seen, reading.published_ports) == (5, (8010,))


def test_taps_are_told_from_servers(machine: Machine) -> None:
    machine.process(10, "vllm", "serve", "m", port=8000)
    folder = machine.process(11, "python3", "-P", "-m", "kvtop", "tap", "--map", "127.0.0.1:8001=http://127.0.0.1:8000")
    for _ in range(3):
        reading = machine.source.read()
        assert [p.pid for p in reading.processes] == [10]
        assert reading.taps == ((8001, "http://127.0.0.1:8000"),)
    shutil.rmtree(folder)
    assert machine.source.read().taps == ()


def test_a_process_in_a_container_has_no_port_of_this_machine(machine: Machine) -> None:
    machine.process(10, "vllm", "serve", "m", port=8000, net="net:[2]")
    (process,) = machine.source.read().processes
    assert process.contained
    assert process.ports == ()


def test_a_process_that_becomes_vllm_is_found(machine: Machine) -> None:
    folder = machine.process(10, "bash")
    assert machine.source.read().processes == ()
    (folder / "cmdline").write_bytes(b"vllm\0serve\0")
    found = [len(machine.source.read().processes) for _ in range(RESCAN_READS)]
    assert found[-1] == 1


def test_an_old_process_that_becomes_vllm_is_found_too(machine: Machine) -> None:
    folder = machine.process(10, "bash")
    for _ in range(2 * RESCAN_READS):
        assert machine.source.read().processes == ()
    (folder / "cmdline").write_bytes(b"vllm\0serve\0")
    found = [len(machine.source.read().processes) for _ in range(RESCAN_OLD_READS)]
    assert found[-1] == 1
    (folder / "cmdline").write_bytes(b"bash\0")
    assert machine.source.read().processes == ()


def test_a_pid_that_another_process_took_is_not_mistaken(machine: Machine) -> None:
    folder = machine.process(10, "vllm", "serve", "m", port=8001)
    assert machine.source.read().processes[0].ports == (8001,)
    stat = folder / "stat"
    stat.write_text(stat.read_text().replace(str(100 * os.sysconf("SC_CLK_TCK")), str(200 * os.sysconf("SC_CLK_TCK"))))
    (folder / "fd" / "7").unlink()
    (process,) = machine.source.read().processes
    assert (process.started_at, process.ports) == (BTIME + 200, ())


def test_a_start_does_not_wander_with_the_clock(machine: Machine) -> None:
    machine.process(11, "VLLM::EngineCore")
    machine.source.read()
    (machine.proc / "stat").write_text(f"cpu 1 2 3\nbtime {BTIME + 1}\n")
    assert machine.source.read().processes[0].started_at == BTIME + 100


def test_odd_texts_of_a_kernel_never_raise(machine: Machine) -> None:
    folder = machine.process(10, "vllm", "serve", "m", port=8001)
    (machine.proc / "net" / "tcp").write_text("head\nbroken\n")
    assert [p.ports for p in machine.source.read().processes] == [()]
    (folder / "stat").write_text("10 (x) S 1\n")
    (machine.proc / "meminfo").write_text("MemTotal: many kB\n")
    reading = HostSource(machine.clock, shm=machine.shm).read()
    assert (reading.processes, reading.memory_total_bytes, reading.swap_used_bytes) == ((), None, None)


def test_what_psutil_warns_of_is_said_nowhere(machine: Machine) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        reading = HostSource(machine.clock, shm=machine.shm).read()
        assert reading.memory_total_bytes is not None
    assert said == []


def test_a_tier_that_is_mapped(machine: Machine) -> None:
    file = machine.tier()
    machine.process(11, "VLLM::EngineCore")
    machine.process(12, "VLLM::Worker")
    for pid in (11, 12):
        machine.maps(pid, str(file), file)
    (tier,) = machine.source.read().offload_files
    assert (tier.path, tier.bytes, tier.mapped_by, tier.stale, tier.unlinked) == (
        str(file),
        4096,
        (11, 12),
        False,
        False,
    )


def test_an_unlinked_tier_is_found_in_the_maps(machine: Machine) -> None:
    machine.process(11, "VLLM::EngineCore")
    machine.maps(11, "/dev/shm/vllm_offload_e2.mmap", size=1 << 20, deleted=True)
    (tier,) = machine.source.read().offload_files
    assert (tier.path, tier.bytes, tier.mapped_by) == ("/dev/shm/vllm_offload_e2.mmap", 1 << 20, (11,))
    assert (tier.unlinked, tier.stale) == (True, False)


def test_a_left_over_is_stale(machine: Machine) -> None:
    machine.tier()
    machine.process(13, "bash")
    (tier,) = machine.source.read().offload_files
    assert (tier.stale, tier.mapped_by) == (True, ())


def test_a_left_over_is_removed_by_its_real_name(machine: Machine) -> None:
    odd = machine.shm / os.fsdecode(b"vllm_offload_a'b \x1b[31m\xff\n.mmap")
    odd.write_bytes(b"x")
    (machine.shm / "vllm_offload_folder").mkdir()
    (machine.shm / "vllm_offload_link").symlink_to("/etc/passwd")
    (tier,) = machine.source.read().offload_files
    assert tier.stale and tier.path.isprintable() and tier.shell_path.isascii() and tier.shell_path.isprintable()
    subprocess.run(["bash", "-c", f"rm {tier.shell_path}"], check=True)
    assert not odd.exists()


def test_a_file_that_another_program_maps_is_not_stale(machine: Machine) -> None:
    file = machine.tier()
    machine.process(13, "python3", "train.py")
    machine.maps(13, str(file), file)
    assert not machine.source.read().offload_files[0].stale


def test_nothing_is_stale_beside_a_vllm_that_may_not_be_looked_into(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.tier()
    folder = machine.process(11, "VLLM::EngineCore")
    real = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path == folder / "maps":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    reading = machine.source.read()
    assert reading.unreadable_maps == (11,)
    assert not reading.offload_files[0].stale


def test_maps_are_read_seldom_and_anew_when_the_folder_changes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    real = Path.read_bytes

    def watch(path: Path) -> bytes:
        if path.name == "maps":
            looked.append(path.parent.name)
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", watch)
    machine.clock.now = BTIME + 110.0
    machine.process(11, "VLLM::EngineCore")
    for _ in range(3):
        machine.source.read()
    assert looked == ["11"]
    machine.clock.tick(MAPS_YOUNG_S)
    machine.source.read()
    assert looked == ["11", "11"]
    file = machine.tier()
    machine.maps(11, str(file), file)
    assert machine.source.read().offload_files[0].mapped_by == (11,)


@pytest.fixture
def mapper(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A real process named like a worker that maps a tier's file, and the file."""
    file = tmp_path / "vllm_offload_real.mmap"
    file.write_bytes(bytes(mmap.PAGESIZE * 3))
    code = (
        "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close(); "
        "print('mapped', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        ["VLLM::Worker_TP0", "-c", code, str(file)],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        assert child.stdout.readline() == b"mapped\n"
        yield child.pid, file
    finally:
        child.stdin.close()
        child.wait()
        child.stdout.close()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no Linux /proc here")
def test_a_real_process_and_a_real_map(mapper: tuple[int, Path]) -> None:
    pid, file = mapper
    source = HostSource(shm=file.parent)
    reading = source.read()
    assert [(p.pid, p.role) for p in reading.processes if p.pid == pid] == [(pid, "worker")]
    (tier,) = [t for t in reading.offload_files if t.path == str(file)]
    assert (tier.mapped_by, tier.stale, tier.bytes) == ((pid,), False, mmap.PAGESIZE * 3)
    file.unlink()
    (gone,) = [t for t in source.read().offload_files if t.path == str(file)]
    assert (gone.mapped_by, gone.unlinked, gone.bytes) == ((pid,), True, mmap.PAGESIZE * 3)


LISTENER = (
    "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
    "print(s.getsockname()[1], flush=True); sys.stdin.read()"
)


@contextlib.contextmanager
def titled(*command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A real process of this command line that listens, and its port. The second word must let Python run LISTENER."""
    child = subprocess.Popen(command, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    try:
        yield child, int(child.stdout.readline())
    finally:
        child.stdin.close()
        child.wait()
        child.stdout.close()


def seen(table: ProcessTable, pid: int) -> VllmProcess | None:
    return next((process for process in table.read().vllm if process.pid == pid), None)


def test_a_real_server_and_its_port() -> None:
    table = ProcessTable()
    with titled("VLLM::APIServer_0", "-c", LISTENER, "--api-key", "geheim") as (child, port):
        process = seen(table, child.pid)
        assert process is not None
        assert (process.role, process.parent, process.contained) == ("api", os.getpid(), False)
        assert process.ports == (port,)
        assert process.started_at is not None and abs(process.started_at - psutil.Process().create_time()) < 3600
        assert "geheim" not in repr(process)
        child.kill()
        # Not waited for yet: a zombie.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
        assert seen(table, child.pid) is None
    assert seen(table, child.pid) is None


def test_processes_that_vanish_while_they_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    real = psutil.Process.cmdline
    with titled("VLLM::Worker_TP0", "-c", LISTENER) as (child, _):

        def vanish(process: psutil.Process) -> list[str]:
            command = real(process)
            if process.pid == child.pid:
                child.kill()
                child.wait()
            return command

        monkeypatch.setattr(psutil.Process, "cmdline", vanish)
        table = ProcessTable()
        assert seen(table, child.pid) is None


@pytest.mark.parametrize("error", [psutil.NoSuchProcess(1), psutil.AccessDenied(1), psutil.ZombieProcess(1)])
@pytest.mark.parametrize("question", ["cmdline", "status", "create_time", "net_connections"])
def test_what_may_not_be_asked_is_left_out(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, question: str, error: psutil.Error
) -> None:
    machine.process(10, "vllm", "serve", "m", port=8001)

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(psutil.Process, question, refuse)
    found = machine.source.read().processes
    assert [process.ports for process in found] == ([()] if question == "net_connections" else [])


def test_a_process_that_has_ended_since_it_was_listed_maps_nothing(machine: Machine) -> None:
    file = machine.tier()
    (machine.process(11, "VLLM::EngineCore") / "maps").unlink()
    reading = machine.source.read()
    (found,) = reading.offload_files
    assert (found.path, found.stale, reading.unreadable_maps) == (str(file), True, ())
