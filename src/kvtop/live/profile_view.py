"""What the loop over the profiles hands to the screen. Nothing of the profiles' own floor is imported for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from kvtop.model.starting import LIVE

if TYPE_CHECKING:
    from kvtop.profiles.folder import Entry
    from kvtop.profiles.standing import Standing
    from kvtop.readings import VllmProcess


class Figures(msgspec.Struct, frozen=True):
    """What the dashboard saw of a profile's server when it was last asked anything."""

    at: float
    """Unix time."""
    share: float | None = None
    """Of the prompt tokens in a window, those from a cache."""
    requests: int | None = None
    ttft_p50_s: float | None = None


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log."""

    lines: tuple[str, ...] = ()
    where: str = ""
    """A path, or the tool that shows it."""
    of: str = ""
    """The profile."""
    since: float | None = None
    """Unix time of the start that it is of; None: it is not kvtop's."""
    polls: int = 0
    """Lines that only tell of answered polls, and were left out among these."""


@dataclass(frozen=True, slots=True)
class Attached:
    """What came of asking a server that kvtop only watches."""

    answers: bool
    says: str
    """`10.0.0.7:8000 answers`; why it does not."""
    at: float


@dataclass(frozen=True, slots=True)
class Foreign:
    """A server that kvtop did not start."""

    pid: int
    port: int | None = None
    profile: str = ""
    """Whose command line it has."""
    listens: bool = True
    """It is seen to listen on a port. False also where that cannot be seen: it may load still."""

    @property
    def words(self) -> str:
        """`process 123 on port 8000`."""
        return f"process {self.pid}" + (f" on port {self.port}" if self.port is not None else "")


@dataclass(frozen=True, slots=True)
class ProfilesView:
    """The profiles at one moment."""

    at: float | None = None
    """Unix time; None: not looked yet."""
    where: str = ""
    """The folder."""
    rows: tuple[Standing, ...] = ()
    error: str = ""
    """Why the folder cannot be read."""
    tail: Tail = Tail()
    """Of the one that starts, else of the one that is looked at."""
    foreign: tuple[Foreign, ...] = ()
    """Servers of this machine, outside of containers, that kvtop did not start."""
    figures: dict[str, Figures] | None = None
    attached: dict[str, Attached] | None = None
    strangers: tuple[Standing, ...] = ()
    """Those of `foreign` that run what no profile says, each named by its process."""
    busy: bool = False
    """Some kvtop starts, stops or switches."""

    @property
    def listed(self) -> tuple[Standing, ...]:
        """What a list shows: profiles, and below them servers of none."""
        return (*self.rows, *self.strangers)

    def row(self, name: str) -> Standing | None:
        return next((row for row in self.listed if row.name == name), None)

    @property
    def live(self) -> tuple[Standing, ...]:
        """Those whose server kvtop started, and that starts, runs or stops."""
        return tuple(row for row in self.rows if row.state in LIVE)

    @property
    def starting(self) -> Standing | None:
        return next((row for row in self.rows if row.state == "starting"), None)

    @property
    def last_used(self) -> Standing | None:
        """The one that was started last."""
        used = [row for row in self.rows if row.record is not None]
        return max(used, key=lambda row: row.record.started_at if row.record else 0.0, default=None)


class Looking(Protocol):
    """What the loop needs; all of it blocks."""

    def look(self, chosen: str | None, processes: Sequence[VllmProcess]) -> ProfilesView:
        """`chosen`: the profile that is looked at, None while nobody looks at any."""
        ...

    def entry(self, name: str) -> Entry | None: ...

    def keep(self, figures: dict[str, Figures]) -> None:
        """Remember these beyond the end of kvtop."""
        ...
