"""Short hand for tests: /metrics texts from series, and scrapes from texts and files."""

from __future__ import annotations

import gzip
import math
from collections.abc import Mapping
from pathlib import Path

from kvtop.model import metrics
from kvtop.readings import Scrape
from kvtop.sources.exposition import Reader


def text(series: Mapping[str, float], types: tuple[str, ...] = (), start: float | None = 1_700_000_000.0) -> str:
    """A text of `vllm:`-less series names; `types` are families that have a type and no sample."""
    lines = [f"# TYPE vllm:{family} counter" for family in types]
    for name, value in series.items():
        lines.append(f"# TYPE vllm:{name.split('{')[0]} counter")
        lines.append(f"vllm:{name} {repr(value) if math.isfinite(value) else spelled(value)}")
    if start is not None:
        lines.append(f"process_start_time_seconds {start!r}")
    return "\n".join(lines) + "\n"


def spelled(value: float) -> str:
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def scrape(raw: str, at: float | None = None) -> Scrape:
    return Reader(metrics.wanted).read(raw, at)


def made(series: Mapping[str, float], at: float | None = None, **more: object) -> Scrape:
    return scrape(text(series, **more), at)  # type: ignore[arg-type]


def raw(path: Path) -> str:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode()


def texts_of(folder: Path) -> list[Path]:
    """The /metrics texts of a capture folder, in order."""
    return sorted(path for path in folder.iterdir() if path.name.endswith((".txt", ".txt.gz")))
