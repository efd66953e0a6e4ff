"""What the screen needs of the collector below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kvtop.live.desk import Desk
from kvtop.model.shown_turn import TurnKey
from kvtop.model.view import BoxView

if TYPE_CHECKING:
    from kvtop.live.profiles import Profiles
    from kvtop.live.replaying import Offer
    from kvtop.live.verdicts import News
    from kvtop.triage.kinds import Kind
    from kvtop.triage.replayed import Replayed, Run
    from kvtop.triage.result import Why
    from kvtop.triage.sheet import Sheet


class Watching(Protocol):
    """Collects for as long as it runs, and can be asked at any moment what it knows."""

    async def run(self, changed: Callable[[], None]) -> None:
        """Collect until cancelled; `changed` is called whenever there is something new."""
        ...

    def view(self, window_key: str, selected: int = 0, engine: str | None = None) -> BoxView:
        """The box as it is known now. Cheap: called on the UI's loop."""
        ...

    def add_url(self, url: str) -> None:
        """Watch one more server."""
        ...

    def drop_url(self, url: str) -> None:
        """Watch that server no more. One that is not watched is no error."""
        ...

    def opened(self, url: str, turn: TurnKey) -> None:
        """Its user has looked at this turn: the sentence need not speak of it any more."""
        ...


@runtime_checkable
class Capturing(Protocol):
    """A collector that knows of taps and of the turns that they captured."""

    desk: Desk


@runtime_checkable
class Profiling(Protocol):
    """A collector that knows of profiles."""

    profiles: Profiles | None
    """None: there are none here, as in the demo."""

    def watch_profile(self, name: str) -> None:
        """Its server is what the user wants to see, from its start on."""
        ...


@runtime_checkable
class Comparing(Protocol):
    """A desk that can lay the prompt of a captured turn beside the one that it should have been continued from."""

    async def sheet(self, turn_id: int) -> Sheet:
        """Both prompts. Raises KvtopError where one of them is not kept, or there is none to compare with."""
        ...


@runtime_checkable
class Explaining(Protocol):
    """A desk that can tell why a captured turn took its time."""

    async def why(self, id: int) -> Why:
        """Worked out now where it was not yet. Raises KvtopError where it cannot be."""
        ...


class Sending(Protocol):
    """What replays two turns. Every method but `so_far` raises KvtopError; cancelling one ends its work."""

    async def offer(self, id: int, kinds: Sequence[Kind] = ()) -> Offer:
        """What it would send of this turn and the one that it is compared with, and what that costs."""
        ...

    async def send(self, offer: Offer, told: Callable[[Run], None]) -> Replayed: ...

    def so_far(self) -> Replayed | None:
        """What was sent, where the last one was broken off."""
        ...


@runtime_checkable
class Replays(Protocol):
    """A desk that can send a captured turn once more, with the one before it."""

    replaying: Sending | None


@runtime_checkable
class Telling(Protocol):
    """A collector that has something to say once."""

    def news(self) -> Sequence[News]:
        """Since the last call."""
        ...


@runtime_checkable
class Recording(Protocol):
    """A collector that also remembers: what the history screen draws."""

    def series(self, name: str, span_s: float, columns: int, selected: int = 0) -> Sequence[float | None]:
        """Equal columns of time that end now, oldest first; None is a gap. Of all engines of the server together."""
        ...
