"""Why one turn took its time. Pure.

What the law expects decides, never what the turn before had. An engine is blamed only with less than expected in its
answer and evidence for how it lost the rest; what fits without evidence is a candidate, and the verdict unknown.
"""

from __future__ import annotations

from dataclasses import replace

from kvtop.capture.document import decode_s
from kvtop.capture.slow import lost as grew_too_much
from kvtop.capture.slow import queued as stood_in_queue
from kvtop.capture.turn import Route, TurnState
from kvtop.errors import printable
from kvtop.model.words import exact, pct, secs, traffic
from kvtop.triage import decoding, gone_back, lost, prompt_side
from kvtop.triage.between import own_samples
from kvtop.triage.cost import costed, reading_s
from kvtop.triage.kinds import Because, Verdict
from kvtop.triage.prompt_side import boundary, served
from kvtop.triage.result import Phases, Split, Why
from kvtop.triage.seen import Seen
from kvtop.triage.split import split, too_few
from kvtop.triage.words import LIMIT, NOTHING_TO_MEND, UNTRUE, because, named, waited

SHORT_S = 2.0
"""A shorter time in the queue is no news."""
NO_ROUTE = "kvtop does not know its route, so its prompt was compared with none"

SLOWER = 1.5
"""Times slower than usual from which on a server is said to have read slowly."""


def why(seen: Seen) -> Why:
    """The verdict on a turn. Never raises."""
    found = (
        _ended_badly(seen)
        or _queued(seen)
        or _slow_decode(seen, first=True)
        or _anew(seen)
        or boundary(seen)
        or _new_tokens(seen)
        or _slow_reading(seen)
        or _slow_decode(seen, first=False)
        or _rest(seen)
    )
    expected, parts = found.expected_cached_tokens, split(seen, found)
    if expected is None and seen.expected is not None:
        expected = seen.expected.tokens
    sentence = found.sentence
    if few := too_few(found.verdict, parts):
        sentence = sentence.replace(f"; {NOTHING_TO_MEND}", f"; {few}")
    return replace(
        found,
        sentence=sentence,
        expected_cached_tokens=expected,
        cached_tokens=seen.cached,
        expected_because=_because(seen),
        phases=phases(seen),
        diff=seen.diff,
        evidence=(*found.evidence, *_besides(seen, found, parts), *_from_tier(seen), *_common_evidence(seen)),
        split=parts,
    )


def with_costs(seen: Seen) -> Why:
    """The same, its causes with what they cost this turn. Never raises."""
    made = why(seen)
    if made.diff is None:
        return made
    most = seen.turn.new_tokens if made.split.reread is None else made.split.changed
    causes = costed(made.diff.causes, seen.turn, seen.rate, most)
    said = (*made.evidence, *gone_back.said(causes))
    return replace(made, diff=replace(made.diff, causes=causes), evidence=said)


def _anew(seen: Seen) -> Why | None:
    """Read again: the engine had lost it, or the prompt had changed. Of both the sentence names what cost more."""
    gone, changed = lost.engine(seen), prompt_side.prompt(seen)
    if gone is None or changed is None:
        return gone or changed
    return changed if (changed.reread_tokens or 0) > (gone.reread_tokens or 0) else gone


def _besides(seen: Seen, found: Why, parts: Split) -> list[str]:
    """What was read again for another reason than the one that the verdict names."""
    lines: list[str] = []
    if found.verdict is Verdict.PROMPT_DIVERGED and parts.lost:
        lines.append(lost.beside(seen, parts.lost))
    if found.verdict is not Verdict.PROMPT_DIVERGED and parts.changed:
        lines.append(prompt_side.beside(seen, parts.changed))
    return [f"besides, {line}" for line in lines] if found.evidence else lines


def phases(seen: Seen) -> Phases:
    """Where its time went, as far as that is known."""
    turn, ttft = seen.turn, seen.ttft
    prefill = turn.prefill_s
    if prefill is None and ttft is not None and turn.queue_s is not None:
        prefill = max(0.0, ttft - turn.queue_s)
    return Phases(turn.queue_s, prefill, decode_s(turn))


