"""Why a captured turn took its time, in the lines of its page: what the cache should have given, what was read again,
of what causes, and what shows it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvtop.model.shown_turn import Turn
from kvtop.model.view import ServerView
from kvtop.ui.diff.table import rows as cause_rows
from kvtop.ui.draw import Line, clip, columns, pick_line, pointer, rj, safe, stack, wrap
from kvtop.ui.numbers import exact, pct, short
from kvtop.ui.turn_words import blocks_of

if TYPE_CHECKING:
    from kvtop.triage.result import Cause, Split, Why

Block = tuple[str, list[str], list[Line]]
"""Title, notes longest first, rows."""

BESIDE = 116
"""From so many cells on the time stands beside the tokens."""
TABLE = 68
"""Cells of the table of tokens there."""
CAUSES = 4
"""That are listed; the diff lists all."""
MOST = 400
"""Characters of a line of evidence that are shown."""
NAMES = 10
"""Cells before a line of evidence."""
NAME = 11
"""The same before a row of the table."""
OTHER = "other_conversation"
"""Of two prompts that have nothing to do with each other: no cause of this one."""
_HOW = {
    ("served_ids", True): ["exact: the tokens that the server read", "exact"],
    ("server_tokens", True): ["exact: counted by the server's own tokenizer", "exact"],
    ("served_ids", False): ["not exact: the tokens that the server read", "not exact"],
    ("server_tokens", False): ["not exact: counted by the server's own tokenizer", "not exact"],
}
_TEXT = ["by texts alone: no server counted tokens", "by texts alone"]


# ---------------------------------------------------------------- the prompt
def prompt(turn: Turn, why: Why, w: int) -> list[Line]:
    """Its bar, where it broke, and its parts in words."""
    parts = why.split
    bar = stack([(parts.cached, "cached-device"), (parts.reread, "lost"), (parts.new, "computed")], w)
    mark = broke_at(turn, why, w)
    return [bar, *([mark] if mark else []), _legend(parts, w)]


def broke_at(turn: Turn, why: Why, w: int) -> Line:
    """A mark under the bar where the first token differs; empty where there is none, or nobody knows which it is."""
    first = why.diff.first if why.diff is not None and not why.diff.append_only else None
    if first is None or first.token is None or not turn.prompt_tokens or not _broke(why):
        return []
    section = safe(first.section[:MOST])
    number = f"token {exact(first.token)}"
    says = [f"{number}: {one}" for one in (section, section.partition(".")[0]) if one]
    return pointer(first.token / turn.prompt_tokens, [*says, number], w, "bad")


def _legend(parts: Split, w: int) -> Line:
    about = "~" if parts.guessed else ""

    def line(gap: str) -> Line:
        out: Line = [("cached ", "cached-device"), (exact(parts.cached), "t")]
        if parts.reread:
            out += [(f"{gap}lost ", "lost"), (about + exact(parts.reread), "t")]
        return [*out, (f"{gap}new ", "computed-text"), (about + exact(parts.new), "t")]

    return pick_line([line("    "), line("   "), line(" ")], w)


def _broke(why: Why) -> bool:
    return any(cause.kind.value != OTHER for cause in causes(why))


# ---------------------------------------------------------------- tokens and time
def spent(turn: Turn, why: Why, server: ServerView | None, time: Sequence[Line], w: int) -> Block:
    """The table of its tokens; with room its time stands beside it."""
    parts = why.split
    notes = []
    if parts.read_s and parts.prompt is not None and parts.cached is not None:
        speed = (parts.prompt - parts.cached) / parts.read_s
        notes = [f"prefill speed of this turn: {exact(speed)} tok/s", f"{exact(speed)} tok/s"]
    rows = _table(turn, why, server, min(w, TABLE) if w >= BESIDE else w)
    if w < BESIDE:
        return "Reuse", notes, rows
    n = max(len(rows), len(time))
    left, right = [*rows, *[[]] * (n - len(rows))], [*time, *[[]] * (n - len(time))]
    return "Reuse and time", notes, [columns(pair, [TABLE, w - TABLE - 2]) for pair in zip(left, right, strict=True)]


def beside(w: int) -> int:
    """Cells that the time has beside the table; 0: it stands by itself."""
    return w - TABLE - 2 if w >= BESIDE else 0


def _table(turn: Turn, why: Why, server: ServerView | None, w: int) -> list[Line]:
    parts = why.split
    unit = why.diff.match_unit_tokens if why.diff is not None else None
    unit = unit or (server.config.match_unit_tokens if server is not None else None)

    def row(name: str, tokens: float | None, read: bool, *say: str) -> Line:
        share = tokens / parts.prompt if tokens is not None and parts.prompt else None
        seconds = parts.seconds(tokens) if read else None
        about = "~" if parts.guessed and read and tokens is not None else ""
        line: Line = [(name.ljust(NAME), "d"), *rj(about + exact(tokens), 10), *rj(pct(share, 1), 9)]
        line += rj(short(seconds) if read else "", 8)
        return pick_line([*([*line, (f"   {words}", "d")] for words in say if words), line], w)

    head: Line = [(" " * NAME, "t"), *rj("tokens", 10, "d"), *rj("share", 9, "d"), *rj("time", 8, "d")]
    law: list[Line] = []
    if _is_less(why):
        law = [row("expected", why.expected_cached_tokens, False, "of this prompt, as it is", "as it is")]
    shares = _shares(parts)
    lost = [row("lost", parts.reread, True, shares or ("had been read before" if parts.reread else ""))]
    if shares and not any(shares in text for text, _ in lost[0]):  # numbers alone would tell nobody what they are
        lost += [[(" " * NAME, "t"), *rest] for rest in wrap([(shares, "d")], w - NAME)]
    return [
        head,
        row("read before", parts.before, False, *_blocks(parts.before, unit)),
        *law,
        row("cached", parts.cached, False, *_blocks(parts.cached, unit)),
        *lost,
        row("new", parts.new, True, "needed anyway"),
    ]


def _is_less(why: Why) -> bool:
    """The prompt as it is lets the cache give something else than it could have given."""
    expected = why.expected_cached_tokens
    return expected is not None and (expected != why.split.before or bool(why.expected_because))


def _shares(parts: Split) -> str:
    """What it was read again for; empty: for one reason, or none."""
    shares = [(parts.changed, "changed"), (parts.lost, "by the engine"), (parts.unsaved, "not saved")]
    told = [f"{exact(tokens)} {how}" for tokens, how in shares if tokens]
    return ", ".join(told) if len(told) > 1 else ""


def _blocks(tokens: float | None, unit: int | None) -> list[str]:
    return [blocks_of(tokens, unit)] if unit and tokens and not tokens % unit else []


# ---------------------------------------------------------------- causes
def causes(why: Why) -> Sequence[Cause]:
    """What of its prompt is another than it was."""
    return [cause for cause in why.diff.causes if cause.kind.value != OTHER] if why.diff is not None else []


def block_of_causes(why: Why, w: int) -> Block | None:
    """None: its prompt is as it was, and there is nothing to do."""
    listed = causes(why)
    if not listed and not why.fix:
        return None
    priced = any(cause.told_tokens is not None for cause in listed)
    rows = cause_rows([_brief(cause) for cause in listed[:CAUSES]], w, priced)
    if more := listed[CAUSES:]:
        rows.append([(f"and {len(more)} more: the diff lists them", "d")])
    seen = next((cause.seen for cause in listed[:1] if cause.seen), None)
    if seen:
        rows += wrap([("seen ", "d"), (safe(seen[:MOST]), "t")], w, 5)
    if why.fix:
        rows += wrap([("fix ", "ok"), (safe(why.fix[:MOST]), "t")], w, 4)
    notes = ["by what they cost, those before it in the prompt mended", "by what they cost"] if priced else []
    return "Causes", notes if listed else [], rows


def _brief(cause: Cause) -> Cause:
    """Names in a prompt may be as long as the prompt."""
    moved = cause.pointer_new[:MOST] if cause.pointer_new is not None else None
    return replace(cause, section=cause.section[:MOST], fix=cause.fix[:MOST], pointer_new=moved)


def block_of_break(why: Why, w: int, key: str) -> Block | None:
    """Both prompts where they part. `key`: what opens the diff."""
    first = why.diff.first if why.diff is not None and not why.diff.append_only else None
    if first is None or not _broke(why) or not (first.old or first.new):
        return None
    number = exact(first.token) if first.token is not None else ""
    head = max(len(number) + 1, 1)
    rows: list[Line] = [
        [(number.rjust(head - 1), "d"), (f" {mark} ", style), (clip(safe(text[:MOST]), max(1, w - head - 2)), "t")]
        for mark, style, text in (("-", "bad", first.old), ("+", "ok", first.new))
    ]
    return "The break", [f"{key} shows all of it", ""] if key else [], rows


# ---------------------------------------------------------------- evidence
def evidence(why: Why, w: int) -> Block:
    """What shows it, and what it is not."""
    listed = [("shows", line) for line in why.evidence]
    listed += [("may be", reason.value.replace("_", " ")) for reason in why.candidates]
    listed += [("rules out", line) for line in why.rules_out]
    if why.diff is not None:
        listed += [("note", note) for note in why.diff.notes]
    rows: list[Line] = []
    last = ""
    for name, text in listed:
        head = "" if name == last else name
        last = name
        said = wrap([(safe(text[:MOST]), "t")], max(1, w - NAMES))
        rows += [[((head if i == 0 else "").ljust(NAMES), "d"), *row] for i, row in enumerate(said)]
    if not rows:
        rows = [[("none", "d")]]
    how = _HOW.get((why.diff.method, why.diff.exact), _TEXT) if why.diff is not None else []
    return "Evidence", [*how, ""], rows
