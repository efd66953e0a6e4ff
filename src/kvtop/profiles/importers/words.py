"""A command line that starts vLLM: with an environment in front, wrapped, in a container, or as a text for a shell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kvtop.profiles.importers.draft import Draft, Refused, command_text, short_enough
from kvtop.profiles.importers.word import part_of
from kvtop.sources.processes import ASKS, program_of, role

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_AS_YOU = "kvtop runs it as you"
_DROPPED = {
    "exec": "",
    "command": "",
    "nohup": "kvtop starts it apart from the terminal",
    "setsid": "",
    "time": "",
    "sudo": _AS_YOU,
    "doas": _AS_YOU,
}
"""Programs in front that change nothing of what runs, and why they are left out where that is to be told."""
_VALUED = {"exec": "a", "time": "fo", "sudo": "CDRTUghprtu", "doas": "Cu"}
"""Their options with a value behind them."""
_VALUED_LONG = re.compile(
    r"--(user|group|host|prompt|chdir|chroot|role|type|other-user|close-from|command-timeout|format|output)"
)
_SHELLS = ("bash", "sh", "dash", "zsh")
CONTAINERS = ("docker", "podman", "nerdctl")


def command(draft: Draft, words: Sequence[str]) -> None:
    """Take over a command line. Raises Refused where there is no vLLM in it."""
    short_enough(words)
    if len(words) == 1 and len(words[0].split()) > 1:  # a whole command line in quotes
        words = [_SHELLS[0], "-c", words[0]]
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
        elif Path(word).name == "env" and words[1:2] != ["-S"]:
            words = env(draft, words[1:])
        elif (name := Path(word).name) in _DROPPED:
            rest = _behind_options(words[1:], _VALUED.get(name, ""))
            if _DROPPED[name]:
                left_out = command_text(words[: len(words) - len(rest)], 80)
                draft.note(f"{left_out}: left out; {_DROPPED[name]}")
            words = rest
        else:
            break
    return words


def _behind_options(words: list[str], valued: str) -> list[str]:
    """What follows the options of a program. `valued`: the letters that take a value, in the same word or the next."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        at += 1
        if word == "--":
            break
        letter = next((place for place, one in enumerate(word) if one in valued), None)
        takes = _VALUED_LONG.fullmatch(word) if word.startswith("--") else letter == len(word) - 1
        at += bool(takes)
    return words[at:]


def assignment(draft: Draft, word: str) -> bool:
    """Whether a word is NAME=VALUE; then the draft has it."""
    found = _ASSIGNMENT.fullmatch(word)
    if not found:
        return False
    draft.outer[found[1]] = part_of(word, found[2])
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
            draft.refuse_unknown([part_of(word, value) if equals else value])
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
        if Path(rest[0]).name == "env" and rest[1:2] != ["-S"]:  # that one is a wrap like any other
            rest = env(draft, rest[1:])
        else:
            wrap.append(rest[0])
            rest = rest[1:]
    if not rest and (asks := next((word for word in words if word in ASKS), "")):
        raise Refused(f"with {asks} this command line starts no server", f"give the words without {asks}")
    if not rest:
        raise Refused("there is no `vllm serve` in this command line", "give the words that start vLLM, all of them")
    if any(Path(word).name == "systemd-run" for word in wrap) and "--scope" not in wrap:
        draft.note(
            "systemd-run without --scope hands vLLM to systemd and returns: kvtop would lose it; put --scope into "
            "[venv] wrap"
        )
    draft.take_outer()
    program, behind = program_of(rest)
    behind = behind[1:] if program == "vllm" else behind
    start = rest[: len(rest) - len(behind)]
    draft.refuse_unknown([*wrap, *start])
    if draft.runner == "venv":
        draft.put("venv", "wrap", [str(word) for word in wrap])
        draft.put("venv", "command", [str(word) for word in start] if start != ["vllm", "serve"] else [])
    draft.serve(behind)
