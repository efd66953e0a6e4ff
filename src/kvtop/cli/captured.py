"""The captured turns: list them, delete them, check them."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from kvtop import config, paths
from kvtop.capture import document
from kvtop.capture.slow import RATED, is_slow, lost, reread, usual_rate
from kvtop.capture.store import given, schema
from kvtop.capture.store.schema import NoStore, StoreError
from kvtop.capture.store.store import Store
from kvtop.capture.turn import Captured, Record, Source, TurnState
from kvtop.cli import table
from kvtop.cli.stdio import agreed, tell
from kvtop.errors import KvtopError, UsageError, printable
from kvtop.model.judge import Thresholds
from kvtop.model.shown_turn import CONTINUES
from kvtop.model.timing import waited_s
from kvtop.model.words import DASH, exact, hms, other_day, pct, secs

PAGE = 1000
"""Turns that are read at a time, and those that the prefill rate is worked out from."""
LAST = 20
"""Turns of a table that goes to no terminal."""
_NOBODY = "--forget all deletes every captured turn: nobody is here to be asked"
BROKEN_OFF = {"abort": "aborted by the server", "error": "failed: the engine gave up"}
"""By finish reason, of a stream that the server ended in order."""
COLUMNS = (
    "turn", "time", "prompt", "cached", "computed", "out", "queue", "TTFT", "took", "tok/s",
    "conversation", "agent", "state",
)  # fmt: skip
SPARE = ("tok/s", "took", "out", "queue", "computed", "conversation", "time")
"""Where a line has no room for all: these go, in this order."""


def show(*, last: int | None, conversation: str | None, slow: bool, as_json: bool) -> int:
    """The turns, newest first. None captured yet is nothing wrong: an empty list, and a line that says how to begin."""
    try:
        with Store.open(paths.turns_file()) as store:
            judged = _judge(store)
            rows = ((row, judged(row)) for row in pages(store, conversation))
            chosen = (row for row in rows if row[1] or not slow)
            if as_json:
                _json(islice(chosen, last))
            else:
                _table(store, chosen, last, conversation=conversation, slow=slow)
    except NoStore as none:
        if as_json:
            print("[]")
            tell(f"kvtop: {none.what}; {none.fix}")
        else:
            print(f"{none.what}; {none.fix}")
    return 0


def forget(words: Sequence[str], *, yes: bool, as_json: bool) -> int:
    """Delete turns; with all of them the damaged files of the store. Exit code 1 where one that was named is not there,
    and where what was said stays on disk."""
    everything = list(words) == ["all"]
    if not words or not (everything or all(word.isascii() and word.isdigit() and len(word) < 16 for word in words)):
        wrong = next((word for word in words if not word.isdigit()), "")
        what = f"--forget '{printable(wrong, 40)}': no id of a turn" if wrong else "--forget needs ids of turns, or all"
        raise UsageError(what, "kvtop turns lists them: kvtop turns --forget 12 13, kvtop turns --forget all")
    path = paths.turns_file()
    missing: list[str] = []
    try:
        with Store.open(path) as store:
            count = _turns(store.count())
            missing += [] if everything else [word for word in words if store.turn(int(word)) is None]
    except StoreError as error:
        old = schema.moved_aside(path)
        known = bool(old) if isinstance(error, NoStore) else error.__cause__ and schema.is_damage(error.__cause__)
        if not (everything and known):
            raise
        count = "turns"  # nobody can tell how many
    question = f"delete all {count} in {printable(str(path))}, and damaged files of it?"
    if everything and not yes and not agreed(question, _NOBODY, "say --yes to mean it"):
        return 1
    before = schema.moved_aside(path)
    with Store.open(path, write=True) as store:
        gone = store.forget(None if everything else [int(word) for word in words])
        notes = store.notes
    with contextlib.suppress(OSError):  # it holds nothing that was said
        given.forget(path, None if everything else [int(word) for word in words])
    dropped = _drop_aside(path) if everything else 0
    left = [str(file) for file in schema.moved_aside(path) if file not in before or everything]
    if as_json:
        numbers = [int(word) for word in missing]
        print(json.dumps({"forgotten": gone, "not_found": numbers, "damaged_deleted": dropped, "left_in": left}))
    else:
        if gone or not (missing or left):
            print(f"forgot {_turns(gone)}")
        if dropped:
            print(f"deleted {dropped} damaged file{'' if dropped == 1 else 's'} beside the store")
        for word in missing:
            tell(f"kvtop: there is no turn {word}")
    for note in () if everything else notes:
        tell(f"kvtop: {note}")
    for file in left:
        tell(f"kvtop: what was said is still in {printable(file, 300)}; kvtop turns --forget all deletes it")
    return 1 if missing or left else 0


def _turns(count: int) -> str:
    return f"{exact(count)} turn{'' if count == 1 else 's'}"


def _drop_aside(path: Path) -> int:
    try:
        return schema.drop_aside(path)
    except OSError as error:
        name = printable(str(error.filename or path), 300)
        tell(f"kvtop: {name} cannot be deleted: {error.strerror or error}")
        return 0


def check(*, as_json: bool) -> int:
    """Read everything back. Exit code 1 where something is damaged."""
    try:
        with Store.open(paths.turns_file()) as store:
            count, size, problems = store.count(), store.size_bytes(), store.check()
    except StoreError as error:
        if error.__cause__ is None or not schema.is_damage(error.__cause__):
            raise
        fix = "no turn of it can be read: kvtop tap moves it aside and begins a new one, --forget all deletes it"
        raise StoreError(error.what, fix) from error
    if as_json:
        print(json.dumps({"ok": not problems, "turns": count, "store_bytes": size, "problems": problems}))
        return 1 if problems else 0
    for problem in problems:
        print(printable(problem, 300))
    name = printable(str(paths.turns_file()), 300)
    if problems:
        faults = "1 fault" if len(problems) == 1 else f"{len(problems)} faults"
        print(f"{name}: {faults} in {_turns(count)}; every other body came back as it was sent")
        return 1
    print(f"{name}: {_turns(count)}, {size / 1e6:.1f} MB; every body came back as it was sent")
    return 0


def _judge(store: Store) -> Callable[[Captured], bool | None]:
    """Which turns were slow; None: that cannot be told."""
    wanted = config.load().settings.thresholds
    limits = Thresholds(wanted.slow_factor, wanted.slow_extra_s, wanted.slow_ttft_s)

    ahead: deque[Captured] = deque()
    """Newest first: the next turn's are nearly the same ones."""

    def rate(turn: Captured) -> float | None:
        while ahead and ahead[0].id >= turn.id:
            ahead.popleft()
        if len(ahead) < RATED:
            ahead.clear()
            ahead.extend(store.turns(last=5 * RATED, before_id=turn.id))
        return usual_rate(turn, islice(ahead, RATED))

    def before(turn: Captured) -> int | None:
        if turn.parent is None or turn.relation not in CONTINUES:
            return None
        found = store.turns(last=1, since_id=turn.parent - 1, before_id=turn.parent + 1)
        return found[0].prompt_tokens if found else None

    return lambda turn: is_slow(turn, rate, limits, before)


