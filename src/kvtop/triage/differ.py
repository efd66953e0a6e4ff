"""The divergence of two turns, with the tokens of a server where one may be asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kvtop.capture.turn import Route
from kvtop.triage.causes.template import HANDFUL, Leftover, explain
from kvtop.triage.changes import Comparison, compare
from kvtop.triage.ids import common, count
from kvtop.triage.judge import causes_of, first_difference
from kvtop.triage.kinds import Kind
from kvtop.triage.pricing import dearest_first, in_seconds, price
from kvtop.triage.prompt import Prompt
from kvtop.triage.render import AROUND
from kvtop.triage.result import Cause, Diff, FirstDifference, Tokens
from kvtop.triage.windows import common_head

WINDOW = 160
"""Tokens behind a difference that are read as text."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One request, as it was sent."""

    name: str
    """Of the turn or the file."""
    route: Route
    prompt: Prompt
    body: bytes
    answer: bytes | None = None
    """The answer's body: the server may have told the ids in it."""
    prompt_tokens: int | None = None
    """By usage."""
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """The token ids of a prompt, packed, and how they are known."""

    ids: bytes
    method: str
    """served_ids or server_tokens."""
    exact: bool
    notes: tuple[str, ...] = ()


class Server(Protocol):
    """What is asked of a server. Every method raises KvtopError."""

    async def counted(self, sent: Sent) -> Counted: ...

    async def of(self, prompt: Prompt) -> bytes:
        """The ids of a prompt that was never sent."""
        ...

    async def text(self, ids: bytes, first: int, last: int) -> str:
        """The text of some tokens."""
        ...

    async def bytes_before(self, ids: bytes, token: int) -> int:
        """UTF-8 length of the text of the tokens before that one."""
        ...


@dataclass(frozen=True, slots=True)
class Cache:
    """What is known of the cache that both went to."""

    unit: int | None = None
    """Tokens of a prefix are matched in multiples of it."""
    rate: float | None = None
    """Prompt tokens computed in a second."""
    expected: int | None = None
    """Cached tokens that the new turn should have had, from all earlier ones."""
    expected_exact: bool = False


NO_CACHE = Cache()


@dataclass(frozen=True, slots=True)
class Divergence:
    """A diff, and what it was made from."""

    diff: Diff
    comparison: Comparison
    counted: tuple[Counted, Counted] | None = None
    """The tokens of the old and the new prompt; None where no server was asked."""
    calls: int = 0
    """Prompts with something put back that the server tokenised."""


async def diverge(
    old: Sent, new: Sent, server: Server | None, cache: Cache = NO_CACHE, *, gateway: bool = False
) -> Divergence:
    """The divergence; without a server by the text method. Raises KvtopError where the server does not answer."""
    comparison = compare(old.prompt, new.prompt)
    causes = causes_of(comparison, gateway=gateway)
    made = Diff(
        old=old.name,
        new=new.name,
        method="text",
        exact=False,
        tokens=Tokens(old=old.prompt_tokens, new=new.prompt_tokens),
        causes=causes,
        append_only=not causes,
        match_unit_tokens=cache.unit,
        cached_tokens=new.cached_tokens,
        expected_cached_tokens=cache.expected,
        notes=tuple(dict.fromkeys([*old.prompt.notes, *new.prompt.notes])),
    )
    if server is None:
        return Divergence(replace(made, first=first_difference(comparison, causes)), comparison)
    one, other = await server.counted(old), await server.counted(new)
    pair = _Pair(comparison, server, one.ids, other.ids)
    found, notes, calls = await pair.causes(causes, cache.unit)
    tokens = pair.tokens(cache.unit)
    made = replace(
        made,
        method=one.method if one.method == other.method else "server_tokens",
        exact=one.exact and other.exact and (cache.expected is None or cache.expected_exact),
        tokens=tokens,
        causes=in_seconds(dearest_first(found), cache.rate),
        first=await pair.first(found),
        append_only=not found and (tokens.lost or 0) <= HANDFUL,
        notes=tuple(dict.fromkeys([*made.notes, *one.notes, *other.notes, *notes])),
    )
    return Divergence(made, comparison, (one, other), calls)


_NO_TOKENS = frozenset({Kind.CACHE_SALT_CHANGED, Kind.MODEL_CHANGED, Kind.PROMPT_LOGPROBS_SET})
"""They change no token of the prompt, but its hash or who may read."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two prompts whose tokens are known."""

    comparison: Comparison
    server: Server
    old: bytes
    new: bytes

    def tokens(self, unit: int | None) -> Tokens:
        n, m, shared = count(self.old), count(self.new), common(self.old, self.new)
        reusable = reread = None
        if unit:
            reusable = min(shared, m - 1) // unit * unit
            reread = max(0, min(n, m - 1) // unit * unit - reusable)
        return Tokens(old=n, new=m, common=shared, reusable=reusable, lost=n - shared, reread=reread)

    async def causes(self, guessed: Sequence[Cause], unit: int | None) -> tuple[list[Cause], list[str], int]:
        """Those that cost something, in the order in which the prompt meets them; notes; the calls made."""
        keys = [cause for cause in guessed if cause.kind in _NO_TOKENS]
        told = [cause for cause in guessed if cause.kind not in _NO_TOKENS]
        priced = await price(self.comparison, told, self.old, self.new, self.server.of)
        found, notes = list(priced.causes), []
        if priced.unexplained:
            restored = {id for cause in found for id in cause.changes}
            left = await self._leftover(priced.reached, restored)
            if cause := explain(self.comparison, left, unit):
                found.append(cause)
            elif priced.unexplained > max(HANDFUL, unit or 0):
                notes.append(
                    f"{priced.unexplained:,} tokens are lost to the chat template or the server: "
                    "no change of the request explains them"
                )
        # A key that is no token costs all that was cached under the other one.
        found += [replace(cause, lost_tokens=count(self.old)) for cause in keys]
        return found, notes, priced.calls

    async def _leftover(self, at: int, restored: set[int]) -> Leftover:
        """The place where nothing more can be put back."""
        new = await self.server.of(self.comparison.restored(restored)) if restored else self.new
        return Leftover(
            lost=count(self.old) - at,
            before=await self.server.text(self.old, max(0, at - WINDOW), at),
            old=await self.server.text(self.old, at, min(count(self.old), at + WINDOW)),
            new=await self.server.text(new, at, min(count(new), at + WINDOW)),
        )

    async def first(self, causes: Sequence[Cause]) -> FirstDifference | None:
        """Where they begin to differ, told by the first cause that the prompt meets."""
        at = common(self.old, self.new)
        if not causes:
            return None
        if at >= count(self.old):  # no token differs
            return first_difference(self.comparison, tuple(causes))
        before = await self.server.text(self.new, max(0, at - AROUND), at)
        one = await self.server.text(self.old, at, min(count(self.old), at + AROUND))
        other = await self.server.text(self.new, at, min(count(self.new), at + AROUND))
        same = common_head(one, other)  # the first byte that differs may lie inside the token
        byte = await self.server.bytes_before(self.new, at) + len(other[:same].encode("utf-8", "surrogatepass"))
        head = (before + one[:same])[-AROUND:]
        return FirstDifference(
            section=causes[0].section,
            pointer=causes[0].pointer,
            old=(head + one[same:])[: 2 * AROUND],
            new=(head + other[same:])[: 2 * AROUND],
            token=at,
            byte=byte,
        )
