"""What in a profile is a secret, typed where it should not be: it is shown and copied nowhere. What looks like one,
`sources.masking` knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtop.errors import printable
from kvtop.sources.masking import named_without_secrets, text_without_secrets, without_secrets
from kvtop.sources.secret_names import names_secret


def is_secret(name: str, value: str) -> bool:
    """Whether the value of a variable, or of a key of JSON, looks like a secret by its name or by itself."""
    return bool(value) and masked_value(name, value) != value


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
    return named_without_secrets(name, value)


def masked_at(path: Sequence[str], value: Any) -> Any:
    """The same of a value within tables, by the keys that lead to it."""
    return named_without_secrets(path[-1] if path else "", value, any(map(names_secret, path)))
