"""What a prompt should have had from the prefix cache, from all the prompts before it that share its keys.

A block is found again by the hash of all tokens up to its end, so that what counts is the longest common prefix with
anything computed before: prompts, and replies but for their last token, whose KV is never computed. The last token of
the new prompt is always read. On a model with recurrent states, or a sliding window, a prefix can be gone on from only
where a state, or the window before it, was kept: at the end of a prompt, and where a later prompt was seen to part
from it. Checked on vLLM 0.28 and 0.32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtop.triage.engine import Engine, Layers
from kvtop.triage.ids import WIDTH, common, count
from kvtop.triage.kinds import Because

_ENDLESS = 1 << 40
"""Tokens of a reply that nobody counted: no prompt is so long."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """A prompt that the server has read, with the salt, adapter and model of the one that is asked for."""

    key: int
    """What it is known by: a turn's id."""
    prompt: bytes
    """Packed ids (`kvtop.triage.ids`)."""
    reply: bytes | None = None
    """Packed ids of what was generated, the last one included; None: not known."""
    reply_tokens: int | None = None
    """How many, where the ids are not known."""
    cached: int | None = None
    """What it was served from the cache; None: not known, and the law's answer counts."""
    whole: bool = True
    """Its prefill ended; else nobody knows how far it came."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a prompt should have had from the cache, in tokens."""

    tokens: int
    """No less than this."""
    exact: bool
    """And no more; else `at_most`."""
    at_most: int
    plain: int
    """What full attention without a speculator would have had of the same prompts."""
    common: int
    """Equal at the beginning with the nearest one, its reply included where that is known."""
    because: tuple[Because, ...] = ()
    """What made it less than `common`, or the prompt that it continues, although nothing is wrong."""
    from_: int | None = None
    """Key of the earlier one that gives it; None: nothing is expected."""
    nearest: int | None = None
    """Key of the one with the longest common prefix, the newest of those; None: it shares nothing with any."""
    unread: int | None = None
    """Key of one that shares more than that, but whose prefill had not ended: it makes `at_most` what it is."""
    unread_common: int = 0
    """What it shares."""


@dataclass(frozen=True, slots=True)
class _Saved:
    """Where one earlier prompt can be gone on from, in tokens, ascending."""

    sure: tuple[int, ...] = ()
    maybe: tuple[tuple[int, int, int], ...] = ()
    """(from, to, step): at any multiple of step from the first to the second, which are such ones themselves."""


@dataclass(slots=True)
class _Kept:
    earlier: Earlier
    chain: bytes
    """Ids whose KV was computed, as far as they are known."""
    length: int
    prompt: int
    more: int
    """Tokens whose KV was computed after those, ids not known."""
    commons: list[int]
    """With the chain of each one before it."""
    saved: list[_Saved] = field(default_factory=list)
    """One for each of the engine's variants."""


@dataclass(frozen=True, slots=True)
class _Met:
    """How far the new prompt goes with one earlier one."""

    kept: _Kept
    common: int
    low: int
    """As far as it was read for certain."""
    high: int


@dataclass(frozen=True, slots=True)
class _Reach:
    """What one variant of an engine gives."""

    low: int
    high: int
    plain: tuple[int, int]
    """Where attention alone would have come to: no less, and no more."""
    by: _Met | None


