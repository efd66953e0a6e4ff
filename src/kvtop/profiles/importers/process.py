"""A running server: its command line, its folder, and those of its variables that say something about vLLM."""

from __future__ import annotations

import psutil

from kvtop.profiles.importers.draft import Draft, Refused
from kvtop.profiles.importers.variables import matters
from kvtop.profiles.importers.words import command
from kvtop.sources.processes import UNTOLD, in_container, role

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
        for name, value in process.environ().items():
            if matters(name):
                draft.outer[name] = value
    except UNTOLD:
        draft.note("its environment is not yours to read: no variable was taken over")
    if in_container(pid):
        fix = "docker inspect NAME > NAME.json, and import that file"
        raise Refused(f"process {pid} runs in a container: its program and folder are not those of this machine", fix)
    try:
        draft.put("venv", "cwd", process.cwd())
    except UNTOLD:
        draft.note("its folder is not yours to read: relative paths may lead elsewhere")
    command(draft, words)
    if draft.outer:
        draft.note("of its environment those variables were taken that say something about vLLM or the cards")
