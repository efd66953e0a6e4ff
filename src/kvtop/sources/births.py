"""Which process a number means: one that got the number of another is told from it by the moment of its birth."""

from __future__ import annotations

from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def birth(pid: int, *, ended: bool = False) -> str | None:
    """The boot, and the clock ticks from it to the process's start; None where no such process lives.

    Unlike a start in seconds it does not move when the clock is set. `ended`: also of one that has ended, and whose
    parent has not taken notice of that.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = _BOOT.read_text(encoding="ascii").strip()
        fields = stat.rpartition(")")[2].split()  # the program's name may hold anything
        state, ticks = fields[0], fields[19]
    except (OSError, IndexError):
        return None
    return None if state in "ZX" and not ended else f"{boot}/{ticks}"


def lives(pid: int, born: str) -> bool:
    """The process of that number and birth runs; never one whose birth nobody noted."""
    return bool(born) and birth(pid) == born


def outlived(name: str) -> bool:
    """Whether a half-written file has no writer any more: its name ends with the number of a process that is gone."""
    pid = name.rpartition(".")[2]
    return pid.isdecimal() and len(pid) < 10 and birth(int(pid)) is None


def of_this_boot(born: str) -> bool:
    """Numbers of an earlier boot mean nothing any more."""
    try:
        return born.partition("/")[0] == _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return False
