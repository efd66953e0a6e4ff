"""`kvtop [URL ...]`: the dashboard."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Sequence
from functools import partial

import msgspec

from kvtop import config, interrupt, paths
from kvtop.cli import slips, stdio
from kvtop.cli.args import Parser, theme
from kvtop.errors import KvtopError, Problem
from kvtop.model.view import WINDOWS
from kvtop.sources.url import normalise

INSTEAD = "for scripts and status lines: kvtop snapshot --json, kvtop snapshot --line"


def parser() -> Parser:
    """The options of the dashboard."""
    out = Parser(
        debug="show tracebacks and write a log file",
        prog="kvtop",
        description="The dashboard of the vLLM servers at URL, else of config.toml, else found on this box.",
    )
    out.add_argument("url", nargs="*", metavar="URL", help="http://host:8000; several: one line each, tab changes")
    out.add_argument("--window", metavar="W", choices=[key for key, _, _ in WINDOWS], help="10s, 1m, 5m, 1h or start")
    out.add_argument(
        "--theme", metavar="NAME", type=theme, help="see themes/*.toml and the folder themes/ beside config.toml"
    )
    return out


def main(argv: Sequence[str]) -> int:
    """Run the dashboard; the exit code."""
    from kvtop.cli.main import COMMANDS

    options = parser().parse_args(argv)
    for url in options.url:
        slips.refuse(url, COMMANDS)
        normalise(url)  # one that is none is wrong with a terminal too
    stdio.need_terminal(INSTEAD)
    gc.disable()  # nothing that imports make is garbage: a tenth of the way to the first picture
    loaded = config.load()
    changes = {name: value for name in ("window", "theme") if (value := getattr(options, name)) is not None}
    settings = msgspec.structs.replace(loaded.settings, **changes)
    if options.debug:
        _log_to_file()

    from kvtop.live.watch import Watch

    watch = Watch(settings, options.url)

    from kvtop.ui.app import run

    gc.freeze()
    gc.enable()
    interrupt.as_usual()
    return run(
        watch,
        settings,
        problems=loaded.problems,
        check=partial(named, loaded) if loaded.settings.server or loaded.settings.export_dir else None,
        typed=options.url,
        on_demo=_demo,
        tracebacks=options.debug,
    )


def named(loaded: config.Loaded) -> tuple[Problem, ...]:
    """What is wrong with the servers, key files and the folder that config.toml names. It asks the disk."""
    from kvtop import servers  # none of it is needed for the first picture
    from kvtop.ui import export

    settings = loaded.settings
    return *servers.problems(settings.server, loaded.path), *export.problems(settings.export_dir, loaded.path)


def _log_to_file() -> None:
    file = paths.state_dir() / "kvtop.log"
    try:
        paths.make_private(file.parent)
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise KvtopError(f"{file}: {error.strerror}", "--debug writes its log there") from None
    logging.basicConfig(
        stream=os.fdopen(fd, "a", encoding="utf-8"),
        level=logging.DEBUG,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )


def _demo() -> int:
    interrupt.at_once()
    from kvtop.cli import demo

    return int(demo.main([]))
