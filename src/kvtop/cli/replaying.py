"""What a replay needs: the two requests, their server, and the repair that is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kvtop import paths
from kvtop.capture.store.store import Store
from kvtop.cli.diff import request_of
from kvtop.cli.stdio import tell
from kvtop.cli.target import settings
from kvtop.cli.triaging import book, files_of, newest, rate_of, target
from kvtop.errors import UsageError
from kvtop.triage.kinds import Kind
from kvtop.triage.replay import Replay
from kvtop.triage.replay_notes import Notes
from kvtop.triage.replay_pair import Pair, kind_of, of_requests, of_turns
from kvtop.triage.replay_server import ReplayServer, allowed


@asynccontextmanager
async def prepared(which: Sequence[str], *, url: str | None, fix: Sequence[str], remote: bool) -> AsyncIterator[Replay]:
    """Raises UsageError for what cannot be sent."""
    kinds = [kind_of(one) for one in fix]
    files = files_of(which)
    if url is not None:
        allowed(url, remote=remote)
    rate = None
    if files:
        pair, place = of_requests(request_of(which[0]), request_of(which[1]), kinds), url or ""
    else:
        pair, rate, place = await _captured([int(id) for id in which], url, kinds, remote=remote)
    if not place:
        raise UsageError("which server the requests went to is not known", "name it: --url http://127.0.0.1:8000")
    allowed(place, remote=remote)
    to = target(place, settings())
    server = ReplayServer(to.url, key=to.key)
    notes = Notes(lambda why: tell(f"kvtop: {why}"))
    try:
        yield Replay(server, pair.sent, repaired=pair.repaired, live=pair.live, rate=rate, noted=notes.write)
    finally:
        await server.aclose()


async def _captured(
    ids: Sequence[int], url: str | None, kinds: Sequence[Kind], *, remote: bool
) -> tuple[Pair, float | None, str]:
    with Store.open(paths.turns_file()) as store:
        turn = store.turn(ids[-1]) if ids else newest(store)
        if url is None and turn is not None and turn.upstream:
            allowed(turn.upstream, remote=remote)  # before a prompt goes there to be counted
        async with book(store, turn, url, remote=remote) as cases:
            new = cases.turn(ids[-1]) if ids else cases.latest()
            old = cases.turn(ids[0]) if len(ids) == 2 else None
            return await of_turns(cases, new, old, kinds), rate_of(store, new), url or new.upstream
