"""A command line that starts vLLM: with an environment in front, wrapped, in a container, or as a text for a shell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kvtop.profiles.importers.draft import Draft, Refused, Word, command_text, short_enough
from kvtop.sources.processes import ASKS, program_of, role

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_DROPPED = {"exec": "", "command": "", "nohup": "kvtop starts it apart from the terminal", "setsid": "", "time": ""}
"""Words in front that change nothing of what runs."""
_SHELLS = ("bash", "sh", "dash", "zsh")
CONTAINERS = ("docker", "podman", "nerdctl")


def command(draft: Draft, words: Sequence[str]) -> None:
    """Take over a command line. Raises Refused where there is no vLLM in it."""
    short_enough(words)
    rest = _in_front(draft, list(words))
    if not rest:
        raise Refused("there is no command", "give the words that start vLLM: kvtop profile import -- vllm serve …")
    name = Path(rest[0]).name
    if name in CONTAINERS:
        from kvtop.profiles.importers import docker

        docker.run(draft, rest)
    elif name in _SHELLS and (text := shell_text(rest)) is not None:
        from kvtop.profiles.importers import script

        script.read(draft, text)
    else:
        _server(draft, rest)


def shell_text(words: Sequence[str]) -> str | None:
    """The text behind `bash -c`; None for another command line."""
    if not words or Path(words[0]).name not in _SHELLS:
        return None
    for at, word in enumerate(words[1:], 1):
        if re.fullmatch(r"-[a-z]*c", word):
            return words[at + 1] if at + 1 < len(words) else None
        if not word.startswith("-"):
            return None
    return None


def _in_front(draft: Draft, words: list[str]) -> list[str]:
    """The words less an environment in front of them, which goes into the draft."""
    while words:
        word = words[0]
        if assignment(draft, word):
            words = words[1:]
        elif Path(word).name == "env":
            words = env(draft, words[1:])
        elif word in _DROPPED:
            if _DROPPED[word]:
                draft.note(f"{word}: left out, {_DROPPED[word]}")
            words = words[1:]
        elif word == "sudo":
            draft.note("sudo: left out; kvtop runs it as you")
            words = words[1:]
        else:
            break
    return words


def assignment(draft: Draft, word: str) -> bool:
    """Whether a word is NAME=VALUE; then the draft has it."""
    found = _ASSIGNMENT.fullmatch(word)
    if not found:
        return False
    draft.outer[found[1]] = Word(found[2], word.secret) if isinstance(word, Word) else found[2]
    return True


def env(draft: Draft, words: Sequence[str]) -> list[str]:
    """What stands behind `env`: its options and variables go into the draft; what follows them."""
    at = 0
    while at < len(words):
        word = words[at]
        flag, equals, value = word.partition("=")
        if flag in ("-u", "--unset", "-C", "--chdir"):
            if not equals:
                at += 1
                value = words[at] if at < len(words) else ""
            if flag in ("-u", "--unset"):
                draft.outer[str(value)] = None
            else:
                draft.put("venv", "cwd", value)
        elif word in ("-i", "-", "--ignore-environment"):
            raise Refused("env -i empties the environment: a profile cannot")
        elif word == "--" or assignment(draft, word):
            pass
        elif word.startswith("-"):
            raise Refused(f"env {command_text([word], 40)}: a profile cannot do that")
        else:
            break
        at += 1
    return list(words[at:])


def _server(draft: Draft, words: list[str]) -> None:
    wrap: list[str] = []
    rest = words
    while rest and role(rest) != "api":
        if Path(rest[0]).name == "env":
            rest = env(draft, rest[1:])
        else:
            wrap.append(rest[0])
            rest = rest[1:]
    if not rest and (asks := next((word for word in words if word in ASKS), "")):
        raise Refused(f"with {asks} this command line starts no server", f"give the words without {asks}")
    if not rest:
        raise Refused("there is no `vllm serve` in this command line", "give the words that start vLLM, all of them")
    draft.take_outer()
    program, behind = program_of(rest)
    behind = behind[1:] if program == "vllm" else behind
    start = rest[: len(rest) - len(behind)]
    draft.refuse_unknown([*wrap, *start])
    if draft.runner == "venv":
        draft.put("venv", "wrap", [str(word) for word in wrap])
        draft.put("venv", "command", [str(word) for word in start] if start != ["vllm", "serve"] else [])
    draft.serve(behind)
