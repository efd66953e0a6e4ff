"""A verdict in the words of the dashboard: of a row, and of the sentence on top. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kvtop.capture.document import tokens_per_s
from kvtop.capture.turn import Captured
from kvtop.errors import printable
from kvtop.model.finding import Finding
from kvtop.model.words import exact, listed, nb, secs, tok
from kvtop.triage.cost import reading_s
from kvtop.triage.kinds import SAYS_ANEW, Because, Kind, Reason, Verdict, Who
from kvtop.triage.result import Cause, Diff, Why
from kvtop.triage.split import too_few
from kvtop.triage.words import NOTHING_TO_MEND, cause, place, section

SENTENCE = 400
"""Characters of a verdict's sentence: what an error body says stands in it too."""
NAME = 32
"""Characters of a part of the prompt: its names are the client's."""


@dataclass(frozen=True, slots=True)
class _Said:
    cells: tuple[str, ...] = ()
    clauses: tuple[str, ...] = ()
    tone: str = "bad"


_BY_DESIGN = {
    Kind.COMPACTION: "compacted",
    Kind.WINDOW_TRUNCATED: "oldest messages dropped",
    Kind.ROLLED_BACK: "rolled back",
    Kind.LAST_MESSAGE_REPLACED: "last message replaced",
}
_LOST = {
    Reason.RESTART: ("restarted", "restarted"),
    Reason.CACHE_RESET: ("cache cleared", "cache cleared"),
    Reason.EVICTED: ("evicted", "evicted"),
    Reason.STILL_RUNNING: ("turn before still ran", "still running"),
    Reason.PREVIOUS_ABORTED: ("turn before aborted", "turn before aborted"),
    Reason.REPLICA: ("another replica", "another replica"),
    Reason.OFFLOAD_NOT_LOADED: ("tier not read", "tier not read"),
    Reason.HASH_SEED: ("another hash seed", "hash seed"),
    Reason.STUCK_CACHE: ("cache stuck", "cache stuck"),
    Reason.METRIC_WRONG: ("cached tokens told wrong", "wrong number"),
}
"""How a prefix was lost: behind `engine lost it:`, and alone."""
_NOT_THERE = (Reason.STILL_RUNNING, Reason.PREVIOUS_ABORTED)
"""No fault of the engine: it had not come to read it, or had not yet given it up."""
_OK = {
    Because.BELOW_MATCH_UNIT: "less than a match unit is the same",
    Because.HYBRID_BOUNDARY: "no state was saved there yet",
    Because.SPECULATION: "the speculator costs the last block",
    Because.RETOKENISED_REPLY: "the reply came back in other tokens",
    Because.PREFIX_CACHING_OFF: "prefix caching is off",
    Because.REPLY_NOT_SAVED: "the reply was not saved yet",
}
_OTHER = {Kind.MODEL_CHANGED: "model", Kind.CACHE_SALT_CHANGED: "cache salt"}
"""Causes that are no tokens."""
_SAME_TOOLS = {
    Kind.TOOL_KEY_ORDER: "tools' keys turned",
    Kind.TOOL_ARRAY_ORDER: "tools' lists turned",
    Kind.TOOLS_REORDERED: "tools in another order",
}
"""Causes that leave the tools what they were."""


def finding(why: Why, turn: Captured) -> Finding:
    """`turn`: the one that the verdict is about. Never raises."""
    said = _SAY[why.verdict](why, turn)
    return Finding(
        verdict=why.verdict.value,
        tone=said.tone,
        cells=said.cells,
        clauses=said.clauses,
        sentence=printable(why.sentence, SENTENCE),
        reason=why.reason,
        fix=printable(why.fix or "", SENTENCE),
        reread_tokens=why.reread_tokens if why.split.reread is None else why.split.reread,
        guessed=why.split.guessed,
        new_tokens=why.split.new,
        tools=_tools(why, turn),
    )


def _tools(why: Why, turn: Captured) -> str:
    """As `Finding.tools`."""
    if why.diff is None:
        return ""
    kinds = {one.kind for one in why.diff.causes if one.pointer.startswith("/tools")}
    if why.diff.old != str(turn.parent):
        return "" if kinds else f"tools of turn {why.diff.old} again"
    return _SAME_TOOLS.get(kinds.pop(), "") if len(kinds) == 1 else ""


