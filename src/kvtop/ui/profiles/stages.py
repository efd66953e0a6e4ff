"""The stages of a start, a row each. The dashboard draws them too, so nothing of the profiles is imported here."""

from __future__ import annotations

from kvtop.model.starting import Starting, StartStage
from kvtop.ui.draw import Line, lj, meter, pick, rj, safe
from kvtop.ui.numbers import DASH, lasted, secs


def stage_rows(one: Starting, w: int) -> list[Line]:
    """Heads and one row a stage: what it took, what it usually takes, how far the one that runs is."""
    name_w = 26 if w >= 76 else max(12, min(26, w - 28))
    out: list[Line] = [[("   ", "t"), *lj("stage", name_w, "d"), *rj("took", 10, "d"), *rj("usual", 11, "d")]]
    return [*out, *(_stage_row(stage, name_w, w) for stage in one.stages)]


def _stage_row(stage: StartStage, name_w: int, w: int) -> Line:
    sign, style = {"done": (" · ", "ok"), "now": (" ▸ ", "bright"), "next": ("   ", "t")}[stage.state]
    text = "d" if stage.state == "next" else "t"
    words_ = safe(stage.words)
    line: Line = [(sign, style), *lj(pick([words_, words_.partition(",")[0]], name_w), name_w, text)]
    took = "" if stage.state == "next" else lasted(stage.took_s) if stage.state == "now" else secs(stage.took_s)
    line += [*rj(took, 10, text), *rj(secs(stage.usual_s) if stage.usual_s is not None else DASH, 11, "d")]
    if stage.state == "now" and stage.share is not None and w >= 76:
        line += [("  ", "t"), *meter([(stage.share, "bright")], 20)]
    return line
