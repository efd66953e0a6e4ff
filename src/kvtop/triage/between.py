"""What happened on a server between the turn that left a prefix in its cache and the one that came for it. Pure."""

from __future__ import annotations

from kvtop.capture.turn import Captured, Sample, TurnState
from kvtop.model.own import OwnRequest
from kvtop.triage.baseline import was_read
from kvtop.triage.seen import Seen


def turns_between(seen: Seen, source: Captured) -> list[Captured]:
    """Turns of its server whose prompt was read after the source had ended and before this one was taken in, by
    number."""
    since, until = seen.since(source), seen.admitted
    found = [
        one
        for one in seen.others
        if one.upstream == source.upstream
        and one.id not in (source.id, seen.turn.id)
        and since <= (one.first_token_at or one.ended_at or float("inf")) <= until
    ]
    return sorted(found, key=lambda one: one.id)


def samples_between(seen: Seen, source: Captured) -> list[Sample]:
    """The server's counters from the source's first token to the moment when this turn was taken in, in order. Empty
    unless one of the source and one of this turn is among them: else nothing follows from them."""
    if source.upstream != seen.turn.upstream:
        return []
    since, until = source.first_token_at or seen.since(source), seen.admitted
    after = sorted((one for one in source.samples if one.at >= since), key=lambda one: one.at)
    own = own_samples(seen, after[-1].at) if after else []
    own = [one for one in own if one.at <= until or _alone(seen, one)] or own[:1]
    if not own:
        return []
    inner = [
        one
        for turn in seen.others
        if turn.upstream == source.upstream
        for one in turn.samples
        if after[-1].at < one.at < own[-1].at
    ]
    kept = {one.at: one for one in (*after, *inner, *own)}
    return [kept[at] for at in sorted(kept)]


def _alone(seen: Seen, one: Sample) -> bool:
    """No other request was computing at that look, and this one's prompt is not counted yet."""
    end = seen.turn.first_token_at
    return end is not None and one.at < end and one.running is not None and one.running <= 1


def own_samples(seen: Seen, since: float) -> list[Sample]:
    """Those of the turn itself since then, up to its first token; at least the first one."""
    own = sorted((one for one in seen.turn.samples if one.at >= since), key=lambda one: one.at)
    end = seen.turn.first_token_at
    return own if end is None else [one for one in own if one.at < end] or own[:1]


def last_look(seen: Seen, at: float) -> Sample | None:
    """The last sample of any turn of its server by then."""
    around = (*seen.others, *([seen.baseline] if seen.baseline is not None else []))
    kept = [one for turn in around if turn.upstream == seen.turn.upstream for one in turn.samples if one.at <= at]
    return max(kept, key=lambda one: one.at, default=None)


def replays_between(seen: Seen, source: Captured) -> list[OwnRequest]:
    """Requests of kvtop's own replays whose prompt was read after the source had ended and before this turn was taken
    in, or may have been: nobody noted their end."""
    since, until = seen.since(source), seen.admitted
    if source.upstream != seen.turn.upstream:
        return []
    return [one for one in seen.replays if since <= one.began_at and (one.ended_at or one.began_at) <= until]


def computed_between(seen: Seen, source: Captured) -> float | None:
    """Tokens that the server computed, or loaded from a tier, since the source ended, no less; None: nobody counted."""
    asked = [one.new_tokens for one in turns_between(seen, source)]
    asked += [one.new_tokens for one in replays_between(seen, source)]
    told = [tokens for tokens in asked if tokens is not None]
    by_turns = float(sum(max(0, one) for one in told)) if told else None
    counted = counted_between(seen, source)
    known = [one for one in (by_turns, counted) if one is not None]
    return max(known, default=None)


def counted_between(seen: Seen, source: Captured) -> float | None:
    """The same by the counters alone, which see what went past the tap too, but for what came after their last look;
    None where they do not tell."""
    kept = samples_between(seen, source)
    if len(kept) < 2:
        return None
    a = next((one for one in kept[:-1] if source.ended_at is not None and one.at >= source.ended_at), kept[0])
    return _computed(a, kept[-1])


def requests_between(seen: Seen, source: Captured) -> float:
    """Requests that ended or are known to have been read in between, as many as either tells."""
    known = len(turns_between(seen, source)) + len(replays_between(seen, source))
    finished = [one.finished for one in samples_between(seen, source) if one.finished is not None]
    return max(float(known), finished[-1] - finished[0] if finished else 0.0)


