"""A captured turn in lines: what it asked, how the time went, how the answer ended. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtop.capture.api.answer_text import CALL, REASONING, Piece
from kvtop.capture.api.answers import tells_cached
from kvtop.capture.importers.exchange import KEY
from kvtop.capture.turn import Captured, Part, Route
from kvtop.live.captures import untold
from kvtop.live.desk import Detail
from kvtop.model.shown_turn import Turn
from kvtop.model.view import ServerView
from kvtop.ui import why_words
from kvtop.ui.draw import Line, cells, clip, fit, meter, rj, safe, stack, wrap
from kvtop.ui.numbers import DASH, exact, ms, pct, rate, short, tok, traffic
from kvtop.ui.turn_words import legend_of_tokens, speed, tokens_bar, waited_for
from kvtop.ui.widgets.notes import FLAG, OPTION

if TYPE_CHECKING:
    from kvtop.triage.result import Why

FIRST, LAST = 3, 4
"""Messages of a long prompt that are listed: so many of its begin and of its end."""
END_ROWS = 6
"""Rows of the answer's end."""
END_CHARS = 4_000
"""Characters of it that are looked at."""
HINT_CELLS = 28
SHARES = 8
"""Turns of the conversation whose cached share is shown."""

Block = tuple[str, list[str], list[Line]]
"""Title, notes longest first, rows."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What is known of a captured turn besides its row."""

    detail: Detail | None = None
    """None: it is read."""
    why: Why | None = None
    """None: it is worked out, or cannot be."""
    trouble: str = ""
    """Why it cannot be."""
    tried: bool = True
    """Something works it out."""


def blocks(turn: Turn, known: Looked, server: ServerView | None, w: int, tall: bool, *, diff_key: str) -> list[Block]:
    """The page of a turn that ended. `w`: cells of a row. `diff_key`: what opens its diff; empty: there is none."""
    detail, why = known.detail, known.why
    made: list[Block] = [_prompt(turn, detail, server, w, why)]
    if why is None:
        made.append(_time(turn, detail, w))
        if known.tried:
            made.append(("Evidence", [], wrap([_untold(known)], w)))
    else:
        room = why_words.beside(w)
        title, notes, time = _time(turn, detail, room or w)
        made.append(why_words.spent(turn, why, server, time, w))
        made += [one for one in (why_words.block_of_causes(why, w), why_words.block_of_break(why, w, diff_key)) if one]
        made.append(why_words.evidence(why, w))
        made += [] if room else [(title, notes, time)]
    if detail is None:
        return [*made, ("Request", [], [[("is read from disk", "d")]])]
    made.append(_request(detail.turn, w, tall))
    made.append(_answer(detail, w))
    made.append(_conversation(turn, detail, w))
    made.append(_usage(detail.turn, w))
    return made


def _untold(known: Looked) -> tuple[str, str]:
    if known.trouble:
        return f"Why it took its time cannot be told: {safe(known.trouble)}.", "d"
    return "Why it took its time is being worked out.", "d"


def blocks_in_flight(detail: Detail | None, w: int, tall: bool) -> list[Block]:
    """What is known already of one in flight, under what is expected of it."""
    return [] if detail is None else [_request(detail.turn, w, tall)]


