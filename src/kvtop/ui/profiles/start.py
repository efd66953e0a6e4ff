"""How the start of a profile goes, or went."""

from __future__ import annotations

from kvtop.model.starting import Starting
from kvtop.profiles.running.record import Record
from kvtop.profiles.running.unkept import KEEPER_GONE, OWED, less_owed, missed
from kvtop.profiles.standing import Standing
from kvtop.ui.draw import Line, cells, meter, pick, safe, shortened, width, wrap
from kvtop.ui.numbers import ago, lasted, secs
from kvtop.ui.profiles import words
from kvtop.ui.profiles.findings import fault_rows
from kvtop.ui.profiles.stages import stage_rows
from kvtop.ui.widgets.panel import rule


def rows(row: Standing | None, now: float, w: int, h: int, stop_key: str = "x") -> list[Line]:
    """How the start goes; of a profile whose server runs or ran: how its last one went."""
    if h <= 0:
        return []
    one = words.start_of(row, now) if row is not None else None
    if row is None or one is None:
        said = "kvtop has not started it yet" if row is not None and row.known.runner not in ("attach", "") else ""
        return [rule("Start", w, [(said, "d")] if said else None)]
    title = f"{'Last start' if one.over else 'Start'} {safe(row.name)}"
    out = [rule(title, w, [(pick(_start_notes(row, one, now), w - cells(title) - 6), "d")])]
    given_up = row.record is not None and words.ended_early(row.record)
    failed = one.over and row.record is not None and row.record.ready_at is None and not given_up
    style = "bad" if failed else "d" if one.over else "bright"
    out.append([(" ", "t"), *meter([(None if failed or given_up else one.fraction, style)], w - 1)])
    told_ = shortened(_end_rows(row, one, w, stop_key), h - 2, w)
    if h < 6:
        return [*out, *(told_ or [_stage_line(one, w)])][:h]
    return [*out, *_in_room(one, w, h - 2 - len(told_)), *told_][:h]


def _in_room(one: Starting, w: int, h: int) -> list[Line]:
    """The stages; where not all have room, the one that runs is among those that are shown."""
    heads, *stages = stage_rows(one, w)
    at = next((i for i, stage in enumerate(one.stages) if stage.state == "now"), 0)
    first = max(0, min(at, len(stages) - (h - 1)))
    return [heads, *stages[first:]][: max(0, h)]


def wanted(row: Standing | None, now: float, w: int, *, failed: bool) -> int:
    """Rows that it takes to tell in full why it came to nothing, or failed later, and what its end has left; 0: there
    is nothing to tell. `failed`: only of one that has."""
    one = words.start_of(row, now) if row is not None else None
    if row is None or one is None or (failed and row.state == "stopped"):
        return 0
    told_ = len(_end_rows(row, one, w, ""))
    return 2 + told_ if told_ else 0


def _end_rows(row: Standing, one: Starting, w: int, stop_key: str) -> list[Line]:
    """Why it did not come to an answering server, or why that server has failed."""
    state = row.record
    if state is None:
        return []
    if not one.over:
        lost = row.unkept and state.server is None and state.runner == "venv"  # other tools go on by themselves
        keeper = f"{KEEPER_GONE}: nobody goes on with this start, a stop ends what runs" if lost else ""
        return _noted("; ".join(filter(None, (keeper, row.missed))), w) if lost or row.missed else []
    if words.ended_early(state):
        return _noted(words.early_end(state), w)
    if row.unkept or row.missed:
        keeper = f"{KEEPER_GONE}{missed(state)}" if row.unkept else ""
        return _noted("; ".join(filter(None, (keeper, row.missed))), w)
    failed = state.why and (state.ready_at is None or _failed_later(state))
    ended = state.state in ("stopped", "failed")
    said = [*less_owed(state.notes), *([f"{OWED}: {stop_key} runs it"] if row.owed else [])]
    notes = _noted("; ".join(map(safe, said)), w) if said and ended else []
    return [*(why_rows(row, w) if failed else []), *notes]


def why_rows(row: Standing, w: int) -> list[Line]:
    """Why its last start, or its server, has failed."""
    return fault_rows(row.record.why, w) if row.record is not None and row.record.why else []


def _noted(text: str, w: int) -> list[Line]:
    return [[(" ", "t"), *line] for line in wrap([("! ", "warn"), (text, "t")], w - 2, 2)]


def _failed_later(state: Record) -> bool:
    """It had answered, and then failed; what runs after its end may still run."""
    return state.ready_at is not None and (state.state == "failed" or (state.state == "stopping" and state.ask is None))


def _start_notes(row: Standing, one: Starting, now: float) -> list[str]:
    if one.over and row.record is not None and _failed_later(row.record):
        when = f" {ago(now - row.record.ended_at)} ago" if row.record.ended_at is not None else ""
        return [f"ready after {secs(one.elapsed_s)}, failed{when}", f"failed{when}", "failed"]
    if one.over:
        ended = one.started_at + one.elapsed_s
        ready = row.record is not None and row.record.ready_at is not None
        verb = "ready" if ready else "stopped" if row.record is not None and words.ended_early(row.record) else "ended"
        if not ready and row.record is not None and row.record.ended_at is not None:
            ended = row.record.ended_at  # as its row has it, however long its end took
        when = f"{ago(now - ended)} ago"
        told_ = f"{verb} after {secs(one.elapsed_s)}"
        return [f"{told_}, {when}", told_]
    so_far = f"{lasted(one.elapsed_s)} so far"
    if not one.of_starts:
        return [f"{so_far}, no good start yet: time left not known", so_far]
    left = one.left_words or "time left not known"
    past = f"last {'start' if one.of_starts == 1 else f'{one.of_starts} starts'}: {_span(one)}"
    return [f"{so_far}, {left} ({past})", f"{so_far}, {left} (n={one.of_starts})", f"{so_far}, {left}", so_far]


def _span(one: Starting) -> str:
    low, high = secs(one.fastest_s), secs(one.slowest_s)
    return low if low == high else f"{low} to {high}"


def _longest(one: Starting) -> list[str]:
    """The stages of a start that is over: all, else those that took longest, and how many more there are."""
    told_ = {stage.words: f"{safe(stage.words).partition(',')[0]} {secs(stage.took_s)}" for stage in one.stages}
    by_length = sorted(one.stages, key=lambda stage: -(stage.took_s or 0.0))
    whole = (f"{safe(stage.words)} {secs(stage.took_s)}" for stage in one.stages)
    texts = ["   ".join(whole), "   ".join(told_.values())]
    for n in range(len(by_length) - 1, 0, -1):
        kept = {stage.words for stage in by_length[:n]}
        parts = [text for name, text in told_.items() if name in kept]
        texts.append("   ".join([*parts, f"{len(told_) - n} more"]))
    return [*texts, ""]


def _stage_line(one: Starting, w: int) -> Line:
    """The stage that runs, and what comes then, in one row."""
    if one.over:
        return [(" · ", "ok"), (pick(_longest(one), w - 4), "d")]
    now = one.now
    if now is None:
        return [(" ▸ ", "bright"), ("begins", "t")]
    then = [safe(stage.words).partition(",")[0] for stage in one.stages if stage.state == "next"]
    line: Line = [(" ▸ ", "bright"), (safe(now.words), "t")]
    for n in range(len(then), 0, -1):
        said = f"   then {', '.join(then[:n])}"
        if width(line) + cells(said) <= w:
            return [*line, (said, "d")]
    return line