def spanned(seen: Seen, source: Captured) -> tuple[Sample, Sample] | None:
    """The last look before the source's first token and the first one after this turn's, by one process: all that was
    computed in between is in their difference. None: they are missing, or a prompt that was being read at the end is
    not in them yet."""
    turn, read = seen.turn, seen.turn.first_token_at or seen.turn.ended_at
    first = source.first_token_at
    if source.upstream != turn.upstream or first is None or read is None:
        return None
    a = max((one for one in source.samples if one.at < first), key=lambda one: one.at, default=None)
    b = min((one for one in turn.samples if one.at > read), key=lambda one: one.at, default=None)
    if a is None or b is None or _unread_at(seen, source, b) or not _one_process(a, b):
        return None
    told = (a.prompt_tokens, b.prompt_tokens, source.prompt_tokens, turn.prompt_tokens)
    if None in told or b.prompt_tokens - a.prompt_tokens < source.prompt_tokens + turn.prompt_tokens:  # type: ignore[operator]
        return None  # one of the two is not in it
    return a, b


def most_between(seen: Seen, source: Captured) -> float | None:
    """Tokens that the server computed or loaded in between, no more: what its counters grew by, less these two turns'
    own. None: they do not tell."""
    span, turn = spanned(seen, source), seen.turn
    if span is None:
        return None
    grown = _computed(*span)
    own = [_own(one, one.ended_at is not None and one.ended_at < span[1].at) for one in (source, turn)]
    return None if grown is None else max(0.0, grown - sum(own))


def _one_process(a: Sample, b: Sample) -> bool:
    """As far as the two looks tell."""
    return a.started_at is None or b.started_at is None or a.started_at == b.started_at


def _own(turn: Captured, ended: bool) -> float:
    """What a turn computed itself, no more."""
    return (turn.new_tokens or 0) + ((turn.completion_tokens or 0) if ended else 0)


def _unread_at(seen: Seen, source: Captured, b: Sample) -> bool:
    """Whether a request may have been computing whose prompt the counters do not hold at that moment: they move at its
    first token, and never where it was given up before."""
    own = seen.turn.ended_at is None or seen.turn.ended_at >= b.at
    if b.running is None or b.running + (b.waiting or 0.0) > own:
        return True
    return any(
        one.upstream == source.upstream
        and one.first_token_at is None
        and one.state is not TurnState.DONE
        and (one.ended_at is None or one.ended_at >= seen.since(source))
        and (one.sent_at or one.started_at) <= seen.admitted
        for one in seen.others
        if one.id not in (source.id, seen.turn.id)
    )


def _computed(a: Sample, b: Sample) -> float | None:
    """Tokens that took room in the pool from one sample to another, since they were computed or loaded from a tier;
    None where the samples do not tell, or are of two processes."""
    if not _one_process(a, b):
        return None
    if a.prompt_tokens is None or a.cached_tokens is None or a.generation_tokens is None:
        return None
    if b.prompt_tokens is None or b.cached_tokens is None or b.generation_tokens is None:
        return None
    prompt, cached = b.prompt_tokens - a.prompt_tokens, b.cached_tokens - a.cached_tokens
    generated = b.generation_tokens - a.generation_tokens
    loaded = (b.external_hits or 0.0) - (a.external_hits or 0.0)
    return None if min(prompt, cached, generated, loaded) < 0 else max(0.0, prompt - cached) + generated + loaded


def hit_elsewhere(seen: Seen, source: Captured) -> Captured | None:
    """A turn of another conversation that came no sooner than this one, and found what had lain in the cache since
    before the source ended: then the cache as a whole was not lost."""
    for one in seen.others:
        old = _goes_on(seen, one)
        if old is None or one.conversation == seen.turn.conversation or not one.cached_tokens:
            continue
        lay = was_read(old) is True and seen.since(old) <= seen.since(source) and not _filled_anew(seen, old, one)
        came = one.sent_at or one.started_at
        if lay and came >= seen.arrived and 2 * one.cached_tokens >= (old.prompt_tokens or 0) > seen.unit:
            return one
    return None


def all_cold(seen: Seen, source: Captured) -> list[Captured]:
    """The first turn of each other conversation that went on since the source ended, if none of them found anything."""
    first: dict[str, Captured] = {}
    for one in sorted(seen.others, key=lambda one: one.id):
        old = _goes_on(seen, one)
        if old is None or not one.conversation or one.conversation == seen.turn.conversation:
            continue
        if (one.sent_at or one.started_at) > seen.since(source) >= seen.since(old) and seen.counts(
            old.prompt_tokens or 0
        ):
            first.setdefault(one.conversation, one)
    warm = any(one.cached_tokens is None or one.cached_tokens > seen.unit for one in first.values())
    return [] if warm else list(first.values())


def _goes_on(seen: Seen, one: Captured) -> Captured | None:
    """The turn before it on the same server, where it goes on from that with the same beginning."""
    old = seen.by_id(one.parent)
    if one.relation != "next" or one.changed or old is None or old.prompt_tokens is None:
        return None
    return old if (one.upstream, one.model) == (old.upstream, old.model) == (seen.turn.upstream, old.model) else None


def _filled_anew(seen: Seen, old: Captured, one: Captured) -> bool:
    """Whether another turn of that conversation may have put it into the cache again meanwhile."""
    return any(other.conversation == one.conversation and old.id < other.id < one.id for other in seen.others)