def pages(store: Store, conversation: str | None = None) -> Iterator[Captured]:
    """All turns, newest first, read as they are asked for."""
    before: int | None = None
    while page := store.turns(last=PAGE, conversation=conversation, before_id=before):
        yield from page
        before = page[-1].id


def latest_slow(store: Store) -> int:
    """Its id; where none was slow that of the latest one that failed or read again what had been read before, which is
    said on stderr. Raises KvtopError where there is none of these either."""
    judged, other = _judge(store), None
    for row in pages(store):
        if judged(row):
            return row.id
        if other is None and _went_wrong(store, row):
            other = row
    if other is None:
        said = "no turn that is kept was slow, failed, or read again what had been read before"
        raise KvtopError(said, "name one: kvtop why TURN; kvtop turns lists them")
    how = "failed" if other.state in (TurnState.FAILED, TurnState.CUT) else "read again what had been read before"
    tell(f"kvtop: no turn that is kept was slow; turn {other.id} is the latest that {how}")
    return other.id


def _went_wrong(store: Store, turn: Captured) -> bool:
    """As the dashboard takes a turn for one to look at, although it was not slow."""
    if turn.state in (TurnState.FAILED, TurnState.CUT):
        return True
    if turn.parent is None or turn.relation not in CONTINUES:
        return False
    parent = next(iter(store.turns(last=1, since_id=turn.parent - 1, before_id=turn.parent + 1)), None)
    before = parent.prompt_tokens if parent is not None else None
    return reread(turn, parent) or bool(lost(turn, before, None))


