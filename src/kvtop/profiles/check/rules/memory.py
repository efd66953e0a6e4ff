"""Rules of /dev/shm and of main memory."""

from __future__ import annotations

from kvtop.model.words import gib
from kvtop.profiles.check import containers, sizes
from kvtop.profiles.check.edits import there
from kvtop.profiles.check.seen import Facts, Lacks, Level, Saying, Says
from kvtop.profiles.check.sizes import GIB, OWN_BYTES, SPARE, Tier

_LESS = "a smaller tier, or more memory"


def shm_too_small(facts: Facts) -> Saying:
    """Since 0.20.2 the tier is one file in /dev/shm, written whole at the start. In a container without
    --ipc=host its own --shm-size counts."""
    tier = sizes.in_shm(facts)
    if tier is None:
        return
    if facts.contained and (facts.container is None or not facts.container.host_ipc):
        yield from _of_container(facts, tier)
        return
    free, total = facts.shm_free_bytes, facts.shm_total_bytes
    if free is None or total is None:
        yield Lacks("the size of /dev/shm")
    elif tier.bytes > free:
        yield _no_room(facts, tier, free, total)


def _of_container(facts: Facts, tier: Tier) -> Saying:
    size = facts.container.shm_bytes if facts.container is not None and facts.container.readable else None
    if size is None:
        yield Lacks("the size of the container's /dev/shm")
    elif tier.bytes > size:
        fits = _fits_memory(facts, tier)
        room = tier.bytes if fits else sizes.room_bytes(facts) or 0
        whole = -(-room // GIB) + 1
        fix = f"--shm-size={whole}g or --ipc=host"
        if facts.profile.runner == "docker":
            fix = f"{fix} in [docker] options"
        elif facts.profile.runner == "compose":
            fix = f"shm_size: {whole}gb or ipc: host"
        if not fits:
            fix = f"{tier.fix(room)}, and {fix}"
        fix = there(facts, fix) if fits or tier.fits(room) else _LESS
        yield Says("error", "--shm-size", f"tier {tier.words}, the container's /dev/shm has {gib(size)}", fix)


def _no_room(facts: Facts, tier: Tier, free: int, total: int) -> Says:
    freed = sizes.freed_shm_bytes(facts)
    if tier.bytes <= free + freed:
        says = f"tier {tier.words}, /dev/shm has {gib(free)} free, {gib(free + freed)} after the stop"
        return Says("note", tier.flag, says, "nothing: the server that is stopped gives it back")
    stale = sum(file.bytes for file in facts.offload_files or () if file.stale)
    says = f"tier {tier.words}, /dev/shm has {gib(free + freed)} free of {gib(total)}"
    if stale and tier.bytes <= free + freed + stale:
        return Says("error", tier.flag, says, f"remove the left-over files: they hold {gib(stale)}")
    mount = f"mount -o remount,size={-(-(total - free - freed + tier.bytes) // GIB) + 1}G /dev/shm"
    most = sizes.room_bytes(facts)
    room = min(int((free + freed) * SPARE), most if most is not None else total)
    ways = [there(facts, tier.fix(room))] if tier.fits(room) else []
    ways += [mount] if _fits_memory(facts, tier) else []
    return Says("error", tier.flag, says, ", or ".join(ways) or _LESS)


def _fits_memory(facts: Facts, tier: Tier) -> bool:
    free = sizes.memory_bytes(facts)
    return free is None or tier.bytes <= free


def shm_stale_files(facts: Facts) -> Saying:
    """A vLLM before 0.30 that was killed leaves its tier's file behind, and the memory stays taken."""
    if facts.offload_files is None:
        yield Lacks("the files in /dev/shm")
        return
    stale = [file for file in facts.offload_files if file.stale]
    if stale:
        size = gib(sum(file.bytes for file in stale))
        many = f"{len(stale)} left-over files hold" if len(stale) > 1 else "a left-over file holds"
        says = f"{many} {size}: nobody maps {'them' if len(stale) > 1 else 'it'}"
        yield Says("warning", "/dev/shm", says, f"rm {' '.join(file.shell_path for file in stale)}")


def memory_too_small(facts: Facts) -> Saying:
    """The tier is written whole at the start, in main memory (vLLM 0.32)."""
    tier = sizes.tier(facts)
    if tier is None:
        return
    free = facts.memory_available_bytes
    if free is None:
        yield Lacks("the memory that is available")
        return
    freed = sizes.freed_shm_bytes(facts)
    if tier.bytes > free + freed:
        says = f"tier {tier.words}, this machine has {gib(free + freed)} available"
        room = sizes.room_bytes(facts) or 0
        yield Says("error", tier.flag, says, tier.fix(room) if tier.fits(room) else _LESS)
    elif tier.bytes > free:
        says = f"tier {tier.words}, {gib(free)} available, {gib(free + freed)} after the stop"
        yield Says("note", tier.flag, says, "nothing: the server that is stopped gives it back")


def container_memory_limit(facts: Facts) -> Saying:
    """A limit below the tier and what vLLM itself wants, about 28 GiB, ends in a killed process."""
    tier = sizes.tier(facts)
    if tier is None:
        return
    if facts.contained and (facts.container is None or not facts.container.readable):
        yield Lacks("the container's limits: its compose file cannot be read")
        return
    limit, flag = _limit(facts)
    if limit is None or limit >= tier.bytes + OWN_BYTES:
        return
    says = f"tier {tier.words} and about {gib(OWN_BYTES, 0)} for vLLM, the limit is {gib(limit)}"
    level: Level = "error" if limit < tier.bytes else "warning"
    most = sizes.room_bytes(facts)
    room = limit - OWN_BYTES if most is None else min(limit - OWN_BYTES, most)
    need = tier.bytes + OWN_BYTES
    total = facts.memory_total_bytes
    ways = [f"a limit of {-(-need // GIB)} GiB"] if total is None or need <= total else []
    ways += [tier.fix(room)] if tier.fits(room) else []
    yield Says(level, flag, says, ", or ".join(ways) or _LESS)


def _limit(facts: Facts) -> tuple[int | None, str]:
    """The limit, and what sets it."""
    if facts.contained:
        limit = facts.container.memory_bytes if facts.container is not None else None
        return limit, "mem_limit" if facts.profile.runner == "compose" else "--memory"
    if facts.profile.runner == "venv":
        wrapped = containers.memory_max(facts.profile.venv.wrap, facts.memory_total_bytes)
        limits = [one for one in (wrapped, facts.memory_limit_bytes) if one is not None]
        return min(limits, default=None), "MemoryMax"
    return None, ""
