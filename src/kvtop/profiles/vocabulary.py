"""Which flags a vLLM takes, read from its own `vllm serve --help=all`; those of 0.32.0 where none is installed.

vLLM's parser is argparse: a flag may be cut short as long as no other one begins like it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import islice, takewhile
from typing import Literal

Kind = Literal["switch", "one", "maybe", "many", "any", "json"]
"""What stands behind a flag: nothing, one word, at most one, one or more, any number, one word of JSON."""
KINDS: tuple[Kind, ...] = ("switch", "one", "maybe", "many", "any", "json")

_PIECE = re.compile(r"(--?[A-Za-z][\w.-]*)(?: (.*))?$", re.DOTALL)
_CHOICES = re.compile(r"\{([^{}\s]+)\}")
"""The whole of what stands behind a flag with choices; `{a,b} or name registered in …` has others."""
_LEAST_FLAGS = 50
"""A help text with fewer flags is none: an error, or another program's."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One spelling of one flag."""

    name: str
    """Its long name without dashes, and without the `no-` of its negation."""
    kind: Kind
    on: bool = True
    """False for `--no-…`."""
    choices: tuple[str, ...] = ()
    """The words that it takes; empty: any, or they are not known."""


Row = tuple[Kind, tuple[str, ...], tuple[str, ...]]
"""(kind, spellings, choices) of one flag."""


class Vocabulary:
    """The flags of one vLLM."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._specs: dict[str, Spec] = {}
        for kind, spellings, choices in rows:
            long = [one for one in spellings if one.startswith("--")] or list(spellings)
            name = long[0].lstrip("-")
            for one in spellings:
                # The second of two long spellings where it is the first with no- in front.
                self._specs[one] = Spec(name, kind, on=one != f"--no-{name}", choices=choices)
        self._places = {one: place for place, one in enumerate(self._specs)}
        self._sorted = sorted(self._specs)

    @classmethod
    def from_help(cls, text: str) -> Vocabulary | None:
        """The flags that `vllm serve --help=all` lists; None for a text that is no such help."""
        found = list(_help_rows(text))
        return cls(found) if len(found) >= _LEAST_FLAGS else None

    @classmethod
    def from_rows(cls, text: str) -> Vocabulary:
        """From what `rows` wrote: a line a flag, its kind, its spellings and {its,choices}. Lines that are none are
        left out."""
        rows: list[Row] = []
        for line in text.splitlines():
            kind, *words = line.split() or [""]
            known = next((one for one in KINDS if one == kind), None)
            choices = _choices(words.pop()) if words and words[-1].startswith("{") else ()
            if known is not None and words:
                rows.append((known, tuple(words), choices))
        return cls(rows)

    def rows(self) -> str:
        """All of it as text, for a file."""
        by_name: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
        for spelling, spec in self._specs.items():
            by_name.setdefault((spec.kind, spec.name, spec.choices), []).append(spelling)
        return "".join(
            f"{' '.join([kind, *spellings, *(['{' + ','.join(choices) + '}'] if choices else [])])}\n"
            for (kind, _, choices), spellings in by_name.items()
        )

    def __len__(self) -> int:
        return len(self._specs)

    def __contains__(self, spelling: str) -> bool:
        return spelling in self._specs

    def spec(self, spelling: str) -> Spec | None:
        """Of a flag as it stands, written out, with dashes."""
        return self._specs.get(spelling)

    def beginning(self, word: str) -> tuple[str, ...]:
        """The spellings that a cut word may mean, as argparse looks for them: the word itself if it is one."""
        if word in self._specs:
            return (word,)
        if not word.startswith("-") or len(word) < 2 or word == "--":
            return ()
        at = bisect_left(self._sorted, word)
        found = takewhile(lambda one: one.startswith(word), islice(self._sorted, at, None))
        return tuple(sorted(found, key=self._places.__getitem__))

    def long_names(self) -> tuple[str, ...]:
        """All long spellings, with dashes."""
        return tuple(one for one in self._specs if one.startswith("--"))


@cache
def vllm_0_32() -> Vocabulary:
    """The flags of vLLM 0.32.0."""
    return Vocabulary.from_rows(resources.files("kvtop.profiles").joinpath("vllm_0_32.txt").read_text("utf-8"))


def _help_rows(text: str) -> Iterable[Row]:
    """A flag's head stands two columns in and begins with a dash; its description stands further in, or behind two
    spaces."""
    head, words = "", ""
    for line in [*text.splitlines(), "  -"]:
        if not line.startswith("  -"):
            words += " " + line.strip()
            continue
        if head and (row := _row(head, words)):
            yield row
        head, _, words = line[2:].partition("  ")


def _row(head: str, words: str) -> Row | None:
    pieces = [_PIECE.match(piece) for piece in re.split(r", (?=--?[A-Za-z])", head.strip())]
    spellings = tuple(piece[1] for piece in pieces if piece)
    if not spellings:
        return None
    # Python 3.13 names the value behind the last spelling alone.
    behind = next((piece[2] for piece in reversed(pieces) if piece and piece[2]), "")
    return _kind(behind, words), spellings, _choices(behind)


def _choices(behind: str) -> tuple[str, ...]:
    """`{a,b}` -> a, b."""
    found = _CHOICES.fullmatch(behind)
    return tuple(found[1].split(",")) if found else ()


def _kind(behind: str, words: str) -> Kind:
    if not behind:
        return "switch"
    if behind.endswith("...]"):
        return "any" if behind.startswith("[") and " [" not in behind else "many"
    if behind.startswith("[") and not behind.startswith("['"):
        return "maybe"
    return "json" if "valid JSON string" in " ".join(words.split()) else "one"