def _no_fault(why: Why, turn: Captured) -> _Said:
    few = too_few(why.verdict, why.split)
    told = [_OK[because] for because in why.expected_because][:1]
    cells, clauses = [f"ok: {words}" for words in told], [f"{NOTHING_TO_MEND}: {words}" for words in told]
    return _Said((*cells, "ok"), (few,) if few else (*clauses, NOTHING_TO_MEND), "ok")


def _new_tokens(why: Why, turn: Captured) -> _Said:
    read = why.split.new if why.split.new is not None else turn.new_tokens
    if read is None:
        return _Said(("long input",), (f"a long input; {NOTHING_TO_MEND}", "a long input"), "ok")
    new, full = tok(read), f"{exact(read)} new tokens, a long input"
    few = too_few(why.verdict, why.split)
    cells = (f"{new} new tokens: long input", f"{new} new: long input", f"{new} new")
    return _Said(cells, (f"{full}; {few or NOTHING_TO_MEND}", full), "ok")


def _diverged(why: Why, turn: Captured) -> _Said:
    about = "~" if why.split.guessed else ""
    again = f", {about}{tok(why.reread_tokens)} re-read" if why.reread_tokens is not None else ""
    first = _first(why)
    if first is not None and first.kind in SAYS_ANEW and (why.split.new or 0) > (why.reread_tokens or 0):
        again = f", {about}{tok(why.split.new)} new"
    if first is not None and first.kind in _OTHER:
        other = _OTHER[first.kind]
        short = (f"another {other}{again}", f"another {other}", f"another {other.split()[-1]}")
        clause = f"it was sent with another {other}"
        return _Said(short, (f"{clause} than the turn before{again}", f"{clause}{again}", clause))
    if first is not None and first.who is Who.NOBODY:
        name = _BY_DESIGN.get(first.kind, cause(first))
        clause = f"{cause(first)}, by design"
        return _Said((f"{name}, by design{again}", f"{name}{again}", name), (f"{clause}{again}", clause), "ok")
    kind = cause(first) if first is not None else ""
    where, token = _place(why.diff, first)
    at = f" at {token}" if token else ""
    into = f" in {where}" if where else ""
    cells = [f"prefix broke{at}{into}: {kind}"] if kind else []
    cells += [f"{kind}{into}"] if kind and where else [f"broke{at}: {kind}"] if kind else []
    cells += [f"broke at {token}, {where}"] if where and token and not kind else []
    alone = [*([kind] if kind else []), f"broke{into}" if where else f"broke{at}"]
    cells += [*sorted(alone, key=len, reverse=True), "broke"]
    at = f" at {nb(f'token {token}')}" if token else ""
    of = f" ({kind})" if kind else ""
    clauses = [f"prefix broke{at}{into}{of}{again}", f"prefix broke{into}{of}{again}", f"prefix broke{into}{again}"]
    return _Said(_once(cells), _once([*clauses, f"prefix broke{into}", "the prefix broke"]))


def _lost(why: Why, turn: Captured) -> _Said:
    reason = Reason(why.reason) if why.reason in set(Reason) else None
    if reason is None:
        return _Said(("engine lost it",), ("the engine lost it",))
    long, short = _LOST[reason]
    if reason is Reason.METRIC_WRONG:
        return _Said((long, short), (*filter(None, (printable(why.how),)), long), "warn")
    again = f", {tok(why.reread_tokens)} re-read" if why.reread_tokens is not None else ""
    if reason in _NOT_THERE:
        missing = f"{tok(why.reread_tokens)} were" if why.reread_tokens is not None else "it was"
        how = printable(why.how) or long
        return _Said((f"not cached: {long}", short), (f"{missing} not in the cache: {how}", f"not cached: {long}"))
    cells = (f"engine lost it: {long}", short)
    lost = "the engine lost it"
    how = f", {printable(why.how)}" if why.how else ""
    told = [f"{lost}{how}"] if how else []
    if much := _a_part(why):
        few = [f"the engine lost {words}{how or f': {long}'}" for words in much]
        left = [f"{few[0]}; {printable(why.rest)}"] if why.rest else []
        return _Said((f"engine lost {much[-1]}: {long}", *cells), _once([*left, *few, *told, lost]))
    same = [f"{words}; the prompt is unchanged" for words in told if why.diff is None or why.diff.append_only]
    return _Said(cells, _once([*same, *(words + again for words in told), *told, f"{lost}: {long}{again}", lost]))


