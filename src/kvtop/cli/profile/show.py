"""`kvtop profile show P`: the whole of a profile, and of each value where it came from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvtop import paths
from kvtop.cli.args import Parser
from kvtop.errors import UsageError, printable
from kvtop.profiles import folder
from kvtop.profiles.folder import Entry, Origin
from kvtop.profiles.secret import masked_value, masked_words

_WIDTH = 4000


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop profile show",
        usage="%(prog)s [-h] (PROFILE [--json] | --schema)",
        description="The profile with all that it extends, as TOML, and beside each value the file and line that it "
        "came from. Secrets are masked. What is not shown is a default: docs/profiles.md.",
    )
    parser.add_argument("profile", nargs="?", metavar="PROFILE", help="its name, or the path of its file")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--schema", action="store_true", help="the JSON Schema of such a file, for editors")
    args = parser.parse_args(argv)
    if args.schema:
        from kvtop.profiles.schema import schema_text

        print(schema_text(), end="")
        return 0
    if args.profile is None:
        raise UsageError("kvtop profile show: no profile was named", "kvtop profile list names them")
    entry = folder.find(args.profile)
    entry.usable()
    if args.json:
        print(json.dumps(_document(entry), allow_nan=False))
    else:
        for line in _lines(entry):
            print(printable(line, _WIDTH))
    return 0


def _masked(entry: Entry) -> dict[str, Any]:
    from kvtop.profiles.text import as_data

    data = as_data(entry.usable())
    places = {name: dict(table) for name, table in data.get("env", {}).items() if name.startswith("from_")}
    shown = {key: masked_value(key, value) for key, value in data.items()}
    if places:  # where a secret is, is none
        shown["env"] = {**shown["env"], **places}
    return shown


def _lines(entry: Entry) -> Iterator[str]:
    from kvtop.profiles.text import bare, tables, value_text

    yield f"# {entry.name}: {paths.with_tilde(entry.file)}" + "".join(f", extends {base}" for base in entry.bases)
    if _is_default(entry, "runner"):
        yield 'runner = "venv"  # default'
    sidecars = 0
    for path, heading, values in tables(_masked(entry)):
        above = ".".join(path)
        if heading.startswith("[["):
            above = f"{above}[{sidecars}]"
            sidecars += 1
        if heading:
            yield ""
            yield heading
        for key, value in values:
            where = f"{above}.{key}" if above else key
            if isinstance(value, list) and where == "serve.args":
                yield from _args(entry, value)
                continue
            text = value_text(value).split("\n")
            origin = _told(entry, where)
            yield f"{bare(key)} = {text[0]}" + (f"  # {origin}" if len(text) == 1 else "")
            yield from text[1:-1]
            if len(text) > 1:
                yield f"{text[-1]}  # {origin}"


def _args(entry: Entry, words: list[str]) -> Iterator[str]:
    """Flag by flag: they may come from several files."""
    from kvtop.profiles.spelling import groups
    from kvtop.profiles.text import value_text

    yield "args = ["
    at = 0
    for group in groups(words):
        row = ", ".join(value_text(word) for word in group.words)
        yield f"  {row},  # {_told(entry, f'serve.args[{at}]')}"
        at += len(group.words)
    yield "]"


def _document(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "file": str(entry.file),
        "extends": list(entry.bases),
        "profile": {"runner": "venv", **_masked(entry)},
        "origins": {masked_words([key])[0]: _origin(origin) for key, origin in entry.origins.items()},
    }


def _origin(origin: Origin) -> dict[str, Any]:
    file = None if origin.file is None else str(origin.file)
    return {"from": origin.how, "file": file, "line": origin.line}


def _is_default(entry: Entry, key: str) -> bool:
    return key not in entry.origins and key not in _masked(entry)


def _told(entry: Entry, where: str) -> str:
    origin = entry.origins.get(where) or _above(entry.origins, where)
    if origin is None or origin.file is None:
        return "default"
    return f"{origin.file.name}{f', line {origin.line}' if origin.line else ''}"


def _above(origins: Mapping[str, Origin], where: str) -> Origin | None:
    """Of the nearest part that is known: a list of tables is known as a whole."""
    while "." in where:
        where = re.sub(r"\[\d+\]$", "", where.rpartition(".")[0])
        if where in origins:
            return origins[where]
    return None
