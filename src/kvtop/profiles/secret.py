"""What in a profile is a secret, typed where it should not be: it is shown and copied nowhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvtop.sources.processes import MASK, without_secrets

_KEY = re.compile(
    r"""(?x)(?<![\w-])(?:
    (?:sk[-_] | hf_ | gsk_ | gh[a-z]_ | github_pat_ | glpat- | npm_ | nvapi- | xai- | xox[a-z]-)[\w+=~-]{16,}
    | AKIA[0-9A-Z]{12,} | AIza[\w-]{20,} | eyJ[\w-]{10,}\.[\w.-]+
    )"""
)
"""How keys begin. Length alone tells nothing here: names of models and digests of images are long too."""
_NAME = re.compile(r"(?:^|_)(?:api_?key|key|token|password|passwd|secret|credentials?)$", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Whether the value of a variable, or of a key of JSON, looks like a secret by its name or by itself."""
    return bool(value) and (_named(name) or holds_secret([value]))


def holds_secret(words: Sequence[str]) -> bool:
    """Whether a command line holds one, for instance behind --api-key."""
    return masked_words(words) != list(words)


def masked_words(words: Sequence[str]) -> list[str]:
    """A command line with its secrets masked, and else to the letter."""
    return [_KEY.sub(MASK, word) for word in without_secrets(words)]


def masked_value(name: str, value: Any) -> Any:
    """A value of any kind with what is a secret in it masked; `name` is that of its key."""
    if isinstance(value, Mapping):
        return {key: masked_value(key, one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        if all(isinstance(one, str) for one in value):
            return masked_words(value)
        return [masked_value(name, one) for one in value]
    if isinstance(value, str):
        return MASK if value and _named(name) else masked_words([value])[0]
    return value


def _named(name: str) -> bool:
    return _NAME.search(name.replace("-", "_")) is not None
