"""The list of profiles: one a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvtop.live.profile_view import Attached, Figures, ProfilesView
from kvtop.profiles.check.report import Report
from kvtop.profiles.standing import Standing
from kvtop.ui.draw import Line, fit, lj, pick, rj, safe, wrap
from kvtop.ui.numbers import DASH, exact, pct, secs, short
from kvtop.ui.profiles import words
from kvtop.ui.profiles.layout import WIDE
from kvtop.ui.widgets.panel import rule

Column = tuple[str, int]
"""Name and width; 0: what is left."""
RIGHT = ("port", "tier", "good start", "share", "TTFT p50", "n")


def columns_of(w: int) -> list[Column]:
    """The columns for so many cells. First to go: share and TTFT, how long the last good start took, runner, port, GPU,
    model, tier."""
    name: Column = ("name", 20)
    last: list[Column] = [("state", 10), ("since", 0)]
    if w >= 160:
        return [("name", 24), ("runner", 8), ("model", 22), ("port", 5), ("GPU", 7), ("tier", 8), ("good start", 10),
                ("share", 5), ("TTFT p50", 8), ("n", 5), *last]  # fmt: skip
    if w >= WIDE:
        return [("name", 18), ("runner", 7), ("model", 15), ("port", 5), ("GPU", 4), ("tier", 6), *last]
    if w >= 96:
        return [name, ("model", 16), ("tier", 8), *last]
    if w >= 76:
        return [name, ("tier", 6), *last]
    return [("name", max(8, min(20, w // 3))), ("state", 10), ("since", 0)]


@dataclass(frozen=True, slots=True)
class Shown:
    """What the list is made of."""

    view: ProfilesView
    reports: Mapping[str, Report]
    now: float
    cursor: str = ""
    """The name of the chosen profile."""
    key: str = "i"
    """The key that imports."""
    tier_form: int = 0
    """See `words.tier_form`."""

    def attached(self, row: Standing) -> Attached | None:
        return (self.view.attached or {}).get(row.name)

    def figures(self, row: Standing) -> Figures | None:
        return (self.view.figures or {}).get(row.name)


def rows(shown: Shown, first: int, w: int, h: int) -> list[Line]:
    """Title, heads, and the profiles from the `first` on."""
    view = shown.view
    more = len(view.listed) - (h - 2)
    note = f"{first + 1}–{min(first + h - 2, len(view.listed))} of {len(view.listed)}" if more > 0 else ""
    out = [rule("Profiles", w, [(note, "d")] if note else None)]
    if not view.listed:
        return [*out, *_none(view, w, shown.key)][:h]
    cols = columns_of(w)
    fixed = 3 + sum(n for _, n in cols) + 2 * (len(cols) - 1)
    cols = [(name, n or max(4, w - fixed)) for name, n in cols]
    heads = {"since": "since, or what stands in the way"}
    head: Line = [("   ", "t")]
    for i, (name, n) in enumerate(cols):
        text = pick([heads.get(name, name), name], n)
        head += [*([("  ", "t")] if i else []), *(rj(text, n, "d") if name in RIGHT else lj(text, n, "d"))]
    out.append(head)
    form = words.tier_form(view.listed, dict(cols).get("tier", 0))
    return [*out, *(_row(row, replace(shown, tier_form=form), cols, w) for row in view.listed[first : first + h - 2])]


def _row(row: Standing, shown: Shown, cols: Sequence[Column], w: int) -> Line:
    sign, sign_style = words.mark(row, shown.attached(row))
    line: Line = [(f"{sign} ", sign_style)]
    for i, (name, n) in enumerate(cols):
        if i:
            line.append(("  ", "t"))
        line += _cell(row, name, n, shown)
    if shown.cursor != row.name:
        return [(" ", "t"), *line]
    return [("▸", "bright @cursor"), *((text, f"{style} bold @cursor") for text, style in fit(line, w - 1))]


def _cell(row: Standing, name: str, w: int, shown: Shown) -> Line:
    broken = row.state == "unreadable"
    if name == "name":
        return lj(words.name_of(row), w, "bad" if broken else "t")
    if name == "state":
        word, style = words.state_word(row, shown.attached(row))
        return lj(word, w, style)
    if name == "since":
        report = shown.reports.get(row.name)
        said = pick(words.since(row, shown.now, report, shown.attached(row)), w)
        bad = broken or row.state == "failed" or (report is not None and not report.ok and row.state == "stopped")
        return [(said, "t" if bad or row.state == "starting" else "d")]
    if broken:
        return [(" " * w, "t")]
    if name == "runner":
        return lj(safe(row.facts.runner) or DASH, w, "d")
    if name == "model":
        return lj(words.model_of(row), w, "t")
    if name == "port":
        port = row.facts.port
        return rj(str(port) if port is not None else DASH, w, "d" if port is None else "t")
    if name == "GPU":
        return lj(words.gpus(row), w, "t" if row.facts.gpus else "d")
    if name == "tier":
        wordings = words.tier(row)
        text = pick(wordings[min(shown.tier_form, len(wordings) - 1) :], w)
        return rj(text, w, "d" if text == DASH else "t")
    if name == "good start":
        return rj(secs(words.last_took(row)), w, "d")
    figures = shown.figures(row)
    if name == "share":
        return rj(pct(figures.share if figures is not None else None), w, "d")
    if name == "n":
        return rj(exact(figures.requests) if figures is not None else DASH, w, "d")
    return rj(_ttft(figures), w, "d")


def _ttft(figures: Figures | None) -> str:
    """`~0.80 s`: worked out from the buckets of a histogram, but of a single request exact."""
    if figures is None or figures.ttft_p50_s is None:
        return DASH
    return f"{'' if figures.requests == 1 else '~'}{short(figures.ttft_p50_s)}"


def _none(view: ProfilesView, w: int, key: str) -> list[Line]:
    if view.error:
        return [[(" ", "t"), *line] for line in wrap([("× ", "bad"), (safe(view.error), "bright")], w - 2, 2)]
    if view.at is None:
        return [[(" reads them", "d")]]
    said = (
        f"None in {safe(view.where)}. {key} makes one of what starts your server today: a script, a compose file, a "
        "unit, a YAML file. kvtop profile import makes one of a command line or of a running process."
    )
    return [[(" ", "t"), *line] for line in wrap([(said, "d")], w - 2)]
