"""Prompts are sent to a server while it has nothing else to do, where that comes soon enough."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtop.live.work import Work

if TYPE_CHECKING:
    from kvtop.triage.differ import Counted, Sent, Server
    from kvtop.triage.prompt import Prompt

TICK_S = 0.1
QUIET_S = 0.6
"""It has to have had nothing to do for so long, at first: between two requests of an agent it is idle for less."""
PATIENCE_S = 10.0
"""Nobody waits longer for that, all calls for one turn together."""


@dataclass
class Gate:
    """Written on the dashboard's loop, read in another thread."""

    busy: bool = False
    """Something runs on the server, or waits there."""
    hurry: bool = False
    """Somebody looks at an empty page meanwhile."""
    work: Work = field(default_factory=Work)
    """What is done for it, which can be given up."""


class Patient:
    """As `Server`; each call waits for the gate first."""

    def __init__(self, server: Server, gate: Gate, patience_s: float = PATIENCE_S) -> None:
        self._server, self._gate, self._left_s = server, gate, patience_s
        self._quiet_s = 0.0

    async def counted(self, sent: Sent) -> Counted:
        await self._quiet()
        return await self._server.counted(sent)

    async def of(self, prompt: Prompt) -> bytes:
        await self._quiet()
        return await self._server.of(prompt)

    async def again(self, sent: Sent) -> bytes:
        await self._quiet()
        return await self._server.again(sent)

    async def text(self, ids: bytes, first: int, last: int) -> tuple[str, int]:
        await self._quiet()
        return await self._server.text(ids, first, last)

    async def pieces(self, sent: Sent, ids: bytes) -> list[str] | None:
        await self._quiet()
        return await self._server.pieces(sent, ids)

    async def _quiet(self) -> None:
        while self._left_s > 0 and not self._gate.hurry:
            self._quiet_s = 0.0 if self._gate.busy else self._quiet_s
            if not self._gate.busy and self._quiet_s >= QUIET_S:
                return
            await asyncio.sleep(TICK_S)
            self._left_s -= TICK_S
            self._quiet_s += TICK_S
