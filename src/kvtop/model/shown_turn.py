"""One turn as it is shown: a row of the table, the subject of a page."""

from __future__ import annotations

from dataclasses import dataclass

from kvtop.model.finding import Finding
from kvtop.model.words import DASH

BEGINS = frozenset({"first", "subagent", "compaction"})
"""Relations of a captured turn whose messages are not those of a turn before it."""
CONTINUES = frozenset({"next", "retry", "branch"})
"""Relations in which the prompt of the turn before is the head of this one, whole or in part."""


_CHANGES = {
    "system": "another system prompt",
    "system_messages": "other system messages",
    "tools": "other tools",
}


TurnKey = tuple[str, int]
"""What a turn is known by among those of its server: captured, flight (a counted one), counted or own, and a number."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a captured turn is that did not tell its tokens (yet), from its size and the turns before it."""

    prompt_tokens: int
    cached_tokens: int | None = None
    """What the turn that it continues left in the cache, if nothing was lost."""
    new_tokens: int | None = None
    left_s: float | None = None
    """Seconds to its first token, at this server's own prefill rate."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A request, or n requests that could not be told apart, as far as the counters tell. Keys as in `turns --json`."""

    id: int
    """Running number of this session, from 1; of a captured one its number in the store."""
    ended_at: float | None
    """Unix time of the scrape that saw the finish; None while in flight or for saved texts."""
    n: int = 1
    """Requests in this row; more than 1: every number is a mean of them."""
    state: str | None = "done"
    """in_flight or done; of a captured one also aborted (by the client), failed, cut (the answer broke off), or None:
    nobody saw its end."""
    phase: str | None = None
    """Of one in flight: 'waits', 'reads' or 'writes'."""
    started_at: float | None = None
    """Unix time; worked out from the finish and the end-to-end time, or when kvtop first saw it in flight."""
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    new_tokens: float | None = None
    """Computed at prefill: prompt - cached."""
    completion_tokens: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    ttft_s: float | None = None
    """queue + prefill: marked ~. Of a captured one what its client waited, exactly."""
    duration_s: float | None = None
    inter_token_s: float | None = None
    """Mean gap between tokens."""
    finish_reason: str | None = None
    slow: bool = False
    """Its TTFT is much longer than what its new tokens explain."""
    waited: bool = False
    """What people read as slow: that, or its TTFT is long (slow_ttft_s of the thresholds, 10 s) whatever the reason."""
    verdict: str | None = None
    """no_fault, new_tokens, queued or None: what the counters alone can prove. With a `finding` that of it."""
    finding: Finding | None = None
    """Of a captured one: why it took its time; None: not worked out."""
    judging: bool = False
    """Of a captured one: that is on its way, and what its own numbers say may be wrong."""
    engine: str | None = None
    source: str = "metrics"
    """metrics: worked out from the counters; tap or import: captured, and exact."""
    record: str = "complete"
    """Of a captured one: complete or truncated (ours, not the traffic's)."""
    route: str | None = None
    model: str | None = None
    agent: str | None = None
    conversation: str | None = None
    relation: str | None = None
    """Of a captured one, to its conversation: first, next, retry, branch, side, subagent or compaction."""
    began_as: str | None = None
    """Of a captured one whose conversation is another's: side or subagent, the relation of that one's first turn."""
    changed: tuple[str, ...] = ()
    """Of a captured one with its parent's messages: what else is not its parent's: system, system_messages, tools."""
    status: int | None = None
    """HTTP."""
    error: str | None = None
    """What an error body says, in one line."""
    estimate: Estimate | None = None
    """Of a captured one in flight, or of one whose usage nobody saw."""
    cached_source: str | None = None
    """Of a captured one: usage or metrics, who told its cached tokens."""
    worked_out: tuple[str, ...] = ()
    """Of a captured one: fields that only a row of the counters told, or that were worked out: shown with ~."""
    counted: int | None = None
    """Of a captured one: the number of the counters' row that told of it too."""
    past_tap: bool = False
    """Of a counted one: a tap ran all the while, and did not see it."""
    own: int = 0
    """kvtop's own replay asked it, 1 in flight, then a number of its own: every figure is from the note that the replay
    left; 0: somebody else did."""
    step: str = ""
    """Of kvtop's own: which request of its replay."""
    reread: bool = False
    """Of a captured one: it continues a turn, and got less than half of what that one had from the cache."""
    lost: bool | None = None
    """Of a captured one: it read more anew than its growth and one match unit explain; None: not known."""
    read_s: float | None = None
    """Of a captured one: what its new tokens take at the server's own prefill rate."""
    queue_seen: bool = False
    """Of a captured one whose queue time nobody told: for most of its wait others ran, and requests waited."""
    beside: bool = False
    """Of a counted one: turns of its server were captured. They have the store's numbers, and this is none of them."""

    @property
    def captured(self) -> bool:
        """Its request and its answer were seen, not only what the server counted."""
        return self.source != "metrics"

    @property
    def numbered(self) -> bool:
        """Its number stays: a counted one has none before it ended, since nobody knows which of them ends next."""
        return self.captured or self.state != "in_flight"

    @property
    def name(self) -> str:
        """Its number as it is shown: `m15` (from metrics) where a captured turn may be called 15, `r3` of kvtop's own
        replays; – for none."""
        if not self.numbered:
            return DASH
        if self.own > 1:
            return f"r{self.id}"
        return f"m{self.id}" if self.beside else str(self.id)

    @property
    def key(self) -> TurnKey:
        """Captured and counted turns are numbered each for itself."""
        kind = "captured" if self.captured else "flight" if self.state == "in_flight" else "counted"
        return ("own", self.own) if self.own > 1 else (kind, self.id)

    @property
    def queue_ruled(self) -> bool:
        """More than half of its TTFT went by in the queue. In vLLM the wait for a KV load counts as queue time."""
        return self.queue_s is not None and self.ttft_s is not None and self.queue_s > self.ttft_s / 2

    @property
    def read_ruled(self) -> bool | None:
        """Reading its prompt explains half of its TTFT or more. None: how long that took, or takes, is not known."""
        seconds = self.prefill_s if self.prefill_s is not None else self.read_s
        return None if seconds is None or self.ttft_s is None else seconds >= self.ttft_s / 2

    @property
    def new_input(self) -> bool:
        """Its wait went into reading what no cache could have held, but for a head that it shares with others."""
        if self.finding is not None and self.finding.verdict != "unknown":
            return self.finding.tone == "ok"
        if self.judging or self.queue_ruled or (self.captured and not self.may_have_read):
            return False
        return self.verdict == "new_tokens" or (self.captured and self.relation in BEGINS)

    @property
    def may_have_read(self) -> bool:
        """Nothing that is known says that its wait was for something else than reading its prompt."""
        return bool(self.read_ruled) if self.read_ruled is not None else not self.queue_seen

    @property
    def accused(self) -> bool:
        """Of a captured one that continues another: its prompt, or the cache, is why it read so much anew."""
        changed = self.lost is None and bool(self.changed)
        return self.captured and self.relation in CONTINUES and (bool(self.lost) or self.reread or changed)

    @property
    def changes(self) -> str:
        """`changed` in words: another system prompt, other tools. It compares bytes: a judged cause knows more."""
        judged = {"tools": self.finding.tools} if self.finding is not None and self.finding.tools else {}
        words = _CHANGES | judged
        return " and ".join(words.get(name, "another prompt") for name in self.changed)

    @property
    def cached_share(self) -> float | None:
        if self.prompt_tokens and self.cached_tokens is not None:
            return self.cached_tokens / self.prompt_tokens
        return None
