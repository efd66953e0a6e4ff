"""What a request is going to be, from bytes alone: nothing is tokenised while the server is busy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from kvtop.capture.turn import Captured
from kvtop.model.shown_turn import CONTINUES

_K = TypeVar("_K")
_V = TypeVar("_V")

REMEMBERED = 10_000
"""Conversations and turns that are kept in mind."""


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens, each an estimate."""

    prompt_tokens: int
    cached_tokens: int | None = None
    """The parent's prompt, which the cache still holds if nothing was lost; None: there is no parent to go by."""


class Sizes:
    """Learns bytes a token from turns that ended, by conversation and by model."""

    def __init__(self) -> None:
        self._of_conversation: dict[str, tuple[int, float]] = {}
        self._of_model: dict[tuple[str, str | None], tuple[int, float]] = {}
        """With the turn that it was learnt from: a later one knows better, in whatever order they come."""
        self._prompts: dict[int, int] = {}
        """Turn -> its prompt tokens."""

    def learn(self, turn: Captured) -> None:
        """Take in a turn; one that told no prompt tokens teaches nothing."""
        size = _size(turn)
        if not turn.prompt_tokens or not size:
            return
        known = turn.id, size / turn.prompt_tokens
        if known > self._of_model.get((turn.upstream, turn.model), (-1, 0.0)):
            _keep(self._of_model, (turn.upstream, turn.model), known)
        if turn.conversation and known > self._of_conversation.get(turn.conversation, (-1, 0.0)):
            _keep(self._of_conversation, turn.conversation, known)
        _keep(self._prompts, turn.id, turn.prompt_tokens)

    def guess(self, turn: Captured) -> Guess | None:
        """None while nothing of this conversation or model has ended."""
        known = self._of_conversation.get(turn.conversation or "") or self._of_model.get((turn.upstream, turn.model))
        size = _size(turn)
        if known is None or not size:
            return None
        prompt = max(1, round(size / known[1]))
        before = None if turn.changed else self.before(turn)  # its head is not the parent's: what is left is not known
        return Guess(prompt, None if before is None else min(before, prompt))

    def before(self, turn: Captured) -> int | None:
        """Prompt tokens of the turn that it continues; None where there is none, or it told none."""
        return self._prompts.get(turn.parent or 0) if turn.relation in CONTINUES else None


def _size(turn: Captured) -> int | None:
    """Bytes of what the model reads; of a request whose parts are not known those of its whole body."""
    return turn.prompt_bytes or turn.request_bytes


def _keep(known: dict[_K, _V], key: _K, value: _V) -> None:
    known.pop(key, None)
    known[key] = value
    if len(known) > REMEMBERED:
        del known[next(iter(known))]
