"""What check says before a start: errors refuse, warnings ask, notes inform."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import msgspec

from kvtop.cli import stdio
from kvtop.cli.profile.answered import Answered
from kvtop.cli.profile.chosen import asked
from kvtop.errors import printable
from kvtop.profiles.folder import Entry
from kvtop.profiles.running import record

if TYPE_CHECKING:
    from kvtop.profiles.check.report import Finding
    from kvtop.profiles.check.seen import Level

MARKS: dict[Level, str] = {"error": "×", "warning": "!", "note": "·"}


def allowed(entry: Entry, *, force: bool, yes: bool, replacing: frozenset[int] | None = None) -> bool:
    """Whether it may be started. `replacing`: processes that are ended first. Raises Answered for an error."""
    from kvtop.profiles.check import report
    from kvtop.profiles.check.report import NOT_FORCED

    found = report(entry, replacing=replacing, asking=asking)
    for one in found.findings:
        if one.level != "note":
            stdio.tell(_words(one))
    notes = sum(one.level == "note" for one in found.findings)
    if notes and not record.starts(entry.name):  # told before its first good start
        many = f"{notes} note{'s' * (notes > 1)}"
        stdio.tell(f"{MARKS['note']} {many}, told by kvtop profile check {printable(entry.name, 80)}")
    if refused := found.refuses(force):
        rules = ", ".join(dict.fromkeys(one.rule for one in refused))
        forced = not force and any(one.rule not in NOT_FORCED for one in refused)
        how = "; --force starts it all the same, but for port_taken and gpu_overlap" if forced else ""
        if replacing is None and all(one.rule in NOT_FORCED for one in refused):
            how += f", or kvtop profile switch {printable(entry.name, 80)} stops what is in the way"
        what = f"{printable(entry.name, 80)} would not work: {rules}"
        findings = [msgspec.to_builtins(one) for one in found.findings]
        raise Answered(what, f"mend that{how}", {"profile": entry.name, "ok": False, "findings": findings})
    warnings = len(found.asks())
    question = f"{warnings} warning{'s' * (warnings > 1)}: start {printable(entry.name, 80)} all the same?"
    return force or not warnings or asked(question, yes=yes)


def _words(one: Finding) -> str:
    """In lines of at most 80 cells; a fix, which may be pasted, is never broken."""
    says = f"{MARKS[one.level]} {one.rule}: {printable(one.says, 300)}"
    lines = textwrap.wrap(says, 80, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    return "\n".join([*lines, *([f"  fix: {printable(one.fix, 300)}"] if one.fix else [])])


def asking(program: str) -> None:
    """Said before vLLM is run for its flags, which may take two minutes."""
    stdio.tell(f"kvtop: asking {printable(program, 200)} for its flags; once, a minute or two")
