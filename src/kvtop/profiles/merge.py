"""A profile on top of the one that it extends, value by value, and of each where it came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from kvtop.profiles.spelling import groups, plain, without

T = TypeVar("T")
Origins = dict[str, T]
_FIELDS = {"names": "served-model-name", "host": "host", "port": "port", "config": "config", "model": "model"}
"""Keys of [serve] -> the flag that each stands for."""
_OWN = "about"
"""What a base says of itself, and not of its heirs."""
_VARIABLES = ("set", "from_file", "from_env")


def spelled(raw: dict[str, Any]) -> dict[str, Any]:
    """The same with the names of JSON flags, and of flags to drop, in one spelling."""
    serve = dict(raw.get("serve", {}))
    if "json" in serve:
        json: dict[str, Any] = {}
        for name, value in serve["json"].items():
            json[plain(name)] = {**json.get(plain(name), {}), **value}
        serve["json"] = json
    if "drop" in serve:
        serve["drop"] = [plain(name) for name in serve["drop"]]
    return {**raw, "serve": serve} if "serve" in raw else dict(raw)


def spelled_path(path: tuple[str, ...]) -> tuple[str, ...]:
    """Where a value of the file is in `spelled`."""
    if path[:2] != ("serve", "json") or len(path) < 3:
        return path
    return (*path[:2], plain(path[2]), *path[3:])


def merged(
    base: dict[str, Any], own: dict[str, Any], from_base: Origins[T], from_own: Origins[T]
) -> tuple[dict[str, Any], Origins[T]]:
    """(values, origins) of `own` on top of `base`. Both are `spelled`; neither is changed."""
    origins = dict(from_base)
    serve, env = own.get("serve", {}), own.get("env", {})
    args = list(serve.get("args", ()))
    in_args = {group.name for group in groups(args) if group.name}
    in_json = set(serve.get("json", {}))
    fields = {flag for key, flag in _FIELDS.items() if key in serve}
    drop = set(serve.get("drop", ()))
    base = _less_flags(
        base, in_args=drop | in_json | fields, in_json=drop | in_args, fields=drop | in_args, origins=origins
    )
    base = _less_variables(base, env, origins)
    base = {name: value for name, value in base.items() if name != _OWN}
    _forget(origins, _OWN)
    base_args = list(base.get("serve", {}).get("args", ()))
    values = _over(base, own, (), origins, from_own)
    if base_args or args:
        values["serve"] = {**values.get("serve", {}), "args": [*base_args, *args]}
        for number in range(len(args)):
            word = f"serve.args[{number}]"
            origins[f"serve.args[{len(base_args) + number}]"] = from_own.get(word, from_own["serve.args"])
    if "serve" in values:
        values["serve"] = {name: value for name, value in values["serve"].items() if name != "drop"}
        origins.pop("serve.drop", None)
    return values, origins


def idle(base: dict[str, Any], own: dict[str, Any]) -> Iterator[str]:
    """What `own` wants to drop and `base` has not. Both are `spelled`."""
    serve = base.get("serve", {})
    there = {group.name for group in groups(serve.get("args", ())) if group.name} | set(serve.get("json", {}))
    there |= {flag for key, flag in _FIELDS.items() if key in serve}
    yield from (name for name in own.get("serve", {}).get("drop", ()) if name not in there)


def _over(
    base: dict[str, Any], own: dict[str, Any], at: tuple[str, ...], origins: Origins[T], from_own: Origins[T]
) -> dict[str, Any]:
    values = dict(base)
    for name, value in own.items():
        path = (*at, name)
        before = values.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            values[name] = _over(before, value, path, origins, from_own)
            continue
        if path != ("serve", "args"):
            _forget(origins, ".".join(path))
        values[name] = value
        origins.update(
            {
                key: one
                for key, one in from_own.items()
                if _within(key, ".".join(path)) and not key.startswith("serve.args[")
            }
        )
    return values


def _less_flags(
    base: dict[str, Any], in_args: set[str], in_json: set[str], fields: set[str], origins: Origins[T]
) -> dict[str, Any]:
    """The base less flags that its heir drops, or says in another form."""
    serve = dict(base.get("serve", {}))
    if not serve:
        return base
    if args := serve.get("args"):
        kept = without(args, in_args)
        if kept != args:
            marked = [(word, origins.get(f"serve.args[{number}]")) for number, word in enumerate(args)]
            _forget(origins, "serve.args")
            serve["args"] = kept
            _follow(kept, marked, origins)
    if json := serve.get("json"):
        serve["json"] = {name: value for name, value in json.items() if name not in in_json}
        for name in set(json) - set(serve["json"]):
            _forget(origins, f"serve.json.{name}")
    for key, flag in _FIELDS.items():
        if flag in fields and serve.pop(key, None) is not None:
            _forget(origins, f"serve.{key}")
    return {**base, "serve": serve}


def _follow(kept: list[str], marked: list[tuple[str, T | None]], origins: Origins[T]) -> None:
    """The origins of the words that are left, in their new places."""
    at = 0
    for number, word in enumerate(kept):
        while marked[at][0] != word:
            at += 1
        origin = marked[at][1]
        at += 1
        if origin is not None:
            origins[f"serve.args[{number}]"] = origins["serve.args"] = origin


def _less_variables(base: dict[str, Any], own: dict[str, Any], origins: Origins[T]) -> dict[str, Any]:
    """The base less variables that its heir sets, unsets or reads from elsewhere."""
    env = dict(base.get("env", {}))
    said = {name for table in (*_VARIABLES, "unset") for name in own.get(table, ())}
    if not env or not said:
        return base
    for table in _VARIABLES:
        if table in env:
            gone = {name for name in env[table] if name in said and name not in own.get(table, {})}
            env[table] = {name: value for name, value in env[table].items() if name not in gone}
            for name in gone:
                _forget(origins, f"env.{table}.{name}")
    if "unset" in env:
        env["unset"] = [name for name in env["unset"] if name not in said]
    return {**base, "env": env}


def _within(key: str, path: str) -> bool:
    return key == path or key.startswith((f"{path}.", f"{path}["))


def _forget(origins: Origins[T], path: str) -> None:
    for key in [key for key in origins if _within(key, path)]:
        del origins[key]
