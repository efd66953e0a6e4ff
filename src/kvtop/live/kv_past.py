"""What a server still has of its KV events, read once: for a command that was not there when they came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from kvtop.live.kv_events import NO_ZMQ, places
from kvtop.readings import KvMessage, KvPublisher
from kvtop.triage.kv_events import decode
from kvtop.triage.kv_facts import Past, Told, Unheard
from kvtop.triage.residency import Residency

ALL_S = 10.0
SILENT_S = 1.0
"""A replay that says nothing for so long is over."""
NOT_KEPT = (
    "KV events are published and not kept: with a replay_endpoint in --kv-events-config, or with kvtop open meanwhile, "
    "they would tell it exactly"
)
SAID_NOTHING = "the replay endpoint of the KV events told nothing"


async def past(
    probe: Callable[[str], Awaitable[tuple[int, bytes]]],
    command: Sequence[str] = (),
    configured: str = "",
    *,
    here: bool = True,
) -> Told | None:
    """As `kvtop.live.kv_events.places`; None where nothing is published."""
    found = await places(probe, command, configured, here=here)
    if not found.publishers:
        return Unheard(found.problems[0]) if found.problems else None
    publisher = next((one for one in found.publishers if one.replay is not None), None)
    if publisher is None:
        return Unheard(NOT_KEPT)
    try:
        index = await _read(publisher)
    except ImportError:
        return Unheard(NO_ZMQ)
    return Unheard(SAID_NOTHING) if index is None else Past(index)


async def _read(publisher: KvPublisher) -> Residency | None:
    """Raises ImportError."""
    from kvtop.sources.kv_events import KvEventSource

    index, heard, known_to = Residency(), False, 0.0
    stream = KvEventSource(publisher).stream()
    try:
        async with asyncio.timeout(ALL_S):
            while True:
                try:
                    item = await asyncio.wait_for(anext(stream), SILENT_S)
                except TimeoutError:
                    known_to = time.time()  # all that it had was said
                    break
                if isinstance(item, KvMessage):
                    batch = decode(item.seq, item.payload, item.rank)
                    heard, known_to = index.feed(batch) or heard, batch.at
    except (TimeoutError, ValueError, OSError, StopAsyncIteration):
        pass
    finally:
        await stream.aclose()
    if not heard:
        return None
    index.suspended(known_to)  # of what came later nothing is known
    return index
