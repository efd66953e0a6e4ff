"""A profile as TOML: as a file with comments, and key by key to be shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import tomlkit

from kvtop.errors import printable
from kvtop.profiles.profile import Profile
from kvtop.profiles.spelling import groups

_WIDTH = 100
_MAX_DOTS = 40
"""In one line; a file with many more is refused (`files.parse_toml`)."""
Table = tuple[tuple[str, ...], str, list[tuple[str, Any]]]
"""(path, heading, keys and values); the top has neither path nor heading."""


def as_data(profile: Profile) -> dict[str, Any]:
    """What of a profile is no default, as the file has it."""
    data: dict[str, Any] = msgspec.to_builtins(profile)
    return {key: value for key, value in data.items() if value != {}}


def to_toml(profile: Profile, above: Sequence[str] = (), beside: Mapping[str, str] | None = None) -> str:
    """The text of a file that reads back as `profile`.

    `above`: comments for its top. `beside`: dotted key -> the comment above it.
    """
    beside = beside or {}
    lines = _comment(above)
    for path, heading, values in tables(as_data(profile)):
        lines += ["", heading] if heading else [""] if values else []
        for key, value in values:
            if comment := beside.get(".".join((*path, key))):
                lines += _comment([comment])
            lines.append(f"{bare(key)} = {value_text(value)}")
    return "\n".join(lines).strip("\n") + "\n"


def _comment(texts: Sequence[str]) -> list[str]:
    return [f"# {printable(line, 1000)}".rstrip() for text in texts for line in text.split("\n")]


def tables(data: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[Table]:
    """The tables of the file, one after the other, each with its own keys; the top first."""
    own = [
        (key, value) for key, value in data.items() if not isinstance(value, Mapping) and not _are_tables(value, path)
    ]
    inner = [(key, value) for key, value in data.items() if isinstance(value, Mapping) or _are_tables(value, path)]
    if own or not inner or not path:
        yield path, f"[{'.'.join(bare(part) for part in path)}]" if path else "", own
    for key, value in inner:
        if isinstance(value, Mapping):
            yield from tables(value, (*path, key))
        else:
            yield from (((*path, key), f"[[{bare(key)}]]", list(one.items())) for one in value)


def _are_tables(value: object, path: tuple[str, ...]) -> bool:
    """[[sidecar]]; inside of a JSON flag lists of tables stay on their line."""
    return not path and isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def bare(key: str) -> str:
    """A key as TOML has it, quoted where it must be."""
    return _visible(str(tomlkit.key(key).as_string()))


def _visible(text: str) -> str:
    """With what an editor would not show, or would let turn a line round, written as TOML escapes it."""
    return "".join(sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in text)


def value_text(value: Any) -> str:
    """A value as TOML has it: on one line; of a list that is too long for one, a flag on each."""
    text = _value(value, dots=True)
    return text if all(line.count(".") <= _MAX_DOTS for line in text.split("\n")) else _value(value, dots=False)


def _value(value: Any, dots: bool) -> str:
    short = _inline(value, dots)
    if not isinstance(value, list) or len(short) <= _WIDTH:
        return short
    flags = all(isinstance(one, str) for one in value)
    rows = [group.words for group in groups(value)] if flags else [(one,) for one in value]
    return "\n".join(["[", *(f"  {', '.join(_inline(one, dots) for one in row)}," for row in rows), "]"])


def _inline(value: Any, dots: bool) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{bare(key)} = {_inline(one, dots)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_inline(one, dots) for one in value) + "]"
    text = _visible(str(tomlkit.item(value).as_string()))
    return text.replace(".", r"\u002e") if isinstance(value, str) and not dots else text
