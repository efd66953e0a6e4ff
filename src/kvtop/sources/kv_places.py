"""Where a server publishes its KV events: as it tells itself, as its command line asks, or as config.toml names it.

Pure. What a server or a command line says leads only to this machine: `tcp://*:5557` is taken for its loopback, and
another host's name is not followed. config.toml may name any.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address

import msgspec

from kvtop.errors import printable
from kvtop.readings import KvPublisher
from kvtop.sources.processes import option

USUAL = "tcp://*:5557"
"""Where vLLM publishes unless told otherwise."""
_MOST = 64
"""Ranks that are followed."""
_FLAG = "--kv-events-config"
_TCP = re.compile(
    r"tcp://(?P<host>\[[0-9a-fA-F:.]+\]|[0-9a-fA-F:]*::[0-9a-fA-F:.]*|[\w.*-]+):(?P<port>\d{1,5})", re.ASCII
)
_IPC = re.compile(r"ipc://[^\x00-\x20]{1,100}")
_EVERYWHERE = {"*", "0.0.0.0", "::", "[::]"}


class _Config(msgspec.Struct):
    """vLLM's KVEventsConfig, what matters of it here."""

    enable_kv_cache_events: bool = False
    publisher: str | None = None
    endpoint: str = USUAL
    replay_endpoint: str | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True)
class KvPlaces:
    """What is followed, and what is not, in words fit for a screen."""

    publishers: tuple[KvPublisher, ...] = ()
    problems: tuple[str, ...] = ()


def told(body: bytes) -> KvPlaces | None:
    """What /kv_event_sources (0.31) says: a configuration for each rank. None where that is no answer of vLLM's."""
    try:
        rows = msgspec.json.decode(body, type=dict[str, _Config])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    found = [(int(rank), row) for rank, row in rows.items() if rank.isdecimal() and len(rank) < 6]
    return _places(sorted(found, key=lambda one: one[0]))


def asked(command: Sequence[str]) -> KvPlaces:
    """What a server's command line asks for, for each of its data-parallel ranks. Nothing where it asks for none."""
    fields: dict[str, object] = {}
    whole = option(command, _FLAG)
    if whole is not None:
        try:
            fields = dict(msgspec.json.decode(whole, type=dict[str, object]))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return KvPlaces(problems=(f"{_FLAG} of its command line cannot be read",))
    for name in _Config.__struct_fields__:
        # vLLM takes each field of a JSON flag as a flag of its own, too.
        value = option(command, f"{_FLAG}.{name}".replace("_", "-"))
        if value is not None:
            fields[name] = value
    try:
        config = msgspec.convert(fields, _Config, strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return KvPlaces(problems=(f"{_FLAG} of its command line cannot be read",))
    size = option(command, "--data-parallel-size") or option(command, "-dp") or "1"
    ranks = int(size) if size.isdecimal() and len(size) < 4 else 1
    return _places([(rank, _moved(config, rank)) for rank in range(ranks)])


def named(endpoint: str, known: KvPlaces = KvPlaces()) -> KvPlaces:
    """What config.toml names, for rank 0; further ranks where `known` has them, at the ports above it.

    A topic and a replay's port are those that are known.
    """
    text = endpoint.strip()
    if _connectable(text, anywhere=True) is None:
        return KvPlaces(problems=("kv_events in config.toml is no endpoint, such as tcp://127.0.0.1:5557",))
    base = next((one for one in known.publishers if one.rank == 0), None)
    first = KvPublisher(0, _connectable(text, anywhere=True) or "", _beside(text, base), base.topic if base else "")
    more = [one for one in known.publishers if one.rank]
    return KvPlaces((first, *(replace(one, endpoint=_above(first.endpoint, one.rank)) for one in more)))


def _places(rows: Sequence[tuple[int, _Config]]) -> KvPlaces:
    publishers, problems = [], []
    for rank, config in rows[:_MOST]:
        if not config.enable_kv_cache_events or config.publisher not in ("zmq", None):
            continue
        endpoint = _connectable(config.endpoint)
        where = printable(config.endpoint, 60)
        if _connectable(config.endpoint, anywhere=True) is not None and not _binds(config.endpoint):
            problems.append(f"the server sends its KV events out to {where}; with tcp://*:PORT it lets others listen")
            continue
        if endpoint is None:
            problems.append(f"KV events at {where} are not followed: name them as kv_events in config.toml if meant")
            continue
        replay = _connectable(config.replay_endpoint) if config.replay_endpoint else None
        publishers.append(KvPublisher(rank, endpoint, replay, config.topic))
    if len(rows) > _MOST:
        problems.append(f"KV events of {len(rows) - _MOST:,} more ranks are not followed")
    return KvPlaces(tuple(publishers), tuple(problems))


def _connectable(endpoint: str, *, anywhere: bool = False) -> str | None:
    """Where to connect for what a server binds; None for what is no such place, or another machine's."""
    if _IPC.fullmatch(endpoint):
        return endpoint
    found = _TCP.fullmatch(endpoint)
    if found is None or not 0 < int(found["port"]) < 65536:
        return None
    host = found["host"]
    if host in _EVERYWHERE:
        return f"tcp://127.0.0.1:{found['port']}"
    return endpoint if anywhere or _loopback(host) else None


def _binds(endpoint: str) -> bool:
    """vLLM listens at these, and connects to all others: there whoever collects the events has to be named."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://")


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _moved(config: _Config, rank: int) -> _Config:
    """As that rank has it: its ports are above those of rank 0."""
    replay = config.replay_endpoint
    return msgspec.structs.replace(
        config, endpoint=_above(config.endpoint, rank), replay_endpoint=_above(replay, rank) if replay else replay
    )


def _above(endpoint: str, rank: int) -> str:
    head, _, port = endpoint.rpartition(":")
    return f"{head}:{int(port) + rank}" if rank and port.isdecimal() and len(port) < 6 else endpoint


def _beside(endpoint: str, base: KvPublisher | None) -> str | None:
    """The known replay endpoint, on the host that was named."""
    if base is None or base.replay is None or not base.replay.startswith("tcp://"):
        return None if base is None else base.replay
    found = _TCP.fullmatch(endpoint)
    return f"tcp://{found['host']}:{base.replay.rpartition(':')[2]}" if found else base.replay
