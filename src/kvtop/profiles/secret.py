"""What in a profile is a secret, typed where it should not be: it is shown and copied nowhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvtop.errors import printable
from kvtop.sources.masking import MASK, text_without_secrets, without_secrets

_NAME = re.compile(r"(?:^|_)(?:api_?keys?|keys?|token|password|passwd|pass|pwd|secrets?|credentials?)$", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Whether the value of a variable, or of a key of JSON, looks like a secret by its name or by itself."""
    return bool(value) and (_named(name) or holds_secret([value]))


def holds_secret(words: Sequence[str]) -> bool:
    """Whether a command line holds one, for instance behind --api-key."""
    return masked_words(words) != list(words)


def masked_words(words: Sequence[str]) -> list[str]:
    """A command line with its secrets masked, and else to the letter."""
    return without_secrets(words)


def shown(text: str, limit: int = 200) -> str:
    """A line of a log, or a message, fit for a screen: see `errors.printable`."""
    return printable(text_without_secrets(text), limit)


def masked_value(name: str, value: Any) -> Any:
    """A value of any kind with what is a secret in it masked; `name` is that of its key."""
    return _masked(value, _named(name))


def masked_at(path: Sequence[str], value: Any) -> Any:
    """The same of a value within tables, by the keys that lead to it."""
    return _masked(value, any(map(_named, path)))


def _masked(value: Any, named: bool) -> Any:
    if isinstance(value, Mapping):
        return {text_without_secrets(key): _masked(one, named or _named(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        if not named and all(isinstance(one, str) for one in value):
            return masked_words(value)
        return [_masked(one, named) for one in value]
    if isinstance(value, str):
        return MASK if value and named else text_without_secrets(value)
    return MASK if named and isinstance(value, int | float) and not isinstance(value, bool) else value


def _named(name: str) -> bool:
    return _NAME.search(name.replace("-", "_")) is not None
