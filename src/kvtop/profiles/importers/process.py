"""A running server: its command line, its folder, and those of its variables that say something about vLLM."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import psutil

from kvtop.errors import keyless
from kvtop.profiles.importers.draft import Draft, Refused
from kvtop.profiles.importers.variables import matters, of_session
from kvtop.profiles.importers.words import command
from kvtop.sources.processes import UNTOLD, in_container, role

_MOST_NAMED = 8
_USER_HELP = "run this as the user whose process it is"


def read(draft: Draft, pid: int) -> None:
    """Take over process `pid`. Raises Refused."""
    try:
        process = psutil.Process(pid)
        words = process.cmdline()
    except psutil.AccessDenied:
        raise Refused(f"process {pid} is not yours to read", _USER_HELP) from None
    except UNTOLD:
        raise Refused(f"there is no process {pid}", "kvtop doctor lists the servers of this box") from None
    while words and not words[-1]:
        words.pop()
    what = role(words)
    if what in ("engine", "worker") or (words and words[0].startswith("VLLM::")):
        fix = "its parent is the server that has the command line"
        raise Refused(f"process {pid} is a part of a server ({what})", fix)
    if what is None:
        raise Refused(f"process {pid} is no `vllm serve`", "kvtop doctor lists the servers of this box")
    try:
        theirs = process.environ()
    except UNTOLD:
        theirs = {}
        draft.note("its environment is not yours to read: no variable was taken over")
    draft.hide_all(theirs)
    draft.outer.update({name: value for name, value in theirs.items() if matters(name)})
    if in_container(pid):
        fix = "docker inspect NAME > NAME.json, and import that file"
        raise Refused(f"process {pid} runs in a container: its program and folder are not those of this machine", fix)
    try:
        draft.put("venv", "cwd", process.cwd())
    except UNTOLD:
        draft.note("its folder is not yours to read: relative paths may lead elsewhere")
    command(draft, words)
    if draft.outer:
        draft.note("of its environment those variables were taken that say something about vLLM, Python or the cards")
    if left := [name for name in theirs if not matters(name)]:
        draft.note(_left_out(left, theirs))


def _left_out(left: Sequence[str], theirs: Mapping[str, str]) -> str:
    """A server gets the environment of kvtop below that of its profile: what is the same there is not lost."""
    many = f"{len(left)} other variable{'s were' if len(left) > 1 else ' was'} left out"
    differ = sorted(name for name in left if not of_session(name) and os.environ.get(name) != theirs[name])
    if not differ:
        return f"{many}: the environment in which kvtop was run has them too, or they are of a login"
    named = ", ".join(keyless(name, 40) for name in differ[:_MOST_NAMED])
    more = f" and {len(differ) - _MOST_NAMED} more" if len(differ) > _MOST_NAMED else ""
    return f"{many}; not set, or otherwise, where kvtop was run: {named}{more}. [env.set] takes what vLLM needs"
