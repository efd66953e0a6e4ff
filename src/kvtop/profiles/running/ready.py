"""Does a server answer, and is it the one that was started? An older one may answer on the same port."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from kvtop.errors import printable
from kvtop.profiles.running.asking import get, listens
from kvtop.profiles.secret import shown
from kvtop.sources.listeners import holder, listening
from kvtop.sources.url import authority

SHORT_S = 2.0
"""For an answer of a few bytes: whoever lists the profiles waits for it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether it is ready; where not, why not as far as that is known. Fit for a screen."""

    ready: bool
    why: str = ""
    other: bool = False
    """Somebody else answers there."""


class _Row(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Row]


class _Health(Exception):
    pass


def ask(host: str, port: int, *, health_url: str, names: Sequence[str], pids: Collection[int] | None) -> Answer:
    """One look. `names`: what the server should call its model, any of them; empty: not known. `pids`: the server's
    processes, one of which must listen on that port; None: another program listens for it (a container's)."""
    if not listens(host, port):
        return Answer(False)
    if pids is not None:
        pid = (listening() or {}).get(port)  # none: it has just gone, or listens in another network namespace
        if pid is not None and pid not in pids:
            return Answer(
                False, f"port {port} is held by {holder(port) or 'another process'}, not by this server", True
            )
    try:
        _healthy(health_url or _at(host, port, "/health"))
    except _Health as why:
        return Answer(False, str(why))
    said = served(host, port)
    if said and names and not set(names) & set(said):
        listed = ", ".join(printable(name, 60) for name in said[:3])
        wanted = printable(names[0], 80)
        if pids:
            return Answer(False, f"it serves {listed}, not {wanted}, which its profile names", True)
        return Answer(False, f"port {port} serves {listed}, not {wanted}: another server", True)
    return Answer(True)


def served(host: str, port: int) -> list[str]:
    """The names in /v1/models; empty where it does not tell (it may want a key)."""
    try:
        status, body = get(_at(host, port, "/v1/models"), SHORT_S)
        rows = msgspec.json.decode(body, type=_Models).data if status == 200 else []
    except (OSError, ValueError):  # what msgspec raises is one
        return []
    return [row.id for row in rows]


def block_tokens(host: str, port: int) -> int | None:
    """Tokens of a block, by /metrics; None where it does not tell."""
    try:
        _, body = get(_at(host, port, "/metrics"))
    except (OSError, ValueError):
        return None
    found = re.search(rb'^vllm:cache_config_info\{[^\n]*\bblock_size="(\d{1,9})"', body, re.MULTILINE)
    return int(found[1]) if found else None


def _healthy(url: str) -> None:
    """Raises _Health, with what stands in the way, if that says anything."""
    try:
        status, _ = get(url, SHORT_S)
    except ConnectionRefusedError:
        raise _Health("") from None  # it listens when it is ready
    except (OSError, ValueError) as error:
        raise _Health(
            f"{shown(url, 120)} does not answer: {printable(str(error) or type(error).__name__, 80)}"
        ) from None
    if status != 200:
        raise _Health(f"{shown(url, 120)} answers {status}")


def _at(host: str, port: int, path: str) -> str:
    return f"http://{authority(host, port)}{path}"
