"""What stands over the two prompts: the sentence, the bar of the prompt, the titles."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop.model.view import Sentence
from kvtop.triage.places import Places
from kvtop.triage.result import Diff
from kvtop.triage.sheet import Sheet
from kvtop.ui.diff.rows import GAP, View
from kvtop.ui.draw import Line, cells, clip, pick, pointer, safe, stack
from kvtop.ui.numbers import exact
from kvtop.ui.widgets.panel import rule

CHIP = "DIFF"


# ---------------------------------------------------------------- the sentence
def sentence(sheet: Sheet, where: Places) -> Sentence:
    """What the two prompts share, and what that cost."""
    first = f"{_title(sheet)}:"
    if where.first is None:
        return Sentence(CHIP, "ok" if not sheet.diff.causes else "warn", first, _alike(sheet.diff))
    if where.appended:
        return Sentence(CHIP, "ok" if not sheet.diff.causes else "warn", first, _appended(sheet))
    return Sentence(CHIP, "bad", first, _broken(sheet))


def _title(sheet: Sheet) -> str:
    old, new = safe(sheet.old_label), safe(sheet.new_label)
    start, one, number = old.partition("turn ")
    if not start and one and new.startswith(one):
        return f"Turn {number} → {new.removeprefix(one)}"
    return f"{clip(old or 'old', 40)} → {clip(new or 'new', 40)}"


def _alike(diff: Diff) -> str:
    same = "the prompts are the same"
    if diff.causes:
        return f"{same}, and yet nothing of the old one can be reused: what differs is no text."
    return f"{same}."


def _appended(sheet: Sheet) -> str:
    tokens = sheet.diff.tokens
    added = ""
    if sheet.tokens and tokens.old is not None and tokens.new is not None and tokens.new >= tokens.old:
        added = f", {exact(tokens.new - tokens.old)} tokens are new"
    said = f"nothing before its end changed{added}"
    if sheet.diff.causes:
        return f"{said}; and yet nothing of the old one can be reused: what differs is no text."
    return f"{said}{_reusable(sheet)}."


def _reusable(sheet: Sheet) -> str:
    reusable = sheet.diff.tokens.reusable
    return f", reusable {exact(reusable)}" if sheet.tokens and reusable is not None else ""


def _broken(sheet: Sheet) -> str:
    diff, tokens = sheet.diff, sheet.diff.tokens
    if not sheet.tokens or tokens.common is None:
        where = (
            f"first difference in {safe(diff.first.section)}" if diff.first is not None and diff.first.section else ""
        )
        return f"{where or 'they differ'}."
    said = f"same up to token {exact(tokens.common)}{_reusable(sheet)}"
    if tokens.reread is not None and tokens.reusable is not None:
        return f"{said}, lost {exact(tokens.reread)} of {exact(tokens.reread + tokens.reusable)}."
    if tokens.lost is not None and tokens.old is not None:
        return f"{said}, lost {exact(tokens.lost)} of {exact(tokens.old)}."
    return f"{said}."


_METHODS = {
    ("served_ids", True): ("exact, the tokens that the server read", "exact"),
    ("server_tokens", True): ("exact, rendered by the server", "exact"),
    ("served_ids", False): ("the tokens that the server read, not exact", "not exact"),
    ("server_tokens", False): ("rendered by the server, not exact", "not exact"),
}
_TEXT = ("compared as text, without tokens", "text")


def contexts(sheet: Sheet, agent: str = "") -> list[str]:
    """Whose turns, of how many tokens, and how exact that is; the longest wording first."""
    diff, tokens = sheet.diff, sheet.diff.tokens
    how, short = _METHODS.get((diff.method, diff.exact), _TEXT)
    counts = f"{exact(tokens.old)} → {exact(tokens.new)} tokens" if sheet.tokens else ""
    unit = f"blocks of {exact(diff.match_unit_tokens)}" if diff.match_unit_tokens else ""
    cached = ""
    if diff.cached_tokens is not None and diff.cached_tokens != tokens.reusable:
        cached = f"cached {exact(diff.cached_tokens)}"
    who = safe(agent)
    return [
        " · ".join(part for part in parts if part)
        for parts in (
            (who, counts, unit, cached, how),
            (counts, unit, cached, how),
            (counts, cached, how),
            (counts, cached, short),
            (cached, short),
            (short,),
        )
    ]


# ---------------------------------------------------------------- the bar
def bar(sheet: Sheet, where: Places, w: int) -> list[Line]:
    """What the new prompt is made of, and where the break is."""
    if w < 1 or not sheet.new:
        return []
    first = where.first
    common = first.new.start if first is not None else len(sheet.new)
    if sheet.tokens:
        parts, share = _weights(sheet, common), common / len(sheet.new)
    else:  # by the length of the text: of its tokens nothing is known
        whole, head = sum(map(len, sheet.new)), sum(map(len, sheet.new[:common]))
        new = whole - head
        parts = [(head, "gauge"), (0 if where.appended else new, "lost"), (new if where.appended else 0, "computed")]
        share = head / whole if whole else 0.0
    return [stack(parts, w), _mark(sheet, where, common, share, w)]


def _weights(sheet: Sheet, common: int) -> list[tuple[float | None, str]]:
    tokens, size = sheet.diff.tokens, len(sheet.new)
    reusable = tokens.reusable if tokens.reusable is not None else common
    cached = sheet.diff.cached_tokens if sheet.diff.cached_tokens is not None else reusable
    lost = tokens.reread if tokens.reread is not None else tokens.lost or 0
    cached = max(0, min(cached, size))
    missed = max(0, min(reusable + lost, size) - cached)
    return [(cached, "cached-device"), (missed, "lost"), (size - cached - missed, "computed")]


def _mark(sheet: Sheet, where: Places, common: int, share: float, w: int) -> Line:
    if where.first is None:
        return []
    told = sheet.diff.first.section if sheet.diff.first is not None else ""
    section = safe(where.section(min(common, len(sheet.new) - 1)) or told)
    if where.appended:
        style, what = "computed", ["new from here on"]
    else:
        style, what = "bad", [section, section.partition(".")[0]] if section else ["the first difference"]
    number = f"token {exact(common)}" if sheet.tokens else ""
    says = [*(f"{number}: {one}" if number else one for one in what), number or "here"]
    return pointer(share, says, w, style)


# ---------------------------------------------------------------- the titles of both prompts
def titles(sheet: Sheet, view: View, seen: str, ahead: Sequence[str]) -> Line:
    """The rule over the prompts. `seen`: the sections in view. `ahead`: where the next change is, longest first."""
    w = view.w
    old, new = safe(sheet.old_label) or "old", safe(sheet.new_label) or "new"
    seen = safe(seen)
    if view.side:
        half = view.half
        left = rule(_capital(clip(old, half // 2)), half, _note(_sections(seen), half - cells(old) - 6))
        right = rule(_capital(clip(new, half // 2)), half, _note([*ahead, ""], half - cells(new) - 6))
        return [*left, (" " * GAP, "t"), *right]
    start, _, number = new.rpartition(" ")
    both = f"{_capital(start)}s {old.rpartition(' ')[2]} and {number}" if start and old.startswith(start) else ""
    both = both or f"{_capital(clip(old, w // 4))} and {clip(new, w // 4)}"
    short = [name.removeprefix("turn ") for name in (old, new)]
    marks = f"- {short[0]}   + {short[1]}"
    tight = f"- {short[0]}  + {short[1]}"
    options = (
        [f"{marks}   {ahead[0]}", *(f"{tight}   {said}" for said in ahead), *ahead, tight, ""] if ahead else [marks]
    )
    return rule(both, w, _note(options, w - cells(both) - 6))


def _sections(seen: str) -> list[str]:
    return [seen, seen.partition(" of ")[0], seen.partition(" to ")[0]]


def _note(options: Sequence[str], w: int) -> Line | None:
    said = pick([*options, ""], max(0, w))
    return [(said, "d")] if said else None


def _capital(text: str) -> str:
    """A turn's label at the start of a line; a file's name stays as it is."""
    return text[:1].upper() + text[1:] if text.startswith("turn") else text
