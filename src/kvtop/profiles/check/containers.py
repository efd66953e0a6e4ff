"""What a container is given: from the words of `docker run`, or from its service in a compose file. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvtop.profiles import docker_options
from kvtop.profiles.check.seen import Container
from kvtop.profiles.docker_options import pairs

DOCKER_SHM = 64 << 20
"""docker's own size of /dev/shm (--shm-size)."""
_SHM = "/dev/shm"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_TAG = re.compile(r":v?(\d{1,3})\.(\d{1,4})(?:[.\-_+]|$)")


def of_options(options: Sequence[str]) -> Container:
    """By the words in front of the image."""
    found = dict(pairs(options))
    memory = found.get("--memory") or found.get("-m")
    host, size = _shm(options)
    return Container(size, host, None if memory is None else size_bytes(memory))


def tells_shm(options: Sequence[str]) -> bool:
    """Whether they say anything of the container's /dev/shm."""
    return _shm(options) != (False, DOCKER_SHM)


def of_service(service: Mapping[str, Any]) -> Container:
    """By a service of a compose file; a value with a variable in it, and what it extends, is not known."""
    options = [f"{flag}={value}" for flag, value in docker_options.of_service(service)]
    found = of_options(options)
    if service.get("extends") and not tells_shm(options):
        return replace(found, shm_bytes=None)
    return found


def _shm(options: Sequence[str]) -> tuple[bool, int | None]:
    """(whether /dev/shm is the host's, bytes of its own: None where that is not told)."""
    for flag, value in pairs(options):
        if flag == "--tmpfs" and value.partition(":")[0] == _SHM:
            size = dict(part.partition("=")[::2] for part in value.partition(":")[2].split(",")).get("size")
            return False, None if size is None else size_bytes(size)
    place = outside(options, _SHM)
    if place is not None or any(inside == _SHM for _, inside in _mounts(options)):
        return place == _SHM, None
    found = dict(pairs(options))
    ipc, size = found.get("--ipc", ""), found.get("--shm-size")
    if ipc == "host":
        return True, None
    if "$" in ipc or ipc.startswith(("container:", "service:")):
        return False, None
    return False, DOCKER_SHM if size is None else size_bytes(size)


def published(options: Sequence[str]) -> str | None:
    """What opens a port of the container to the network: `8000:8000` of -p, `all` for -P; None: nothing does."""
    for flag, value in pairs(options):
        if flag in ("-p", "--publish") and value and not value.startswith(("127.", "[::1]", "localhost:")):
            return value
        if flag in ("-P", "--publish-all"):
            return "all"
    return None


def on_loopback(value: str) -> str:
    """The value of -p for this machine alone: 8000:8000 -> 127.0.0.1:8000:8000."""
    parts = value.rsplit(":", 2)
    if value == "all":
        return "127.0.0.1:8000:8000"
    return f"127.0.0.1:{parts[-2] if len(parts) > 1 else parts[-1]}:{parts[-1]}"


def outside(options: Sequence[str], path: str) -> str | None:
    """Where a path in the container is on this machine, by its mounts; None: in none of them."""
    best: tuple[str, str] | None = None
    for host, inside in _mounts(options):
        within = path == inside or path.startswith(f"{inside}/")
        if host.startswith(("/", "~")) and inside and within and (best is None or len(inside) > len(best[1])):
            best = host, inside
    return None if best is None else best[0].rstrip("/") + path[len(best[1]) :]


def _mounts(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(folder of this machine, or name of a volume; place in the container)."""
    for flag, value in pairs(options):
        if flag in ("-v", "--volume"):
            parts = value.split(":")
            if len(parts) > 1:
                yield parts[0], parts[1].rstrip("/")
        elif flag == "--mount":
            given = dict(part.partition("=")[::2] for part in value.split(","))
            inside = given.get("target") or given.get("destination") or given.get("dst") or ""
            yield given.get("source") or given.get("src") or "", inside.rstrip("/")


def size_bytes(text: str) -> int | None:
    """docker's sizes: 64m, 32gb, 70g, 1073741824: binary units; None for what is none."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or len(found[1]) > 20:
        return None
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))


def version_of(image: str) -> tuple[int, int] | None:
    """Of vLLM, by the image's tag: vllm/vllm-openai:v0.28.0; None where the tag tells none."""
    found = _TAG.search(image.partition("@")[0]) if "vllm" in image else None
    return (int(found[1]), int(found[2])) if found else None


def memory_max(words: Sequence[str], total: int | None) -> int | None:
    """The MemoryMax of `systemd-run -p MemoryMax=90%` in front of a command; `total`: the machine's memory."""
    for word in words:
        name, _, value = word.removeprefix("--property=").partition("=")
        if name.removeprefix("-p") != "MemoryMax":
            continue
        if value.endswith("%"):
            share = value[:-1]
            return int(total * int(share) / 100) if total is not None and share.isdecimal() and len(share) < 4 else None
        return size_bytes(value)
    return None
