"""A profile that was made of something else, less the secrets that stand in it."""

from __future__ import annotations

from typing import Any

from kvtop.profiles.secret import masked_at
from kvtop.profiles.spelling import groups
from kvtop.sources.masking import MASK

_LEAST = 8
"""Characters of a secret that is looked for in other places: shorter ones are parts of words."""
_LEAST_WHOLE = 4
"""Of one that is known where it is all of a value."""
NEEDED = ("serve.model", "venv.wrap", "venv.command", "docker.entrypoint", "docker.command")
"""Without them another server would run."""
_LISTS = ("start.before", "start.after_stop", "sidecar", "docker.options")
"""Of which a part may be left out."""
_REFERENCES = ("env.from_file", "env.from_env", "env.unset")
"""Where a secret is, or a name: no value."""


class Secrets:
    """The secrets that a source has by their names: they are secrets wherever else they stand."""

    def __init__(self) -> None:
        self._every: set[str] = set()
        self._known: set[str] = set()
        self._short: set[str] = set()
        self._found: dict[str, bool] = {}

    def add(self, value: str) -> None:
        self._every |= {str(value), *value.split()}  # a shell may have cut it
        known = {one for one in (value.strip(), *value.split()) if len(one) >= _LEAST} - self._known
        if known:
            self._known |= {str(one) for one in known}
            self._found = {}
        elif _LEAST_WHOLE <= len(value) < _LEAST:
            self._short.add(str(value))

    def holds_one(self, text: str) -> bool:
        """Whether one of them stands in a text; a short one, whether it is all of it."""
        if text.strip() in self._short:
            return True
        # a script may ask for one variable thousands of times, and have thousands of secrets
        if text not in self._found:
            self._found[text] = any(secret in text for secret in self._known)
        return self._found[text]

    def in_part(self, text: str) -> bool:
        """Whether one of them, however short, stands in a text that is known to hold one."""
        return any(secret in text for secret in self._every)

    def in_word(self, text: str) -> bool:
        """Whether one that is long enough to be told from parts of words stands in it."""
        return any(secret in text for secret in self._known)

    def told(self, text: str) -> str:
        """A text without them."""
        for secret in sorted(self._known, key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text

    def shown(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """A value of a profile with them, and with what looks like one, masked."""
        where = ".".join(path)
        if where in _REFERENCES:
            return self._left(where, value)
        if isinstance(value, dict) and len(path) < 2:
            return {key: self.shown(one, (*path, key)) for key, one in value.items()}
        if where == "env.set" and isinstance(value, dict):
            value = {name: MASK if str(one) in self._short else one for name, one in value.items()}
        return self._masked(masked_at((), value))

    def _masked(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.told(key): self._masked(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self._masked(one) for one in value]
        return self.told(value) if isinstance(value, str) else value

    def taken_out(self, raw: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """(the profile without each value that holds a secret, which those were)."""
        safe: dict[str, Any] = {}
        less: list[str] = []
        for key, value in raw.items():
            rows = value if isinstance(value, dict) else {"": value}
            kept = {}
            for name, one in rows.items():
                where = f"{key}.{name}" if name else key
                left = self._left(where, one)
                if left != one:
                    less.append(where)
                if left not in ({}, [], None):
                    kept[name] = left
            found = kept if isinstance(value, dict) else kept.get("")
            if found not in ({}, [], None):
                safe[key] = found
        return safe, less

    def _left(self, where: str, value: Any) -> Any:
        path = tuple(where.split(".", 1))
        if where == "docker.options":
            return [word for one in groups(value) if self._is_safe(path, list(one.words)) for word in one.words]
        if where in _REFERENCES and isinstance(value, dict):
            return {name: one for name, one in value.items() if not self.holds_one(f"{name}\n{one}")}
        if where in _REFERENCES:
            return [one for one in value if not self.holds_one(one)]
        if isinstance(value, dict):
            return {name: one for name, one in value.items() if self._is_safe(path, {name: one})}
        if where in _LISTS:
            return [one for one in value if self._is_safe(path, one)]
        return value if self._is_safe(path, value) else None

    def _is_safe(self, path: tuple[str, ...], value: Any) -> bool:
        return bool(self.shown(value, path) == value)
