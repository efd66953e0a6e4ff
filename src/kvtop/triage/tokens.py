"""The token ids of a prompt, as near to what the server used as they can be had.

In this order: ids that came with the answer or in the request, the server's own render routes, /tokenize. The count is
held against `usage`. Prompts are sent to the server that is named: whether it may have them (a loopback address, or one
that the user gave) is the caller's to decide.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kvtop.capture.api.canonical import decode, encode, object_of
from kvtop.capture.turn import Route
from kvtop.errors import KvtopError
from kvtop.triage import ids as packed
from kvtop.triage import payloads, pieces, prompted, vocabulary
from kvtop.triage.convert import Converted, convert, render_inputs
from kvtop.triage.convert import version as v
from kvtop.triage.memory import Memory
from kvtop.triage.pieces import Span
from kvtop.triage.prompted import ASKED, SERVED, Found, Media, Prompted, checked
from kvtop.triage.served import served

if TYPE_CHECKING:
    from kvtop.sources.http import Answer

__all__ = ["ASKED", "SERVED", "Media", "Memory", "Prompted", "Span", "Tokenizer"]

_T = TypeVar("_T")

_FOREIGN = "approximate: the server has no model of that name, and its own was asked"
_BY_TEMPLATE = "approximate: before 0.33 /tokenize renders gpt-oss by a template, which the chat route does not"
_ITEMS = "approximate: for gpt-oss the responses route renders its items otherwise than the chat route its messages"


class Tokenizer:
    """Asks one server for the tokens of prompts, and keeps what it said.

    `url` as typed, `key` gives the API key or None, `timeout_s` counts for each call. Several may share a `memory`.
    Raises UsageError for a URL that is none. Whatever asks raises KvtopError (what, where, what to do) when the server
    is dead, slow, refuses, or is no vLLM; nothing of a prompt stands in it.
    """

    def __init__(
        self,
        url: str,
        *,
        key: Callable[[], str | None] = lambda: None,
        timeout_s: float = 30.0,
        memory: Memory | None = None,
    ) -> None:
        # Late: who only judges texts needs no HTTP.
        from kvtop.triage.learned import Learned
        from kvtop.triage.server import Server

        self._server = Server(url, key=key, timeout_s=timeout_s)
        self._learned = Learned(self._server)
        self._memory = memory if memory is not None else Memory()

    def __repr__(self) -> str:
        return f"Tokenizer({self._server.url!r})"

    @property
    def url(self) -> str:
        """Fit to be shown."""
        return self._server.url

    @property
    def calls(self) -> int:
        """Requests made so far."""
        return self._server.calls

    @property
    def waits(self) -> bool:
        """A request is on its way."""
        return self._server.waits

    async def aclose(self) -> None:
        await self._server.aclose()

    def forget(self) -> None:
        """Nothing that this server said holds any more: it was started anew, say."""
        self._learned.forget()
        self._memory.drop(self.url)

    async def ids(
        self,
        route: Route,
        body: bytes,
        answer: bytes | None = None,
        usage_tokens: int | None = None,
        *,
        fresh: bool = False,
    ) -> Prompted:
        """The tokens of a request's prompt.

        `body` and `answer` as they were sent, unpacked; `usage_tokens`: the whole prompt, cached tokens included.
        `fresh`: ask, whatever is remembered. Raises KvtopError.
        """
        told = served(route, answer or b"")
        if told.prompt is not None:
            return checked(Found(told.prompt), SERVED, usage_tokens, told.reply)
        try:
            document = decode(body)
            made = convert(route, document)
            key = payloads.digest(route, made, render_inputs(route, document))
        except ValueError:
            raise KvtopError("the request's body is no JSON that can be read", "its prompt cannot be known") from None
        if isinstance(made.prompt, list):
            return checked(Found(packed.pack(made.prompt), made.approximate), SERVED, usage_tokens, told.reply)
        if made.chat is None and made.prompt is None:
            why = made.approximate[0] if made.approximate else "it has none"
            raise KvtopError(f"the request's prompt cannot be rendered: {why}", "its body is not what this route takes")
        known = None if fresh else self._memory.get(self.url, key)
        if not isinstance(known, Found) or not (known.settled or usage_tokens in (None, known.count)):
            request = _Request(route, body, document, made)
            known = await self._render(request, usage_tokens) or await self._tokenize(request, usage_tokens)
            self._memory.put(self.url, key, known, len(known.ids) + 200 * (1 + len(known.media)))
        return checked(known, ASKED, usage_tokens, told.reply)

    async def text(self, ids: bytes, first: int, last: int) -> Span:
        """The text of the tokens first to last (not included), and the byte of the rendered prompt at which it begins.

        A character over several tokens belongs to the one that completes it. Raises KvtopError.
        """
        return await pieces.text(self._say, ids, first, last)

    async def pieces(self, ids: bytes, first: int, last: int) -> list[Span]:
        """The same of each single token; their texts joined are the `text` of the range. Raises KvtopError."""
        return await pieces.pieces(self._say, self._words, ids, first, last)

    async def strings(self, route: Route, body: bytes, ids: bytes) -> list[str] | None:
        """The text of every token of a request whose ids these are, in two calls; None where the server does not tell
        their names, or tokenises it otherwise. Raises KvtopError."""
        document = decode(body)
        made = convert(route, document)
        if isinstance(made.prompt, str):
            asked = [payloads.tokenize_text(made.prompt, document)]
        elif made.chat is None:
            return None
        else:
            version = await self._learned.version()
            ways = await self._ways(_Request(route, body, document, made))
            chats = [chat for way in ways for chat in _with_and_without_tools(way.chat or {})]
            asked = [payloads.tokenize_chat(chat, version) for chat in chats]
        for one in asked:
            answer = await self._server.post("/tokenize", one[:-1] + b',"return_token_strs":true}')
            found = prompted.named(answer) if answer.status == 200 else None
            if found is not None and packed.pack(found[0]) == ids:
                return vocabulary.texts(found[1], await self._say(found[0]))
        return None

    async def _render(self, request: _Request, usage: int | None) -> Found | None:
        """From the render routes; None where they are closed, or refuse it for another reason than its length."""
        own = payloads.RENDER.get(request.route)
        if own is not None and not await self._misrenders(request):
            found = await self._rendered(own, payloads.without_media(request.body))
            if found is not None:
                return replace(found, settled=True)
        chat = payloads.RENDER[Route.CHAT]
        if request.route is Route.CHAT or request.made.chat is None or not self._learned.is_open(chat):
            return None
        best: Found | None = None
        for made in await self._ways(request):
            found = await self._rendered(chat, payloads.render_chat(made.chat or {}))
            if found is None:
                break
            found = replace(found, doubts=(*made.approximate, *_harmony_items(request)))
            if usage in (None, found.count):
                return found
            best = best or replace(found, settled=True)
        return best

    async def _misrenders(self, request: _Request) -> bool:
        """Below 0.33 the messages route's render takes thinking of type disabled for `none`, whatever the template
        wants."""
        return request.disabled and not v.at_least(await self._learned.version(), v.HARMONY_TOKENIZE)

    async def _rendered(self, path: str, body: bytes) -> Found | None:
        from kvtop.triage.server import no_such_model, too_long

        if not self._learned.is_open(path):
            return None
        answer = await self._server.post(path, body)
        if too_long(answer) or answer.status == 503:
            raise self._server.failed(path, answer)
        if no_such_model(answer) or self._learned.closed(path, answer.status) or answer.status != 200:
            return None
        found = prompted.rendered(answer)
        if found is None:
            raise self._server.not_vllm(path)
        return found

    async def _tokenize(self, request: _Request, usage: int | None) -> Found:
        if isinstance(request.made.prompt, str):
            found = await self._tokenized(payloads.tokenize_text(request.made.prompt, request.document))
            return replace(found, doubts=(*found.doubts, *request.made.approximate), settled=True)
        best: Found | None = None
        version = await self._learned.version()
        for made in await self._ways(request):
            for chat in _with_and_without_tools(made.chat or {}):
                found = await self._tokenized(payloads.tokenize_chat(chat, version))
                doubts = (*found.doubts, *made.approximate, *_harmony(request, version))
                pictures = tuple(Media(digest.hex()) for _, digest in payloads.media(chat))
                found = replace(found, doubts=doubts, media=pictures)
                if usage in (None, found.count):
                    return found
                best = best or replace(found, settled=True)
        assert best is not None  # there is always one way
        return best

    async def _tokenized(self, body: bytes) -> Found:
        """/tokenize of a body; where the server does not know the model's name, of its own model."""
        from kvtop.triage.server import no_such_model

        path = "/tokenize"
        answer = await self._server.post(path, body)
        foreign = no_such_model(answer)
        if foreign:
            unnamed = {key: value for key, value in object_of(decode(body)).items() if key != "model"}
            answer = await self._server.post(path, encode(unnamed))
        found = self._good(path, answer, prompted.tokens)
        try:
            return Found(packed.pack(found), (_FOREIGN,) if foreign else ())
        except ValueError:
            raise self._server.not_vllm(path) from None

    async def _ways(self, request: _Request) -> list[Converted]:
        """The chat requests that the server may make of it, the most likely first."""
        if request.route is Route.CHAT:
            return [request.made]
        version = await self._learned.version()
        if not request.system_turns and not request.disabled and v.at_least(version, v.TOOL_CHANGES):
            return [request.made]
        merge = await self._learned.merges_system(request.document.get("model")) if request.system_turns else None
        effort = await self._learned.disabled_effort() if request.disabled else "none"
        ways = [(merge, effort)]
        if request.system_turns and v.at_least(version, v.SYSTEM_IN_PLACE):
            ways.append((not merge, effort))
        if request.disabled and v.at_least(version, v.DISABLED_THINKING):
            ways.append((merge, "low" if effort == "none" else "none"))
        return [
            convert(request.route, request.document, version=version, merge_system=merge, disabled_effort=effort)
            for merge, effort in ways
        ]

    async def _say(self, ids: list[int]) -> str:
        """The text of some tokens."""
        path = "/detokenize"
        key = hashlib.blake2b(packed.pack(ids), digest_size=16, person=b"say").digest()
        known = self._memory.get(self.url, key)
        if not isinstance(known, str):
            answer = await self._server.post(path, msgspec.json.encode({"tokens": ids}))
            known = self._good(path, answer, prompted.said)
            self._memory.put(self.url, key, known, 200 + 4 * len(known))
        return known

    async def _words(self, text: str) -> list[int]:
        """The ids of a short text, as it would stand in the middle of a prompt."""
        key = b"words" + text.encode()
        known = self._memory.get(self.url, key)
        if not isinstance(known, list):
            body = payloads.tokenize_text(text, {"add_special_tokens": False})
            known = packed.unpack((await self._tokenized(body)).ids)
            self._memory.put(self.url, key, known, 200 + 40 * len(known))
        return known

    def _good(self, path: str, answer: Answer, read: Callable[[Answer], _T | None]) -> _T:
        if answer.status != 200:
            raise self._server.failed(path, answer)
        found = read(answer)
        if found is None:
            raise self._server.not_vllm(path)
        return found


