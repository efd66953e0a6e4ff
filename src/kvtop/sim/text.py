"""Text that looks like a coding session, and a tokenizer for it.

The tokenizer is no model's: it cuts text into pieces of a few letters (about four characters a token, as BPE does) and
numbers each piece by its checksum. What matters here holds: equal text gives equal ids in every process, and text cut
at a blank line can be tokenised part by part.
"""

from __future__ import annotations

import random
import re
import zlib
from array import array
from collections.abc import Iterable
from functools import lru_cache

Ids = array
"""Token ids: `array("I")`, four bytes a token."""

IM_START, IM_END, TOOLS_OPEN, TOOLS_CLOSE = 1, 2, 3, 4
"""Control tokens. No text can spell one: ids of text begin at 256."""

_PIECE = re.compile(r" ?[^\W\d_]{1,7}|\d{1,3}|\n| +|[^\w\s]|\w|\s")
_VOCABULARY = 131_072
_FIRST = 256
_SIZE = _VOCABULARY - _FIRST
_SEED = 50
"""With it no two pieces of the scenarios' texts have one id."""
_KEEP = 4096
"""Longest part, in characters, whose ids are remembered: text from outside must not fill the memory."""


def pieces(text: str) -> list[str]:
    """The text, cut where the tokens are: one piece a token."""
    return _PIECE.findall(text)


_spelled: dict[int, str] = {
    IM_START: "<|im_start|>",
    IM_END: "<|im_end|>",
    TOOLS_OPEN: "<tools>",
    TOOLS_CLOSE: "</tools>",
}
"""What an id was first cut from; no more than the vocabulary."""


def _cut(part: str) -> array[int]:
    found = _PIECE.findall(part)
    ids = array("I", [_FIRST + zlib.crc32(p.encode("utf-8", "replace"), _SEED) % _SIZE for p in found])
    for id, piece in zip(ids, found, strict=True):
        _spelled.setdefault(id, piece)
    return ids


def spell(ids: Iterable[int]) -> str:
    """The text of ids that were made in this process; � for another one."""
    return "".join(_spelled.get(id, "\N{REPLACEMENT CHARACTER}") for id in ids)


_remembered = lru_cache(maxsize=4096)(_cut)
_BLANK_LINE = _cut("\n\n")


def tokenize(text: str) -> array[int]:
    """Ids of a text. Parts between blank lines are remembered, so that a long conversation costs little."""
    ids = array("I")
    for i, part in enumerate(text.split("\n\n")):
        if i:
            ids.extend(_BLANK_LINE)
        ids.extend(_remembered(part) if len(part) <= _KEEP else _cut(part))
    return ids


_WORDS = (
    *("request", "response", "header", "token", "session", "client", "server", "handler", "config", "value", "error"),
    *("result", "index", "buffer", "cache", "block", "prompt", "message", "parser", "writer", "reader", "stream"),
    *("queue", "worker", "schema", "field", "option", "default", "timeout", "retry", "limit", "path", "file", "line"),
    *("module", "method", "object", "string", "number", "list", "map", "key", "count", "total", "offset", "window"),
)
_VERBS = ("load", "store", "read", "write", "parse", "check", "update", "create", "remove", "resolve", "merge", "apply")


def _code(rng: random.Random) -> str:
    a, b, c = rng.choice(_VERBS), rng.choice(_WORDS), rng.choice(_WORDS)
    form = rng.randrange(7)
    depth = "    " * rng.randint(1, 3)
    if form == 0:
        return f"{depth}{b} = self.{a}_{c}({b}, {c}={rng.randint(0, 999)})"
    if form == 1:
        return f"{depth}if {b} is None or {b}.{c} > {rng.randint(1, 90)}:"
    if form == 2:
        return f'{depth}    raise ValueError(f"{a} {b}: {{{c}}} is not a {c}")'
    if form == 3:
        return f"src/{b}/{a}_{c}.py:{rng.randint(1, 900)}: {a} the {b} before the {c} is {a}ed"
    if form == 4:
        return f"{depth}return await {a}_{b}({c}, timeout={rng.randint(1, 60)})"
    if form == 5:
        return f"{depth}# {a} every {b} whose {c} has changed, then {rng.choice(_VERBS)} the rest"
    return f"{depth}for {b} in sorted({c}s, key=lambda one: one.{a}):"


@lru_cache(maxsize=1)
def _paragraphs() -> tuple[tuple[str, int], ...]:
    rng = random.Random(20)
    out = []
    for _ in range(40):
        part = "\n".join(_code(rng) for _ in range(rng.randint(8, 26)))
        out.append((part, len(tokenize(part))))
    return tuple(out)


def passage(rng: random.Random, tokens: int, head: str = "") -> str:
    """About `tokens` tokens of code and tool output, under a head line that makes it its own."""
    parts = [head] if head else []
    left = tokens
    while left > 0:
        part, size = rng.choice(_paragraphs())
        if size > left + 60:
            lines = part.split("\n")
            wanted = len(lines) * left // size
            # Few lengths, so that the ids of each are remembered.
            part = "\n".join(lines[: 1 << max(wanted.bit_length() - 1, 0)])
        parts.append(part)
        left -= size
    return "\n\n".join(parts)
