"""The words of `docker run` in front of the image, however they are written; where a port is published. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

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


def mount(volume: Mapping[str, object]) -> str:
    """The value of --mount for a volume of a compose file in its long form."""
    return ",".join(f"{key}={volume[key]}" for key in ("type", "source", "target") if key in volume)


def published_at(options: Sequence[str], port: int) -> int | None:
    """The port of this machine at which a container's port is, by `-p HOST:CONTAINER`; None: that is not told."""
    for flag, value in pairs(options):
        if flag not in ("-p", "--publish"):
            continue
        outer, _, inner = value.removesuffix("/tcp").rpartition(":")
        outer = outer.rpartition(":")[2]
        if inner == str(port) and outer.isdecimal() and len(outer) < 6 and 0 < int(outer) < 65536:
            return int(outer)
    return None
