"""How well two requests are judged: labelled pairs and conversations, and what a judge makes of them.

`python tests/triage_score.py open given` prints a table for each set; `--names` tells what was judged wrong.
tests/fixtures/README.md says how the sets are written.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from kvtop.capture.turn import Route
from kvtop.triage.changes import compare
from kvtop.triage.judge import causes_of, first_difference, read
from kvtop.triage.kinds import Kind, Varies
from kvtop.triage.result import Cause, Diff, Tokens

FOLDER = Path(__file__).parent / "fixtures" / "triage"
APPEND_ONLY = "append_only"
GENERIC = frozenset({Kind.TEXT_EDITED, Kind.TOOLS_CHANGED})
"""Kinds that say that something differs, and not what it is."""

Judge = Callable[[bytes, bytes, Route], Diff]


def compare_bodies(old: bytes, new: bytes, route: Route) -> Diff:
    """The text method: no server is asked, no token is counted. Raises ValueError for what is no JSON object."""
    comparison = compare(read(old, route), read(new, route))
    causes = causes_of(comparison)
    return Diff(
        old="old",
        new="new",
        method="text",
        exact=False,
        tokens=Tokens(),
        causes=causes,
        first=first_difference(comparison, causes),
        append_only=not causes,
        notes=(*comparison.old.notes, *comparison.new.notes),
    )


@dataclass(frozen=True, slots=True)
class Expected:
    """One cause that must be named."""

    kind: Kind
    values: tuple[Varies, ...] | None = ()
    """None: what varies may be called one thing or another."""
    pointer: str | None = None
    """None: no single place."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two requests in a row, and what made the second differ."""

    name: str
    route: Route
    old: bytes
    new: bytes
    wanted: tuple[tuple[Expected, ...], ...]
    """Any of these lists is right, the first of each list being the first in the prompt; an empty one: append-only."""
    may: frozenset[Kind] = frozenset()
    """What may be named besides."""

    @property
    def label(self) -> str:
        """The kind under which it is counted."""
        return self.wanted[0][0].kind if self.wanted[0] else APPEND_ONLY


