"""`kvtop why`: the verdict on one turn."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import Iterator, Sequence

from kvtop.cli.args import Parser
from kvtop.errors import printable
from kvtop.model.words import exact, secs
from kvtop.triage.kinds import Kind
from kvtop.triage.prompt import in_words
from kvtop.triage.result import Cause, Split, Why

WIDTH = 100


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop why",
        usage="%(prog)s [-h] [TURN] [--url URL] [--json]",
        description="Why a captured turn took its time: the prompt, the engine, the queue, a long input or decode; "
        "'cannot tell' where the evidence does not decide. Tokens are counted by the server that the turn went to.",
    )
    parser.add_argument("turn", metavar="TURN", nargs="?", help="its id (default: the latest slow one)")
    parser.add_argument("--url", help="ask this server for tokens, instead of the one that the turn went to")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args(argv)
    from kvtop.cli.triaging import turn_id

    wanted = None if args.turn is None else turn_id(args.turn)
    return asyncio.run(_why(wanted, args.url, as_json=args.json))


async def _why(wanted: int | None, url: str | None, *, as_json: bool) -> int:
    from kvtop import paths
    from kvtop.capture.store import given
    from kvtop.capture.store.store import Store
    from kvtop.capture.turn import TurnState
    from kvtop.cli.captured import latest_slow
    from kvtop.cli.stdio import tell
    from kvtop.cli.triaging import answered
    from kvtop.triage import document

    with Store.open(paths.turns_file()) as store:
        id = wanted if wanted is not None else latest_slow(store)
        turn = store.turn(id)
        found = await answered(store, turn, url, lambda cases: cases.why(cases.turn(id)), events=True)
        if turn is not None and turn.state is not TurnState.IN_FLIGHT:
            try:
                given.add(store.path, id, turn.started_at, found.verdict.value)
            except OSError as error:
                why = f"{error.filename or given.file_of(store.path)}: {error.strerror or error}"
                tell(f"kvtop: {printable(why, 200)}: kvtop turns --json cannot name this verdict")
    if as_json:
        print(json.dumps(document.why(found), allow_nan=False))
    else:
        print("\n".join(lines(found)))
    return 0


def causes(found: Sequence[Cause], main: str | None) -> Iterator[str]:
    """One line each: kind, place, price, who can mend it, how often; and its fix, if it is not `main`, told below. That
    two conversations say two things is no news."""
    for cause in found:
        if cause.kind is Kind.OTHER_CONVERSATION:
            continue
        price = [] if cause.told_tokens is None else [f"{exact(cause.told_tokens)} tokens"]
        price += [] if cause.lost_s is None else [secs(cause.lost_s)]
        values = f" ({', '.join(value.value for value in cause.values)})" if cause.values else ""
        moved = f" -> {in_words(cause.pointer_new)}" if cause.pointer_new is not None else ""
        told = [f"{cause.kind.value}{values} in {cause.section}{moved}", *price, cause.who.value]
        yield ", ".join([*told, cause.seen] if cause.seen else told)
        if cause.fix != main:
            yield f"  {cause.fix}"


def tokens(split: Split) -> str:
    """What became of the prompt, by the numbers of the dashboard; empty where too little is known."""
    if split.prompt is None or split.cached is None:
        return ""
    parts, about = [f"{exact(split.cached)} cached"], "~" if split.guessed else ""
    shares = [(split.changed, "behind a change"), (split.lost, "lost"), (split.unsaved, "not saved")]
    parts += [f"{about}{exact(n)} read again ({how})" for n, how in shares if n]
    parts.append(f"{about}{exact(split.new)} {'read' if split.reread is None else 'new'}")
    return f"{exact(split.prompt)}: {', '.join(parts)}"


def lines(found: Why) -> Iterator[str]:
    """For people and pipes: the sentence, then what shows it, what it rules out, and what to do."""
    yield from textwrap.wrap(printable(found.sentence, 1_000), WIDTH)
    rows = [("tokens", told)] if (told := tokens(found.split)) else []
    rows += [("shows", line) for line in found.evidence]
    rows += [("rules out", line) for line in found.rules_out]
    rows += [("may be", str(reason).replace("_", " ")) for reason in found.candidates]
    if found.diff is not None:
        rows += [("cause", row) for row in causes(found.diff.causes, found.fix)]
        rows += [("note", note) for note in found.diff.notes]
    if found.fix:
        rows.append(("fix", found.fix))
    last = ""
    for name, text in rows:
        head = f"{'' if name == last else name:<10}"
        yield from textwrap.wrap(printable(text, 1_000), WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
        last = name