def _prompt(turn: Turn, detail: Detail | None, server: ServerView | None, w: int, why: Why | None) -> Block:
    if turn.prompt_tokens is None:
        guess = f"about {tok(turn.estimate.prompt_tokens)}, by its size" if turn.estimate else ""
        rows = wrap([("Its answer told no usage" + _unasked(detail) + (f"; {guess}." if guess else "."), "d")], w)
        return "Prompt", ["tokens not known"], rows
    rows = why_words.prompt(turn, why, w) if why else [tokens_bar(turn, w), legend_of_tokens(turn, True, w)]
    if unasked_for := _unasked(detail):
        rows += wrap([(f"Its answer told no usage{unasked_for}.", "d")], w)
    elif turn.cached_tokens is None and detail is not None and tells_cached(detail.turn.usage):
        rows += wrap([("The number of cached tokens that the server tells cannot be true.", "d")], w)
    elif turn.cached_tokens is None:
        flag = "" if server is not None and server.config.prefix_caching is False else f": {FLAG} lets it"
        rows += wrap([(f"The server does not tell cached tokens of a request{flag}.", "d")], w)
    elif turn.cached_source == "metrics":
        alone = "it alone ended between two reads" if "cached_tokens" in turn.worked_out else "it was alone"
        rows += wrap([(f"Cached tokens are from the counters: {alone}.", "d")], w)
    counted = "prompt_tokens" in turn.worked_out or (detail is not None and not detail.turn.usage)
    whence = "by the counters" if counted else "as usage says" if why is None else "in the order the model reads them"
    return "Prompt", [f"{exact(turn.prompt_tokens)} tokens, {whence}", f"{exact(turn.prompt_tokens)} tokens"], rows


def _unasked(detail: Detail | None) -> str:
    """Why a stream told no usage; empty where it is not known, or where it did."""
    if detail is None or not untold(detail.turn):
        return ""
    return f": its client did not set {OPTION}" if detail.turn.usage_asked is False else ": the server sent none"


def _time(turn: Turn, detail: Detail | None, w: int) -> Block:
    known = turn.queue_s is not None and turn.prefill_s is not None
    writing = turn.decode_s
    if known:
        bar = stack([(turn.queue_s, "queue"), (turn.prefill_s, "prefill"), (writing, "decode")], w)
        parts = [("queue ", "queue", turn.queue_s), ("prefill ", "prefill-text", turn.prefill_s)]
    else:
        bar = stack([(None, "queue"), (turn.ttft_s, "prefill"), (writing, "decode")], w)
        parts = [("queue and prefill ", "prefill-text", turn.ttft_s)]
    parts.append(("decode ", "decode-text", writing))
    legend: Line = []
    for name, style, seconds in parts:
        legend += [("   " if legend else "", "t"), (name, style), (short(seconds), "t")]
    told: Line = [("TTFT ", "d"), (waited_for(turn), "t")]
    if turn.ttft_s is None or "ttft_s" in turn.worked_out:
        told += [(" (no stream: the whole answer came at once)", "d")]
    out: Line = [(", ", "d"), (exact(turn.completion_tokens), "t"), (" tokens out", "d")]
    if spoke := speed(turn):
        out += [(f", {rate(spoke)} tok/s", "d")]
    rows: list[Line] = [bar, legend, *wrap([*told, *out], w)]
    if detail is not None and (gaps := _gaps(detail.turn)):
        rows += wrap(gaps, w)
    took = f"{short(turn.duration_s)} from the request's first byte to the answer's last"
    return "Time", [took, f"{short(turn.duration_s)} in all"] if turn.duration_s is not None else [], rows


def _gaps(turn: Captured) -> Line:
    if not turn.inter_token_n:
        return []
    line: Line = [("gap between tokens p50 ", "d"), (ms(turn.inter_token_p50_s), "t")]
    if turn.inter_token_p95_s is not None:
        line += [(", p95 ", "d"), (ms(turn.inter_token_p95_s), "t")]
    line += [(f", n={exact(turn.inter_token_n)}", "d")]
    if turn.coalesced:
        line += [("; coarse: several came in one read", "d")]
    return line


# ---------------------------------------------------------------- the request
def _request(turn: Captured, w: int, tall: bool) -> Block:
    rows = list(_outline(turn.outline, w, tall, chat=turn.route is Route.CHAT))
    if not rows:
        rows = [[("its parts are not known", "d")]]
    hints = {name: value for name, value in turn.hints.items() if name != KEY}
    if hints:
        rows += wrap([("hints ", "d"), (_hints(hints), "t")], w, 6)
    if turn.prompt_unproven:
        rows += wrap([("! ", "warn"), (f"not proven: {safe(turn.prompt_unproven)}", "t")], w)
    stream = {True: "stream", False: "no stream"}.get(turn.stream, "") if turn.stream is not None else ""
    size = f"{traffic(turn.request_bytes)} sent"
    note = [", ".join(filter(None, (safe(f"{turn.method} {turn.path}".strip()), stream, size))), size]
    return "Request", note, rows


