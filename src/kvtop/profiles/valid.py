"""Whether what stands in a profile's file can be used: the first thing that cannot, with what was expected there."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args, get_origin

import msgspec

from kvtop.errors import keyless
from kvtop.profiles.profile import Profile
from kvtop.toml_text import expected, shown

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""What a profile may be called: its name is that of files and of a container too."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DEEPEST_JSON = 40
"""Of a flag's value."""
_TABLES = ("set", "unset", "from_file", "from_env")


class Fault(NamedTuple):
    """One thing in a file that cannot be used."""

    path: tuple[str, ...]
    what: str
    expected: str
    nth: int = 0
    """Of the tables of a list, which one."""


def faults(raw: dict[str, Any]) -> Iterator[Fault]:
    """All of them, in the order of the file."""
    yield from _of_struct(raw, Profile, (), 0)


def more_faults(raw: dict[str, Any]) -> Iterator[Fault]:
    """Those beyond the kinds of values. Only for a file without `faults`."""
    env = raw.get("env", {})
    seen: dict[str, str] = {}
    for table in _TABLES:
        for name in env.get(table, ()):
            path = ("env", table) if table == "unset" else ("env", table, name)
            if not VARIABLE.fullmatch(name):
                yield Fault(path, f"{shown(name)} is no name of a variable", "letters, digits and _, no digit first")
            elif name in seen:
                yield Fault(path, f"{name} is in env.{seen[name]} too", "it in one of the tables of [env]")
            seen[name] = table
    for name, where in env.get("from_file", {}).items():
        if not where.startswith(("/", "~")):
            yield Fault(("env", "from_file", name), f"is {shown(where)}", "a whole path, or one from ~/")
    for name, where in env.get("from_env", {}).items():
        if not VARIABLE.fullmatch(where):
            yield Fault(("env", "from_env", name), f"is {shown(where)}", "the name of a variable")
    for name in raw.get("compose", {}).get("variables", {}):
        if not VARIABLE.fullmatch(name):
            what = f"{shown(name)} is no name of a variable"
            yield Fault(("compose", "variables", name), what, "letters, digits and _, no digit first")
    for name, value in raw.get("serve", {}).get("json", {}).items():
        yield from _no_json(value, ("serve", "json", name))
    yield from _no_words(raw, ())


def _of_struct(raw: dict[str, Any], kind: type[msgspec.Struct], at: tuple[str, ...], nth: int) -> Iterator[Fault]:
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name, value in raw.items():
        if name not in fields:
            yield Fault((*at, name), f"is no key{_meant(name, list(fields), at)}", f"one of {', '.join(fields)}", nth)
        else:
            yield from _of_value(value, fields[name].type, (*at, name), nth)
    for name, field in fields.items():
        if field.required and name not in raw:
            yield Fault((*at, name), "is missing", expected(field.type), nth)


def _of_value(value: Any, kind: Any, at: tuple[str, ...], nth: int) -> Iterator[Fault]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if isinstance(value, dict):
            yield from _of_struct(value, kind, at, nth)
        else:
            yield Fault(at, f"is {shown(value)}", f"a table [{'.'.join(at)}]", nth)
        return
    inner = get_args(kind)[0] if get_origin(kind) is list else None
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            yield Fault(at, f"is {shown(value)}", f"tables [[{'.'.join(at)}]]", nth)
            return
        for number, one in enumerate(value):
            yield from _of_struct(one, inner, at, number)
        return
    if get_origin(kind) is dict and isinstance(value, dict):
        kind_of_one = get_args(kind)[1]
        for name, one in value.items():
            if get_origin(kind_of_one) is dict:
                if not isinstance(one, dict):
                    yield Fault((*at, name), f"is {shown(one)}", f"a table [{'.'.join((*at, name))}]", nth)
            elif not _is(one, kind_of_one):
                yield Fault((*at, name), f"is {shown(one)}", expected(kind_of_one), nth)
    elif not _is(value, kind):
        quoted = isinstance(value, str) and _is_unquoted(value, kind)
        odd = [shown(one) for one in value if not _is(one, inner)] if inner and isinstance(value, list) else []
        is_ = f"has {odd[0]} in it" if odd else f"is {shown(value)}"
        yield Fault(at, is_, f"{expected(kind)}, without quotes" if quoted else expected(kind), nth)


def _is(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True


def _is_unquoted(text: str, kind: Any) -> bool:
    """Whether the same without quotes would do."""
    try:
        msgspec.convert(text, kind, strict=False)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True


def _meant(name: str, own: list[str], at: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    if near := get_close_matches(name.lower().replace("-", "_"), own, 1, 0.6):
        return f" here (did you mean '{near[0]}'?)"
    tables = {field.name: field.type for field in msgspec.structs.fields(Profile)}
    home = [
        table
        for table, kind in tables.items()
        if isinstance(kind, type) and name in getattr(kind, "__struct_fields__", ())
    ]
    if home and (home[0],) != at:
        return f" here: it belongs to [{home[0]}]"
    return " here: it belongs to the top, before the first table" if at and name in tables else " here"


def _no_json(value: Any, at: tuple[str, ...], depth: int = 0) -> Iterator[Fault]:
    if depth > DEEPEST_JSON:
        yield Fault(at, "is nested too deeply", f"at most {DEEPEST_JSON} tables and lists in one another")
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _no_json(one, (*at, name), depth + 1)
    elif isinstance(value, list):
        for one in value:
            yield from _no_json(one, at, depth + 1)
    elif (isinstance(value, float) and not math.isfinite(value)) or not isinstance(value, str | int | float):
        yield Fault(at, f"is {shown(value)}", "what JSON can hold: a text, a finite number, true, false, lists, tables")


def _no_words(value: Any, at: tuple[str, ...]) -> Iterator[Fault]:
    """No program can be given a NUL."""
    if isinstance(value, str):
        if "\0" in value:
            yield Fault(at, f"is {shown(value)}", "a text without the character NUL")
    elif isinstance(value, dict):
        for name, one in value.items():
            if "\0" in name:
                yield Fault(at, f"{keyless(name, 40)} is a name with the character NUL", "one without it")
            yield from _no_words(one, (*at, name))
    elif isinstance(value, list):
        for one in value:
            yield from _no_words(one, at)
