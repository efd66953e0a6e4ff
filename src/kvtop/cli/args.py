"""What the commands share in reading their arguments: an error is one or two lines and exit code 2."""

from __future__ import annotations

import argparse
import math
from typing import Any, NoReturn

from kvtop.errors import UsageError, printable
from kvtop.sources.url import discreet


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are kvtop's errors. Every command takes --debug: `main` shows tracebacks then."""

    def __init__(self, *, debug: str = argparse.SUPPRESS, **more: Any) -> None:
        """`debug`: what --help says of it, where it is named at all."""
        super().__init__(**more)
        self.add_argument("--debug", action="store_true", help=debug)

    def error(self, message: str) -> NoReturn:
        said, colon, typed = message.partition(": ")  # only behind it stands what was typed
        raise UsageError(printable(said + colon + discreet(typed), 400), f"{self.prog} --help tells more")

    def print_help(self, file: Any = None) -> None:
        """argparse's own keeps to itself that nothing could be written."""
        print(self.format_help(), end="", file=file)


def theme(name: str) -> str:
    """The name of a theme for argparse. Raises UsageError for one that is not there, with those that are."""
    from kvtop.ui import themes  # what judges colours is Textual's, and takes its time

    found = themes.load()
    if found.get(name) is None:
        left_out = (bad.problem for bad in found.bad if bad.path.stem == name)
        what = f"no theme '{printable(name, 40)}': choose one of {', '.join(found.names) or 'none'}"
        raise UsageError(printable(what, 400), next((str(problem) for problem in left_out), ""))
    return name


def seconds(text: str) -> float:
    """A span for argparse: more than 0, at most a day."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError("seconds are more than 0 and at most 86400")
    return value
