"""A file that a script sources: which of its statements set variables, whatever happens when it is run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kvtop.profiles.importers.draft import Refused
from kvtop.profiles.importers.shell import Statement, statements

_SETS = {"", "export", "set", "unset", "source", "."}
_SAYS = {"echo", "printf", "true", ":"}
_OPENS, _CLOSES = {"if", "for", "while", "until", "case", "select", "{", "function"}, {"fi", "done", "esac", "}"}
_TESTS = {"[", "[[", "test", "!", "then", "else", "elif", "do"}
_VARIABLE = re.compile(r"\s*(?:#.*|(?:export\s+)?[A-Za-z_]\w*=.*)?")


def told(text: str) -> tuple[list[list[Statement]], list[str]] | None:
    """(what is linked by && and || stands together, what of it is left out). None: it is no script, but lines of
    NAME=VALUE."""
    try:
        chains = [*_chains(statements(text))]
    except Refused:
        if all(map(_VARIABLE.fullmatch, text.splitlines())):
            return None
        return [], ["has logic: what it sets is not known, and left out"]
    kept: list[list[Statement]] = []
    less: list[str] = []
    depth = 0
    for chain in chains:
        words = [one.words[0].bare if one.words else "" for one in chain]
        for word in words:
            depth = max(0, depth + (word in _OPENS) - (word in _CLOSES))
        if depth or any(word in _OPENS | _CLOSES | _TESTS for word in words):
            less.append("what it does under a condition is left out")
        elif all(word in _SETS | _SAYS for word in words):
            kept.append(chain)
        else:
            less.append("a command in it is left out")
    return kept, less


def _chains(whole: Iterable[Statement]) -> Iterator[list[Statement]]:
    chain: list[Statement] = []
    for one in whole:
        chain.append(one)
        if one.end not in ("&&", "||"):
            yield chain
            chain = []
    if chain:
        yield chain
