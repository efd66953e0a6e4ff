"""The tokens of a prompt, as values; and what servers answer of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from kvtop.sources.typed import typed
from kvtop.triage import ids as packed

SERVED = "served_ids"
ASKED = "server_tokens"


class Body(Protocol):
    """Of an answer."""

    @property
    def body(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Media:
    """A picture or a sound in a prompt. Its tokens are the same for any content: the cache's key is the content."""

    digest: str
    """Hex. Of the server's own key where its render gave one, else of the part as it was sent: equal part, equal
    digest, but not the other way round."""
    first: int | None = None
    """The number of tokens before its own; None: not known."""
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Prompted:
    """The tokens of one prompt."""

    ids: bytes = field(repr=False)
    """Packed (`kvtop.triage.ids`)."""
    method: str
    """served_ids or server_tokens, as `kvtop diff --json` has it."""
    exact: bool
    """Nothing is known that speaks against it; where usage is known, its count is the same."""
    notes: tuple[str, ...] = ()
    """Why it is not exact, or was not checked; one line each, without content."""
    reply: bytes | None = field(default=None, repr=False)
    """Generated ids, where the answer holds them."""
    media: tuple[Media, ...] = ()

    @property
    def count(self) -> int:
        return packed.count(self.ids)


@dataclass(frozen=True, slots=True)
class Found:
    """Ids as they were found, before their count is held against usage."""

    ids: bytes = field(repr=False)
    doubts: tuple[str, ...] = ()
    """Why they may not be those that were served."""
    media: tuple[Media, ...] = ()
    settled: bool = False
    """There is no other way left to ask, whatever a usage says."""

    @property
    def count(self) -> int:
        return packed.count(self.ids)


def checked(found: Found, method: str, usage: int | None, reply: bytes | None = None) -> Prompted:
    """With the count held against a usage."""
    notes = list(found.doubts)
    if usage is not None and usage != found.count:
        notes.append(f"approximate: the server counted {usage:,}, these are {found.count:,}")
    exact = not notes
    if usage is None and method == ASKED:
        notes.append("tokens not checked, its usage is not known")
    return Prompted(found.ids, method, exact, tuple(notes), reply, found.media)


class _Spot(msgspec.Struct):
    offset: int = 0
    length: int = 0


class _Features(msgspec.Struct):
    mm_hashes: dict[str, list[str]] | None = None
    mm_placeholders: dict[str, list[_Spot]] | None = None


class _Rendered(msgspec.Struct):
    token_ids: list[int]
    features: _Features | None = None


class _Older(msgspec.Struct):
    prompt_token_ids: list[int]


class _Tokens(msgspec.Struct):
    tokens: list[int]
    count: int | None = None


class _Named(msgspec.Struct):
    tokens: list[int]
    token_strs: list[str] | None = None


class _Text(msgspec.Struct):
    prompt: str


class _Count(msgspec.Struct):
    input_tokens: int


def tokens(answer: Body) -> list[int] | None:
    """What /tokenize answers; None for an answer of another shape, or one whose count is not that of its ids."""
    found = typed(answer.body, _Tokens)
    return None if found is None or found.count not in (None, len(found.tokens)) else found.tokens


def named(answer: Body) -> tuple[list[int], list[str]] | None:
    """The tokens of /tokenize with their names in the vocabulary; None where it tells none."""
    found = typed(answer.body, _Named)
    if found is None or found.token_strs is None or len(found.token_strs) != len(found.tokens):
        return None
    return found.tokens, found.token_strs


def said(answer: Body) -> str | None:
    """What /detokenize answers."""
    found = typed(answer.body, _Text)
    return found.prompt if found is not None else None


def counted(answer: Body) -> int | None:
    """What /v1/messages/count_tokens answers."""
    found = typed(answer.body, _Count)
    return found.input_tokens if found is not None else None


def rendered(answer: Body) -> Found | None:
    """What a render route answers: since 0.18 an object, of completions a list of them; before, a list of the
    conversation and the engine's prompts, of completions of the prompts."""
    body: bytes | msgspec.Raw = answer.body
    if answer.body.lstrip()[:1] == b"[":
        parts = typed(body, list[msgspec.Raw]) or [msgspec.Raw(b"null")]
        body = parts[0]
        if bytes(parts[-1]).lstrip()[:1] == b"[":
            body = (typed(parts[-1], list[msgspec.Raw]) or parts)[0]
    found = typed(body, _Rendered)
    older = typed(body, _Older) if found is None else None
    ids = found.token_ids if found is not None else older.prompt_token_ids if older is not None else None
    try:
        return None if ids is None else Found(packed.pack(ids), media=_placed(found.features if found else None))
    except ValueError:
        return None


def _placed(features: _Features | None) -> tuple[Media, ...]:
    if features is None or not features.mm_hashes:
        return ()
    spots: Mapping[str, list[_Spot]] = features.mm_placeholders or {}
    found = [
        Media(digest, spot.offset, spot.length)
        for kind, digests in features.mm_hashes.items()
        for digest, spot in zip(digests, spots.get(kind, ()), strict=False)
    ]
    return tuple(sorted(found, key=lambda one: one.first or 0))