def _why(seen: Seen, verdict: Verdict, sentence: str, **more: object) -> Why:
    return Why(str(seen.turn.id), verdict, sentence, **more)  # type: ignore[arg-type]


def _ended_badly(seen: Seen) -> Why | None:
    turn, name = seen.turn, named(seen)
    if turn.state in (TurnState.FAILED, TurnState.CUT):
        status = f" {turn.status}" if turn.status is not None and turn.status >= 400 else ""
        said = f" {printable(turn.error)[:LIMIT]}" if turn.error else ""
        how = "failed:" if turn.state is TurnState.FAILED else "broke off on the server's side:"
        sentence = f"{name} {how}{status}{said}" if status or said else f"{name} {how[:-1]}"
        return _why(seen, Verdict.FAILED, sentence)
    if turn.state is TurnState.ABORTED or turn.finish_reason == "abort":
        by = "by its client" if turn.state is TurnState.ABORTED else "by the server"
        took = f" after {secs(turn.duration_s)}" if turn.duration_s is not None else ""
        when = ", before its first token" if turn.first_token_at is None and turn.stream else ""
        return _why(seen, Verdict.ABORTED, f"{name} was aborted {by}{took}{when}")
    if turn.state is TurnState.IN_FLIGHT:
        return _why(seen, Verdict.UNKNOWN, f"{name} is still in flight")
    return None


def _queued(seen: Seen) -> Why | None:
    """It stood in line for most of its wait. A KV load counts as queue time in vLLM, and is none."""
    ttft, queue = seen.ttft, seen.turn.queue_s
    if ttft is None or ttft < SHORT_S or _loaded(seen) is True:
        return None
    if queue is not None:
        if queue < SHORT_S or queue * 2 <= ttft:
            return None
    elif not stood_in_queue(seen.turn) or _read_for_long(seen, ttft):
        return None
    behind = _behind(seen)
    after = f" behind turn {behind}" if behind else ""
    long = f", {secs(queue)} of it in the queue{after}" if queue is not None else f", most of it in the queue{after}"
    lines = []
    held = [one for one in own_samples(seen, seen.arrived) if one.waiting is not None and one.running is not None]
    if held:
        most = max(held, key=lambda one: one.waiting or 0.0)
        lines.append(f"{exact(most.running)} ran and {exact(most.waiting)} waited meanwhile")
        pool = [one.kv_cache_usage_share for one in held if one.kv_cache_usage_share is not None]
        lines += [f"the KV pool was {pct(max(pool))} full"] if pool else []
    if seen.counts(seen.lost):
        lines.append(f"it also got {exact(seen.lost)} tokens less from the cache than expected")
    out = ["a KV load: none moved while it waited"] if _loaded(seen) is False else []
    return _why(
        seen,
        Verdict.QUEUED,
        f"{named(seen)} {waited(seen)}{long}",
        evidence=(*lines,),
        rules_out=(*out,),
        behind=behind,
    )


def _read_for_long(seen: Seen, ttft: float) -> bool:
    """Reading its new tokens at the usual rate explains half of its wait: then it may be the one that ran, and another
    one waited."""
    new, rate = seen.turn.new_tokens, seen.rate
    return new is not None and bool(rate) and 2 * new >= ttft * (rate or 0.0)


def _loaded(seen: Seen) -> bool | None:
    """Whether KV came back from a tier while it waited."""
    grown = [_grown(seen, name) for name in ("load_bytes", "external_hits")]
    known = [one > 0 for one in grown if one is not None]
    return any(known) if known else None


def _grown(seen: Seen, name: str) -> float | None:
    """By how much this counter grew while it waited, up to the first look after its first token."""
    end = seen.turn.first_token_at or seen.turn.ended_at or float("inf")
    kept = [one for one in seen.turn.samples if one.at < end] + [one for one in seen.turn.samples if one.at >= end][:1]
    values = [value for one in kept if (value := getattr(one, name)) is not None]
    return values[-1] - values[0] if len(values) > 1 else None