def _json(rows: Iterator[tuple[Captured, bool | None]]) -> None:
    """One list, written row by row: there may be many."""
    known = given.read(paths.turns_file())
    print("[", end="")
    for i, (row, slow) in enumerate(rows):
        made = document.turn(row, slow, known.get(given.key(row.id, row.started_at)))
        print(",\n" if i else "", json.dumps(made, allow_nan=False), sep="", end="")
    print("]")


def _fitting() -> int:
    """Rows that a terminal holds with the heading, a line below and the prompt."""
    return max(1, shutil.get_terminal_size().lines - 3) if sys.stdout.isatty() else LAST


def _table(
    store: Store,
    chosen: Iterator[tuple[Captured, bool | None]],
    last: int | None,
    *,
    conversation: str | None,
    slow: bool,
) -> None:
    now = time.time()
    rows = sorted(
        islice(chosen, last or _fitting()),
        key=lambda one: (one[0].state is TurnState.IN_FLIGHT, _moment(one[0])),
        reverse=True,
    )
    if not rows:
        print(_none(store, conversation, slow=slow))
        return
    table.show([COLUMNS, *(_cells(row, bool(slow), now) for row, slow in rows)], left=3, w=table.room(), spare=SPARE)
    if last is None and next(chosen, None) is not None:
        # how many of some there are, is not known without reading all
        rest = "shown, the newest" if conversation or slow else f"of {_turns(store.count())}, the newest"
        tell(f"kvtop: {exact(len(rows))} {rest}; --last N lists more")


def _none(store: Store, conversation: str | None, *, slow: bool) -> str:
    if not store.count():
        return "no turns are kept here; kvtop tap captures them"
    where = f" in conversation '{printable(conversation, 40)}'" if conversation else ""
    return f"no {'slow ' if slow else ''}turns{where}"


def _cells(row: Captured, slow: bool, now: float) -> tuple[str, ...]:
    share = pct(row.cached_share)
    flying = row.state is TurnState.IN_FLIGHT
    speed = document.tokens_per_s(row)
    return (
        str(row.id),
        _when(_moment(row), now),
        exact(row.prompt_tokens),
        f"~{share}" if row.cached_source == "metrics" and share != DASH else share,
        exact(row.new_tokens),
        exact(row.completion_tokens),
        secs(row.queue_s),
        ("~" if row.ttft_s is None and waited_s(row) is not None else "") + secs(waited_s(row)),
        secs(now - row.started_at if flying else row.duration_s),
        DASH if speed is None else f"{speed:.1f}",
        printable(row.conversation or DASH, 16),
        printable(row.agent, 20),
        _state(row, slow),
    )


def _moment(row: Captured) -> float:
    """Unix time that it is listed under, as on the dashboard: its end; in flight, or where that is not known, its
    start."""
    return row.started_at if row.ended_at is None else row.ended_at


def _when(at: float, now: float) -> str:
    """Local time; of another day its date too."""
    try:
        if not other_day(at, now):
            return hms(at)
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return DASH


def _ending(row: Captured) -> str:
    if row.state is None:
        return "end not seen"
    if row.state is TurnState.IN_FLIGHT:
        return "in flight"
    if row.state is TurnState.ABORTED:
        return "aborted by its client"
    if row.state is TurnState.CUT and row.error:
        return printable(row.error, 60)
    if row.state is TurnState.DONE and row.finish_reason in BROKEN_OFF:
        return BROKEN_OFF[row.finish_reason]
    return row.state.value


def _state(row: Captured, slow: bool) -> str:
    words = [_ending(row)]
    if row.state is TurnState.FAILED:
        words += [str(row.status)] if row.status is not None else []
        words += [printable(row.error, 60)] if row.error else []
    text = " ".join(words)
    kinds = (
        ("slow", slow),
        ("record cut", row.record is Record.TRUNCATED),
        (Source.IMPORT.value, row.source is Source.IMPORT),
    )
    notes = [note for note, there in kinds if there]
    return ", ".join([text, *notes])
