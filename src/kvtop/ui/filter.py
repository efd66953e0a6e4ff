"""The filter of the turns table: words that must all hold. Pure.

`slow`, `done`, `flight`, `reads`, `waits`, `writes`, `queued`, `new`, `failed`, `group`; comparisons such as `new>10k`,
`cached<50`, `ttft>5`, `prompt>100k`, `out<10`, `queue >= 1`; anything else is looked for in a turn's number, engine and
finish. What has a sign in it and is no comparison fits nothing, and `misread` names it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

from kvtop.model.view import Turn

_WORDS: dict[str, Callable[[Turn], bool]] = {
    "slow": lambda t: t.waited,
    "done": lambda t: t.state != "in_flight",
    "flight": lambda t: t.state == "in_flight",
    "waits": lambda t: t.phase == "waits",
    "reads": lambda t: t.phase == "reads",
    "writes": lambda t: t.phase == "writes",
    "queued": lambda t: t.verdict == "queued",
    "new": lambda t: t.verdict == "new_tokens",
    "failed": lambda t: t.finish_reason in ("error", "abort"),
    "group": lambda t: t.n > 1,
}
_VALUES: dict[str, Callable[[Turn], float | None]] = {
    "prompt": lambda t: t.prompt_tokens,
    "new": lambda t: t.new_tokens,
    "cached": lambda t: None if t.cached_share is None else t.cached_share * 100,
    "out": lambda t: t.completion_tokens,
    "queue": lambda t: t.queue_s,
    "ttft": lambda t: t.ttft_s,
    "prefill": lambda t: t.prefill_s,
    "decode": lambda t: t.decode_s,
}
_COMPARE = re.compile(r"([a-z]+)(<=|>=|<|>|=)([0-9]+(?:\.[0-9]+)?)([km]?)")
_SIGNS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "=": operator.eq}
_AROUND = re.compile(r"\s*([<>=]+)\s*")
HINTS = (
    "slow queued new failed group done flight new>10k cached<50 ttft>5 out<10",
    "slow queued failed new>10k cached<50 ttft>5",
    "slow queued new>10k cached<50",
    "slow new>10k",
)
"""What can be typed, longest first."""
_IGNORED = frozenset({"in", "and"})


def matches(turn: Turn, words: str) -> bool:
    """Every word of the filter holds for this turn. A value that is not known fits no comparison."""
    return all(_holds(turn, word) for word in _split(words))


def misread(words: str) -> str:
    """The first word that was meant as a comparison and is none; empty where there is no such word."""
    return next((w for w in _split(words) if re.search(r"[<>=]", w) and not _comparison(w)), "")


def _split(words: str) -> list[str]:
    """The words in lower case; a sign and what stands around it are one."""
    return [word for word in _AROUND.sub(r"\1", words.lower()).split() if word not in _IGNORED]


def _comparison(word: str) -> re.Match[str] | None:
    found = _COMPARE.fullmatch(word)
    return found if found is not None and found[1] in _VALUES else None


def _holds(turn: Turn, word: str) -> bool:
    if (test := _WORDS.get(word)) is not None:
        return test(turn)
    if found := _comparison(word):
        value = _VALUES[found[1]](turn)
        limit = float(found[3]) * {"k": 1e3, "m": 1e6}.get(found[4], 1.0)
        return value is not None and bool(_SIGNS[found[2]](value, limit))
    if re.search(r"[<>=]", word):
        return False
    return any(word in text.lower() for text in (str(turn.id), turn.engine or "", turn.finish_reason or ""))
