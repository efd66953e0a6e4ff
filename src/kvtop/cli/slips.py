"""A mistyped command is no host: the dashboard of a server that there is not would say nothing of the slip."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from kvtop.errors import UsageError, printable
from kvtop.sources.url import discreet

HOSTS = Path("/etc/hosts")
"""Names of servers that are known without asking anybody: a name service may take seconds to say that there is none."""

_VALUED = ("--window", "--theme")
"""The options of the dashboard that a value follows."""
_TAKE_VALUED = ("demo",)
"""The commands that have those too."""
_TAKE_URL = ("snapshot", "doctor")
"""Those that one server can be named to."""

_BARE = re.compile(r"[A-Za-z_-]*[A-Za-z]")
_MOST = 64
"""Letters of a word that is compared with commands; a longer one is no slip of theirs."""


def refuse(word: str, commands: Iterable[str]) -> None:
    """Raises UsageError for a word without dot, colon or digit that is neither localhost nor a name in /etc/hosts."""
    if word.startswith("-") or len(word) > _MOST or not _BARE.fullmatch(word) or word.lower() in _known():
        return
    from difflib import get_close_matches

    names = list(commands)
    near = [name for name in names if len(word) > 1 and name.startswith(word.lower())]
    near = near or get_close_matches(word.lower(), names, 1, 0.5)
    hint = f"; did you mean {near[0]}?" if near else f": there are {', '.join(names)}"
    what = f"no command '{word}'{hint}"
    raise UsageError(what, f"a host of that name needs its port: kvtop {word}:8000, or kvtop http://{word}:8000")


def late(args: Sequence[str], commands: Iterable[str]) -> None:
    """Raises UsageError where a command stands behind options or URLs: with the line that was meant, as far as that
    command takes what stood before it."""
    names, known = set(commands), _known()
    valued = [False, *(_wants_value(word) for word in args)]
    at = next((i for i, word in enumerate(args) if word in names - known and not valued[i]), None)
    if not at:
        return
    name, kept, left = args[at], list[str](), list[str]()
    for i, word in enumerate(args[:at]):
        if word == "--" or valued[i]:
            continue
        option = word.startswith("-")
        own = option and any(whole.startswith(word.partition("=")[0]) for whole in _VALUED)
        takes = name in (_TAKE_VALUED if own else _TAKE_URL) if own or not option else True
        shown = shlex.join(printable(discreet(part), 80) for part in args[i : i + 1 + valued[i + 1]])
        if takes:
            kept.append(shown)
        else:
            left.append(word.partition("=")[0] if own else "URL")
    line = " ".join(["kvtop", name, *kept, *(shlex.quote(printable(discreet(word), 80)) for word in args[at + 1 :])])
    unfit = f" (it takes no {' and no '.join(dict.fromkeys(left))})" if left else ""
    raise UsageError(f"the command comes first: {line}{unfit}")


def _wants_value(word: str) -> bool:
    """argparse takes an option's beginning for the option."""
    return len(word) > 2 and any(whole.startswith(word) for whole in _VALUED)


def _known() -> set[str]:
    try:
        lines = HOSTS.read_text(errors="replace").lower().splitlines()
    except OSError:
        lines = []
    return {"localhost", *(name for line in lines for name in line.partition("#")[0].split()[1:])}
