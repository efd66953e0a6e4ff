"""A command of a script that is none of vLLM's: as a profile says what runs before, after and beside its server."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvtop.profiles.importers import search_path
from kvtop.profiles.importers.draft import command_text
from kvtop.profiles.importers.search_path import is_open
from kvtop.profiles.importers.word import Word, is_hidden
from kvtop.profiles.secret import holds_secret, is_secret

_OF_BASH = re.compile(r"\{[^}\s]*(?:,|\.\.)[^}\s]*\}|&>|<\(|>\(|\*\*|^(?:echo|printf) -[enEv]")
"""What /bin/sh, which runs texts, may take otherwise."""
_IN_FRONT = {"nohup", "setsid", "exec", "env", "nice", "ionice", "stdbuf", "time", "sudo"}
Values = dict[str, Word | list[Word]]
"""What is assigned in front of a command."""


@dataclass(frozen=True, slots=True)
class Other:
    """One of them, its variables put in."""

    words: Sequence[Word]
    values: Values
    redirected: Sequence[tuple[str, Sequence[Word]]]
    lists: dict[str, Word]
    """PATH and other lists of folders as the script has them there, with what they were before in them."""

    @property
    def _set(self) -> dict[str, Word]:
        """An array in front of a command does not reach it."""
        return {name: value for name, value in self.values.items() if isinstance(value, Word)}

    @property
    def holds_secret(self) -> bool:
        where = [word for _, words in self.redirected for word in words]
        if is_hidden([*self.words, *where, *self._set.values(), *self.lists.values()]):
            return True
        return holds_secret(self.words) or any(is_secret(name, value) for name, value in self._set.items())

    @property
    def name(self) -> str:
        """What a sidecar of it is called: by its program, not by what stands in front of that."""
        names = [Path(word).name for word in self.words if not word.startswith("-") and "=" not in word]
        return next((name for name in names if name and name not in _IN_FRONT), Path(self.words[0]).name)

    @property
    def is_plain(self) -> bool:
        """No shell is needed to give it its words and its input."""
        return all(word.plain for word in self.words) and not any("<" in operator for operator, _ in self.redirected)

    @property
    def outputs(self) -> list[str]:
        """Files that its output went to, fit for a note."""
        where = [command_text(words, 100) for operator, words in self.redirected if not operator.endswith("&")]
        return [one for one in where if one != "/dev/null"]

    @property
    def in_front(self) -> list[str]:
        """Words that give the command its environment without a shell."""
        values = {name: value for name, value in self._set.items() if not is_open(name, value)}
        words = search_path.wrap(self._lists)
        words += ["env"] if values and not words else []
        return [*words, *(f"{name}={value}" for name, value in values.items())]

    @property
    def _lists(self) -> dict[str, str]:
        """The lists that it gets, as far as they matter to it."""
        own = {name: value for name, value in self._set.items() if is_open(name, value)}
        given = self.lists if search_path.matters_to(self.words[0]) else {}
        return {**{name: value for name, value in given.items() if name not in self._set}, **own}

    def said(self, may_fail: bool) -> str | list[str]:
        """As a list of words, or as a text where a shell must read it."""
        if not (self.redirected or self._set or may_fail) and all(word.plain for word in self.words):
            return [*self.in_front, *map(str, self.words)]
        text = search_path.wrap(self._lists)[2::3]
        text += [f"{name}={shlex.quote(value)}" for name, value in self._set.items() if not is_open(name, value)]
        text += [shlex.quote(word) if word.plain else str(word) for word in self.words]
        for operator, words in self.redirected:
            where = " ".join(map(shlex.quote, words))
            text.append(f"{operator}{where}" if operator.endswith("&") else f"{operator} {where}")
        whole = " ".join([*text, *(["|| true"] if may_fail else [])])
        return ["bash", "-c", whole] if _OF_BASH.search(whole) else whole
