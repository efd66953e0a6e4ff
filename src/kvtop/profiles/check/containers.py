"""What a container is given: from the words of `docker run`, or from its service in a compose file. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvtop.profiles.check.seen import Container

DOCKER_SHM = 64 << 20
"""docker's own size of /dev/shm (--shm-size)."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_TAG = re.compile(r":v?(\d{1,3})\.(\d{1,4})(?:[.\-_+]|$)")


def of_options(options: Sequence[str]) -> Container:
    """By the words in front of the image."""
    found: dict[str, str] = {}
    for at, word in enumerate(options):
        flag, equals, value = word.partition("=")
        if flag in ("--shm-size", "--ipc", "--memory", "-m"):
            found[flag] = value if equals else options[at + 1] if at + 1 < len(options) else ""
        elif word.startswith("-m") and not word.startswith("--"):
            found["-m"] = word[2:]
    return _container(found.get("--shm-size"), found.get("--ipc"), found.get("--memory") or found.get("-m"))


def of_service(service: Mapping[str, Any]) -> Container:
    """By a service of a compose file; a value with a variable in it is not known."""
    deploy = service.get("deploy")
    limits = deploy.get("resources", {}) if isinstance(deploy, Mapping) else {}
    limits = limits.get("limits", {}) if isinstance(limits, Mapping) else {}
    memory = service.get("mem_limit")
    if memory is None and isinstance(limits, Mapping):
        memory = limits.get("memory")
    return _container(
        *(None if one is None else str(one) for one in (service.get("shm_size"), service.get("ipc"), memory))
    )


def _container(shm: str | None, ipc: str | None, memory: str | None) -> Container:
    host = ipc == "host"
    size = None if host else DOCKER_SHM if shm is None else size_bytes(shm)
    return Container(size, host, None if memory is None else size_bytes(memory))


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
