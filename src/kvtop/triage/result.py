"""What triage answers, as values: the divergence of two turns, and the verdict on one. Unknown is None."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtop.triage.kinds import NOT_SENT_AGAIN, Because, Kind, Reason, Varies, Verdict, Who


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that made the new prompt differ from the old one."""

    kind: Kind
    pointer: str
    """JSON pointer into the request as it was sent, of the old one where a thing was removed, else of the new one."""
    section: str
    """The same in the words of a screen: `tools[3].function.parameters`."""
    says: str
    """One sentence: what is different."""
    fix: str
    """One sentence: what to do about it. For what is so by design: that nothing is to be mended."""
    who: Who = Who.CLIENT
    values: tuple[Varies, ...] = ()
    """What varies in a text, sorted."""
    pointer_new: str | None = None
    """Of what moved: where it stands now."""
    changes: frozenset[int] = frozenset()
    """Ids of the changes (`kvtop.triage.changes.Change`) that this cause explains: putting them back undoes it."""
    lost_tokens: int | None = None
    """How far the common prefix moves when this cause alone, after the ones before it, is undone."""
    lost_s: float | None = None
    """Seconds in which the new turn read `told_tokens` (`kvtop.triage.cost`)."""
    seen: str | None = None
    """How often: '8 of the last 60 turns of this agent (13 %), every 8 turns'. None: not looked at, or once."""
    called: str = ""
    """What people are told that it is, where the words of its kind (`kvtop.triage.words`) would not be true."""
    of_system: bool = False
    """It stands in the system prompt."""
    at_token: int | None = None
    """Where the prompt meets it, those before it mended."""
    reread_tokens: int | None = None
    """Tokens of the new prompt that it made the server read again, in whole blocks as the server matches them: those of
    all causes together are `Tokens.reread`. None: not known."""

    @property
    def told_tokens(self) -> int | None:
        """What people are told that it cost; None: not known, or nothing of this prompt."""
        if self.kind in NOT_SENT_AGAIN:
            return None
        return self.lost_tokens if self.reread_tokens is None else self.reread_tokens


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where two prompts begin to differ."""

    section: str
    pointer: str
    old: str
    """Up to 80 characters around it, as they stand there: not fit for a terminal as they are."""
    new: str
    token: int | None = None
    """Number of equal tokens before it."""
    byte: int | None = None
    """UTF-8 offset in the new prompt as it is rendered."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Counts of tokens."""

    old: int | None = None
    new: int | None = None
    common: int | None = None
    """Equal at the beginning."""
    reusable: int | None = None
    """Whole match units of `common`, never the last token of the new prompt."""
    lost: int | None = None
    """old - common."""
    reread: int | None = None
    """What would have been reusable had nothing changed, less what was: whole units. Of what the new prompt does not
    say again nothing."""
    fresh: int | None = None
    """Of the new prompt, what no earlier one said: what was appended, or stands in the place of a history that was
    compacted. Guessed from sizes; None where a server counted."""


@dataclass(frozen=True, slots=True)
class Diff:
    """The divergence of two turns."""

    old: str
    new: str
    """Ids of turns, or file names."""
    method: str
    """served_ids, server_tokens or text."""
    exact: bool
    tokens: Tokens
    causes: tuple[Cause, ...] = ()
    """By lost tokens, the dearest first; where none are known in the order of the prompt."""
    first: FirstDifference | None = None
    append_only: bool = False
    match_unit_tokens: int | None = None
    cached_tokens: int | None = None
    expected_cached_tokens: int | None = None
    notes: tuple[str, ...] = ()
    """What makes it approximate, one line each."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds."""

    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """The tokens of a prompt by what became of them. None: not known. Those that were read before and read again stand
    under what is to blame; together with `cached` and `new` they are the prompt."""

    prompt: int | None = None
    cached: int | None = None
    changed: int = 0
    """Read again, since the prompt had changed before them."""
    lost: int | None = None
    """Read again, since the engine had them no more, or not yet; None: what it should have had is not known."""
    unsaved: int = 0
    """Read again, since the model goes on from saved states alone, and none was there."""
    read_s: float | None = None
    """Seconds in which it read all that did not come from the cache, no more than its wait."""
    guessed: bool = False
    """No server counted tokens: what was read again and what was new are estimates by its text."""

    def seconds(self, tokens: float | None) -> float | None:
        """That so many of those took; None: not known."""
        left = None if self.prompt is None or self.cached is None else self.prompt - self.cached
        return None if tokens is None or self.read_s is None or not left else self.read_s * min(1.0, tokens / left)

    @property
    def reread(self) -> int | None:
        known = self.changed + (self.lost or 0) + self.unsaved
        return None if self.cached is None or (self.lost is None and not known) else known

    @property
    def before(self) -> int | None:
        """Read before, and kept or not: what the cache could have given, had nothing changed and nothing been lost."""
        return None if self.cached is None or self.reread is None else self.cached + self.reread

    @property
    def new(self) -> int | None:
        """Read for the first time, as far as is known."""
        if self.prompt is None or self.cached is None:
            return None
        return max(0, self.prompt - self.cached - (self.reread or 0))


@dataclass(frozen=True, slots=True)
class Why:
    """The verdict on one turn."""

    turn: str
    verdict: Verdict
    sentence: str
    reason: str | None = None
    """Of engine_lost_cache a `Reason`; of prompt_diverged the kind of its first cause."""
    candidates: tuple[Reason, ...] = ()
    """Where the evidence fits several, or none of it is positive."""
    evidence: tuple[str, ...] = ()
    rules_out: tuple[str, ...] = ()
    expected_cached_tokens: int | None = None
    cached_tokens: int | None = None
    expected_because: tuple[Because, ...] = ()
    phases: Phases = field(default_factory=Phases)
    diff: Diff | None = None
    fix: str | None = None
    reread_tokens: int | None = None
    """Tokens that were computed again for what the sentence names; `split` has all."""
    split: Split = field(default_factory=Split)
    how: str = ""
    """How the engine lost them, in a clause: 'evicted by turns 795–802'; of an unknown verdict what would fit."""
    rest: str = ""
    """What most of its wait went into besides, in a clause; empty: it went into what the sentence names."""
    behind: int | None = None
    """Of a queued one: the turn that it waited for."""
