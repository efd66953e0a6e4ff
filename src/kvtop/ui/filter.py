"""The filter of the turns table: words that must all hold. Pure.

`slow`, `done`, `flight`, `reads`, `waits`, `writes`, `queued`, `new`, `failed`, `group`; comparisons such as `new>10k`,
`cached<50`, `ttft>5`, `prompt>100k`, `out<10`, `queue>=1`; anything else is looked for in a turn's number, engine and
finish.
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
_IGNORED = frozenset({"in", "and"})


def matches(turn: Turn, words: str) -> bool:
    """Every word of the filter holds for this turn. A value that is not known fits no comparison."""
    return all(_holds(turn, word) for word in words.lower().split() if word not in _IGNORED)


def _holds(turn: Turn, word: str) -> bool:
    if (test := _WORDS.get(word)) is not None:
        return test(turn)
    if (found := _COMPARE.fullmatch(word)) and found[1] in _VALUES:
        value = _VALUES[found[1]](turn)
        limit = float(found[3]) * {"k": 1e3, "m": 1e6}.get(found[4], 1.0)
        return value is not None and bool(_SIGNS[found[2]](value, limit))
    return any(word in text.lower() for text in (str(turn.id), turn.engine or "", turn.finish_reason or ""))
