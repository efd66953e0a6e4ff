"""What there is to judge one turn by, as values. Unknown is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvtop.capture.api.answers import tells_cached
from kvtop.capture.slow import LOST_TOKENS, UNIT_TOKENS, expected_s
from kvtop.capture.turn import Captured, possible
from kvtop.model.judge import Thresholds
from kvtop.model.own import OwnRequest
from kvtop.model.shown_turn import CONTINUES
from kvtop.model.timing import waited_s
from kvtop.triage.cost import cost_s
from kvtop.triage.engine import Layers
from kvtop.triage.result import Diff, Tokens
from kvtop.triage.reuse import Expected


@dataclass(frozen=True, slots=True)
class Server:
    """What the server is."""

    unit: int | None = None
    """Tokens that a prefix is matched in multiples of."""
    pool_tokens: int | None = None
    """What its KV pool holds, all engines together."""
    version: str | None = None
    engines: int | None = None
    """Data-parallel ranks."""
    layers: Layers | None = None
    offload: bool | None = None
    """A tier behind the device is configured."""
    tier_bytes: int | None = None
    lasting_tier: bool | None = None
    """It outlives the process: a disk, or a store of another process."""
    hash_algorithm: str | None = None
    """The label prefix_caching_hash_algo."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A block of this turn's prefix left a tier."""

    at: float
    """Unix time."""
    tier: str
    """GPU is the device."""
    end_tokens: int
    """Where in the prompt it ends."""


@dataclass(frozen=True, slots=True)
class KvFacts:
    """What KV events tell of this turn's prefix, from the end of the turn that left it to its own arrival."""

    complete: bool = False
    """No message of that time was missed: what is not told did not happen."""
    gone: tuple[Gone, ...] = ()
    cleared_at: tuple[float, ...] = ()
    """When all of the device was cleared at once by a reset."""
    held: int = 0
    """Leading tokens of it that are known to have lain on the device when that time began."""
    on_device: int | None = None
    """Leading tokens of it that lay on the device when it came."""
    anywhere: int | None = None
    """The same of the device and the tiers behind it together."""
    short: str = ""
    """Why it is not `complete`, in words."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One turn and what was seen around it."""

    turn: Captured
    """With its samples."""
    baseline: Captured | None = None
    """The turn that it is compared with, with its samples (`kvtop.triage.baseline`)."""
    others: tuple[Captured, ...] = ()
    """Other turns of that upstream before it, while it ran and after it."""
    expected: Expected | None = None
    diff: Diff | None = None
    """Of the baseline and this turn."""
    server: Server = field(default_factory=Server)
    events: KvFacts | None = None
    rate: float | None = None
    """Prompt tokens that the server computes in a second."""
    limits: Thresholds = field(default_factory=Thresholds)
    exact: bool = True
    """The ids are those that the server used; else they are allowed to be wrong by one unit."""
    replays: tuple[OwnRequest, ...] = ()
    """What kvtop's own replays asked of its server, oldest first."""
    shared: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Of two turns (the smaller number first): tokens that both begin with, no fewer than there are. Not listed: not
    known."""

    def cost_s(self, tokens: int | None) -> float | None:
        """Seconds of its wait that so many of its new tokens took to read; None: not known."""
        return cost_s(self.turn, tokens, self.rate)

    @property
    def cached(self) -> int | None:
        """As the server told it; None also for a number that cannot be true."""
        return possible(self.turn.cached_tokens, self.turn.prompt_tokens)

    @property
    def untrue(self) -> bool:
        """The server told a number of cached tokens, and it cannot be true."""
        return self.cached is None and (self.turn.cached_tokens is not None or tells_cached(self.turn.usage))

    @property
    def unit(self) -> int:
        return self.server.unit or UNIT_TOKENS

    @property
    def arrived(self) -> float:
        return self.turn.sent_at or self.turn.started_at

    @property
    def admitted(self) -> float:
        """When the engine took it in and looked into its cache: after the queue, as far as that is known."""
        return self.arrived + (self.turn.queue_s or 0.0)

    @property
    def ttft(self) -> float | None:
        return waited_s(self.turn)

    @property
    def lost(self) -> int:
        """Tokens that it should have had for certain, and did not get; 0 also where that is not known."""
        if self.expected is None or self.cached is None:
            return 0
        tolerance = 0 if self.exact else self.unit
        missing = self.expected.tokens - self.cached
        return missing if missing > tolerance else 0

    @property
    def goes_on(self) -> bool:
        """It continues the turn that it is compared with: what it has from there should be the same."""
        turn, old = self.turn, self.baseline
        return old is not None and turn.relation in CONTINUES and old.conversation == turn.conversation

    @property
    def elsewhere(self) -> bool:
        """It is known to belong to another conversation than the turn that it is compared with."""
        turn, old = self.turn, self.baseline
        return old is not None and turn.relation is not None and old.conversation != turn.conversation

    @property
    def most(self) -> int | None:
        """What it could have had of the prompt that it is compared with, in whole units where they are known."""
        told, old = self.diff.tokens if self.diff is not None else Tokens(), self.baseline
        before = told.old if told.old is not None or old is None else old.prompt_tokens
        prompt, unit = self.turn.prompt_tokens, self.server.unit or 1
        if before is None or prompt is None:
            return None
        return max(0, min(before, prompt - 1, prompt - (told.fresh or 0))) // unit * unit

    @property
    def should_s(self) -> float | None:
        """What its prompt takes to read without what should have been in the cache; where that is not known, without
        the prompt that it continues."""
        before = self.baseline.prompt_tokens if self.baseline is not None and self.goes_on else None
        return expected_s(self.turn, before if self.expected is None else self.expected.tokens, self.rate)

    @property
    def slow(self) -> bool | None:
        """It waited much longer than that; None: its TTFT is not known."""
        return None if self.ttft is None else self.limits.slow(self.ttft, self.should_s)

    @property
    def waited_long(self) -> bool:
        """Someone noticed."""
        return self.ttft is not None and (self.limits.long(self.ttft) or self.slow is True)

    def in_common(self, one: Captured, other: Captured) -> int:
        """Tokens that two turns begin with, at most."""
        most = [turn.prompt_tokens for turn in (one, other) if turn.prompt_tokens is not None]
        told = self.shared.get((min(one.id, other.id), max(one.id, other.id)))
        return min([*most, *([] if told is None else [told])], default=1 << 40)

    def counts(self, tokens: int) -> bool:
        """So many that were read anew are worth a word."""
        return tokens >= max(LOST_TOKENS, self.server.unit or 0)

    def by_id(self, id: int | None) -> Captured | None:
        """One of the turns around it; the baseline comes with its samples."""
        known = (self.baseline, *self.others) if self.baseline else self.others
        return next((one for one in known if one.id == id), None)

    @property
    def source(self) -> Captured | None:
        """The turn that should have given what it did not get."""
        found = self.by_id(self.expected.from_) if self.expected else None
        return found or self.baseline

    def since(self, source: Captured) -> float:
        """From when on what a turn left could be lost."""
        return source.ended_at or source.first_token_at or source.started_at
