"""`kvtop profile command P`: what it runs, to the letter; `--diff OTHER`: what differs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kvtop.cli.args import Parser
from kvtop.cli.stdio import tell
from kvtop.errors import printable
from kvtop.profiles import folder
from kvtop.profiles.differences import Difference, differences
from kvtop.profiles.folder import Entry
from kvtop.profiles.launch import Launch, launch
from kvtop.profiles.secret import holds_secret, is_secret, masked_value, masked_words, shown

_WIDTH = 100_000
_COLUMN = 60
"""Cells of the names of what differs, at most."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop profile command",
        usage="%(prog)s [-h] PROFILE [--diff OTHER] [--json]",
        description="The exact command line and environment of a profile, quoted for a shell. Secrets are named by "
        "where they are read.",
    )
    parser.add_argument("profile", metavar="PROFILE", help="its name, or the path of its file")
    parser.add_argument("--diff", metavar="OTHER", help="what the profile OTHER runs differently")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args(argv)
    entry = folder.find(args.profile)
    profile = entry.usable()
    if args.diff is not None:
        other = folder.find(args.diff)
        _tell_differences(entry, other, differences(profile, other.usable()), args.json)
        return 0
    run = launch(entry.name, profile)
    if args.json:
        print(json.dumps(_document(entry, run), allow_nan=False))
        return 0
    from kvtop.profiles import shell

    line = shell.line(run)
    print(printable(line, _WIDTH) if line else f"# nothing is run: kvtop watches {shown(profile.attach.url)}")
    if holds_secret(run.argv) or any(is_secret(name, value) for name, value in run.set.items()):
        tell("kvtop: *** stands for a secret that is typed into the profile: put it into [env.from_file]")
    return 0


def _document(entry: Entry, run: Launch) -> dict[str, Any]:
    return {
        "profile": entry.name,
        "runner": entry.usable().runner,
        "command": masked_words(run.argv),
        "serve": masked_words(run.serve),
        "cwd": run.cwd,
        "env": masked_value("env", run.set),
        "unset": list(run.unset),
        "secrets": {name: {"from": secret.kind, "where": secret.where} for name, secret in run.secrets.items()},
        "host": run.host,
        "port": run.port,
    }


def _tell_differences(old: Entry, new: Entry, found: list[Difference], as_json: bool) -> None:
    if as_json:
        rows = [one._asdict() for one in found]
        print(json.dumps({"from": old.name, "to": new.name, "differences": rows}, allow_nan=False))
        return
    if not found:
        print(f"{old.name} and {new.name} run the same")
        return
    print(f"{old.name} -> {new.name}")
    names = [printable(one.name) for one in found]
    wide = max((len(name) for name in names if len(name) <= _COLUMN), default=0)
    for one, name in zip(found, names, strict=True):
        was, now = (_value(value) for value in (one.old, one.new))
        if len(name) > wide:  # its values under it
            print(f"  {one.kind:<8}  {name}")
            name = ""
        print(f"  {one.kind if name else '':<8}  {name:<{wide}}  {was} -> {now}")


def _value(value: str | None) -> str:
    if value is None:
        return "not given"
    return printable(value, 1000) if value else '""'
