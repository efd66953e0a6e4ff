"""The host source on a /proc of our own making, and on the real one."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtop.clock import FixedClock
from kvtop.sources.host import MAPS_YOUNG_S, HostSource
from kvtop.sources.processes import RESCAN_READS

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
        (self.proc / "self" / "ns" / "net").symlink_to("net:[1]")
        (self.proc / "stat").write_text(f"cpu 1 2 3\nbtime {BTIME}\n")
        (self.proc / "meminfo").write_text(
            "MemTotal: 1000 kB\nMemAvailable: 600 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\nHugePages_Total: 0\n"
        )
        (self.proc / "pressure" / "memory").write_text(
            "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00\n"
        )
        self.clock = FixedClock(BTIME + 5000.0)
        self.source = HostSource(self.clock, proc=self.proc, shm=self.shm)

    def process(self, pid: int, *command: str, parent: int = 1, port: int = 0, net: str = "net:[1]") -> Path:
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "ns").mkdir()
        (folder / "net").mkdir()
        (folder / "cmdline").write_bytes(b"\0".join(word.encode() for word in command) + b"\0")
        ticks = 100 * os.sysconf("SC_CLK_TCK")
        (folder / "stat").write_text(f"{pid} (VLLM) x) S {parent} " + "0 " * 17 + f"{ticks} 0 0\n")
        (folder / "maps").write_text("")
        (folder / "ns" / "net").symlink_to(net)
        if port:
            (folder / "fd" / "7").symlink_to("socket:[111]")
            (folder / "net" / "tcp").write_text(TCP.format(port=port))
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
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_memory(machine: Machine) -> None:
    reading = machine.source.read()
    assert (reading.memory_total_bytes, reading.memory_available_bytes) == (1000 * 1024, 600 * 1024)
    assert reading.swap_used_bytes == 60 * 1024
    assert reading.pressure == pytest.approx(0.125)
    assert reading.shm_total_bytes is not None and reading.shm_total_bytes > 0
    assert reading.at == machine.clock.now


def test_what_is_not_told_is_none(tmp_path: Path) -> None:
    reading = HostSource(FixedClock(), proc=tmp_path / "no", shm=tmp_path / "neither").read()
    assert (reading.memory_total_bytes, reading.swap_used_bytes, reading.pressure, reading.shm_used_bytes) == (
        None,
    ) * 4
    assert (reading.processes, reading.offload_files) == ((), ())


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


def test_a_process_in_a_container_has_no_port_of_this_machine(machine: Machine) -> None:
    machine.process(10, "vllm", "serve", "m", port=8000, net="net:[2]")
    (process,) = machine.source.read().processes
    assert process.contained
    assert process.ports == ()


def test_a_process_that_becomes_vllm_is_found_at_the_next_full_look(machine: Machine) -> None:
    folder = machine.process(10, "bash")
    assert machine.source.read().processes == ()
    (folder / "cmdline").write_bytes(b"vllm\0serve\0")
    found = [len(machine.source.read().processes) for _ in range(RESCAN_READS)]
    assert found[-1] == 1


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
