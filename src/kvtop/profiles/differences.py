"""What two profiles run differently: by flag, JSON flags by key, by variable, and by key of the file for the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from kvtop.profiles.launch import environment, secrets_of, serve_words
from kvtop.profiles.profile import Profile
from kvtop.profiles.secret import masked_value, masked_words
from kvtop.profiles.spelling import groups
from kvtop.profiles.text import as_data
from kvtop.sources.processes import MASK

_BY_FLAG = ("serve", "env", "gpus", "about", "extends")
_UNSET = "taken out of the environment"


class Difference(NamedTuple):
    """One thing that differs. Secrets are masked."""

    kind: Literal["flag", "variable", "key"]
    name: str
    """`--flag`, `--flag.key.of.its.json`, a variable, or a key of the file."""
    old: str | None
    """None: not there."""
    new: str | None


def differences(old: Profile, new: Profile) -> list[Difference]:
    """What differs between what two profiles run. The order of flags does not, nor `-` and `_` in them."""
    return [
        *_between("flag", flag_values(serve_words(old)), flag_values(serve_words(new))),
        *_between("variable", _variables(old), _variables(new)),
        *_between("key", _keys(old), _keys(new)),
    ]


def flag_values(words: Sequence[str]) -> dict[str, str]:
    """What a command line behind `vllm serve` asks for: `--flag` -> its values as one text, '' where it has none.

    JSON is taken apart by key. Of a flag given twice the last counts; `--no-flag` is `--flag` with the value `off`. The
    model is `--model`, wherever it stands.
    """
    values: dict[str, str] = {}
    for group in groups(words):
        name = f"--{group.name or 'model'}"
        if group.name.startswith("no-"):
            name, given = f"--{group.name[3:]}", ["off"]
        else:
            given = list(group.values)
        for key in [key for key in values if key == name or key.startswith(f"{name}.")]:
            del values[key]
        table = _table(given[0]) if len(given) == 1 else None
        if table is None:
            values[name] = " ".join(given)
        else:
            values.update(_flat(table, name))
    return values


def _table(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _flat(table: Mapping[str, Any], at: str) -> Iterator[tuple[str, str]]:
    if not table:
        yield at, "{}"
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{at}.{key}")
        else:
            yield f"{at}.{key}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _variables(profile: Profile) -> dict[str, str]:
    found = environment(profile)
    found |= {name: f"from {secret.kind} {secret.where}" for name, secret in secrets_of(profile).items()}
    return found | dict.fromkeys(profile.env.unset, _UNSET)


def _keys(profile: Profile) -> dict[str, str]:
    rest = {key: value for key, value in as_data(profile).items() if key not in _BY_FLAG}
    if profile.runner == "docker" and profile.gpus:
        rest["gpus"] = profile.gpus
    return (
        {at.lstrip("."): text for at, text in _flat({"runner": profile.runner, **rest}, "")}
        if rest
        else {"runner": profile.runner}
    )


def _between(
    kind: Literal["flag", "variable", "key"], old: dict[str, str], new: dict[str, str]
) -> Iterator[Difference]:
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name), new.get(name)
        if was != now:
            shown_was, shown_now = _shown(name, was), _shown(name, now)
            yield Difference(kind, masked_words([name])[0], shown_was, shown_now)


def _shown(name: str, value: str | None) -> str | None:
    if value is None or value.startswith("from "):
        return value
    if name.startswith("--"):
        hidden = masked_words([name, value])[1] if value else "on"
        return MASK if hidden == MASK else str(masked_value(name.rpartition(".")[2], hidden))
    return str(masked_value(name.rpartition(".")[2], value))
