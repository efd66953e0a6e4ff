"""The results as a Markdown page."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import psutil

import kvtop

REPORT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
KVTOP = "kvtop"
RIVALS = ("vllmstat", "vllm-htop")
RIVALS_PYTHON = Path(__file__).resolve().parent / ".venv" / "bin" / "python"

Size = tuple[int, int]
Parse = tuple[int, list[float], list[float]]
"""Lines of a text; milliseconds of kvtop and of the official parser."""


@dataclass
class Results:
    """Of one terminal size: measure -> program -> one value a round."""

    first_ms: dict[str, list[float]] = field(default_factory=dict)
    cpu_percent: dict[str, list[float]] = field(default_factory=dict)
    rss_mb: dict[str, list[float]] = field(default_factory=dict)
    polls_per_s: dict[str, list[float]] = field(default_factory=dict)
    written_kb_per_s: dict[str, list[float]] = field(default_factory=dict)


ROWS = (
    ("first data, ms", "first_ms", 0),
    ("CPU, % of a core", "cpu_percent", 2),
    ("memory (RSS), MB", "rss_mb", 1),
    ("polls of /metrics a second", "polls_per_s", 2),
    ("written to the terminal, kB/s", "written_kb_per_s", 1),
)

PAGE = """# Benchmarks

Made by `./benchmarks/run --write`. These are the numbers of one run on one machine: repeat it on yours.

- Machine: {machine}.
- Programs: kvtop {kvtop} (textual {textual}); {rivals}. Each at its default rate, started with the server's URL.
- Input: {lines} lines of /metrics an answer, as a real vLLM 0.32 served them, played in a loop with growing counters.
- First data: {starts} starts of each program in turn, from exec until the number of waiting requests is drawn.
- CPU and memory: all programs side by side, {seconds:.0f} s after {settle:.0f} s of start, {repeats} times; user and
  system time of the whole process tree.
- Cells are min – median – max. A ratio is of one round; below 1 kvtop needs less.

{table}

## Reading /metrics

A text of {lines} lines in the steady state, {parses} times in one process, in turn: kvtop's parse and window against
the whole parse of prometheus_client {official}.

| | ms |
|---|---|
| kvtop, parse and window | {ours} |
| prometheus_client, parse | {theirs} |
| ratio of the medians | {ratio:.3f} |
"""


TAP_HEADING = "## The tap\n"


def replace_part(old: str, part: str, new: str) -> str:
    """The page with one of its two parts made anew: `screen`, its beginning, or `tap`, from that heading to the end."""
    screen, _, tap = old.partition(TAP_HEADING)
    if part == "screen":
        return new.rstrip() + "\n" + (f"\n{TAP_HEADING}{tap}" if tap else "")
    return f"{screen.rstrip()}\n\n{new.rstrip()}\n"


def three(values: list[float], digits: int = 0) -> str:
    """min – median – max."""
    return " – ".join(f"{x:.{digits}f}" for x in (min(values), statistics.median(values), max(values)))


def table(results: dict[Size, Results]) -> str:
    names = (KVTOP, *RIVALS)
    heads = ["", "size", *names, *(f"{KVTOP} / {rival}" for rival in RIVALS)]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for label, attribute, digits in ROWS:
        for size, of in results.items():
            values: dict[str, list[float]] = getattr(of, attribute)
            if not values:
                continue
            cells = [three(values[name], digits) for name in names]
            for rival in RIVALS:
                pairs = zip(values[KVTOP], values[rival], strict=True)
                cells.append(three([ours / theirs for ours, theirs in pairs if theirs], 2))
            lines.append(f"| {label} | {size[0]}x{size[1]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parse_ratio(parse: Parse) -> float:
    return statistics.median(parse[1]) / statistics.median(parse[2])


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = f"{os.cpu_count()} cores ({(names or ['unknown'])[0]})"
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    return f"{cores}, {memory}, Linux {platform.release()}, Python {platform.python_version()}"


def rivals() -> str:
    command = [RIVALS_PYTHON, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"]
    rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return ", ".join(row.replace("==", " ") for row in rows if row.startswith((*RIVALS, "textual==")))


def page(results: dict[Size, Results], parse: Parse, *, seconds: float, settle: float) -> str:
    some = next(iter(results.values()))
    return PAGE.format(
        machine=machine(),
        kvtop=kvtop.__version__,
        textual=version("textual"),
        rivals=rivals(),
        lines=parse[0],
        starts=len(some.first_ms[KVTOP]),
        seconds=seconds,
        settle=settle,
        repeats=len(some.cpu_percent[KVTOP]),
        table=table(results),
        parses=len(parse[1]),
        official=version("prometheus_client"),
        ours=three(parse[1], 2),
        theirs=three(parse[2], 2),
        ratio=parse_ratio(parse),
    )