def _from_tier(seen: Seen) -> list[str]:
    """What came back from a tier while it waited."""
    tokens, size = _grown(seen, "external_hits"), _grown(seen, "load_bytes")
    if tokens is not None and tokens > 0:
        return [f"{exact(tokens)} tokens came from a tier while it waited"]
    return [f"{traffic(size)} of KV came from a tier while it waited"] if size is not None and size > 0 else []


def _behind(seen: Seen) -> int | None:
    """The turn with most to read of those that ran while it waited; None where none of them had much."""
    came = seen.arrived
    ran = [
        (one.new_tokens, -one.id)
        for one in seen.others
        if one.upstream == seen.turn.upstream
        and one.new_tokens is not None
        and one.new_tokens >= seen.unit
        and (one.sent_at or one.started_at) <= came < (one.ended_at or came)
    ]
    return -max(ran)[1] if ran else None


def _slow_decode(seen: Seen, *, first: bool) -> Why | None:
    """`first`: only where writing took more than all else that can be wrong with the turn."""
    found = decoding.slow(seen)
    if found is None:
        return None
    if first and (seen.ttft is None or found.extra_s <= seen.ttft):
        return None
    sentence = f"{named(seen)} wrote {found.words}"
    return _why(seen, Verdict.SLOW_DECODE, sentence, evidence=found.evidence)


def _new_tokens(seen: Seen) -> Why | None:
    """A long input, and nothing of it could have been cached."""
    new, ttft = seen.turn.new_tokens, seen.ttft
    if new is None or seen.cached is None or ttft is None or not seen.waited_long:
        return None
    if seen.expected is None and seen.goes_on and _grew_too_much(seen) is not False:
        return None
    took = new / seen.rate if seen.rate else None
    queue = seen.turn.queue_s or 0.0
    if new < seen.unit or queue * 2 > ttft or (took is not None and took * 2 < ttft):
        return None
    sentence = f"{named(seen)} {waited(seen)}: {exact(new)} new tokens, a long input; {NOTHING_TO_MEND}"
    read_s = seen.cost_s(new)
    lines = [f"{exact(new)} tokens were read in {secs(read_s)}, {exact(new / read_s)} a second"] if read_s else []
    if lines and seen.rate and _read_slowly(seen):
        lines = [f"{lines[0]}; {exact(seen.rate)} are usual"]
    return _why(seen, Verdict.NEW_TOKENS, sentence, evidence=tuple(lines), rules_out=served(seen))


def _read_slowly(seen: Seen) -> bool:
    """By its own times most of its wait went into reading, much slower than is usual."""
    took, new, ttft = reading_s(seen.turn, None), seen.turn.new_tokens, seen.ttft
    if took is None or not new or ttft is None or not seen.rate or took * 2 < ttft:
        return False
    return took * seen.rate > SLOWER * new


def _slow_reading(seen: Seen) -> Why | None:
    """It read no more than it had to, `SLOWER` times slower than usual."""
    new, took, rate = seen.turn.new_tokens, reading_s(seen.turn, None), seen.rate
    if not new or not took or not rate or not _read_slowly(seen):
        return None
    if not seen.waited_long or seen.cached is None or _loaded(seen):
        return None
    if seen.expected is None and seen.goes_on and _grew_too_much(seen) is not False:
        return None
    speed = f"{exact(new / took)} a second"
    how = f"its {exact(new)} new tokens were read at {speed}, {exact(rate)} are usual: the server was slower"
    lines = [f"at the usual {exact(rate)} tokens a second they take {secs(new / rate)}, and took {secs(took)}"]
    reader = _read_meanwhile(seen)
    lines += [_reader(*reader)] if reader is not None else []
    sentence = f"{named(seen)} {waited(seen)}: {how}"
    return _why(seen, Verdict.UNKNOWN, sentence, evidence=tuple(lines), rules_out=served(seen), how=how)


