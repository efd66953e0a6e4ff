"""Which blocks lay in which tier, and when, as the KV events of one engine tell it.

A hit emits no event and no event names a request, so this answers for prompts: `prefix(ids)` finds the blocks of a
prompt, and the other questions are asked with it. Nothing of a prompt is kept but a digest for each block end.

What was missed is never guessed. After a gap a block counts as known again from the next event that names it, the
device as a whole from its next reset, and all from a restart of the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import gcd

from kvtop.triage.certainty import Certainty, Missing, Trust
from kvtop.triage.chains import Chains
from kvtop.triage.kv_events import CPU, GPU, Batch, BlockHash, Removed, Stored
from kvtop.triage.reach import Group, Place, reach

MAX_BLOCKS = 300_000
"""Blocks in all tiers that are kept in mind, about 170 MB; the ones that were named longest ago are forgotten."""
MAX_CHANGES = 200_000
"""Stores and removals that can be looked back at."""
_MAX_TIMES = 1_000


_Key = tuple[str, str, int]
"""Tier, owner, group."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The blocks of a prompt that the events named."""

    tokens: int
    """Of the whole prompt."""
    blocks: tuple[tuple[int, BlockHash], ...] = field(repr=False)
    """(tokens up to its end, hash)."""
    told: bool = True
    """The events tell this salt and this adapter apart from others."""


@dataclass(frozen=True, slots=True)
class Leading:
    """How many tokens of a prompt, from its beginning, could be taken from a tier."""

    tokens: int
    """So many for certain."""
    known: bool
    """And no more for certain; else events that were missed leave it open."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A block of a prompt left a tier."""

    at: float
    """Unix time, by the server's clock."""
    tier: str
    end_tokens: int
    """Where in the prompt it ends."""
    cleared: bool
    """By a reset of the whole cache, not to make room."""


@dataclass(frozen=True, slots=True)
class Clearing:
    """Everything on the device went at once."""

    at: float
    """When it was told: with the next step of the engine. Of one that had nothing to do, when the next request was."""
    restart: bool
    """The engine began anew; else its prefix cache was reset (also to sleep, or with new weights)."""


