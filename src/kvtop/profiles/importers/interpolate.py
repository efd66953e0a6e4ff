"""Variables in a compose file: $NAME, ${NAME:-default} and the like, $$ for a dollar."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtop.profiles.importers.draft import MOST_CHARACTERS, Refused, too_long
from kvtop.profiles.importers.word import Word

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r":?[-?+]|$")
_MOST_DEEP = 20


@dataclass(slots=True)
class Interpolation:
    """Puts values in, and remembers what had none."""

    known: Mapping[str, str]
    hide: Callable[[str, str], bool]
    """Told of each value by its variable's name; whether that tells of a secret."""
    missing: list[str] = field(default_factory=list)
    """Variables without a value and without a default."""
    required: list[str] = field(default_factory=list)
    """Those without which docker compose refuses to run."""
    _hidden: bool = False
    """A secret stands in the text that is filled."""

    def filled(self, text: str, depth: int = 0) -> str:
        """The text with its variables put in. Raises Refused for what compose itself would refuse."""
        if depth > _MOST_DEEP:
            raise Refused("defaults inside of defaults, too deep")
        out: list[str] = []
        at = length = 0
        while (dollar := text.find("$", at)) >= 0:
            out.append(text[at:dollar])
            if text.startswith("$$", dollar):
                out.append("$")
                at = dollar + 2
            elif found := _NAME.match(text, dollar + 1):
                out.append(self._value(found[0], "", "", depth))
                at = found.end()
            elif text.startswith("${", dollar):
                inside, at = _braces(text, dollar)
                name = _NAME.match(inside)
                operator = _OPERATOR.match(inside, name.end()) if name else None
                if name is None or operator is None:
                    raise Refused(f"${{{name[0] if name else ''}…}} is no variable of a compose file")
                out.append(self._value(name[0], operator[0], inside[operator.end() :], depth))
            else:
                raise Refused("a $ that begins no variable", "write $$ for a dollar")
            length += len(out[-1])
            if length > MOST_CHARACTERS:
                raise too_long()
        return "".join([*out, text[at:]])

    def whole(self, value: Any) -> Any:
        """A value of any kind with the variables in its texts put in."""
        if isinstance(value, str):
            self._hidden = False
            text = self.filled(value)
            return Word(text, hidden=True) if self._hidden else text
        if isinstance(value, list):
            return [self.whole(one) for one in value]
        if isinstance(value, dict):
            return {key: self.whole(one) for key, one in value.items()}
        return value

    def _value(self, name: str, operator: str, rest: str, depth: int) -> str:
        found = self._found(name, operator, rest, depth)
        if not operator.endswith("+"):
            self._hidden |= self.hide(name, found)
        return found

    def _found(self, name: str, operator: str, rest: str, depth: int) -> str:
        value = self.known.get(name)
        there = value is not None and not (operator.startswith(":") and value == "")
        if operator.endswith("+"):
            return self.filled(rest, depth + 1) if there else ""
        if there and value is not None:
            return value
        if operator.endswith("-"):
            return self.filled(rest, depth + 1)
        names = self.required if operator.endswith("?") else self.missing
        if name not in names:
            names.append(name)
        return ""


def _braces(text: str, at: int) -> tuple[str, int]:
    """(What stands between the braces that begin at `at`, where it goes on.)"""
    depth = 0
    for place in range(at, len(text)):
        if text.startswith("${", place):
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if depth == 0:
                return text[at + 2 : place], place + 1
    raise Refused("a ${ has no end")