def _a_part(why: Why) -> list[str]:
    """How much of it, longest first, where that was not nearly all of the prefix, or does not explain most of the
    wait."""
    lost, expected = why.reread_tokens, why.expected_cached_tokens
    if lost is None or not expected or (lost * 10 >= expected * 9 and not why.rest):
        return []
    seconds = why.split.seconds(lost)
    took = f", {secs(seconds)}" if seconds is not None else ""
    return [f"{exact(lost)} of {exact(expected)} tokens{took}", f"{tok(lost)} of {tok(expected)}{took}", tok(lost)]


def _queued(why: Why, turn: Captured) -> _Said:
    took = f" {secs(why.phases.queue_s)}" if why.phases.queue_s is not None else ""
    behind = [f"queued{took} behind turn {why.behind}"] if why.behind is not None else []
    words = _once([*behind, f"queued{took}", "queued"])
    return _Said(words, words[:-1] or words, "warn")


def _slow_decode(why: Why, turn: Captured) -> _Said:
    speed = tokens_per_s(turn)
    if speed is None:
        return _Said(("slow decode",), ("it wrote slowly",), "warn")
    rate = f"{speed:.1f}" if speed < 9.95 else f"{speed:.0f}"
    long = f" for {secs(why.phases.decode_s)}" if why.phases.decode_s is not None else ""
    said = f"it wrote {rate} tokens a second"
    return _Said((f"slow decode: {rate} tok/s", "slow decode"), _once([said + long, said]), "warn")


def _unknown(why: Why, turn: Captured) -> _Said:
    """Without anything that fits nothing is said that its row does not say."""
    fits = [_LOST[reason][1] for reason in why.candidates]
    if not fits and why.reread_tokens is None and why.how:
        return _read_slowly(why, turn)
    if not fits and why.reread_tokens is None:
        return _Said(tone="unsure")
    alone = f"perhaps {fits[0]}" if fits else "not known how"
    told = listed(fits, "or") if len(fits) > 1 else alone
    less = f"{tok(why.reread_tokens)} less than expected" if why.reread_tokens is not None else "less than expected"
    cells = [f"{less}: {told}", *([told] if fits else []), less, "cause not certain"]
    clauses = [f"it got {less}: {printable(why.how)}"] if why.how else []
    return _Said(tuple(cells), (*clauses, f"it got {less}: {told}", f"it got {less}"), "unsure")


def _read_slowly(why: Why, turn: Captured) -> _Said:
    """What it read it had to read, and the server took longer than usual."""
    took, slower = reading_s(turn, None), "the server was slower than usual"
    if not turn.new_tokens or not took:
        return _Said(("slow prefill",), (slower,), "unsure")
    rate = f"{exact(turn.new_tokens / took)} tok/s"
    return _Said((f"slow prefill: {rate}", "slow prefill"), (printable(why.how), f"read at {rate}: {slower}"), "unsure")


def _as_it_ended(why: Why, turn: Captured) -> _Said:
    """Its row tells that better."""
    return _Said(tone="bad" if why.verdict is Verdict.FAILED else "warn")


_SAY = {
    Verdict.NO_FAULT: _no_fault,
    Verdict.NEW_TOKENS: _new_tokens,
    Verdict.PROMPT_DIVERGED: _diverged,
    Verdict.ENGINE_LOST_CACHE: _lost,
    Verdict.QUEUED: _queued,
    Verdict.SLOW_DECODE: _slow_decode,
    Verdict.FAILED: _as_it_ended,
    Verdict.ABORTED: _as_it_ended,
    Verdict.UNKNOWN: _unknown,
}


def _first(why: Why) -> Cause | None:
    """The cause that the verdict names."""
    causes = why.diff.causes if why.diff is not None else ()
    return next((one for one in causes if one.kind.value == why.reason), None)


def _place(diff: Diff | None, named: Cause | None) -> tuple[str, str]:
    """(Part of the prompt, token) of the first difference, or of the cause where that stands elsewhere; empty: not
    known."""
    first = diff.first if diff is not None else None
    if first is None:
        return "", ""
    if named is not None and named.section and named.section != first.section:
        return printable(place(named), NAME), ""
    of = place(named) if named is not None and named.section else section(first.section)
    where = printable(of, NAME)
    return where, exact(first.token) if first.token is not None else ""


def _once(words: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
