"""What the page of profiles says of each: marks, states, since when, what stands in the way. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvtop.live.profile_view import Attached, ProfilesView
from kvtop.model.starting import LIVE, Starting, roughly
from kvtop.model.words import DASH, gib, lasted, secs
from kvtop.profiles.check.report import Report
from kvtop.profiles.running.beside import SHORT
from kvtop.profiles.running.record import Record
from kvtop.profiles.running.stages import starting
from kvtop.profiles.running.unkept import KEEPER_GONE
from kvtop.profiles.standing import FILE_GONE, Standing
from kvtop.ui.draw import cells, safe
from kvtop.ui.numbers import ago

GIB = 1 << 30
MARKS = {"error": ("× ", "bad"), "warning": ("! ", "warn"), "note": ("· ", "d")}
"""Of a finding, by its level."""


def mark(row: Standing, attached: Attached | None = None) -> tuple[str, str]:
    """(sign, style) of a profile."""
    if row.known.runner == "attach":
        return ("◆", "bright") if attached is not None and attached.answers else ("◇", "d")
    return {
        "starting": ("◐", "warn"),
        "stopping": ("◐", "warn"),
        "running": ("●", "bright"),
        "foreign": ("◆", "bright"),
        "failed": ("×", "bad"),
        "unreadable": ("×", "bad"),
    }.get(row.state, ("○", "d"))


def state_word(row: Standing, attached: Attached | None = None) -> tuple[str, str]:
    """(word, style)."""
    if row.known.runner == "attach":
        if attached is None:
            return "watched", "d"
        return ("answers", "t") if attached.answers else ("no answer", "d")
    word = {"starting": "starts", "stopping": "stops", "running": "runs"}.get(row.state, row.state)
    style = {"starting": "warn", "stopping": "warn", "running": "bright", "foreign": "bright", "failed": "bad",
             "unreadable": "bad"}.get(row.state, "d")  # fmt: skip
    return word, style


def name_of(row: Standing) -> str:
    """Its name; of a file that cannot be used that of the file."""
    return safe(row.known.file.name if row.state == "unreadable" else row.name)


def ended_early(state: Record) -> bool:
    """Its start was ended on purpose before it was ready: that is no failure."""
    return state.ready_at is None and state.ask is not None and state.state in ("stopping", "stopped")


def early_end(state: Record) -> str:
    """`tiny was stopped after 64 s, before it was ready`, and what was seen of it."""
    after = f" after {secs(state.ask.at - state.started_at)}" if state.ask is not None else ""
    return "; ".join([f"{safe(state.name)} was stopped{after}, before it was ready", *map(safe, state.notes)])


def model_of(row: Standing) -> str:
    """Without the folders or the organisation in front."""
    return safe(row.facts.model.rstrip("/").rpartition("/")[2]) or DASH


def start_of(row: Standing, now: float) -> Starting | None:
    """How its start goes, or went."""
    seen = row.seen
    return starting(seen, row.starts, now) if seen is not None else None


def last_took(row: Standing) -> float | None:
    """Seconds of its last good start."""
    return row.starts[-1].took_s if row.starts else None


def since(row: Standing, now: float, report: Report | None, one: Attached | None = None) -> list[str]:
    """Since when it is so, or what stands in the way; longest first."""
    known, state = row.known, row.record
    if known.runner == "attach":
        if one is None:
            return [f"kvtop only watches {safe(known.url.removeprefix('http://'))}", "only watched"]
        age = f"{ago(now - one.at)} ago"
        return [f"{safe(one.says)} {age}", safe(one.says)]
    if row.state == "starting":
        wordings = _starts(start_of(row, now))
        return [*(f"{one}; {other}" for one in wordings for other in lacking(row)[1:]), *wordings]
    if row.state == "stopping":
        by = "its after_stop runs" if row.settles else by_whom(row)
        so_far = lasted(now - row.since) if row.since is not None else ""
        return [", ".join(part for part in (so_far, by) if part) or DASH, so_far or DASH]
    if row.state in ("running", "foreign"):
        up = up_words(row, now)
        who = f"pid {row.pid}" if row.pid is not None else ""
        whose = "kvtop did not start it" if row.state == "foreign" else ""
        if row.stranger:
            where = f"{up}, port {known.port}" if known.port is not None else up
            return [f"{where}, of no profile", where, "of no profile"]
        parts = [part for part in (up, who, whose) if part]
        wordings = [", ".join(parts) or DASH, ", ".join(parts[:2]), up]
        more = lacking(row) or drift(row)
        return [*(f"{one}; {other}" for one in (wordings[0], up) for other in more), *wordings]
    if known.problem:
        said = safe(known.problem.removeprefix(f"{known.file.name}, ").removeprefix(f"{known.file.name}: "))
        parts = said.split(": ")
        return [": ".join(parts[:n]) for n in range(len(parts), 0, -1)]
    if row.owed and row.state in ("stopped", "failed"):
        return [f"{ago_words(row, now)}; after_stop is owed", "after_stop is owed"]
    if row.state == "failed" and state is not None:
        if _mended(row):
            said = report.summary if report is not None else "not checked yet"
            return [f"changed since it failed {ago_words(row, now)}; {said}", f"changed since; {said}", said]
        return [f"{ago_words(row, now)}: {safe(state.why)}", safe(state.why)]
    if report is not None and not report.ok:
        return [report.counts, report.counts.partition(",")[0]]
    if state is not None:
        if ended_early(state):
            said = early_end(state).removeprefix(f"{safe(state.name)} was ")
            when = ago_words(row, now)
            return [f"{when}: {said}", f"{when}, before it was ready", when]
        ran = secs(state.ended_at - state.ready_at) if state.ended_at and state.ready_at else ""
        parts = [ago_words(row, now), by_whom(row)]
        first = ", ".join(part for part in parts if part)
        return [f"{first}; ran {ran}" if ran else first, first, parts[0]]
    if report is not None:
        return [f"{report.counts}; never started", "never started"] if report.asks() else ["ready to start"]
    return ["never started"]


def _starts(one: Starting | None) -> list[str]:
    if one is None:
        return [DASH]
    so_far = lasted(one.elapsed_s)
    stage = one.place or "begins"
    if one.left_s is None:
        first = [] if one.of_starts else [f"{so_far}, {stage}, no good start yet"]
        return [*first, f"{so_far}, {stage}", stage]
    left = "longer than usual" if one.left_s < 0.5 else f"~{roughly(one.left_s)} left"
    return [f"{so_far}, {stage}, {left}", f"{stage}, {left}", left]


def up_words(row: Standing, now: float) -> str:
    """`for 10 h 37 m`."""
    return f"for {lasted(now - row.since)}" if row.since is not None else "since an unknown time"


def ago_words(row: Standing, now: float) -> str:
    """`3 m ago`."""
    return f"{ago(now - row.since)} ago" if row.since is not None else "some time ago"


def by_whom(row: Standing) -> str:
    """`by a switch`, where its end was asked for by something that is worth a word."""
    ask = row.record.ask if row.record is not None else None
    if ask is None:
        return ""
    if ask.by == f"a switch to {row.name}":
        return "for a restart"
    return "by a switch" if ask.by.startswith("a switch") else ""


def lacking(row: Standing) -> list[str]:
    """What a server that runs, or starts, has lost of what belongs beside it: `its keeper is gone, its sidecar has
    ended`, longest first; empty: nothing."""
    keeper = [KEEPER_GONE, "no keeper"] if row.unkept else []
    if not row.missed:
        return keeper
    both = [f"{keeper[0]}, {row.missed}", f"{keeper[1]}, {SHORT}"] if keeper else [row.missed]
    return [*both, SHORT]


def drift(row: Standing) -> list[str]:
    """How the file of a server that runs is not what runs by now, longest first; empty where it is, or that is not
    known."""
    if row.state not in LIVE:
        return []
    if row.known.problem:
        gone = row.known.problem == FILE_GONE
        return [FILE_GONE] if gone else ["its file cannot be used now", "file cannot be used"]
    return ["its profile was changed since", "changed since"] if row.changed else []


def tier(row: Standing) -> list[str]:
    """`64 GiB`, in fewer cells each; – for none, or where that is not known."""
    size = row.facts.tier_bytes
    if size is None:
        return [DASH]
    text = gib(size, 1 if size % GIB else 0)
    narrow = text.replace(" bytes", "B").replace(" ", "")
    short = [narrow.replace("iB", "")]
    if size >= 100 * GIB:
        short += [f"{size / GIB:.0f}G", f"{size / GIB / 1024:.1f}T", f"{size / GIB / 1024:.0f}T"]
    return [text, narrow, *short]


def tier_form(rows: Sequence[Standing], w: int) -> int:
    """From which wording of `tier` on all of these rows have room in `w` cells: one column is written in one form."""
    forms = [tier(row) for row in rows]
    longest = max(map(len, forms), default=1)
    fitting = (n for n in range(longest) if all(cells(form[min(n, len(form) - 1)]) <= w for form in forms))
    return next(fitting, longest - 1)


def gpus(row: Standing) -> str:
    return safe(",".join(row.facts.gpus)) or DASH


def restart_note(row: Standing, counts: str) -> list[str]:
    """What check found for one whose server is there, longest first: it says nothing of that server."""
    runs = {"starting": "it starts", "stopping": "it stops"}.get(row.state, "it runs")
    tails = [f"; for a restart: {counts}", f"; {counts}"] if counts else [""]
    return [f"{runs}{more}{tail}" for more in (*(f", {one}" for one in drift(row)), "") for tail in tails]


def summary(row: Standing | None, report: Report) -> str:
    """`1 error, 2 notes; it would not start`. Nothing is said to be ready that has just failed to start."""
    if row is None or not report.ok or not failed_unchanged(row):
        return report.summary
    return "; ".join(part for part in (report.counts, "its last start failed") if part)


def failed_unchanged(row: Standing) -> bool:
    """Its last start failed, and its file was not changed since."""
    return row.state == "failed" and row.record is not None and row.record.ready_at is None and not _mended(row)


def sentence(view: ProfilesView, now: float, reports: Mapping[str, Report]) -> tuple[str, str, str]:
    """(tone, first clause, the rest). `reports`: what check has said of each, as far as it was asked."""
    rows = view.rows
    if view.error:
        return "bad", "The folder of profiles cannot be read:", safe(view.error)
    if view.at is None:
        return "dim", "Reads the folder of profiles.", ""
    live = [row for row in rows if row.state in LIVE]
    tone, first = "dim", "no server of a profile runs;"
    if live:
        row = next((one for one in live if one.state == "starting"), live[0])
        tone, first = _live_words(row, now)
        others = len(live) - 1
        more = [f"{others} other{'s' * (others > 1)}"] if others else []
        more += [f"{len(view.foreign)} that kvtop did not start"] if view.foreign else []
        first = f"{first.rstrip(';')}, beside {' and '.join(more)};" if more else first
    elif view.foreign:
        one = view.foreign[0]
        named = f"{safe(one.profile)}: " if one.profile else ""
        first = f"{named}{one.words} {'runs' if one.listens else 'is there'}, which kvtop did not start;"
        if len(view.foreign) > 1:
            verb = "run" if all(other.listens for other in view.foreign) else "are there"
            first = f"{len(view.foreign)} servers {verb} that kvtop did not start;"
    asked = [row for row in rows if _startable(row)]
    ready = sum(report.ok for row in asked if (report := reports.get(row.name)) is not None)
    unasked = sum(row.name not in reports for row in asked)
    last = view.last_used
    failed = last is not None and last.state == "failed" and not _mended(last)
    broken = sum(bool(row.known.problem) and row.state not in LIVE for row in rows)
    rest = [f"{safe(last.name)} failed {ago_words(last, now)}" if last is not None and failed else ""]
    rest += [f"{ready} can be started" if ready else "", f"{unasked} not checked yet" if unasked else ""]
    tone = "warn" if failed and tone == "dim" else tone
    if broken:
        rest.append(f"{broken} file{'' if broken == 1 else 's'} cannot be used")
    said = ", ".join(part for part in rest if part)
    if not rows:
        return "dim", "There are no profiles yet.", ""
    return tone, first if said else first.rstrip(";"), said


def _startable(row: Standing) -> bool:
    """Whether check is what decides."""
    ended = row.state in ("stopped", "failed") and not failed_unchanged(row)
    return ended and row.known.runner != "attach" and not row.known.problem


def _mended(row: Standing) -> bool:
    """Its file was changed since it failed, or one that it extends."""
    if row.changed:
        return True
    ended = row.record.ended_at if row.record is not None else None
    return row.known.changed_at is not None and ended is not None and row.known.changed_at > ended


def _live_words(row: Standing, now: float) -> tuple[str, str]:
    name = safe(row.name)
    if row.state == "starting":
        one = start_of(row, now)
        left = one.left_words if one is not None else ""
        return "warn", f"{name} starts{f', {left}' if left else ''};"
    if row.state == "stopping":
        return "warn", f"{name} stops;"
    return "ok", f"{name} runs {up_words(row, now)};"
