"""The words of `docker run` in front of the image, however they are written, or by a service of a compose file; where a
port is published. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SHORT = ("-p", "-v", "-m")
"""One letter, whose value may stand right behind it."""


def pairs(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(flag, value) of each word, whether its value stands behind `=`, right behind it, or in the next word: that one
    stands as a flag once more."""
    for at, word in enumerate(options):
        flag, equals, value = word.partition("=")
        short = word[:2] in _SHORT and len(word) > 2 and not word.startswith("--") and not (equals and len(flag) == 2)
        if short:
            yield word[:2], word[2:]
        else:
            yield flag, value if equals else options[at + 1] if at + 1 < len(options) else ""


_OF_SERVICE = (
    ("ipc", "--ipc"),
    ("shm_size", "--shm-size"),
    ("mem_limit", "--memory"),
    ("memswap_limit", "--memory-swap"),
    ("cpuset", "--cpuset-cpus"),
    ("runtime", "--runtime"),
    ("network_mode", "--network"),
)


def of_service(service: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(flag, value) of `docker run` for what a service of a compose file says of its container."""
    for key, flag in _OF_SERVICE:
        if service.get(key) is not None:
            yield flag, str(service[key])
    limit = _within(service, "deploy", "resources", "limits", "memory")
    if limit is not None and service.get("mem_limit") is None:
        yield "--memory", str(limit)
    for row in listed(service.get("volumes")):
        yield ("--mount", _mount(row)) if isinstance(row, Mapping) else ("-v", str(row))
    for row in listed(service.get("tmpfs")):
        yield "--tmpfs", str(row)
    for row in listed(service.get("ports")):
        yield "-p", _publish(row)


def listed(value: object) -> list[Any]:
    """What may be a list, as one."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _within(table: object, *keys: str) -> object:
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table


def _mount(volume: Mapping[str, object]) -> str:
    """The value of --mount for a volume of a compose file in its long form."""
    return ",".join(f"{key}={volume[key]}" for key in ("type", "source", "target") if key in volume)


def _publish(row: object) -> str:
    """The value of -p for a row of `ports` in a compose file, in its short or long form."""
    if not isinstance(row, Mapping):
        return str(row)
    address = f"{row['host_ip']}:" if row.get("host_ip") else ""
    return f"{address}{row.get('published', '')}:{row.get('target', '')}"


def host_network(options: Sequence[str]) -> bool:
    """Whether the container has no network of its own."""
    return any(flag in ("--network", "--net") and value == "host" for flag, value in pairs(options))


def published_at(options: Sequence[str], port: int) -> int | None:
    """The port of this machine at which a container's port is, by `-p HOST:CONTAINER`, either of which may be a range;
    None: that is not told."""
    for _, outside, inside in _published(options):
        if port in inside and len(outside) == len(inside):
            return outside[inside.index(port)]
    return None


def published_anywhere(options: Sequence[str], port: int) -> str | None:
    """The value of -p that names a container's port, and leaves the port of this machine to docker, or to its choice in
    a range; None: none does."""
    told = published_at(options, port) is not None
    return None if told else next((value for value, _, inside in _published(options) if port in inside), None)


def _published(options: Sequence[str]) -> Iterator[tuple[str, range, range]]:
    """(value, ports of this machine, ports of the container) of each -p."""
    for flag, value in pairs(options):
        if flag in ("-p", "--publish"):
            outer, _, inner = value.removesuffix("/tcp").rpartition(":")
            yield value, _range(outer.rpartition(":")[2]), _range(inner)


def _range(text: str) -> range:
    """8000, 8000-8010; empty for what is neither."""
    first, dash, last = text.partition("-")
    ends = [int(one) for one in (first, last if dash else first) if one.isdecimal() and len(one) < 6]
    return range(ends[0], ends[1] + 1) if len(ends) == 2 and 0 < ends[0] <= ends[1] < 65536 else range(0)
