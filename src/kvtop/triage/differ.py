"""The divergence of two turns, with the tokens of a server where one may be asked."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kvtop.capture.turn import Route
from kvtop.errors import KvtopError
from kvtop.triage.causes.template import HANDFUL, Leftover, explain, not_printed
from kvtop.triage.changes import Comparison, What, compare
from kvtop.triage.ids import common, count
from kvtop.triage.judge import causes_of, first_difference
from kvtop.triage.kinds import KEYS, SAYS_ANEW, Kind, Who
from kvtop.triage.pricing import dearest_first, in_blocks, price
from kvtop.triage.prompt import Prompt, in_words
from kvtop.triage.render import AROUND
from kvtop.triage.result import Cause, Diff, FirstDifference, Tokens
from kvtop.triage.values import role, text_of
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
    reply: bytes | None = None
    """Ids of what was generated, where the server told them."""


class Server(Protocol):
    """What is asked of a server. Every method raises KvtopError."""

    async def counted(self, sent: Sent) -> Counted: ...

    async def of(self, prompt: Prompt) -> bytes:
        """The ids of a prompt that was never sent."""
        ...

    async def again(self, sent: Sent) -> bytes:
        """The ids of a request that was counted before, whatever is remembered."""
        ...

    async def text(self, ids: bytes, first: int, last: int) -> tuple[str, int]:
        """The text of some tokens, and the byte (UTF-8) of the prompt at which it begins."""
        ...

    async def pieces(self, sent: Sent, ids: bytes) -> list[str] | None:
        """The text of each token of a request that was counted; None where that takes too many calls."""
        ...


@dataclass(frozen=True, slots=True)
class Cache:
    """What is known of the cache that both went to."""

    unit: int | None = None
    """Tokens of a prefix are matched in multiples of it."""
    expected: int | None = None
    """Cached tokens that the new turn should have had, from all earlier ones."""
    expected_exact: bool = False


NO_CACHE = Cache()


@dataclass(frozen=True, slots=True)
class Divergence:
    """A diff, and what it was made from."""

    diff: Diff
    comparison: Comparison
    sent: tuple[Sent, Sent]
    """The old and the new request."""
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
        tokens = replace(made.tokens, fresh=_fresh(comparison, causes, new.prompt_tokens))
        made = replace(made, tokens=tokens, first=first_difference(comparison, causes))
        return Divergence(made, comparison, (old, new))
    one, other = await server.counted(old), await server.counted(new)
    if one.ids == other.ids and _says_else(old.prompt, new.prompt):
        raise KvtopError(
            "the server counts the same tokens for two prompts whose words differ: its tokens cannot be believed",
            "is this vLLM, and the server that they went to?",
        )
    pair = _Pair(comparison, server, one.ids, other.ids, new)
    found, notes, calls, rest = await pair.causes(causes, cache.unit)
    if (unread := await _unread(new, other, server)) is not None:
        found.append(unread)
    tokens = pair.tokens(cache.unit, apart=any(cause.kind in KEYS for cause in found))
    found, tokens = in_blocks(found, tokens, cache.unit, rest)
    found = [replace(one, lost_tokens=0) if one.kind is Kind.OTHER_CONVERSATION else one for one in found]
    made = replace(
        made,
        method=one.method if one.method == other.method else "server_tokens",
        exact=one.exact and other.exact and (cache.expected is None or cache.expected_exact),
        tokens=tokens,
        causes=dearest_first(found),
        first=await pair.first(found),
        append_only=not found and (tokens.lost or 0) <= HANDFUL,
        notes=tuple(dict.fromkeys([*made.notes, *_of(old, one.notes), *_of(new, other.notes), *notes])),
    )
    return Divergence(made, comparison, (old, new), (one, other), calls)


def _fresh(comparison: Comparison, causes: Sequence[Cause], tokens: int | None) -> int | None:
    """As `Tokens.fresh`, of a new prompt of so many tokens."""
    if tokens is None:
        return None
    instead = frozenset[int]().union(*(one.changes for one in causes if one.kind in SAYS_ANEW))
    put_in = {one.message for one in comparison.of(What.MESSAGE_INSERTED) if one.id in instead}
    prompt = comparison.new
    sizes = [len(json.dumps(one, ensure_ascii=False)) for one in prompt.messages]
    fresh = sum(sizes[n] for n in {*comparison.appended, *put_in} if n is not None)
    whole = sum(sizes) + sum(len(json.dumps(one, ensure_ascii=False)) for one in prompt.tools)
    return round(tokens * fresh / whole) if whole else None


def _of(sent: Sent, notes: Sequence[str]) -> list[str]:
    """Notes on the tokens of one of the two, which say of which one."""
    name = f"turn {sent.name}" if sent.name.isdigit() else sent.name
    return [f"{name}: {note}" for note in notes if note not in sent.prompt.notes]


def _says_else(old: Prompt, new: Prompt) -> bool:
    """What their users say differs in more than white space and forms of characters: every template prints it, and
    the server cuts nothing off."""
    if _may_be_cut(old) or _may_be_cut(new):
        return False

    def words(prompt: Prompt) -> str:
        said = "".join(text_of(message) for message in prompt.messages if role(message) in ("user", ""))
        return "".join(unicodedata.normalize("NFKC", said).casefold().split())

    return words(old) != words(new)


def _may_be_cut(prompt: Prompt) -> bool:
    """The server is asked to drop what is too long."""
    inputs = prompt.inputs
    return inputs.get("truncate_prompt_tokens") is not None or inputs.get("truncation", "disabled") != "disabled"


async def _unread(new: Sent, counted: Counted, server: Server) -> Cause | None:
    """Reasoning that was sent, and that the server did not count: only without it the numbers agree.
    https://github.com/QwenLM/qwen-code/issues/4285"""
    thinks = [i for i, message in enumerate(new.prompt.messages) if message.get("reasoning")]
    if not thinks or new.prompt_tokens is None or count(counted.ids) <= new.prompt_tokens:
        return None
    bare = tuple({k: v for k, v in message.items() if k != "reasoning"} for message in new.prompt.messages)
    if count(await server.of(replace(new.prompt, messages=bare))) != new.prompt_tokens:
        return None
    old_name = b'"reasoning_content"' in new.body
    kind = Kind.REASONING_FIELD_IGNORED if old_name else Kind.REASONING_DROPPED_BY_PROXY
    pointer = new.prompt.at(("messages", thinks[0], "reasoning"))
    return Cause(
        kind=kind,
        pointer=pointer,
        section=in_words(pointer),
        says=f"reasoning is sent with {len(thinks)} message{'' if len(thinks) == 1 else 's'}, and is not in the prompt",
        fix="send it in the field that this server reads (reasoning)"
        if old_name
        else "let the proxy pass reasoning on",
        who=Who.SERVER if old_name else Who.GATEWAY,
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two prompts whose tokens are known."""

    comparison: Comparison
    server: Server
    old: bytes
    new: bytes
    sent: Sent
    """The new one."""

    def tokens(self, unit: int | None, *, apart: bool) -> Tokens:
        """`apart`: nothing of the old one can be read, whatever both have in common."""
        n, m, shared = count(self.old), count(self.new), common(self.old, self.new)
        kept, reusable, reread = 0 if apart else shared, None, None
        if unit:
            reusable = min(kept, m - 1) // unit * unit
            reread = max(0, min(n, m - 1) // unit * unit - reusable)
        return Tokens(old=n, new=m, common=shared, reusable=reusable, lost=n - shared, reread=reread)

    async def causes(self, guessed: Sequence[Cause], unit: int | None) -> tuple[list[Cause], list[str], int, int]:
        """Those that cost something, in the order in which the prompt meets them; notes; the calls made; and tokens of
        the old prompt that none of them explains."""
        keys = [cause for cause in guessed if cause.kind in KEYS]
        told = [cause for cause in guessed if cause.kind not in KEYS]
        mine, theirs, notes = await self._rebuilt() if told else (self.old, self.new, [])
        priced = await price(self.comparison, told, mine, theirs, self.server.of)
        found = [await self._as_printed(cause) for cause in priced.causes]
        rest = priced.unexplained
        if priced.unasked:
            rest = count(self.old) - priced.reached
            found += priced.unasked
            many = "1 cause has" if len(priced.unasked) == 1 else f"{len(priced.unasked)} causes have"
            notes.append(f"{many} no price: the first {priced.calls} prompts were enough asked")
        if priced.unexplained:
            restored = {id for cause in found for id in cause.changes}
            left = await self._leftover(priced.reached, restored)
            if cause := explain(self.comparison, left, unit) or await self._nondeterministic(left):
                found.append(cause)
                rest = 0
            elif priced.unexplained > max(HANDFUL, unit or 0):
                notes.append(
                    f"{priced.unexplained:,} tokens are lost to the chat template or the server: "
                    "no change of the request explains them"
                )
        # A key that is no token costs all that was cached under the other one.
        found += [replace(cause, lost_tokens=count(self.old)) for cause in keys]
        return found, notes, priced.calls, rest

    async def _as_printed(self, cause: Cause) -> Cause:
        """A change of the template's inputs, named by what it did to the prompt."""
        if cause.kind is not Kind.TEMPLATE_INPUTS_CHANGED:
            return cause
        at = max(0, common(self.old, self.new) - WINDOW)
        old, _ = await self.server.text(self.old, at, min(count(self.old), at + 3 * WINDOW))
        new, _ = await self.server.text(self.new, at, min(count(self.new), at + 3 * WINDOW))
        return not_printed(self.comparison, cause, old, new)

    async def _nondeterministic(self, left: Leftover) -> Cause | None:
        """Whether the server makes other tokens of the same request. https://github.com/ollama/ollama/issues/18430"""
        if left.lost <= HANDFUL or await self.server.again(self.sent) == self.new:
            return None
        return Cause(
            kind=Kind.RENDER_NONDETERMINISTIC,
            pointer="",
            section="the template",
            says="the server makes other tokens of the same request each time",
            fix="report it with the server's version and its chat template",
            who=Who.SERVER,
            lost_tokens=left.lost,
        )

    async def _rebuilt(self) -> tuple[bytes, bytes, list[str]]:
        """Both prompts as their parts make them, if that is not what was sent: prices are then measured on those."""
        theirs = await self.server.of(self.comparison.new)
        if theirs == self.new:
            return self.old, self.new, []
        mine = await self.server.of(self.comparison.old)
        return (
            mine,
            theirs,
            ["prices are approximate: the prompt made of its parts is not quite the one that was sent"],
        )

    async def _leftover(self, at: int, restored: set[int]) -> Leftover:
        """The place where nothing more can be put back."""
        new = await self.server.of(self.comparison.restored(restored)) if restored else self.new
        return Leftover(
            lost=count(self.old) - at,
            before=(await self.server.text(self.old, max(0, at - WINDOW), at))[0],
            old=(await self.server.text(self.old, at, min(count(self.old), at + WINDOW)))[0],
            new=(await self.server.text(new, at, min(count(new), at + WINDOW)))[0],
        )

    async def first(self, causes: Sequence[Cause]) -> FirstDifference | None:
        """Where they begin to differ, told by the first cause that the prompt meets."""
        at = common(self.old, self.new)
        if at >= count(self.old):  # no token differs
            return first_difference(self.comparison, tuple(causes))
        if not causes and count(self.old) - at <= HANDFUL:
            return None
        before, _ = await self.server.text(self.new, max(0, at - AROUND), at)
        one, _ = await self.server.text(self.old, at, min(count(self.old), at + AROUND))
        other, start = await self.server.text(self.new, at, min(count(self.new), at + AROUND))
        same = common_head(one, other)  # the first byte that differs may lie inside the token
        byte = start + len(other[:same].encode("utf-8", "surrogatepass"))
        head = (before + one[:same])[-AROUND:]
        return FirstDifference(
            section=causes[0].section if causes else "the template",
            pointer=causes[0].pointer if causes else "",
            old=(head + one[same:])[: 2 * AROUND],
            new=(head + other[same:])[: 2 * AROUND],
            token=at,
            byte=byte,
        )
