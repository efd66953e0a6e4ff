"""What two profiles run differently: by flag, JSON flags by key, by variable, and by key of the file for the rest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from kvtop import __version__
from kvtop.profiles.launch import asked, environment, folder_of, secrets_of, serve_words, venv_command, whole_path
from kvtop.profiles.profile import Profile
from kvtop.profiles.secret import masked_at, masked_value, masked_words
from kvtop.profiles.text import as_data

_BY_FLAG = ("serve", "env", "gpus", "about", "extends")
Kind = Literal["flag", "variable", "key"]
_UNSET = "taken out of the environment"


class Difference(NamedTuple):
    """One thing that differs. Secrets are masked."""

    kind: Kind
    name: str
    """`--flag`, `--flag.key.of.its.json`, a variable, or a key of the file."""
    old: str | None
    """None: not there."""
    new: str | None


def differences(old: Profile, new: Profile) -> list[Difference]:
    """What differs between what two profiles run. The order of flags does not, nor `-` and `_` in them."""
    kinds: tuple[tuple[Kind, Callable[[Profile, bool], dict[str, str]]], ...]
    kinds = (("flag", _flags), ("variable", _variables), ("key", _keys))
    return [one for kind, told in kinds for one in _between(kind, told, old, new)]


def fingerprint(profile: Profile) -> str:
    """Another one where what it runs, or its cards, is another: the values of secrets do not count, nor does what
    `differences` does not tell. Compare them with `changed`."""
    told = [sorted(table(profile, True).items()) for table in (_flags, _variables, _keys)]
    text = json.dumps([told, profile.gpus], default=str)
    return f"{__version__} {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def changed(was: str, now: str) -> bool | None:
    """Whether a profile has changed between two fingerprints; None where that is not known: another kvtop may make
    another one of the same file."""
    if not was or not now or was.partition(" ")[0] != now.partition(" ")[0]:
        return None
    return was != now


def flag_values(words: Sequence[str], cwd: str | None = None) -> dict[str, str]:
    """What a command line behind `vllm serve` asks for: `--flag` -> its values as one text, '' where it has none.

    As vLLM reads it (`flags.py`), with the file of --config below it where that can be read. JSON is taken apart by
    key. `--no-flag` is `--flag` with the value `off`. The model is `--model`, wherever it stands.
    """
    flags = asked(words, cwd)
    values: dict[str, str] = {} if flags.model is None else {"--model": flags.model}
    if flags.config is not None and not any(one.from_file for one in flags.given):
        values["--config"] = flags.config
    for one in flags.all():
        name = f"--{one.name}"
        table = _by_key(one.values[0], name) if len(one.values) == 1 else None
        if table is not None:
            values.update(table)
        elif name != "--model":
            values[name] = " ".join(one.values) if one.on else "off"
    if flags.stray:
        values["words of no flag"] = " ".join(flags.stray)
    return values


def _by_key(text: str, at: str) -> dict[str, str] | None:
    """A JSON object, taken apart; None for any other text."""
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text)
        return dict(_flat(value, at)) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def _flat(table: Mapping[str, Any], at: str) -> Iterator[tuple[str, str]]:
    if not table:
        yield at, "{}"
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{at}.{key}")
        else:
            yield f"{at}.{key}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _flags(profile: Profile, masked: bool) -> dict[str, str]:
    words = serve_words(profile)
    if not masked:
        return flag_values(words, folder_of(profile))
    # by name once more: the file of --config holds some too
    found = flag_values(masked_words(words), folder_of(profile))
    return {name: str(masked_at(name.lstrip("-").split("."), value)) for name, value in found.items()}


def _variables(profile: Profile, masked: bool) -> dict[str, str]:
    found = {name: masked_value(name, value) if masked else value for name, value in environment(profile).items()}
    found |= {name: f"from {secret.kind} {secret.where}" for name, secret in secrets_of(profile).items()}
    return found | dict.fromkeys(profile.env.unset, _UNSET)


def _keys(profile: Profile, masked: bool) -> dict[str, str]:
    rest = {key: value for key, value in as_data(profile).items() if key not in _BY_FLAG}
    if profile.runner == "docker" and profile.gpus:
        rest["gpus"] = profile.gpus
    if profile.runner == "venv":
        rest["venv"] = _venv(profile)
    rest = {"runner": profile.runner, **{key: value for key, value in rest.items() if value != {}}}
    if masked:
        rest = {key: masked_value(key, value) for key, value in rest.items()}
    return {at.lstrip("."): text for at, text in _flat(rest, "")}


def _venv(profile: Profile) -> dict[str, Any]:
    """[venv] as it is run: paths whole, and nothing that would be so without it."""
    command, plain = venv_command(profile), Profile()
    own = {
        "command": [] if command == venv_command(plain) else command,
        "wrap": [whole_path(word) for word in profile.venv.wrap],
        "cwd": "" if folder_of(profile) == folder_of(plain) else folder_of(profile) or "",
    }
    return {key: value for key, value in own.items() if value}


def _between(
    kind: Kind, told: Callable[[Profile, bool], dict[str, str]], old: Profile, new: Profile
) -> Iterator[Difference]:
    """What differs is seen before secrets are masked, and told with them masked."""
    was, now = told(old, False), told(new, False)
    was_shown, now_shown = told(old, True), told(new, True)
    for name in dict.fromkeys([*was, *now]):
        if was.get(name) != now.get(name):
            hidden = masked_words([name])[0]
            yield Difference(kind, hidden, _shown(was_shown, name, hidden), _shown(now_shown, name, hidden))


def _shown(values: Mapping[str, str], name: str, hidden: str) -> str | None:
    value = values.get(name, values.get(hidden))
    return "on" if name.startswith("--") and value == "" else value
