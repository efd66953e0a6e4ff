"""kvtop's own taps, told by their command line: one answers as the server behind it does, so nothing else tells it."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop.errors import UsageError
from kvtop.sources.url import listen_address, normalise

TAP_PORT = 8001
"""Where a tap listens unless told otherwise."""

_OTHER_JOBS = ("--status", "--stop", "--how", "--detach", "--help", "-h")


def tap_ways(program: str, arguments: Sequence[str]) -> tuple[tuple[int, str | None], ...]:
    """(port, URL of its upstream; None where the command line does not name it) for each way of a tap; empty for what
    is no tap."""
    if program != "kvtop" or list(arguments[:1]) != ["tap"]:
        return ()
    given: dict[str, list[str]] = {"--listen": [], "--map": [], "--upstream": []}
    words = iter(arguments[1:])
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in given:
            given[flag].append(value if equals else next(words, ""))
        elif flag in _OTHER_JOBS:
            return ()
    pairs = [tuple(text.partition("=")[::2]) for text in given["--map"]]
    pairs = pairs or [((given["--listen"] or [str(TAP_PORT)])[-1], (given["--upstream"] or [""])[-1])]
    return tuple((port, _url(upstream)) for listen, upstream in pairs if (port := _port(listen)) is not None)


def _port(text: str) -> int | None:
    try:
        return listen_address(text)[1]
    except UsageError:
        return None


def _url(text: str) -> str | None:
    try:
        return normalise(text)
    except UsageError:
        return None
