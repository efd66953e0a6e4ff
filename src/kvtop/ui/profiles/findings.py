"""What check says of the profile under the cursor."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop.live.profiles import Checked
from kvtop.model.words import NBSP, bare_gib
from kvtop.profiles.check.report import Finding, Memory
from kvtop.profiles.standing import Standing
from kvtop.ui.draw import Line, cells, clip, pick, safe, shortened, width, wrap
from kvtop.ui.numbers import DASH
from kvtop.ui.profiles import words
from kvtop.ui.profiles.layout import WIDE
from kvtop.ui.widgets.panel import rule

ABOUT_CELLS = 12
"""Of what a profile says about itself; in less room nothing of it is shown."""


def rows(
    row: Standing | None, checked: Checked | None, w: int, h: int, more_key: str, *, why: list[Line] | None = None
) -> list[Line]:
    """Of the profile under the cursor: what would go wrong, and what there is for it. `why`: what its last start failed
    at, where that stands nowhere else."""
    if h <= 0:
        return []
    if row is None:
        return [rule("Check", w)]
    name = words.name_of(row)
    if row.stranger:
        said = "kvtop did not start it, and no profile runs it: import makes one of its command line"
        return [rule(f"Check {name}", w), *([(" ", "t"), *line] for line in wrap([(said, "d")], w - 2))][:h]
    if row.known.problem:
        said = next(iter(words.drift(row)), "it cannot be used")
        if row.state == "running":
            said = f"it runs; {said}"
        return shortened([rule(f"File {name}", w, [(said, "bad")]), *fault_rows(row.known.problem, w)], h, w)
    title = f"Check {name}"
    if checked is None or checked.profile != row.name:
        return [rule(title, w, [("is looked at", "d")])]
    report = checked.report
    if report is None:
        if not checked.error:
            return [rule(title, w, [("is looked at", "d")])]
        return shortened([rule(title, w), *fault_rows(checked.error, w)], h, w)
    said = words.summary(row, report)
    options = words.restart_note(row, report.counts) if checked.restart else [said, report.counts or said]
    note = pick(options, w - cells(title) - 6)
    room = w - cells(title) - cells(note) - 8
    if row.known.about and room >= ABOUT_CELLS:
        title = f"{title}: {clip(safe(row.known.about), room)}"
    out: list[Line] = [rule(title, w, [(note, "d")])]
    tail = [memory_row(report.memory, w)] if h >= 6 else []
    if why:
        out += shortened(why, h - 1, w)
        return [*out, *_in_room(report.findings, w, h - len(out), more_key)][:h]
    out += _in_room(report.findings, w, h - 1 - len(tail), more_key)
    if not report.findings:
        out.append([(" · ", "d"), ("nothing stands in the way" if report.ok else "", "d")])
    out += [[]] * max(0, h - len(tail) - len(out))
    return [*out, *tail][:h]


def _in_room(findings: Sequence[Finding], w: int, h: int, more_key: str) -> list[Line]:
    """As many as fit whole, the worst first; then how many more there are."""
    out: list[Line] = []
    for i, one in enumerate(findings):
        lines = finding_rows(one, w)
        last = i == len(findings) - 1
        if len(out) + len(lines) > h - (0 if last else 1):
            if not out and h > 1:  # the worst one, as much of it as fits
                out, i = lines[: h - 1], i + 1
            n = len(findings) - i
            said = f"{n} more: {more_key} shows all" if n and out else f"{more_key} shows all of it"
            return [*out, [(f" {said}", "d")]]
        out += lines
    return out


def fault_rows(text: str, w: int) -> list[Line]:
    """What is wrong, in as many rows as it takes."""
    return [[(" ", "t"), *line] for line in wrap([("× ", "bad"), (safe(text), "bright")], w - 2, 2)]


def finding_rows(one: Finding, w: int) -> list[Line]:
    """What it found, and its fix behind it or under it; nothing of it is cut."""
    sign, style = words.MARKS[one.level]
    rule_w = 24 if w >= WIDE else len(one.rule)
    indent = 2 + rule_w + 2 if w >= WIDE else 2
    padded = one.rule + NBSP * (rule_w + 1 - len(one.rule))  # what is wrapped keeps no rows of spaces
    head: Line = [(sign, style), (padded, "d" if one.level == "note" else style), (" ", "t")]
    says: Line = [*head, (safe(one.says), "d" if one.level == "note" else "t")]
    fix: Line = [("fix ", "d"), (safe(one.fix), "t")] if one.fix else []
    room = w - 2
    if fix and width(says) + 3 + width(fix) <= room:
        return [[(" ", "t"), *((text.replace(NBSP, " "), style) for text, style in says), ("   ", "t"), *fix]]
    lines = wrap(says, room, indent)
    if fix:
        lines += [[(" " * indent, "t"), *line] for line in wrap(fix, room - indent, 4)]
    return [[(" ", "t"), *line] for line in lines]


def memory_row(found: Memory, w: int) -> Line:
    """What the tier asks for beside what there is, all in GiB."""
    tight = found.cpu_tier_bytes is not None and found.shm_free_bytes is not None
    short_of = tight and (found.cpu_tier_bytes or 0) > (found.shm_free_bytes or 0)
    parts: list[Line] = [
        [("tier ", "d"), (_gib(found.cpu_tier_bytes), "t")],
        [("/dev/shm ", "d"), (_gib(found.shm_free_bytes), "bad" if short_of else "t")],
        [("host free ", "d"), (_gib(found.memory_available_bytes), "t")],
    ]
    if found.gpu_free_bytes:
        free = " + ".join(_gib(one) for one in found.gpu_free_bytes)
        total = " + ".join(_gib(one, 0) for one in found.gpu_total_bytes or ())
        parts.append([("GPU free ", "d"), (f"{free} of {total}", "t")])
    else:
        parts.append([("GPU free ", "d"), (DASH, "d")])
    line: Line = [(" memory", "d")]
    for part in [*parts, [("all in GiB", "d")]]:
        if width(line) + 3 + width(part) > w:
            break
        line += [("   ", "t"), *part]
    return line


def _gib(size: int | None, places: int = 1) -> str:
    return DASH if size is None else bare_gib(size, places)