class History:
    """The prompts that a server has read, in the order of admission; answers what the next one should have cached."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._variants = engine.variants()
        self._kept: list[_Kept] = []

    def add(self, earlier: Earlier) -> None:
        """Take in the next prompt."""
        chain = earlier.prompt + (earlier.reply[:-WIDTH] if earlier.reply else b"")
        more = 0
        if earlier.reply is None:
            more = _ENDLESS if earlier.reply_tokens is None else max(0, earlier.reply_tokens - 1)
        kept = _Kept(earlier, chain, count(chain), count(earlier.prompt), more, self._commons(chain))
        if self.engine.block:
            met = self._met(earlier.prompt)
            kept.saved = [self._saved(i, kept, met) for i in range(len(self._variants))]
        self._kept.append(kept)

    def expect(self, ids: bytes) -> Expected | None:
        """For a prompt of these packed ids; None where the engine's block is not known."""
        engine = self.engine
        if not engine.block:
            return None
        met, prompt = self._met(ids), count(ids)
        nearest = max(reversed(met), key=lambda one: one.low, default=None)
        length = nearest.low if nearest else 0
        told = nearest.kept.earlier.key if nearest and length else None
        unread = max(
            (one for one in reversed(met) if not one.kept.earlier.whole and one.common > length),
            key=lambda one: one.common,
            default=None,
        )
        unit = engine.unit or engine.block
        plain = max(0, min(length, prompt - 1)) // unit * unit
        if not engine.caching:
            return Expected(0, True, 0, plain, length, (Because.PREFIX_CACHING_OFF,), None, told)
        reached = [self._reach(i, prompt, met) for i in range(len(self._variants))]
        least = min(range(len(reached)), key=lambda i: reached[i].low)
        low, high = reached[least].low, max(reach.high for reach in reached)
        because = _because(self._variants[least], reached[least], prompt, nearest)
        by = reached[least].by
        return Expected(
            tokens=low,
            exact=low == high,
            at_most=high,
            plain=plain,
            common=length,
            because=because,
            from_=by.kept.earlier.key if by and low else None,
            nearest=told,
            unread=unread.kept.earlier.key if unread else None,
            unread_common=unread.common if unread else 0,
        )

    # how far two prompts are the same

    def _met(self, prompt: bytes) -> list[_Met]:
        most = count(prompt)
        found = []
        for kept, length in zip(self._kept, self._commons(prompt), strict=True):
            high = min(most, length + kept.more) if length == kept.length else length
            found.append(_Met(kept, length, length if kept.earlier.whole else 0, high))
        return found

    def _commons(self, ids: bytes) -> list[int]:
        """With each chain. Of three prompts two pairs decide the third: few are compared."""
        found = [0] * len(self._kept)
        best: int | None = None
        for i in reversed(range(len(found))):
            start = 0
            if best is not None:
                shared = self._kept[max(i, best)].commons[min(i, best)]
                if shared != found[best]:
                    found[i] = min(shared, found[best])
                    continue
                start = shared
            found[i] = common(ids, self._kept[i].chain, start)
            if best is None or found[i] > found[best]:
                best = i
        return found

    # what can be gone on from

    def _reach(self, variant: int, prompt: int, met: Sequence[_Met]) -> _Reach:
        engine = self._variants[variant]
        low = _attention(engine, prompt, max((one.low for one in met), default=0))
        high = _attention(engine, prompt, max((one.high for one in met), default=0), most=True)
        if engine.layers is Layers.FULL:
            by = max(reversed(met), key=lambda one: one.low, default=None)
            return _Reach(low, high, (low, high), by)
        if engine.layers is Layers.SLIDING and (engine.retention is None or engine.before_0_29) and not engine.drop:
            by = max(reversed(met), key=lambda one: one.low, default=None)
            return _Reach(low, high, (low, high), by)
        if engine.layers is Layers.SLIDING and engine.window and not engine.drop:
            return _windows(engine, variant, met, (low, high))
        return _states(engine, variant, met, (low, high))

    def _saved(self, variant: int, kept: _Kept, met: Sequence[_Met]) -> _Saved:
        """Where a prompt that was just read can be gone on from."""
        engine, length = self._variants[variant], kept.prompt
        block = engine.block
        if block is None or engine.layers is Layers.FULL or not engine.caching:
            return _Saved()
        law = self._reach(variant, length, met)
        told = kept.earlier.cached
        had = (law.low, law.high) if told is None else (told, told)
        if not kept.earlier.whole:
            return _Saved((told,) if told else (), tuple(_between(had[0] + 1, length, engine.unit or block)))
        sure, maybe = set(_ends(engine, length)), []
        parted = law.plain[0] // block * block
        if told is not None and not law.low <= told <= law.high:
            maybe += _between(told + 1, length, block)  # it lost, or was given, what nobody saw
        elif law.plain[0] != law.plain[1] or engine.before_0_29:
            maybe += _between(had[0] + 1, law.plain[1], block)
        elif parted > had[1]:
            sure.add(parted)
        elif parted > had[0]:
            maybe += _between(parted, parted, block)
        step = block if engine.retention is None or engine.before_0_29 else engine.retention
        if step:
            if engine.layers is Layers.SLIDING:
                sure.update(range((had[1] // step + 1) * step, kept.length + 1, step))
            else:  # a state is saved where a chunk of the prefill ends; while it writes, wherever it comes by
                sure.update(range(-(-length // step) * step, kept.length + 1, step))
                maybe += _between(had[0] + 1, length, step)
            if kept.more:
                maybe += _between(length, length + kept.more, step)
        for at in sure:
            if had[0] < at <= had[1]:
                maybe += _between(at, at, at)
        kept_at = {at for at in sure if at > had[1]} | ({told} if told else set())
        return _Saved(tuple(sorted(kept_at)), tuple(maybe))


def _between(first: int, last: int, step: int) -> list[tuple[int, int, int]]:
    """The multiples of step from first to last, both included; empty where there is none."""
    low, high = -(-first // step) * step, last // step * step
    return [(low, high, step)] if low <= high else []


def _ends(engine: Engine, prompt: int) -> tuple[int, ...]:
    """Where the state at the end of a prompt is kept."""
    block = engine.block or 1
    last = max(0, prompt - 1) // block * block
    whole = prompt // block * block
    if engine.drop and engine.ends_lower:
        return max(0, last - engine.drop * block), max(0, whole - engine.drop * block)
    if engine.before_0_29:
        return (whole,)
    if engine.unit:
        return last, max(0, prompt - 1) // engine.unit * engine.unit
    return (last,)


def _attention(engine: Engine, prompt: int, length: int, *, most: bool = False) -> int:
    """How far attention alone can go on from: whole units, never the last token, less what the speculator costs.

    `most`: no more than this. With other layers beside it a speculator's block may be looked up past the last token.
    """
    unit = engine.unit if engine.unit and engine.layers is not Layers.FULL else engine.block or 1
    past = 0 if most and engine.drop and engine.layers is not Layers.FULL else 1
    reach = min(length - engine.lookahead, prompt - past)
    return max(0, reach // unit * unit - (engine.drop or 0) * unit)


def _states(engine: Engine, variant: int, met: Sequence[_Met], plain: tuple[int, int]) -> _Reach:
    """The largest position that was saved of a prompt which is the same up to there."""
    low, high, by = 0, 0, None
    for one in reversed(met):
        saved = one.kept.saved[variant]
        here = max((at for at in saved.sure if at <= min(plain[0], one.low)), default=0)
        if here > low:
            low, by = here, one
        most = min(plain[1], one.high)
        high = max(high, here, max((at for at in saved.sure if at <= most), default=0))
        for first, last, step in saved.maybe:
            at = min(last, most) // step * step
            if at >= first:
                high = max(high, at)
    return _Reach(low, high, plain, by)


def _windows(engine: Engine, variant: int, met: Sequence[_Met], plain: tuple[int, int]) -> _Reach:
    """The same for a sliding window: as many blocks as it spans must have been kept before a position, in whatever
    prompts."""
    block = engine.block or 1
    need = -(-((engine.window or 1) - 1) // block)
    sure: list[tuple[int, int, _Met]] = []
    all_: list[tuple[int, int, _Met]] = []
    for one in met:
        saved = one.kept.saved[variant]
        spans = [(max(0, at // block - need), at // block) for at in saved.sure]
        sure += [(first, min(last, one.low // block), one) for first, last in spans]
        spans += [(max(0, first // block - need), last // block) for first, last, _ in saved.maybe]
        all_ += [(first, min(last, one.high // block), one) for first, last in spans]
    low, by = _covered(sure, plain[0] // block, need)
    high, _ = _covered(all_, plain[1] // block, need)
    return _Reach(low * block, max(low, high) * block, plain, by)


def _covered(spans: Sequence[tuple[int, int, _Met]], most: int, need: int) -> tuple[int, _Met | None]:
    """The largest number of blocks, at most `most`, of which the last `need` are in the spans; or all of them."""
    best: tuple[int, _Met | None] = 0, None
    begin, end, by = 0, 0, None
    for first, last, one in sorted(spans, key=lambda span: span[:2]):
        last = min(last, most)
        if first >= last:
            continue
        if first > end:
            begin, end, by = first, last, one
        elif last > end:
            end, by = last, one
        if (begin == 0 or end - begin >= need) and end > best[0]:
            best = end, by
    return best


def _because(engine: Engine, reach: _Reach, prompt: int, nearest: _Met | None) -> tuple[Because, ...]:
    if nearest is None or not nearest.low:
        return ()
    found = []
    length, kept = nearest.low, nearest.kept
    block = engine.block or 1
    unit = engine.unit if engine.unit and engine.layers is not Layers.FULL else block
    if 0 < min(length, prompt - 1) < unit:
        found.append(Because.BELOW_MATCH_UNIT)
    if (engine.drop or engine.lookahead) and reach.plain[0] < min(length, prompt - 1) // unit * unit:
        found.append(Because.SPECULATION)
    if reach.low < reach.plain[0]:
        found.append(Because.REPLY_NOT_SAVED if reach.plain[0] > kept.prompt else Because.HYBRID_BOUNDARY)
    elif engine.layers is Layers.HYBRID and reach.high == reach.low < reach.plain[1] and length == kept.prompt:
        found.append(Because.REPLY_NOT_SAVED)  # its ids are not known, and it would have reached the next boundary
    whole = min(kept.length, prompt)
    missed = min(whole, prompt - 1) // unit > min(length, prompt - 1) // unit
    if kept.prompt <= length < whole and missed:
        found.append(Because.RETOKENISED_REPLY)
    return tuple(found)
