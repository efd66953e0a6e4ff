"""A `Tokenizer` as the divergence of two turns asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtop.capture.api.canonical import encode
from kvtop.capture.turn import Route
from kvtop.errors import KvtopError
from kvtop.triage.differ import Counted, Sent
from kvtop.triage.ids import count
from kvtop.triage.prompt import Prompt
from kvtop.triage.values import text_of

if TYPE_CHECKING:
    from kvtop.triage.tokens import Tokenizer


FEW = 4_000
"""Tokens whose texts are asked for one after the other, where the server does not tell their names."""


class Asked:
    """Every method raises KvtopError where the server does not answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def url(self) -> str:
        """Fit to be shown."""
        return self._tokenizer.url

    @property
    def waits(self) -> bool:
        """A request is on its way."""
        return self._tokenizer.waits

    @property
    def calls(self) -> int:
        """Requests made so far."""
        return self._tokenizer.calls

    async def aclose(self) -> None:
        await self._tokenizer.aclose()

    async def counted(self, sent: Sent) -> Counted:
        found = await self._tokenizer.ids(sent.route, sent.body, sent.answer, sent.prompt_tokens)
        if not found.ids and (sent.prompt_tokens or any(map(text_of, sent.prompt.messages))):
            raise KvtopError(f"{self.url}/tokenize counts 0 tokens for a prompt that has some", "is this vLLM?")
        return Counted(found.ids, found.method, found.exact, found.notes, found.reply)

    async def again(self, sent: Sent) -> bytes:
        return (await self._tokenizer.ids(sent.route, sent.body, usage_tokens=sent.prompt_tokens, fresh=True)).ids

    async def of(self, prompt: Prompt) -> bytes:
        route, document = Route.CHAT, prompt.chat()
        if prompt.route is Route.COMPLETIONS:
            route = Route.COMPLETIONS
            document = {**prompt.inputs, "prompt": "".join(text_of(message) for message in prompt.messages)}
        try:
            body = encode(document)
        except ValueError:
            raise KvtopError("a prompt cannot be written as JSON", "it can only be compared as text") from None
        return (await self._tokenizer.ids(route, body)).ids

    async def text(self, ids: bytes, first: int, last: int) -> tuple[str, int]:
        return await self._tokenizer.text(ids, first, last)

    async def pieces(self, sent: Sent, ids: bytes) -> list[str] | None:
        if (told := await self._tokenizer.strings(sent.route, sent.body, ids)) is not None:
            return told
        if count(ids) > FEW:
            return None
        return [span.text for span in await self._tokenizer.pieces(ids, 0, count(ids))]
