"""`kvtop turns --from-metrics DIR`: single requests, from a folder of consecutive /metrics texts alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from kvtop.cli import table
from kvtop.cli.saved import Unreadable, read_text
from kvtop.errors import UsageError
from kvtop.model import document, metrics
from kvtop.model.shown_turn import Turn
from kvtop.model.turns import TurnTracker
from kvtop.model.words import DASH, exact, pct, secs
from kvtop.readings import Scrape
from kvtop.sources.exposition import Reader

COLUMNS = ("turn", "n", "prompt", "cached", "new", "out", "queue", "prefill", "decode", "TTFT", "ended", "verdict")
SPARE = ("decode", "prefill", "out", "queue", "new", "ended")
"""Where a line has no room for all: these go, in this order."""

VERDICTS = {"no_fault": "ok", "new_tokens": "long input", "queued": "queued"}
"""In words, as the dashboard's rows say it."""


def main(folder: str, as_json: bool) -> int:
    """Print them. Raises UsageError for what is no folder of texts."""
    if not folder:
        raise UsageError("--from-metrics '': an empty name is no folder", "a dot is the current one")
    rows = list(reversed(list(_turns(Path(folder)))))
    if as_json:
        print(json.dumps([document.turn(row) for row in rows], allow_nan=False))
    elif rows:
        table.show([COLUMNS, *(_cells(row) for row in rows)], left=2, w=table.room(), spare=SPARE)
    else:
        print("no request finished between two of these texts")
    return 0


def _turns(folder: Path) -> Iterator[Turn]:
    reader, tracker = Reader(metrics.wanted), TurnTracker()
    for path in _files(folder):
        scrape = _read(path, reader)
        if scrape is not None:
            yield from tracker.add(scrape)


def _files(folder: Path) -> list[Path]:
    try:
        names = sorted(path for path in folder.iterdir() if path.name.endswith((".txt", ".txt.gz")))
    except OSError as error:
        raise UsageError(f"cannot read the folder {str(folder)!r}: {error.strerror or error}") from error
    if not names:
        raise UsageError(f"no *.txt or *.txt.gz in {str(folder)!r}", "save one /metrics text a file, named in order")
    return names


def _read(path: Path, reader: Reader) -> Scrape | None:
    """One text as a scrape; None, and a line on stderr, where it is none."""
    try:
        text = read_text(str(path), files_only=True)
    except Unreadable as error:
        _skip(path, error.why)
        return None
    scrape = reader.read(text)
    if not scrape.has_vllm:
        _skip(path, "no vLLM series in it")
    elif scrape.truncated:
        _skip(path, "the text was cut: its end is missing")
    else:
        return scrape
    return None


def _skip(path: Path, why: str) -> None:
    print(f"kvtop: skipped {path.name!r}: {why}", file=sys.stderr)


def _cells(row: Turn) -> tuple[str, ...]:
    return (
        str(row.id),
        str(row.n),
        exact(row.prompt_tokens),
        DASH if row.cached_share is None else f"{exact(row.cached_tokens)} {pct(row.cached_share)}",
        exact(row.new_tokens),
        exact(row.completion_tokens),
        secs(row.queue_s),
        secs(row.prefill_s),
        secs(row.decode_s),
        "~" + secs(row.ttft_s) if row.ttft_s is not None else DASH,
        row.finish_reason or DASH,
        ("slow: " if row.waited else "") + VERDICTS.get(row.verdict or "", DASH),
    )
