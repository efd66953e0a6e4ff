"""How flags of vLLM's command line are spelled, for what keeps and moves its words: which are flags, and which are the
same. What vLLM makes of the whole line, `flags` knows.

vLLM takes `-` and `_` in the name of a flag for each other, up to the first dot, and argparse a flag that is cut short
as long as it can mean one alone. Names are those of the long spelling: `-tp`, `--tensor_parallel` and
`--tensor-parallel-size` are `tensor-parallel-size`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from kvtop.profiles.vocabulary import vllm_0_32

_FLAG = re.compile(r"--?[A-Za-z]")


class Group(NamedTuple):
    """A flag and what stands behind it, up to the next flag."""

    name: str
    """As `flag_name` says it; empty for words in front of the first flag."""
    words: tuple[str, ...]
    """All of them, as they are typed."""

    @property
    def values(self) -> tuple[str, ...]:
        if not self.name:
            return self.words
        _, equals, value = self.words[0].partition("=")
        return (value, *self.words[1:]) if equals else self.words[1:]


def is_flag(word: str) -> bool:
    """It begins a flag; a negative number, and JSON, do not."""
    return _FLAG.match(word) is not None


def plain(name: str) -> str:
    """A flag's name without dashes in front, in its one spelling: max_model_len -> max-model-len. Where none stand in
    front it may be a short one too: tp -> tensor-parallel-size."""
    first, dot, rest = name.lstrip("-").partition(".")
    first = first.replace("_", "-")
    whole = _whole(("-" if name.startswith("-") and not name.startswith("--") else "--") + first)
    if whole == first and not name.startswith("-") and f"--{first}" not in vllm_0_32():
        whole = _whole(f"-{first}") if f"-{first}" in vllm_0_32() else whole
    return whole + dot + rest


@lru_cache(4096)
def _whole(flag: str) -> str:
    """The long name, less its dashes, of a flag in one of its spellings; of one that is not known, as it stands."""
    known = vllm_0_32()
    specs = {spec for one in known.beginning(flag) if (spec := known.spec(one)) is not None}
    if len(specs) != 1:
        return flag.lstrip("-")
    (spec,) = specs
    return spec.name if spec.on else f"no-{spec.name}"


def is_switch(name: str) -> bool:
    """Whether a flag, by its plain name, takes no value: what stands behind it is a word of its own."""
    spec = vllm_0_32().spec(f"--{name}")
    return spec is not None and spec.kind == "switch"


def flag_name(word: str) -> str:
    """The plain name of the flag that a word begins; '' for a word that is none."""
    return plain(word.partition("=")[0]) if is_flag(word) else ""


def groups(words: Sequence[str]) -> Iterator[Group]:
    """The words of a command line behind `vllm serve`, flag by flag."""
    held: list[str] = []
    for word in words:
        if held and is_flag(word):
            yield Group(flag_name(held[0]), tuple(held))
            held = []
        held.append(word)
    if held:
        yield Group(flag_name(held[0]), tuple(held))


def without(words: Sequence[str], names: frozenset[str] | set[str]) -> list[str]:
    """The words less the flags of these plain names, with their values."""
    return [word for group in groups(words) if not group.name or group.name not in names for word in group.words]
