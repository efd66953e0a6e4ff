"""`kvtop profile import`: a profile of what starts the server today."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from kvtop import paths
from kvtop.cli.args import Parser
from kvtop.errors import UsageError, printable
from kvtop.profiles import folder
from kvtop.profiles.importers.draft import Draft, Imported, Refused
from kvtop.profiles.valid import NAME

_ABOUT = {
    "script": "a plain shell script",
    "compose": "a compose file",
    "systemd": "a systemd unit",
    "inspect": "what docker inspect prints",
    "config": "a YAML file for vllm serve --config",
}


def main(argv: Sequence[str]) -> int:
    words = list(argv)
    behind: list[str] | None = None
    if "--" in words:
        at = words.index("--")
        words, behind = words[:at], words[at + 1 :]
    parser = _parser()
    args = parser.parse_args(words)
    if sum((args.file is not None, args.pid is not None, behind is not None)) != 1:
        what = "kvtop profile import: name one of FILE, --pid N and -- COMMAND LINE"
        raise UsageError(what, "kvtop profile import --help tells more")
    made, source, name = _made(args.file, args.pid, behind, args.format, args.service)
    name = args.name or name
    if not NAME.fullmatch(name):
        raise UsageError(f"'{printable(name, 60)}' is no name of a profile: letters, digits, - _ and .", "--name NAME")
    file = folder.folder() / f"{name}.toml"
    text = _text(made, source)
    _write(file, text, args.force)
    if args.json:
        print(json.dumps({"name": name, "file": str(file), "from": source, "left_out": list(made.notes)}))
        return 0
    print(f"wrote {printable(str(file), 1000)}, from {printable(source, 300)}")
    for note in made.notes:
        print(f"  {printable(note, 400)}")
    print(f"kvtop profile show {name}, check {name} and start {name} are next")
    return 0


def _parser() -> Parser:
    forms = "; ".join(f"{form}: {words}" for form, words in _ABOUT.items())
    parser = Parser(
        prog="kvtop profile import",
        usage="%(prog)s [-h] [--name P] [--force] [--json] (FILE [--format F] [--service S] | --pid N | -- WORD ...)",
        description="Makes a profile of what starts a server today, and says what could not be taken over. Nothing is "
        "run; secrets are named by where they are, never copied. What has logic (launchers, Kubernetes, NixOS) is "
        "written by hand: docs/profiles.md has examples.",
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="a script, compose file, unit, docker inspect or YAML file"
    )
    parser.add_argument("--format", choices=list(_ABOUT), metavar="F", help=f"{forms}. Guessed where left out")
    parser.add_argument("--service", default="", metavar="S", help="of a compose file with several")
    parser.add_argument("--pid", type=int, metavar="N", help="the running server with this process id")
    parser.add_argument("--name", metavar="P", help="what the profile is called; else by the file or the model")
    parser.add_argument("--force", action="store_true", help="write over a profile of that name")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    return parser


def _made(
    file: str | None, pid: int | None, words: Sequence[str] | None, form: str | None, service: str
) -> tuple[Imported, str, str]:
    """(profile, where it is from, a name for it)."""
    from kvtop.profiles.importers import pick, process
    from kvtop.profiles.importers.words import command

    try:
        if file is not None:
            try:
                made, form = pick.import_file(paths.from_home(file), form, service)
            except OSError as error:
                raise _unreadable(file, error) from None
            container = made.profile.docker.name if form == "inspect" else ""
            return made, f"{_ABOUT[form]}, {file}", _called(container or Path(file).stem, made)
        draft = Draft()
        with draft.telling():
            if pid is not None:
                process.read(draft, pid)
            else:
                command(draft, words or [])
            made = draft.made()
    except Refused as error:
        where = f"{printable(file, 300)}: " if file is not None else ""
        raise UsageError(f"{where}{error.what}", error.fix) from None
    return made, "a command line" if pid is None else f"process {pid}", _called("", made)


def _unreadable(file: str, error: OSError) -> UsageError:
    wanted = "name a script, a compose file, a unit, a YAML file of flags, or what docker inspect prints"
    if isinstance(error, IsADirectoryError):
        return UsageError(f"{printable(file, 300)} is a folder, not a file", wanted)
    return UsageError(f"cannot read '{printable(file, 300)}': {error.strerror or error}", wanted)


def _called(stem: str, made: Imported) -> str:
    """A name for a profile: that of its file where that says something, else its model's."""
    serve = made.profile.serve
    stem = re.sub(r"\.(?:docker-)?compose$", "", stem)
    dull = stem in ("docker-compose", "compose", "start", "run", "serve", "config", "launch", "inspect", "")
    service = made.profile.compose.service
    found = service if service and dull else stem
    if not found or (dull and not service):
        found = (serve.names or [serve.model.rstrip("/").rpartition("/")[2]])[0] or stem
    made_of = re.sub(r"[^A-Za-z0-9_.-]+", "-", found).strip("-.")[:100].lower()
    return made_of or "vllm"


def _text(made: Imported, source: str) -> str:
    from kvtop.profiles.text import to_toml

    return to_toml(made.profile, [f"Imported by kvtop from {source}.", *made.notes])


def _write(file: Path, text: str, force: bool) -> None:
    """0600, in one piece, never over another one. Raises UsageError, OSError."""
    paths.make_private(file.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    part = file.with_name(f".{file.name}.{os.getpid()}.part") if force else file
    try:
        handle = os.open(part, flags, 0o600)
    except FileExistsError:
        raise UsageError(f"{part} is there already", "--name NAME calls it otherwise, --force writes over it") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        if force:
            part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
