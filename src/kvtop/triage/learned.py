"""What is found out of one server: its version, the routes that it has, what its chat template wants."""

from __future__ import annotations

import asyncio
import time

import msgspec

from kvtop.capture.turn import Route
from kvtop.triage import payloads
from kvtop.triage.convert import convert
from kvtop.triage.convert import version as v
from kvtop.triage.prompted import counted, tokens
from kvtop.triage.server import CLOSED, Server, no_such_model

HOLDS_S = 300.0
"""Seconds after which all of it is asked again: a server may have been started anew."""

_TALK = (
    {"role": "user", "content": "b"},
    {"role": "system", "content": "c"},
    {"role": "user", "content": "d"},
)
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class Learned:
    """Asks each thing once, when it is needed. All methods raise KvtopError where the server does not answer."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._asking = asyncio.Lock()
        self.forget()

    def forget(self) -> None:
        """Nothing that was found out holds any more."""
        self._since = time.monotonic()
        self._closed: set[str] = set()
        self._version: tuple[str | None] | None = None
        self._merges: tuple[bool | None] | None = None
        self._effort: str | None = None

    def is_open(self, path: str) -> bool:
        """A route may be there: nothing speaks against it so far."""
        if time.monotonic() - self._since > HOLDS_S:
            self.forget()
        return path not in self._closed

    def closed(self, path: str, status: int) -> bool:
        """Whether an answer's status says that there is no such route, or not for this client; if so, note it."""
        if status in CLOSED:
            self._closed.add(path)
        return status in CLOSED

    async def version(self) -> str | None:
        """What /version says."""
        async with self._asking:
            return await self._known_version()

    async def _known_version(self) -> str | None:
        if self._version is None:
            self._version = (await self._server.version(),)
        return self._version[0]

    async def merges_system(self, model: object) -> bool | None:
        """Whether later system turns of the messages route go into the first one; None: it could not be found out.

        The server decides it by its template when it starts. What it counts for a small request is held against the
        counts of both forms.
        """
        async with self._asking:
            if self._merges is None:
                self._merges = (await self._ask_merges(model),)
            return self._merges[0]

    async def _ask_merges(self, model: object) -> bool | None:
        probe = {"model": model, "max_tokens": 1, "system": "a", "messages": list(_TALK)}
        merged, in_place = [await self._length(probe, merge) for merge in (True, False)]
        if in_place is None and merged is not None:
            return True  # its template refuses a later system turn
        path = "/v1/messages/count_tokens"
        answer = await self._server.post(path, msgspec.json.encode(probe))
        count = counted(answer) if answer.status == 200 else None
        return None if merged == in_place or count not in (merged, in_place) else count == merged

    async def _length(self, probe: dict[str, object], merge: bool) -> int | None:
        version = await self._known_version()
        chat = convert(Route.MESSAGES, probe, version=version, merge_system=merge).chat or {}
        found = await self._tokens(chat, version)
        return len(found) if found is not None else None

    async def disabled_effort(self) -> str:
        """The reasoning effort that stands for thinking of type disabled (since 0.31): the server takes `low` where its
        template refuses `none`, or shows it as it shows another one."""
        async with self._asking:
            if self._effort is None:
                self._effort = await self._ask_effort()
            return self._effort

    async def _ask_effort(self) -> str:
        version = await self._known_version()
        if not v.at_least(version, v.DISABLED_THINKING):
            return "none"

        async def shown(effort: str) -> list[int] | None:
            hi = {"role": "user", "content": "Hi"}
            return await self._tokens({"messages": [hi], "reasoning_effort": effort}, version)

        none = await shown("none")
        if none is None:
            return "low"
        for effort in _EFFORTS:
            if await shown(effort) == none:
                return "low"
        return "none"

    async def _tokens(self, chat: dict[str, object], version: str | None) -> list[int] | None:
        """/tokenize of a small chat request; None where its template refuses it."""
        answer = await self._server.post("/tokenize", payloads.tokenize_chat(chat, version))
        if no_such_model(answer):
            answer = await self._server.post("/tokenize", payloads.tokenize_chat(chat | {"model": None}, version))
        return tokens(answer) if answer.status == 200 else None
