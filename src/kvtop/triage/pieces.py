"""The text of tokens, from a server that can only say the text of a whole list of them.

A list's text is not the sum of its tokens' texts: a token may end in the middle of a character, which shows as U+FFFD
until the next one completes it, and some tokenizers drop a space at a list's beginning. So texts are always cut out of
longer ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from kvtop.triage import ids as packed
from kvtop.triage.windows import common_head

CONTEXT = 16
"""Tokens before a range that are said with it."""
LONGEST = 4
"""Tokens that a character may be spread over: as many as it has bytes."""
AT_ONCE = 64
"""Tokens whose single texts are asked for in one call."""
_MARK = "\u241e"
"""A sign that no prompt is expected to hold, between tokens that are said in one call."""

Say = Callable[[list[int]], Awaitable[str]]
Words = Callable[[str], Awaitable[list[int]]]


class Span(NamedTuple):
    """A text, and where it begins in the rendered prompt."""

    text: str
    byte: int
    """Offset in UTF-8."""


def _list(ids: bytes, first: int, last: int) -> list[int]:
    return packed.unpack(ids[first * packed.WIDTH : last * packed.WIDTH])


def _utf8(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _bounded(ids: bytes, first: int, last: int) -> tuple[int, int]:
    count = packed.count(ids)
    first = min(max(0, first), count)
    return first, min(max(first, last), count)


@dataclass(frozen=True, slots=True)
class _Window:
    """A range of tokens with some before it, said together."""

    before: list[int]
    tokens: list[int]
    text: str
    """Of both, without a character that only the next token completes."""
    start: int
    """The character of `text` at which the range begins."""
    byte: int
    """The same in the prompt, in UTF-8."""


async def _window(say: Say, ids: bytes, first: int, last: int) -> _Window:
    tokens = _list(ids, first, last)
    before = _list(ids, max(0, first - CONTEXT), first)
    lead = await say(before) if before else ""
    both = await _complete(say, before, tokens, _list(ids, last, last + LONGEST)) if tokens else lead
    start = common_head(lead, both)
    unfinished = lead[start:]
    head = lead if len(before) == first else await say(_list(ids, 0, first))
    if head.endswith(unfinished):
        return _Window(before, tokens, both, start, _utf8(head) - _utf8(unfinished))
    # The tokens before say something else here than in the whole: then the whole is said.
    before = _list(ids, 0, first)
    both = await _complete(say, before, tokens, _list(ids, last, last + LONGEST))
    start = common_head(head, both)
    return _Window(before, tokens, both, start, _utf8(both[:start]))


async def _complete(say: Say, before: list[int], tokens: list[int], after: list[int]) -> str:
    """The text of the tokens, without what the ones after make of its end."""
    said = await say(before + tokens)
    if not after or not said.endswith("\ufffd"):
        return said
    return said[: common_head(said, await say(before + tokens + after))]


async def text(say: Say, ids: bytes, first: int, last: int) -> Span:
    """See `Tokenizer.text`. Of a head of any length one call."""
    window = await _window(say, ids, *_bounded(ids, first, last))
    return Span(window.text[window.start :], window.byte)


async def pieces(say: Say, words: Words, ids: bytes, first: int, last: int) -> list[Span]:
    """See `Tokenizer.pieces`. Of every 64 tokens a few calls."""
    first, last = _bounded(ids, first, last)
    found: list[Span] = []
    for at in range(first, last, AT_ONCE):
        window = await _window(say, ids, at, min(at + AT_ONCE, last))
        cuts = await _marked(say, words, window) or await _grown(say, window)
        byte = found[-1].byte + _utf8(found[-1].text) if found else window.byte
        for start, end in pairwise(cuts):
            found.append(Span(window.text[start:end], byte))
            byte += _utf8(found[-1].text)
    return found


async def _marked(say: Say, words: Words, window: _Window) -> list[int] | None:
    """Where each token's text begins, of one call: the row of tokens that grows by one, again and again, with a mark
    between. None where that does not give the text again. What a row has in common with the last one is complete."""
    mark = await words(_MARK)
    row = list(mark)
    for end in range(len(window.tokens) + 1):
        row += [*window.before[-CONTEXT:], *window.tokens[:end], *mark]
    parts = (await say(row)).split(_MARK)[1:-1]
    if len(parts) != len(window.tokens) + 1:
        return None
    lead, whole = parts[0], parts[-1]
    start = common_head(lead, whole)
    wanted = window.text[window.start :]
    if not whole.startswith(wanted, start):
        return None
    cuts = [window.start]
    for part in parts[1:-1]:
        cut = window.start + min(common_head(part, whole) - start, len(wanted))
        cuts.append(max(cut, cuts[-1]))
    return [*cuts, len(window.text)]


async def _grown(say: Say, window: _Window) -> list[int]:
    """The same in as many calls as there are tokens."""
    cuts = [window.start]
    for end in range(1, len(window.tokens)):
        cut = common_head(await say(window.before + window.tokens[:end]), window.text)
        cuts.append(max(cut, cuts[-1]))
    return [*cuts, len(window.text)]
