"""Two captured turns as a replay sends them: their requests, how the new one went when it was live, and the repair
that is asked for, by the causes that `why` names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvtop.capture.api.canonical import encode
from kvtop.capture.turn import Captured, Route
from kvtop.errors import UsageError, printable
from kvtop.triage.casebook import Casebook
from kvtop.triage.changes import compare
from kvtop.triage.differ import Sent as Request
from kvtop.triage.fixes import FIXES, Repaired, repair, same_changes
from kvtop.triage.judge import read
from kvtop.triage.kinds import Kind
from kvtop.triage.replay import Sent
from kvtop.triage.replayed import Live
from kvtop.triage.result import Cause


@dataclass(frozen=True, slots=True)
class Pair:
    """What a replay sends."""

    sent: Sent
    repaired: Repaired | None = None
    live: Live = Live()
    old: str = ""
    new: str = ""
    """What they are called."""
    kinds: tuple[Kind, ...] = ()
    """Of the causes of this pair those that can be repaired, in the order of the prompt; empty: nobody looked."""


def kind_of(text: str) -> Kind:
    """The kind of cause of that name. Raises UsageError for one that has no repair."""
    if text not in {kind.value for kind in FIXES}:
        known = ", ".join(sorted(kind.value for kind in FIXES))
        raise UsageError(f"--fix {printable(text, 40)}: no kind of cause that can be repaired", f"these can: {known}")
    return Kind(text)


async def of_turns(cases: Casebook, new: Captured, old: Captured | None = None, kinds: Sequence[Kind] = ()) -> Pair:
    """`old`: None is the turn that `new` is compared with. `kinds`: repaired one after the other. Raises KvtopError,
    UsageError for what cannot be sent."""
    found = await cases.diff(new, old)
    base, expected = await cases.baseline(new)
    if old is None:
        old = base
    assert old is not None  # diff has raised where there is none
    best = expected.from_ if expected is not None and expected.from_ is not None else base.id if base else None
    live = Live(
        new.cached_tokens,
        old.completion_tokens,
        best if best != old.id else None,
        expected.tokens if expected is not None and expected.from_ is not None else None,
    )
    if old.started_at >= new.started_at or old.upstream != new.upstream:
        live = Live()  # nothing of it could be there when the new one came
    one, other = cases.sent(old), cases.sent(new)
    causes = found.diff.causes
    repaired = repaired_pair(kinds, one, other, causes=causes, version=cases.version)
    able = dict.fromkeys(cause.kind for cause in causes if cause.kind in FIXES)
    return Pair(sent(one, other), repaired, live, f"turn {old.id}", f"turn {new.id}", tuple(able))


def of_requests(old: Request, new: Request, kinds: Sequence[Kind] = ()) -> Pair:
    """Two requests that nobody captured. Raises UsageError."""
    return Pair(sent(old, new), repaired_pair(kinds, old, new), Live(), old.name, new.name)


def sent(old: Request, new: Request) -> Sent:
    """Raises UsageError where they went to different routes."""
    if old.route is not new.route:
        raise UsageError("the two turns went to different API routes", "replay two of one route")
    return Sent(new.route, old.body, new.body, old.prompt_tokens, new.prompt_tokens)


def repaired_pair(
    kinds: Sequence[Kind],
    old: Request,
    new: Request,
    *,
    causes: Sequence[Cause] | None = None,
    version: str | None = None,
) -> Repaired | None:
    """Both without these kinds of causes, one after the other. `causes`: as their conversation tells them; None: they
    are judged alone. Raises UsageError."""
    made: Repaired | None = None
    route, bodies, said = new.route, (old.body, new.body), []
    for kind in dict.fromkeys(kinds):
        known = None
        if causes is not None and any(cause.kind is kind for cause in causes):
            known = causes if made is None else _carried(causes, (old, new), bodies, route, version)
        made = repair(kind, *bodies, route, causes=known, version=version)
        route, bodies = made.route, (encode(made.old), encode(made.new))
        said.append(made.says)
    return replace(made, says=" and ".join(said)) if made is not None else None


def _carried(
    causes: Sequence[Cause],
    of: tuple[Request, Request],
    bodies: tuple[bytes, bytes],
    route: Route,
    version: str | None,
) -> list[Cause]:
    """The same causes, with the changes of a pair from which others were taken."""
    before = compare(of[0].prompt, of[1].prompt)
    after = compare(*(read(body, route, version) for body in bodies))
    return [replace(one, changes=frozenset(same_changes(before, after, one.changes))) for one in causes]