@dataclass(frozen=True, slots=True)
class Recurring:
    """A cause that shows in several turns of a conversation."""

    kind: Kind
    pointer: str
    turns: tuple[int, ...]
    """Each differs from the one before it by this."""
    values: tuple[Varies, ...] = ()
    pairwise: tuple[Kind, ...] = ()
    """What two turns alone may be called, where the kind shows only in several."""


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation, turn by turn."""

    name: str
    route: Route
    turns: tuple[tuple[float, bytes], ...]
    """Unix time and body."""
    expect: tuple[Recurring, ...]
    """Empty: each turn only appends."""


class Outcome(StrEnum):
    """What a judge made of one pair."""

    RIGHT = "right"
    """The first cause first, all of them with what varies, and nothing else."""
    PARTLY = "partly"
    """Nothing wrong is named, but a cause, a value or the order is missing."""
    MISSED = "missed"
    """Nothing is named, or only that something differs."""
    ACCUSED = "accused"
    """A cause is named that is none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One pair, judged."""

    pair: Pair
    outcome: Outcome
    named: tuple[Cause, ...]
    placed: bool | None
    """Whether each expected cause that was named stands where it should. None: none with a place was."""


@dataclass(frozen=True, slots=True)
class Score:
    """A set of pairs, judged."""

    verdicts: tuple[Verdict, ...]
    by_kind: dict[str, dict[Outcome, int]] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        return len(self.verdicts)

    def count(self, outcome: Outcome) -> int:
        return sum(verdict.outcome is outcome for verdict in self.verdicts)

    @property
    def innocent(self) -> int:
        """How many pairs only append."""
        return sum(verdict.pair.label == APPEND_ONLY for verdict in self.verdicts)

    @property
    def innocent_accused(self) -> int:
        """How many of these have a cause all the same."""
        return sum(v.pair.label == APPEND_ONLY and v.outcome is Outcome.ACCUSED for v in self.verdicts)

    @property
    def placed(self) -> tuple[int, int]:
        """How many of the pairs whose causes were named have them in the right place, and of how many that is."""
        known = [verdict.placed for verdict in self.verdicts if verdict.placed is not None]
        return sum(known), len(known)


def load(name: str) -> list[Pair]:
    """The pairs of a set: given, open or held. Raises FileNotFoundError."""
    return [_pair(row) for row in _rows(FOLDER / f"{name}.jsonl.xz")]


def load_talks(name: str = "talks") -> list[Talk]:
    """The conversations of a set: talks or talks-held. Raises FileNotFoundError."""
    return [_talk(row) for row in _rows(FOLDER / f"{name}.jsonl.xz")]


def pairs_of(talk: Talk) -> list[Pair]:
    """Each turn with the one before it, and what these two alone can show."""
    pairs = []
    for turn in range(1, len(talk.turns)):
        here = sorted((r for r in talk.expect if turn in r.turns), key=lambda r: _place(r.pointer))
        choices = [
            [Expected(kind, r.values, r.pointer) for kind in r.pairwise or (r.kind,)] for r in here
        ]  # one list of causes for each choice
        pairs.append(
            Pair(
                name=f"{talk.name} [{turn}]",
                route=talk.route,
                old=talk.turns[turn - 1][1],
                new=talk.turns[turn][1],
                wanted=tuple(itertools.product(*choices)),
            )
        )
    return pairs


def score(pairs: Iterable[Pair], judge: Judge) -> Score:
    """What a judge makes of a set. What the judge raises is raised."""
    verdicts = []
    by_kind: dict[str, dict[Outcome, int]] = {}
    for pair in pairs:
        verdict = judged(pair, judge(pair.old, pair.new, pair.route).causes)
        verdicts.append(verdict)
        row = by_kind.setdefault(pair.label, dict.fromkeys(Outcome, 0))
        row[verdict.outcome] += 1
    return Score(tuple(verdicts), by_kind)


def judged(pair: Pair, named: Sequence[Cause]) -> Verdict:
    """The verdict on the causes that were named for a pair."""
    outcome = _outcome(pair, named)
    return Verdict(pair, outcome, tuple(named), _placed(pair, named))


def table(scored: Score) -> str:
    """A table in Markdown, one line a kind, the kinds in the order of the contract."""
    head = "| kind | pairs | right | partly | missed | false accusations |"
    lines = [head, "|---|---:|---:|---:|---:|---:|"]
    order = [APPEND_ONLY, *Kind]
    for kind in sorted(scored.by_kind, key=order.index):
        row = scored.by_kind[kind]
        lines.append(_line(f"`{kind}`", row))
    total = {outcome: scored.count(outcome) for outcome in Outcome}
    lines.append(_line("**all**", total))
    right, known = scored.placed
    lines += [
        "",
        f"Right: {total[Outcome.RIGHT]} of {scored.pairs}. False accusations on pairs that only append: "
        f"{scored.innocent_accused} of {scored.innocent}. Named causes in the right place: {right} of {known} pairs.",
    ]
    return "\n".join(lines)


def wrong(scored: Score) -> Iterator[str]:
    """A line for each pair that was not judged right."""
    for verdict in scored.verdicts:
        if verdict.outcome is not Outcome.RIGHT:
            named = ", ".join(_words(c.kind, c.values) + f" at {c.pointer}" for c in verdict.named) or "nothing"
            wanted = " or ".join(
                ", ".join(_words(e.kind, e.values) for e in choice) or APPEND_ONLY for choice in verdict.pair.wanted
            )
            yield f"{verdict.outcome}: {verdict.pair.name} ({verdict.pair.route}): wanted {wanted}; named {named}"


def _words(kind: Kind, values: Sequence[Varies] | None) -> str:
    return kind if not values else f"{kind} ({', '.join(values)})"


def _line(kind: str, row: dict[Outcome, int]) -> str:
    cells = [kind, str(sum(row.values())), *(str(row[outcome]) for outcome in Outcome)]
    return "| " + " | ".join(cells) + " |"


def _outcome(pair: Pair, named: Sequence[Cause]) -> Outcome:
    kinds = {cause.kind for cause in named}
    if any(_right(choice, named, pair.may) for choice in pair.wanted):
        return Outcome.RIGHT
    if pair.label == APPEND_ONLY:
        return Outcome.ACCUSED
    expected = {e.kind for choice in pair.wanted for e in choice}
    if kinds <= GENERIC and not kinds & expected:
        return Outcome.MISSED
    return Outcome.ACCUSED if kinds - expected - pair.may else Outcome.PARTLY


def _right(choice: Sequence[Expected], named: Sequence[Cause], may: frozenset[Kind]) -> bool:
    if not choice:
        return not named
    if not named or named[0].kind is not choice[0].kind:
        return False
    if {cause.kind for cause in named} - {e.kind for e in choice} - may:
        return False
    return all(_named(expected, named) for expected in choice)


def _named(expected: Expected, named: Sequence[Cause]) -> bool:
    found = [cause for cause in named if cause.kind is expected.kind]
    values = {value for cause in found for value in cause.values}
    return bool(found) and (expected.values is None or values == set(expected.values))


def _placed(pair: Pair, named: Sequence[Cause]) -> bool | None:
    for choice in pair.wanted:
        held = [e for e in choice if e.pointer is not None and any(c.kind is e.kind for c in named)]
        if held:
            return all(any(c.kind is e.kind and _near(c.pointer, e.pointer) for c in named) for e in held)
    return None


def _near(one: str, other: str | None) -> bool:
    """Whether two pointers name the same thing, or one a part of the other."""
    a, b = one.split("/"), (other or "").split("/")
    return all(x == y for x, y in zip(a, b, strict=False))


def _place(pointer: str) -> int:
    """Where a template prints it: tools, system, messages."""
    head = pointer.split("/")[1]
    if head == "tools":
        return 0
    return 1 if head in ("system", "instructions") or pointer.startswith("/messages/0/") else 2


def _rows(path: Path) -> list[dict[str, Any]]:
    with lzma.open(path) as file:
        return [json.loads(line) for line in file]


def _body(body: Any) -> bytes:
    """A body is an object, or a text where its exact bytes count."""
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _pair(row: dict[str, Any]) -> Pair:
    expect = row["expect"]
    choices = [[expect, *expect.get("also", [])], *expect.get("or", [])]
    return Pair(
        name=row["name"],
        route=Route(row.get("route", Route.CHAT)),
        old=_body(row["old"]),
        new=_body(row["new"]),
        wanted=tuple(tuple(_expected(e) for e in choice if e["kind"] != APPEND_ONLY) for choice in choices),
        may=frozenset(Kind(kind) for kind in expect.get("may", [])),
    )


def _expected(given: dict[str, Any]) -> Expected:
    return Expected(Kind(given["kind"]), _values(given.get("values", [])), given.get("pointer"))


def _values(given: list[str] | None) -> tuple[Varies, ...] | None:
    return None if given is None else tuple(Varies(value) for value in given)


def _talk(row: dict[str, Any]) -> Talk:
    return Talk(
        name=row["name"],
        route=Route(row.get("route", Route.CHAT)),
        turns=tuple((turn["at"], _body(turn["body"])) for turn in row["turns"]),
        expect=tuple(
            Recurring(
                kind=Kind(e["kind"]),
                pointer=e["pointer"],
                turns=tuple(e["turns"]),
                values=_values(e.get("values", [])) or (),
                pairwise=tuple(Kind(kind) for kind in e.get("pairwise", [])),
            )
            for e in row["expect"]
        ),
    )


def main() -> None:
    """Prints the tables of the sets that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="+", help="given, open, held, talks or talks-held")
    parser.add_argument("--names", action="store_true", help="tell which pairs were judged wrong, and how")
    asked = parser.parse_args()
    for name in asked.sets:
        pairs = [p for t in load_talks(name) for p in pairs_of(t)] if name.startswith("talks") else load(name)
        scored = score(pairs, compare_bodies)
        print(f"{name}\n\n{table(scored)}\n")
        if asked.names:
            print("\n".join(wrong(scored)), end="\n\n")


if __name__ == "__main__":
    main()
