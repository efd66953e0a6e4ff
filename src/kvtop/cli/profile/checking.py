"""What check says before a start: errors refuse, warnings ask, notes inform."""

from __future__ import annotations

from kvtop.cli import stdio
from kvtop.cli.profile.chosen import asked
from kvtop.errors import KvtopError, printable
from kvtop.profiles.folder import Entry

_MARKS = {"error": "×", "warning": "!", "note": "·"}


def allowed(entry: Entry, *, force: bool, yes: bool, replacing: frozenset[int] | None = None) -> bool:
    """Whether it may be started. `replacing`: processes that are ended first. Raises KvtopError for an error."""
    from kvtop.profiles.check import report

    found = report(entry, replacing=replacing, asking=_asking)
    for one in found.findings:
        fix = f"  fix: {printable(one.fix, 300)}" if one.fix else ""
        stdio.tell(f"{_MARKS[one.level]} {one.rule}: {printable(one.says, 300)}{fix}")
    if refused := found.refuses(force):
        rules = ", ".join(dict.fromkeys(one.rule for one in refused))
        how = "" if force else "; --force starts it all the same, but for port_taken and gpu_overlap"
        raise KvtopError(f"{printable(entry.name, 80)} would not work: {rules}", f"mend that{how}")
    warnings = len(found.asks())
    question = f"{warnings} warning{'s' * (warnings > 1)}: start {printable(entry.name, 80)} all the same?"
    return force or not warnings or asked(question, yes=yes)


def _asking(program: str) -> None:
    stdio.tell(f"kvtop: asks {printable(program, 200)} for its flags; the first time that takes up to a minute")