@dataclass(frozen=True, slots=True)
class _Request:
    """A request whose prompt a server has to be asked for."""

    route: Route
    body: bytes = field(repr=False)
    document: dict[str, Any] = field(repr=False)
    made: Converted = field(repr=False)
    """As the newest version makes it."""

    @property
    def system_turns(self) -> bool:
        turns = self.document.get("messages") if self.route is Route.MESSAGES else None
        return isinstance(turns, list) and any(object_of(turn).get("role") == "system" for turn in turns)

    @property
    def disabled(self) -> bool:
        """Thinking, by name."""
        return self.route is Route.MESSAGES and object_of(self.document.get("thinking")).get("type") == "disabled"

    @property
    def is_oss(self) -> bool:
        """It names a gpt-oss model: those are rendered by Harmony."""
        return re.search(r"gpt[-_]?oss", str(self.document.get("model"))[:500], re.IGNORECASE) is not None


def _with_and_without_tools(chat: dict[str, Any]) -> list[dict[str, Any]]:
    """Servers with --exclude-tools-when-tool-choice-none leave the tools out then."""
    if chat.get("tool_choice") != "none" or not chat.get("tools"):
        return [chat]
    return [chat, {key: value for key, value in chat.items() if key != "tools"}]


def _harmony(request: _Request, version: str | None) -> tuple[str, ...]:
    if request.is_oss and not v.at_least(version, v.HARMONY_TOKENIZE):
        return (_BY_TEMPLATE,)
    return _harmony_items(request)


def _harmony_items(request: _Request) -> tuple[str, ...]:
    return (_ITEMS,) if request.is_oss and request.route is Route.RESPONSES else ()