def _outline(parts: Sequence[Part], w: int, tall: bool, *, chat: bool) -> Iterator[Line]:
    """In the order in which the model reads them: tools and system first; of many messages the first and last ones,
    by the numbers that they were sent with: on the chat route a system prompt is a message, too."""
    place = 0
    for kind, group in itertools.groupby(parts, key=lambda part: part.kind):
        run = list(group)
        if kind == "tool":
            names = ", ".join(safe(part.name) for part in run if part.name)
            yield _part(f"{len(run)} tool{'' if len(run) == 1 else 's'}", _size(run), names, w)
        elif kind == "message":
            yield from _messages(run, place, w, tall)
        else:
            for part in run[:FIRST]:
                yield _part(safe(part.kind), part.size, safe(part.name), w)
            if len(run) > FIRST:
                yield _part(f"{len(run) - FIRST} more", _size(run[FIRST:]), "", w)
        place += len(run) if kind == "message" or (chat and kind == "system") else 0


def _messages(run: Sequence[Part], place: int, w: int, tall: bool) -> Iterator[Line]:
    first, last = (FIRST, LAST) if tall else (1, 2)
    for i, part in enumerate(run):
        if first <= i < len(run) - last and len(run) > first + last + 1:
            if i == first:
                middle = run[first : len(run) - last]
                yield _part(f"··· {len(middle)} messages", _size(middle), _roles(middle), w)
            continue
        yield _part(f"messages[{place + i}]", part.size, safe(part.role or part.name), w)


def _roles(run: Sequence[Part]) -> str:
    counts: dict[str, int] = {}
    for part in run:
        counts[part.role or "?"] = counts.get(part.role or "?", 0) + 1
    return ", ".join(f"{n} {safe(role)}" for role, n in counts.items())


def _part(name: str, size: int, words: str, w: int) -> Line:
    head: Line = [*fit([(name, "t")], 18), *rj(traffic(size), 9), ("  ", "t")]
    return [*head, (clip(words, max(0, w - 29)), "d")]


def _size(parts: Sequence[Part]) -> int:
    return sum(part.size for part in parts)


def _hints(hints: Mapping[str, str]) -> str:
    """Session ids and their like, shortened: their ends tell them apart as well as their begins."""
    said = []
    for name, value in hints.items():
        text = safe(value)
        if cells(text) > HINT_CELLS:
            text = f"{clip(text, HINT_CELLS - 6)}{text[-6:]}"
        said.append(f"{safe(name)} {text}")
    return ", ".join(said)


# ---------------------------------------------------------------- the answer
def _answer(detail: Detail, w: int) -> Block:
    turn = detail.turn
    if turn.error:
        return "Answer", [f"{traffic(turn.response_bytes)}"], wrap([("× ", "bad"), (safe(turn.error), "t")], w)
    size = f"{traffic(turn.response_bytes)} came"
    notes = [f"{said}; {size}" for said in [_kinds(detail.answer)] if said]
    rows = _ending(detail.answer, w) if detail.answer else [[("no words in it", "d")]]
    return "Answer's end", [*notes, size], rows


def _kinds(answer: Sequence[Piece]) -> str:
    said = []
    thought = sum(len(piece.text) for piece in answer if piece.kind == REASONING)
    if thought:
        said.append(f"{exact(thought)} characters of reasoning")
    calls = [safe(piece.name) or "?" for piece in answer if piece.kind == CALL]
    if calls:
        said.append(f"calls {', '.join(calls[:4])}{f' and {len(calls) - 4} more' if len(calls) > 4 else ''}")
    return ", ".join(said)


