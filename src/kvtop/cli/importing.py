"""`kvtop import FILE...`: captured traffic of other tools into the store of turns."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from kvtop import paths
from kvtop.cli.args import Parser
from kvtop.cli.stdio import tell
from kvtop.errors import printable

if TYPE_CHECKING:
    from kvtop.capture.conversations.linker import Linker
    from kvtop.capture.importers.exchange import Exchange
    from kvtop.capture.importers.read import Opened
    from kvtop.capture.store.store import Store
    from kvtop.capture.turn import Captured

TOTALS = ("kept", "already", "left_out", "answers_left_out", "no_server", "bad")
SHOWN = 5
"""Bad records of one file that are named."""
MOST_HELD = 20_000
MOST_HELD_BYTES = 256 << 20
"""Turns of one file, and their bodies, that are put in the order of their times before they are written."""


def main(argv: Sequence[str]) -> int:
    from kvtop.capture.importers.read import FORMATS, Opened

    parser = Parser(
        epilog='JSON lines: one request body a line, or {"request": ..., "response": ..., "started_at": ...}, or of a '
        'batch file {"url": ..., "body": ...}. docs/import.md tells of each format what file it is, how it is '
        "recognised, and what it cannot prove.",
        prog="kvtop import",
        usage="%(prog)s [-h] FILE... [--format F] [--json]",
        description="Captured traffic of other tools as turns. Good records are kept, bad ones are counted and named; "
        "what was imported before is not taken again. Files may be gzip or zstd.",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="files; for claude-bodies also their folder")
    parser.add_argument("--format", choices=FORMATS, metavar="F", help=f"{', '.join(FORMATS)}; guessed where left out")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args(argv)
    try:
        opened = [Opened(Path(name), args.format, lambda line: tell(f"kvtop: {line}")) for name in args.files]
        found = _imported(opened)
    except KeyboardInterrupt:
        tell("kvtop: import was ended; the turns that it kept until then stay, and are not taken twice")
        return 130
    total = {word: sum(row[word] for row in found) for word in TOTALS}
    if args.json:
        print(json.dumps({**total, "files": found}, allow_nan=False))
    else:
        _tell(found)
    return 0 if total["kept"] or total["already"] else 1


def _imported(opened: Sequence[Opened]) -> list[dict[str, Any]]:
    from kvtop.capture.conversations.linker import LIMIT, Linker
    from kvtop.capture.store import store

    with store.Store.open(paths.turns_file(), write=True) as kept:
        linker = Linker(kept.recent(LIMIT))
        known = _known(kept)
        found = [_one(file, kept, linker, known) for file in opened]
        for note in kept.notes:
            tell(f"kvtop: {note}")
        return found


def _known(kept: Store) -> set[str]:
    from kvtop.capture.importers.exchange import KEY
    from kvtop.cli.captured import pages

    return {key for turn in pages(kept) if (key := turn.hints.get(KEY))}


def _one(file: Opened, kept: Store, linker: Linker, known: set[str]) -> dict[str, Any]:
    from kvtop.capture.importers.exchange import KEY, Bad, Exchange, LeftOut, Maker, taken

    maker = Maker(file.written_at)
    bad: list[Bad] = []
    left_out = answers = already = bad_ones = done = no_server = held = 0
    made: list[tuple[Captured, Exchange]] = []
    for place, item in enumerate(file.items()):
        if isinstance(item, Bad):
            bad_ones += 1
            bad += [item] if len(bad) < SHOWN else []
        elif isinstance(item, LeftOut):
            left_out += 1
            answers += item.answer
        elif isinstance(item, Exchange):
            turn = taken(item.where, "no turn can be made of it", maker.turn, item, place)
            if isinstance(turn, Bad):
                bad_ones += 1
                bad += [turn] if len(bad) < SHOWN else []
            elif turn.hints[KEY] in known:
                already += 1
            else:
                known.add(turn.hints[KEY])
                no_server += not turn.upstream
                made.append((turn, item))
                held += len(item.request) + len(item.response or b"")
            if len(made) >= MOST_HELD or held >= MOST_HELD_BYTES:
                done += _keep(made, kept, linker)
                made, held = [], 0
    done += _keep(made, kept, linker)
    return {
        "file": printable(str(file.path), 1000),
        "format": file.format,
        "guessed": file.guessed,
        "kept": done,
        "already": already,
        "left_out": left_out,
        "answers_left_out": answers,
        "no_server": no_server,
        "bad": bad_ones,
        "bad_records": [{"where": item.where, "why": item.why} for item in bad],
    }


def _keep(made: list[tuple[Captured, Exchange]], kept: Store, linker: Linker) -> int:
    """Write them in the order of their times; how many."""
    made.sort(key=lambda pair: pair[0].started_at)
    for turn, item in made:
        place_ = linker.place(turn)
        turn = replace(turn, conversation=place_.conversation, parent=place_.parent, relation=place_.relation)
        turn = replace(turn, changed=list(place_.changed))
        id = kept.begin(turn, item.request)
        turn = replace(turn, id=id, conversation=turn.conversation or f"c{id}")
        if item.response is None:
            kept.update(turn)
        else:
            kept.finish(turn, item.response)
        linker.add(turn)
    return len(made)


def _tell(found: Sequence[dict[str, Any]]) -> None:
    for row in found:
        words = [f"{row['kept']} turn{'' if row['kept'] == 1 else 's'} kept"]
        words += [f"{row['already']} were there already"] if row["already"] else []
        others, answers = row["left_out"] - row["answers_left_out"], row["answers_left_out"]
        words += [f"{others} other record{'' if others == 1 else 's'} left out"] if others else []
        if answers:
            whose = "1 answer" if answers == 1 else f"{answers} answers"
            words.append(f"{whose} without an index.jsonl that names {'its' if answers == 1 else 'their'} request")
        words += [f"{row['bad']} bad"] if row["bad"] else []
        how = f"{row['format']}, guessed" if row["guessed"] else row["format"]
        print(f"{row['file']} ({how}): {', '.join(words)}")
        for record in row["bad_records"]:
            print(f"  {record['where']}: {record['why']}", file=sys.stderr)
        if not any(row[word] for word in ("kept", "already", "left_out", "bad")):
            print("  it holds no record", file=sys.stderr)
        if row["bad"] > len(row["bad_records"]):
            print(f"  and {row['bad'] - len(row['bad_records'])} more", file=sys.stderr)
    if kept := sum(row["kept"] for row in found):
        print(_listed(kept, sum(row["no_server"] for row in found)))


def _listed(kept: int, no_server: int) -> str:
    """Where what was kept is to be seen: a dashboard shows the turns of one server."""
    if no_server == kept:
        return "kvtop turns lists them, marked import; no dashboard does: the records name no server"
    rest = f"; {no_server} name none" if no_server else ""
    return f"kvtop turns lists them, marked import, and so does the dashboard of the server that they name{rest}"
