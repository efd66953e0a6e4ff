"""All rules over the facts of one profile, and what that means for a start."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvtop.errors import printable
from kvtop.profiles.check.edits import told
from kvtop.profiles.check.facts import Entry, gather
from kvtop.profiles.check.rules import RULES, Rule
from kvtop.profiles.check.seen import Facts, Lacks, Level, Says
from kvtop.profiles.check.sizes import Size, cards, sizes, tier
from kvtop.profiles.secret import masked_value, masked_words, shown
from kvtop.sources.masking import MASK

NOT_FORCED = ("port_taken", "gpu_overlap")
"""Errors that --force does not override."""
_ORDER: tuple[Level, ...] = ("error", "warning", "note")
_MOST_SAYS = 300
_MOST_FIX = 4000


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule found. Every text is one line, fit to be shown."""

    level: Level
    rule: str
    flag: str
    says: str
    fix: str


@dataclass(frozen=True, slots=True)
class Silent:
    """A rule that could not tell, and for want of what."""

    rule: str
    lacks: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What there is for it. None: not known."""

    cpu_tier_bytes: int | None
    shm_free_bytes: int | None
    memory_available_bytes: int | None
    gpu_free_bytes: tuple[int | None, ...] | None
    """Of each card that it uses."""
    gpu_total_bytes: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class Report:
    """The answer of `kvtop profile check`."""

    profile: str
    findings: tuple[Finding, ...]
    """Errors first; within a level in the order of the rules."""
    silent: tuple[Silent, ...]
    memory: Memory
    sizes: tuple[Size, ...]
    """What the command line asks for, in every unit."""
    command: tuple[str, ...]
    """Masked."""
    env: dict[str, str]
    """Masked."""

    @property
    def ok(self) -> bool:
        """No finding is an error."""
        return not self.of("error")

    def of(self, level: Level) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == level)

    @property
    def summary(self) -> str:
        """`1 error, 2 notes; it would not start`."""
        end = "it would not start" if not self.ok else "ready to start" if self.command else "kvtop only watches it"
        return f"{self.counts}; {end}" if self.counts else end

    @property
    def counts(self) -> str:
        """`1 error, 2 notes`; empty for nothing found."""
        counts = [(len(self.of(level)), level) for level in _ORDER]
        return ", ".join(f"{n} {level}{'' if n == 1 else 's'}" for n, level in counts if n)

    def refuses(self, force: bool = False) -> tuple[Finding, ...]:
        """The findings that forbid a start: all errors, with `force` those alone that cannot be overridden."""
        return tuple(one for one in self.of("error") if not force or one.rule in NOT_FORCED)

    def asks(self) -> tuple[Finding, ...]:
        """The findings that want a yes before a start."""
        return self.of("warning")

    def document(self) -> dict[str, Any]:
        """`profile check --json` of the contract."""
        gpu = self.memory.gpu_free_bytes
        return {
            "profile": self.profile,
            "ok": self.ok,
            "findings": [
                {"level": one.level, "rule": one.rule, "flag": one.flag, "says": one.says, "fix": one.fix}
                for one in self.findings
            ],
            "lacks": [{"rule": one.rule, "lacks": one.lacks} for one in self.silent],
            "memory": {
                "cpu_tier_bytes": self.memory.cpu_tier_bytes,
                "shm_free_bytes": self.memory.shm_free_bytes,
                "memory_available_bytes": self.memory.memory_available_bytes,
                "gpu_free_bytes": None if gpu is None else list(gpu),
            },
            "sizes": [
                {
                    "flag": one.flag,
                    "total_bytes": one.total_bytes,
                    "per_gpu_bytes": one.per_gpu_bytes,
                    "about_tokens": one.tokens,
                }
                for one in self.sizes
            ],
            "command": list(self.command),
            "env": self.env,
        }


def report(
    found: Entry,
    *,
    replacing: frozenset[int] | set[int] | None = None,
    facts: Facts | None = None,
    ask_vllm: bool = True,
    asking: Callable[[str], None] | None = None,
) -> Report:
    """What would go wrong with a profile. Blocks; see `facts.gather`, which is asked where no `facts` are given.

    `replacing`: processes of the server that a switch stops first; what they hold is a note.
    """
    going = None if replacing is None else frozenset(replacing)
    if facts is None:
        facts = gather(found, replacing=going, ask_vllm=ask_vllm, tell=asking)
    elif going is not None:
        facts = replace(facts, replacing=going)
    return judged(facts)


def judged(facts: Facts, rules: Sequence[Rule] = RULES) -> Report:
    """All rules over these facts; none over a server that somebody else starts. Pure."""
    findings: list[Finding] = []
    silent: list[Silent] = []
    for rule in rules if facts.profile.runner != "attach" else ():
        name = name_of(rule)
        for said in rule(facts):
            if isinstance(said, Lacks):
                silent.append(Silent(name, _line(said.what, _MOST_SAYS)))
            else:
                findings.append(_finding(facts, name, said))
    findings.sort(key=lambda one: _ORDER.index(one.level))
    used = cards(facts)
    asked = tier(facts)
    return Report(
        profile=_line(facts.name, 80),
        findings=tuple(findings),
        silent=tuple(dict.fromkeys(silent)),
        memory=Memory(
            cpu_tier_bytes=asked.bytes if asked is not None else None,
            shm_free_bytes=facts.shm_free_bytes,
            memory_available_bytes=facts.memory_available_bytes,
            gpu_free_bytes=None if used is None else tuple(card.free_bytes for card in used),
            gpu_total_bytes=None if used is None else tuple(card.total_bytes for card in used),
        ),
        sizes=sizes(facts),
        command=tuple(masked_words(facts.launch.argv if facts.launch is not None else facts.flags.words)),
        env=_env(facts),
    )


def name_of(rule: Callable[..., object]) -> str:
    """A rule's id."""
    return rule.__name__


def _finding(facts: Facts, rule: str, said: Says) -> Finding:
    says, fix = shown(_flat(said.says), _MOST_SAYS), _line(told(facts, rule, said.fix), _MOST_FIX)
    return Finding(said.level, rule, shown(said.flag, 80), says, fix)


def _line(text: str, limit: int) -> str:
    return printable(_flat(text), limit)


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _env(facts: Facts) -> dict[str, str]:
    """What is set for it: the profile's own variables, a secret's value masked."""
    run = facts.launch
    given = {} if run is None else {**run.set, **dict.fromkeys(run.secrets, MASK)}
    return {_line(name, 200): str(masked_value(name, value)) for name, value in given.items()}
