"""What a key of the profiles' page asks before it asks its user: who stands in the way, how many requests run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtop.errors import UsageError
from kvtop.live.profile_view import Foreign
from kvtop.sources.exposition import Reader
from kvtop.sources.http import HttpClient, HttpFailure
from kvtop.sources.url import authority, normalise, parse

if TYPE_CHECKING:
    from kvtop.profiles.folder import Entry
    from kvtop.profiles.running.record import Record
    from kvtop.profiles.standing import Standing

COUNT_S = 1.5
"""For one GET of /metrics."""
_MOST_BYTES = 8_000_000
_RUNNING = "vllm:num_requests_running"


@dataclass(frozen=True, slots=True)
class InTheWay:
    """A server that kvtop did not start, and that holds what a profile needs."""

    server: Foreign
    holds: str
    """`port 8000 and GPU 0`."""


def in_the_way(entry: Entry, entries: Iterable[Entry]) -> tuple[InTheWay, ...]:
    """As `kvtop profile switch` finds them; blocks. Raises UsageError where the profile cannot be used."""
    from kvtop.profiles.check import obstacles
    from kvtop.profiles.check.facts import gather
    from kvtop.profiles.match import launches
    from kvtop.profiles.running import adopt

    others = {one.who.pid: one for one in adopt.foreign(launches(entries))}
    if not others:
        return ()
    found = obstacles.in_the_way(gather(entry, ask_vllm=False))
    return tuple(
        InTheWay(Foreign(server.pid, others[server.pid].port, others[server.pid].profile), holds)
        for server, holds in found
        if server.pid in others
    )


def logged(row: Standing) -> Record | None:
    """Whose log is shown: that of its last start, or of the sidecar that it came no further than; of a server that
    kvtop did not start the file that its output goes to, or what its unit has in the journal. None: there is none that
    may be read."""
    if row.state != "foreign" or row.pid is None:
        return row.record.at_sidecar() if row.record is not None else None
    from kvtop.profiles.running.adopt import log_of

    return log_of(row.name, row.pid, row.known.launch, row.since)


def family(row: Standing) -> frozenset[int]:
    """The processes of a server that is about to be ended, as they are now; blocks."""
    from kvtop.profiles.running import family as families
    from kvtop.profiles.running import look
    from kvtop.profiles.running.record import Who

    if row.state == "foreign":
        who = Who.of(row.pid) if row.pid is not None else None
        return frozenset(one.pid for one in families.look(who, session=False)) if who is not None else frozenset()
    state = look.look(row.name).record
    if state is None:
        return frozenset()
    found = {who.pid for who in state.family}
    # One that has just been started has processes that its record does not know yet.
    if state.server is not None:
        found |= {who.pid for who in families.look(state.server, state.family)}
    if state.keeper is not None and state.keeper.lives:
        found |= {who.pid for who in families.look(state.keeper, session=False)}
    return frozenset(found)


def url_of(row: Standing) -> str:
    """Where its server answers, or will when it is started; empty where that is not known."""
    return _normal(row.facts.url) or (url_of_start(row.record) if row.record is not None else "")


def url_of_next(row: Standing) -> str:
    """Where it will answer when it is started, or started afresh, as its file is now; empty where that is not known."""
    return _normal(row.known.url) or url_of(row)


def url_of_start(state: Record) -> str:
    """Where its server answered, or was to answer."""
    return _normal(f"http://{authority(state.host, state.port)}")


def _normal(url: str) -> str:
    try:
        return normalise(url) if url else ""
    except UsageError:
        return ""


async def running(url: str) -> int | None:
    """Requests under way at the server there, by one GET of its /metrics; None where it does not tell."""
    try:
        client = HttpClient(parse(url), timeout_s=COUNT_S, max_bytes=_MOST_BYTES)
    except (UsageError, ValueError):
        return None
    try:
        answer = await client.get("/metrics")
    except HttpFailure:
        return None
    finally:
        await client.aclose()
    if answer.status != 200:
        return None
    scrape = Reader(lambda name: name == _RUNNING).read(answer.body.decode("utf-8", "replace"))
    counts = [value for (name, _), value in scrape.values.items() if name == _RUNNING]
    whole = [round(one) for one in counts if 0 <= one < 1e9]
    return sum(whole) if whole and len(whole) == len(counts) else None