class Residency:
    """Fed with each batch of one rank, in the order of arrival."""

    def __init__(self, *, max_blocks: int = MAX_BLOCKS, max_changes: int = MAX_CHANGES) -> None:
        self.batches = 0
        self.lost = 0
        """Messages that are known to be missing."""
        self.last_at: float | None = None
        """Unix time of the newest batch, by the server's clock."""
        self.last_seq: int | None = None
        self._sure = Certainty()
        self._max_blocks, self._max_changes = max_blocks, max_changes
        self._counts: dict[_Key, dict[BlockHash, int]] = {}
        """Epoch << 8 | copies. The one that was named longest ago stands first."""
        self._held = 0
        self._chunks: dict[_Key, tuple[int, int]] = {}
        """Greatest common divisor of the ends of what was stored there, and the least of them: a tier may keep, and
        name, several blocks as one."""
        self._chains = Chains()
        self._log: deque[tuple[float, _Key, BlockHash, int, int]] = deque()
        """(Time, where, which, value before it, +1, -1 or 0 for a reset)."""
        self._mentions: dict[BlockHash, int] = {}
        self._clearings: deque[Clearing] = deque(maxlen=_MAX_TIMES)
        self._groups: dict[int, Group] = {}
        self._adapters: set[str] = set()
        self._tells_keys = True

    # What happened

    def feed(self, batch: Batch) -> bool:
        """Take a batch in. False for one that was taken before, as a replay beside the stream brings."""
        last, at = self.last_seq, batch.at
        if last is not None and batch.seq <= last:
            if at <= (self.last_at or 0.0):
                self._sure.doubtful = False
                return False
            self._restarted(at)
            last = None
        if last is None:
            self._sure.begun(at, whole=batch.seq == 0)
        elif batch.seq != last + 1 or self._sure.doubtful:
            # The next number may also be that of a new engine, which has counted as far meanwhile.
            self.lost += batch.seq - last - 1
            self._sure.lost(self.last_at or at, at)
        self._sure.resumed()
        self.last_seq, self.last_at = batch.seq, at
        self.batches += 1
        self._sure.begins = min(self._sure.begins, at)
        for event in batch.events:
            if isinstance(event, Stored):
                self._stored(at, event)
            elif isinstance(event, Removed):
                self._removed(at, event)
            else:
                self._cleared(at)
        if batch.unread:
            self._sure.incomplete(at)
        self._bound(at)
        return True

    def interrupted(self, at: float) -> None:
        """Messages may be missing since then: nothing is certain until it is told anew."""
        self._sure.interrupted(at)

    def suspended(self, at: float) -> None:
        """The stream broke off: whatever is asked of later times is not known, until the next batch says what was
        missed. One that follows on is of the same engine only where a replay has brought one that was known before."""
        self._sure.suspended(at)

    # What is asked

    def prefix(self, ids: Sequence[int], salt: str | None = None, adapter: str | None = None) -> Prefix:
        """The blocks of a prompt, given as token ids with the cache salt and the adapter that it was sent with.

        Pictures and prompt embeddings are not known here: of a prompt that has some, the blocks before the first.
        Before 0.18.1 no event tells a salt; then a prompt with one has no blocks that are `told`.
        """
        told = (not salt or self._tells_keys) and (adapter is None or adapter in self._adapters)
        unit = self._unit()
        if not told or not unit:
            return Prefix(len(ids), (), told)
        return Prefix(len(ids), tuple(self._chains.find(ids, unit, salt, adapter)))

    def leading(self, prefix: Prefix, tiers: Iterable[str] = (GPU,), at: float | None = None) -> Leading:
        """How many leading tokens of a prompt lay in these tiers together at that Unix time, as far as it had been told
        by then; None: now. A step tells at its end what it did: see `Clearing.at`.

        Of hybrid models and sliding windows: up to where all groups have what they need. The last token of a prompt is
        never taken from a cache, and a speculator may take a block less: that is for the caller to count off.
        """
        trust = self._sure.at(at)
        if trust is None or not prefix.told:
            return Leading(0, False)
        low, high = reach(prefix.tokens, self._unit(), self._groups, self._places(prefix, set(tiers), at, trust))
        return Leading(low, low == high)

    def removals(self, prefix: Prefix, since: float, until: float) -> tuple[Removal, ...]:
        """Which blocks of a prompt left a tier in that time, oldest first. Of one that lay there twice, the last copy.

        Each is certain, whatever was missed. That there is none is only evidence where nothing of it is `missing`.
        """
        ends = {hash: end for end, hash in prefix.blocks}
        after: dict[tuple[_Key, BlockHash], int] = {}
        found = []
        for at, key, hash, before, change in reversed(self._log):
            if at < since:
                break
            if hash not in ends:
                continue
            value = after.get((key, hash))
            value = self._counts.get(key, {}).get(hash, 0) if value is None else value
            after[key, hash] = before
            if at <= until and change <= 0 and not value & 255:
                found.append(Removal(at, key[0], ends[hash], change == 0))
        return tuple(reversed(found))

    def clearings(self, since: float, until: float) -> tuple[Clearing, ...]:
        """When everything on the device went at once in that time, oldest first."""
        return tuple(one for one in self._clearings if since <= one.at <= until)

    def missing(self, since: float, until: float | None = None) -> Missing | None:
        """What keeps that time from being known whole; None: nothing."""
        return self._sure.missing(since, until)

    @property
    def blocks(self) -> int:
        """That are kept in mind, of all tiers."""
        return self._held

    # One event

    def _stored(self, at: float, event: Stored) -> None:
        key = (event.tier, event.owner, event.group)
        self._tells_keys = self._tells_keys and event.tells_keys
        if event.adapter is not None:
            self._adapters.add(event.adapter)
        self._know_group(event)
        if event.tier == GPU:
            self._chains.learn(event)
        here = self._counts.setdefault(key, {})
        epoch = self._sure.now.epoch(event.tier)
        # A request may ask that what it hits be told as stored (0.26): then a whole beginning lies there already.
        hits = event.tier == GPU and event.parent is None and len(event.hashes) > 1
        hits = hits and all(here.get(hash, 0) & 255 for hash in event.hashes)
        for hash in event.hashes if not self._reports(event) else event.hashes[-1:]:
            before = here.get(hash, 0)
            copies = before & 255 if before >> 8 == epoch else 0
            self._set(at, key, hash, max(copies, 1) if hits else min(copies + 1, 255), 1)
            if (end := self._chains.end(hash)) is not None:
                step, first = self._chunks.get(key, (0, end))
                self._chunks[key] = gcd(step, end), min(first, end)

    def _reports(self, event: Stored) -> bool:
        """Hits told as stored, by a group that keeps only some blocks: of those the last alone is sure to be there."""
        whole = len(event.hashes) > 1 and len(event.token_ids) == len(event.hashes) * event.block_tokens
        return whole and event.parent is None and self._groups[event.group].masked

    def _removed(self, at: float, event: Removed) -> None:
        key = (event.tier, event.owner, event.group or 0)
        here = self._counts.get(key, {})
        for hash in event.hashes:
            if hash in here or hash in self._chains:
                self._set(at, key, hash, max((here.get(hash, 0) & 255) - 1, 0), -1)

    def _cleared(self, at: float) -> None:
        self._clearings.append(Clearing(at, False))
        for key, here in self._counts.items():
            if key[0] == GPU:
                for hash in [hash for hash, value in here.items() if value & 255]:
                    self._set(at, key, hash, 0, 0)
        self._sure.reset(at)

    def _restarted(self, at: float) -> None:
        self._clearings.append(Clearing(at, True))
        self._counts.clear()
        self._chunks.clear()
        self._chains = Chains()
        self._log.clear()
        self._mentions.clear()
        self._groups.clear()
        self._adapters.clear()
        self._held, self._tells_keys, self._sure.begins = 0, True, at

    def _set(self, at: float, key: _Key, hash: BlockHash, copies: int, change: int) -> None:
        here = self._counts.setdefault(key, {})
        before = here.pop(hash, None)
        self._held += before is None
        here[hash] = self._sure.now.epoch(key[0]) << 8 | copies
        self._log.append((at, key, hash, before or 0, change))
        self._mentions[hash] = self._mentions.get(hash, 0) + 1

    def _know_group(self, event: Stored) -> None:
        known = self._groups.get(event.group, Group())
        masked = bool(event.block_tokens) and len(event.token_ids) != len(event.hashes) * event.block_tokens
        size = max(known.block_tokens, event.block_tokens if event.tier == GPU else 0)
        fine = gcd(known.fine_tokens, event.block_tokens)
        kind, window = event.kind or known.kind, event.window or known.window
        self._groups[event.group] = Group(size, fine, kind, window, known.masked or masked)

    # One prompt

    def _states(self, prefix: Prefix, tiers: set[str], at: float | None) -> dict[tuple[_Key, BlockHash], int]:
        """(Where, which) -> epoch and copies at that time, of the blocks of a prompt."""
        mine = {hash for _, hash in prefix.blocks}
        states: dict[tuple[_Key, BlockHash], int] = {}
        for key, here in self._counts.items():
            if key[0] in tiers:
                states |= {(key, hash): here[hash] for hash in mine if hash in here}
        if at is not None:
            for when, key, hash, before, _ in reversed(self._log):
                if when <= at:
                    break
                if hash in mine and key[0] in tiers:
                    states[key, hash] = before
        return states

    def _places(self, prefix: Prefix, tiers: set[str], at: float | None, trust: Trust) -> list[Place]:
        ends = {hash: end for end, hash in prefix.blocks}
        tables: dict[_Key, dict[int, bool | None]] = {
            (tier, "", group): {} for tier in tiers & {GPU, CPU} for group in self._groups
        }
        tables |= {key: {} for key in self._counts if key[0] in tiers and key[2] in self._groups}
        for (key, hash), value in self._states(prefix, tiers, at).items():
            sure = value >> 8 == trust.epoch(key[0])
            if key in tables and sure:
                tables[key][ends[hash]] = bool(value & 255)
            elif key in tables and value & 255:
                tables[key][ends[hash]] = None
        return [
            Place(key[2], self._covers(key), table, False if trust.whole_in(key[0]) else None)
            for key, table in tables.items()
        ]

    def _covers(self, key: _Key) -> int:
        block = self._groups[key[2]].block_tokens
        step, first = self._chunks.get(key, (0, 0))
        # Only where the first one of a prompt was named is it sure that each entry is as long as the step.
        return max(step, block, 1) if step == first else max(block, 1)

    # Bounds

    def _unit(self) -> int:
        unit = 0
        for group in self._groups.values():
            unit = gcd(unit, group.fine_tokens)
        return unit

    def _bound(self, at: float) -> None:
        while len(self._log) > self._max_changes:
            when, _, hash, _, _ = self._log.popleft()
            self._sure.begins = when
            self._unmention(hash)
        if self._held > self._max_blocks:
            self._forget_oldest(self._max_blocks // 10 + self._held - self._max_blocks)
            self._sure.incomplete(at)

    def _forget_oldest(self, count: int) -> None:
        """Many at once: the front of a dict that lost its first entries is slow to find."""
        key = max(self._counts, key=lambda one: len(self._counts[one]))
        for hash in list(islice(self._counts[key], count)):
            del self._counts[key][hash]
            self._held -= 1
            if hash not in self._mentions:
                self._forget(hash)

    def _unmention(self, hash: BlockHash) -> None:
        left = self._mentions.pop(hash) - 1
        if left:
            self._mentions[hash] = left
        else:
            self._forget(hash)

    def _forget(self, hash: BlockHash) -> None:
        """Unless it lies somewhere. It is in the log no more."""
        held = False
        for here in self._counts.values():
            if (value := here.get(hash)) is not None and not value & 255:
                del here[hash]
                self._held -= 1
            held = held or hash in here
        if not held:
            self._chains.forget(hash)
