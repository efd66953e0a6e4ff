"""Facts of a made-up box for the rules of `kvtop profile check`: two cards of 24 GiB, nothing in the way."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import msgspec

from kvtop.profiles.check.seen import Card, Facts, Holder, Installed, LastStart, Listener, Server
from kvtop.profiles.flags import Flags
from kvtop.profiles.profile import Profile
from kvtop.profiles.vocabulary import vllm_0_32
from kvtop.readings import OffloadFile

GIB = 1 << 30
NAME = "qwen27"


def profile(**tables: Any) -> Profile:
    """As a file would have it."""
    return msgspec.convert(tables, Profile)


def facts(line: str = "m", *, yaml: str | None = None, like: Profile | None = None, **known: Any) -> Facts:
    """A command line on a box where nothing is in the way, with what is said of it."""
    flags = Flags.read(shlex.split(line), yaml=yaml)
    box = Facts(
        name=NAME,
        profile=like or Profile(),
        flags=flags,
        installed=Installed("/v/bin/vllm", "0.32.0", vllm_0_32()),
        version=(0, 32),
        paths={},
        shm_total_bytes=64 * GIB,
        shm_free_bytes=63 * GIB,
        offload_files=(),
        memory_total_bytes=128 * GIB,
        memory_available_bytes=104 * GIB,
        cards=(card(0), card(1)),
        listeners={},
        health_asked=True,
        servers=(),
        last=LastStart(400_000, 16, 40 * GIB, hybrid=False),
    )
    return replace(box, **known)


def card(index: int, held: dict[int, float | None] | None = None) -> Card:
    """24 GiB; `held`: pid -> GiB."""
    holders = tuple(
        Holder(pid, "python3", None if size is None else int(size * GIB)) for pid, size in (held or {}).items()
    )
    used = sum(one.bytes or 0 for one in holders) + (20 * GIB if any(one.bytes is None for one in holders) else 0)
    return Card(index, f"GPU-{index}{index}{index}-abc", 24 * GIB, 24 * GIB - used, holders)


def server(pid: int = 500, profile: str = "coder", port: int = 8000) -> Server:
    return Server(pid, frozenset({pid, pid + 1}), profile, port)


def listener(pid: int | None = 500) -> Listener:
    return Listener(pid, f"process {pid} (python3)") if pid is not None else Listener()


def tier_file(size: float, *pids: int, stale: bool = False) -> OffloadFile:
    name = "/dev/shm/vllm_offload_a.mmap"
    return OffloadFile(name, int(size * GIB), pids, stale=stale, shell_path=name if stale else "")


def offloading(gib: float = 32, **extra: Any) -> str:
    """The flag with an OffloadingConnector."""
    return transfer(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": int(gib * GIB), **extra},
    )


def transfer(**config: Any) -> str:
    return "m --kv-transfer-config " + shlex.quote(msgspec.json.encode(config).decode())
