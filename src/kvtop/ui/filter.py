"""The filter of the turns table: words that must all hold. Pure.

`slow`, `broke` (its prompt), `lost` (by the engine), `done`, `flight`, `reads`, `waits`, `writes`, `queued`, `new`,
`failed`, `aborted`, `cut`, `side`, `import`, `past` (the tap), `group`; comparisons such as `new>10k`, `cached<50`,
`ttft>5`, `prompt>100k`, `out<10`, `queue >= 1`; `c12` is the conversation of that name; anything else is looked for in
a turn's number, agent, model, engine and finish.
What has a sign in it and is no comparison fits nothing, and `misread` names it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import lru_cache

from kvtop.model.account import needed
from kvtop.model.shown_turn import Turn


def _found(turn: Turn) -> str | None:
    return turn.finding.verdict if turn.finding is not None else None


_WORDS: dict[str, Callable[[Turn], bool]] = {
    "slow": lambda t: t.waited,
    "broke": lambda t: _found(t) == "prompt_diverged",
    "lost": lambda t: _found(t) == "engine_lost_cache",
    "done": lambda t: t.state != "in_flight",
    "flight": lambda t: t.state == "in_flight",
    "waits": lambda t: t.phase == "waits",
    "reads": lambda t: t.phase == "reads",
    "writes": lambda t: t.phase == "writes",
    "queued": lambda t: t.verdict == "queued",
    "new": lambda t: t.verdict == "new_tokens",
    "failed": lambda t: t.finish_reason in ("error", "abort") or t.state in ("failed", "aborted", "cut"),
    "aborted": lambda t: t.finish_reason == "abort" or t.state == "aborted",
    "cut": lambda t: t.state == "cut" or (t.captured and t.state is None),
    "side": lambda t: t.began_as is not None or t.relation in ("side", "subagent", "compaction"),
    "import": lambda t: t.source == "import",
    "past": lambda t: t.past_tap,
    "group": lambda t: t.n > 1,
}
_VALUES: dict[str, Callable[[Turn], float | None]] = {
    "prompt": lambda t: t.prompt_tokens,
    "new": needed,
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
    "slow broke lost queued new failed aborted cut side past group flight claude c12 new>10k cached<50 ttft>5 out<10",
    "slow broke lost queued failed aborted side past claude c12 new>10k cached<50",
    "slow broke failed claude c12 new>10k cached<50 ttft>5",
    "slow broke queued new>10k cached<50",
    "slow new>10k",
)
"""What can be typed, longest first."""
_CONVERSATION = re.compile(r"c[0-9]+")
_IGNORED = frozenset({"in", "and"})


def matches(turn: Turn, words: str) -> bool:
    """Every word of the filter holds for this turn. A value that is not known fits no comparison."""
    return all(holds(turn) for holds in _tests(words))


def misread(words: str) -> str:
    """The first word that was meant as a comparison and is none; empty where there is no such word."""
    return next((w for w in _split(words) if re.search(r"[<>=]", w) and not _comparison(w)), "")


def _split(words: str) -> list[str]:
    """The words in lower case; a sign and what stands around it are one."""
    return [word for word in _AROUND.sub(r"\1", words.lower()).split() if word not in _IGNORED]


def _comparison(word: str) -> re.Match[str] | None:
    found = _COMPARE.fullmatch(word)
    return found if found is not None and found[1] in _VALUES else None


@lru_cache(maxsize=4)
def _tests(words: str) -> tuple[Callable[[Turn], bool], ...]:
    """The words read once: there may be thousands of turns."""
    return tuple(_test(word) for word in _split(words))


def _test(word: str) -> Callable[[Turn], bool]:
    if (test := _WORDS.get(word)) is not None:
        return test
    if found := _comparison(word):
        value_of, compare = _VALUES[found[1]], _SIGNS[found[2]]
        limit = float(found[3]) * {"k": 1e3, "m": 1e6}.get(found[4], 1.0)
        return lambda turn: (value := value_of(turn)) is not None and bool(compare(value, limit))
    if re.search(r"[<>=]", word):
        return lambda turn: False
    if _CONVERSATION.fullmatch(word):
        return lambda turn: turn.conversation == word
    return lambda turn: _numbered(turn, word) or any(word in text.lower() for text in _texts(turn))


def _numbered(turn: Turn, word: str) -> bool:
    """`15` is no part of m15, which is another turn than 15."""
    return turn.name.startswith(word) if turn.beside else word in turn.name


def _texts(turn: Turn) -> tuple[str, ...]:
    return turn.agent or "", turn.model or "", turn.engine or "", turn.finish_reason or "", turn.conversation or ""