def _reader(id: int, new: int) -> str:
    return f"turn {id} was being read at the same time: {exact(new)} new tokens"


def _grew_too_much(seen: Seen) -> bool | None:
    """It read more than it grew by, where nothing better is known of what it should have had."""
    before = seen.baseline.prompt_tokens if seen.baseline is not None and seen.goes_on else None
    return grew_too_much(seen.turn, before, seen.server.unit)


def _rest(seen: Seen) -> Why:
    name, turn = named(seen), seen.turn
    puzzling = seen.expected is None and _grew_too_much(seen) is True
    if not seen.slow and not puzzling:
        share = (
            f" {pct(turn.cached_share)} cached," if seen.cached is not None and turn.cached_share is not None else ""
        )
        first = f" TTFT {secs(seen.ttft)}" if seen.ttft is not None else " its TTFT is not known"
        if turn.route is Route.OTHER:
            return _why(seen, Verdict.UNKNOWN, f"{name}:{share}{first}; {NO_ROUTE}")
        return _why(seen, Verdict.NO_FAULT, f"{name}:{share}{first}; {NOTHING_TO_MEND}", rules_out=served(seen))
    if _loaded(seen):
        said = "KV came back from a tier meanwhile; how much of the wait that took is not told"
    elif seen.untrue:
        said = UNTRUE
    elif seen.cached is None:
        said = "the server does not say what it had cached (--enable-prompt-tokens-details)"
    elif seen.expected is None:
        said = "what should have been cached is not known"
    else:
        said = "its new tokens, the cache and the queue do not explain it"
    reader = _read_meanwhile(seen)
    lines = [_reader(*reader)] if reader is not None else []
    if seen.cached is not None and turn.new_tokens and seen.rate:
        takes = secs(turn.new_tokens / seen.rate)
        lines.append(f"at the usual {exact(seen.rate)} tokens a second its {exact(turn.new_tokens)} take {takes}")
    return _why(seen, Verdict.UNKNOWN, f"{name} {waited(seen)}: {said}", evidence=tuple(lines), rules_out=served(seen))


def _read_meanwhile(seen: Seen) -> tuple[int, int] | None:
    """Another turn whose prompt was read while this one waited, and its new tokens: the one with most of them."""
    end = seen.turn.first_token_at
    if end is None:
        return None
    found = [
        (one.new_tokens, one.id)
        for one in seen.others
        if one.upstream == seen.turn.upstream
        and one.id != seen.turn.id
        and one.new_tokens is not None
        and one.new_tokens >= seen.unit
        and (one.sent_at or one.started_at) < end
        and (one.first_token_at or one.ended_at or end) > seen.arrived
    ]
    if not found:
        return None
    new, id = max(found)
    return id, new


def _because(seen: Seen) -> tuple[Because, ...]:
    """What made the expected reuse small; nothing, where more came from the cache."""
    if seen.expected is None or (seen.cached or 0) > seen.expected.tokens:
        return ()
    return seen.expected.because


def _tools_again(seen: Seen) -> list[str]:
    """The turn before it stepped aside with other tools, and it has those from before that."""
    turn, old, diff = seen.turn, seen.baseline, seen.diff
    if old is None or diff is None or turn.parent in (None, old.id) or "tools" not in turn.changed:
        return []
    if any(one.pointer.startswith("/tools") for one in diff.causes):
        return []
    return [f"its tools are those of turn {old.id} again, and other ones than in turn {turn.parent}"]


def _common_evidence(seen: Seen) -> tuple[str, ...]:
    expected, found = seen.expected, _tools_again(seen)
    if expected is None:
        return tuple(found)
    if _because(seen):
        why_ = because(_because(seen))
        found.append(f"{exact(expected.tokens)} tokens were expected of this prompt as it is: {why_}")
    if seen.cached is not None and seen.cached > expected.at_most:
        found.append(f"{exact(seen.cached)} came from the cache, more than the prompts looked at explain")
    return tuple(found)
