"""[serve] of a command line: which flags have a key of their own, and what a file of TOML holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kvtop.profiles.spelling import Group, groups, is_switch
from kvtop.profiles.valid import DEEPEST_JSON

_MOST = 2**63


def by_key(words: Sequence[str]) -> dict[str, Any]:
    """[serve] of a command line: flags that have a key of their own under it, all others as they are typed."""
    serve: dict[str, Any] = {}
    found = list(groups(words))
    names = [group.name for group in found]
    args: list[str] = []
    for number, group in enumerate(found):
        if number == 0 and not group.name and len(group.words) == 1:
            serve["model"] = group.words[0]
        elif names.count(group.name) > 1 or not _own_key(serve, group):
            args += group.words
    return {**serve, **({"args": args} if args else {})}


def _own_key(serve: dict[str, Any], group: Group) -> bool:
    """Whether a flag has a key of its own in [serve], and went there."""
    values = [str(value) for value in group.values]
    value = values[0] if len(values) == 1 else ""
    inline = "=" in group.words[0]  # then one value is its own, whatever stands behind it
    if group.name == "served-model-name" and values and not (inline and len(values) > 1):
        serve["names"] = values
    elif group.name == "host" and value:
        serve["host"] = value
    elif group.name == "port" and value.isdecimal() and len(value) < 6 and 0 < int(value) < 65536:
        serve["port"] = int(value)
    elif group.name == "config" and value and not inline:
        serve["config"] = value
    elif (table := json_table(value)) is not None and "." not in group.name and not is_switch(group.name):
        serve.setdefault("json", {})[group.name] = table
    else:
        return False
    return True


def json_table(text: str) -> dict[str, Any] | None:
    """A JSON object that comes back the same from TOML; None for any other text."""
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and keeps(value) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def keeps(value: Any, depth: int = 0) -> bool:
    """TOML knows no null and whole numbers of 64 bits; a profile, texts of UTF-8 without NUL."""
    if depth > DEEPEST_JSON:
        return False
    if isinstance(value, dict):
        return all(keeps(key) and keeps(one, depth + 1) for key, one in value.items())
    if isinstance(value, list):
        return all(keeps(one, depth + 1) for one in value)
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
    if isinstance(value, float):
        return value - value == 0
    return isinstance(value, bool) or (isinstance(value, int) and -_MOST <= value < _MOST)
