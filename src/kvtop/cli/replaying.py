"""What a replay needs: the two requests, their server, and the repair that is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from kvtop import paths
from kvtop.capture.api.canonical import encode
from kvtop.capture.store.store import Store
from kvtop.cli.diff import request_of
from kvtop.cli.target import settings
from kvtop.cli.triaging import book, is_turn, newest, rate_of, target
from kvtop.errors import UsageError, printable
from kvtop.model.here import is_local
from kvtop.sources.url import normalise
from kvtop.triage.differ import Sent as Request
from kvtop.triage.fixes import FIXES, Repaired, repair
from kvtop.triage.kinds import Kind
from kvtop.triage.replay import Replay, Sent
from kvtop.triage.replay_server import ReplayServer
from kvtop.triage.replayed import Live


def _allowed(url: str, *, remote: bool) -> None:
    """Raises UsageError for a server that is not this machine, unless that is wanted."""
    shown = normalise(url)
    if not remote and not is_local(shown):
        raise UsageError(f"{shown} is not this machine", "--allow-remote sends the prompts there")


@asynccontextmanager
async def prepared(which: Sequence[str], *, url: str | None, fix: Sequence[str], remote: bool) -> AsyncIterator[Replay]:
    """Raises UsageError for what cannot be sent."""
    kinds = [_kind(one) for one in fix]
    files = [name for name in which if not is_turn(name)]
    if files and len(which) != 2:
        raise UsageError(f"'{printable(files[0], 60)}' is no id of a turn", "two files, or ids that kvtop turns lists")
    if url is not None:
        _allowed(url, remote=remote)
    live, rate = Live(), None
    if files:
        old, new = (request_of(name) for name in which)
        place = url or ""
    else:
        old, new, live, rate, place = await _captured([int(id) for id in which], url)
    if not place:
        raise UsageError("which server the requests went to is not known", "name it: --url http://127.0.0.1:8000")
    _allowed(place, remote=remote)
    to = target(place, settings())
    if old.route is not new.route:
        raise UsageError("the two turns went to different API routes", "replay two of one route")
    repaired = _repaired(kinds, old, new)
    server = ReplayServer(to.url, key=to.key)
    try:
        yield Replay(
            server,
            Sent(new.route, old.body, new.body, old.prompt_tokens, new.prompt_tokens),
            repaired=repaired,
            live=live,
            rate=rate,
        )
    finally:
        await server.aclose()


async def _captured(ids: Sequence[int], url: str | None) -> tuple[Request, Request, Live, float | None, str]:
    with Store.open(paths.turns_file()) as store:
        turn = store.turn(ids[-1]) if ids else newest(store)
        async with book(store, turn, url) as cases:
            new = cases.turn(ids[-1]) if ids else cases.latest()
            base = cases.turn(ids[0]) if len(ids) == 2 else await cases.base(new)
            live = Live(new.cached_tokens, base.completion_tokens)
            return cases.sent(base), cases.sent(new), live, rate_of(store, new), url or new.upstream


def _repaired(kinds: Sequence[Kind], old: Request, new: Request) -> Repaired | None:
    """Both without these kinds of causes, one after the other. Raises UsageError."""
    made: Repaired | None = None
    route, bodies, said = new.route, (old.body, new.body), []
    for kind in dict.fromkeys(kinds):
        made = repair(kind, *bodies, route)
        route, bodies = made.route, (encode(made.old), encode(made.new))
        said.append(made.says)
    return replace(made, says=" and ".join(said)) if made is not None else None


def _kind(fix: str) -> Kind:
    if fix not in {kind.value for kind in FIXES}:
        known = ", ".join(sorted(kind.value for kind in FIXES))
        raise UsageError(f"--fix {printable(fix, 40)}: no kind of cause that can be repaired", f"these can: {known}")
    return Kind(fix)