def _ending(answer: Sequence[Piece], w: int) -> list[Line]:
    rows: list[Line] = []
    for piece in reversed(answer):
        style = "d" if piece.kind == REASONING else "t"
        label = f"{safe(piece.name)} " if piece.kind == CALL else ""
        text = piece.text[-END_CHARS:]
        made: list[Line] = []
        for line in text.strip("\n").split("\n"):
            head: Line = [(label, "computed-text")] if label and not made else []
            made += wrap([*head, (safe(line.rstrip("\r")), style)], w, 2 if piece.kind == CALL else 0)
        rows = [*made, *rows]
        if len(rows) >= END_ROWS:
            break
    return rows[-END_ROWS:]


# ---------------------------------------------------------------- where it belongs, and what else is known
def _conversation(turn: Turn, detail: Detail, w: int) -> Block:
    one = detail.turn
    ids = [other.id for other in reversed(detail.siblings)]
    name = safe(one.conversation or DASH)
    place = f", turn {ids.index(one.id) + 1} of the last {len(ids)}" if one.id in ids and len(ids) > 1 else ""
    rows: list[Line] = wrap([(_relation(one, turn.changes), "t")], w)
    last = [other for other in detail.siblings if other.state is not None][:SHARES]
    each = 15
    fitting = max(1, min(len(last), (w + 2) // (each + 2)))
    last = list(reversed(last[:fitting]))
    if len(last) > 1:
        heads: Line = []
        bars: Line = []
        for other in last:
            here = other.id == one.id
            share = turn.cached_share if here else other.cached_share
            heads += fit([(f"{other.id}", "bright bold" if here else "d")], each + 2)
            bar = meter([(share, "cached-device")], 7) if share is not None else [("·" * 7, "f")]
            bars += [*bar, *rj(pct(share), 6, "t" if share is not None else "d"), (" " * (each + 2 - 13), "t")]
        rows += [heads, bars]
    return "Conversation", [f"{name}{place}", name], rows


def _relation(turn: Captured, changes: str) -> str:
    """`changes`: what of the prompt but the messages is not its parent's, in words."""
    after = f"turn {turn.parent}" if turn.parent is not None else "an earlier turn"
    if changes and turn.relation == "branch":
        return f"asks what {after} asked: the same messages with {changes}"
    if changes and turn.relation == "next":
        return f"continues {after} with {changes}"
    return {
        "first": "begins this conversation",
        "next": f"continues {after}",
        "retry": f"asks again what {after} asked",
        "branch": f"branches off from {after}",
        "side": f"a side call beside {after}",
        "subagent": f"of a subagent, begun in {after}",
        "compaction": f"follows {after} with its history compacted",
    }.get(turn.relation or "", "where it belongs is not known")


def _usage(turn: Captured, w: int) -> Block:
    rows: list[Line] = []
    said = ", ".join(f"{safe(name)} {value}" for name, value in _flat(turn.usage))
    rows += wrap([("usage ", "d"), (said or "none came", "t" if said else "d")], w, 6)
    facts = [
        ("response ", safe(turn.response_id or "")),
        ("upstream ", safe(turn.upstream)),
        ("status ", "" if turn.status is None else str(turn.status)),
    ]
    line: Line = []
    for name, value in facts:
        if value:
            line += [(", " if line else "", "d"), (name, "d"), (value, "t")]
    rows += wrap(line, w) if line else []
    if turn.record == "truncated":
        rows += wrap([("! ", "warn"), ("kvtop did not record all of it: the traffic itself was not cut", "t")], w)
    agent = " ".join(filter(None, (safe(turn.agent), safe(turn.agent_version or ""))))
    return "As it came", [f"{agent}, by {turn.source}", agent], rows


def _flat(values: Mapping[str, object], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in itertools.islice(values.items(), 40):
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value is not None and not isinstance(value, list | tuple):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            yield f"{before}{name}", exact(float(value)) if number and isinstance(value, int) else safe(str(value)[:80])
