"""Parse plus window of one scrape, against the official parser's whole parse of the same text, in the same run."""

from __future__ import annotations

import gc
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kvtop.model.window import between
from kvtop.sources.exposition import Reader
from moving import laps

ROUNDS = 100


def measure(capture: Path) -> tuple[int, list[float], list[float]]:
    """Lines of a text; milliseconds of kvtop and of the official parser for each of ROUNDS texts."""
    # The last lap's texts have the same series throughout: the steady state of a server that has been up for a while.
    texts = laps(capture, {})[-61:]
    reader = Reader()
    before = reader.read(texts[0], 0.0)
    ours: list[float] = []
    theirs: list[float] = []
    gc.collect()
    for n in range(ROUNDS):
        text = texts[1 + n % 60]
        start = time.perf_counter()
        now = reader.read(text, float(n))
        between(before, now, 1.0)
        ours.append((time.perf_counter() - start) * 1000)
        before = now
        start = time.perf_counter()
        for family in text_string_to_metric_families(text):
            len(family.samples)
        theirs.append((time.perf_counter() - start) * 1000)
    return len(texts[0].splitlines()), ours, theirs
