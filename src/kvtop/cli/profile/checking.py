"""What check says before a start: errors refuse, warnings ask, notes inform."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvtop.cli import stdio
from kvtop.cli.profile.answered import Answered
from kvtop.cli.profile.chosen import asked
from kvtop.errors import printable
from kvtop.profiles.folder import Entry

if TYPE_CHECKING:
    from kvtop.profiles.check.seen import Level

MARKS: dict[Level, str] = {"error": "×", "warning": "!", "note": "·"}


def allowed(entry: Entry, *, force: bool, yes: bool, replacing: frozenset[int] | None = None) -> bool:
    """Whether it may be started. `replacing`: processes that are ended first. Raises Answered for an error."""
    from kvtop.profiles.check import report

    found = report(entry, replacing=replacing, asking=asking)
    for one in found.findings:
        fix = f"  fix: {printable(one.fix, 300)}" if one.fix else ""
        stdio.tell(f"{MARKS[one.level]} {one.rule}: {printable(one.says, 300)}{fix}")
    if refused := found.refuses(force):
        rules = ", ".join(dict.fromkeys(one.rule for one in refused))
        how = "" if force else "; --force starts it all the same, but for port_taken and gpu_overlap"
        what = f"{printable(entry.name, 80)} would not work: {rules}"
        findings = [msgspec.to_builtins(one) for one in found.findings]
        raise Answered(what, f"mend that{how}", {"profile": entry.name, "ok": False, "findings": findings})
    warnings = len(found.asks())
    question = f"{warnings} warning{'s' * (warnings > 1)}: start {printable(entry.name, 80)} all the same?"
    return force or not warnings or asked(question, yes=yes)


def asking(program: str) -> None:
    """Said before vLLM is run for its flags, which may take a minute."""
    stdio.tell(f"kvtop: asking {printable(program, 200)} for its flags; once, up to a minute")
