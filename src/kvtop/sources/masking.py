"""Secrets in command lines and in other text from outside, masked: the one place that knows what looks like one.

They turn up behind flags and in variables, in JSON, in headers and URLs, and typed where a name was meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from kvtop.errors import KEY_BEGINS, printable
from kvtop.sources.secret_names import is_switch, names_secret

MASK = "***"

_FLAG = re.compile(r"--[a-z][\w.-]*(=.*)?", re.IGNORECASE | re.DOTALL)
_FLAG_NAME = re.compile(r"--?[\w.-]*")
_NAME = re.compile(r"\w[\w.-]*")
_CUT_SHORT = re.compile(r"--(api[-_]ke?|hf[-_]t(o(ke?)?)?)", re.IGNORECASE)
"""argparse takes a flag that is cut short as long as no other one begins like it."""
_IN_FRONT = re.compile(r"""\S*["'(=](?=-)|["'(]+""")
"""Of a flag that is the value of something else, or of a word whose quotes a shell has not yet taken off."""
_BEHIND = {
    "curl": ("-u", "--user", "-U", "--proxy-user", "-b"),
    "login": ("-p",),
    "mongosh": ("-p",),
    "mysql": ("-p",),
    "redis-cli": ("-a",),
    "sshpass": ("-p",),
}
"""Programs -> flags of theirs that hold a secret, and are called like others that hold none."""
_ENDS = frozenset(("|", "||", "&&", ";", "&"))
_QUOTED = r'"(?:\\.|[^"\\])*(?:"|$)' + r"|'(?:\\.|[^'\\])*(?:'|$)"
_NAMED: tuple[tuple[re.Pattern[str], re.Pattern[str], str], ...] = tuple(
    (re.compile(name), re.compile(value, re.DOTALL), mask)
    for name, value, mask in (
        # quotes keep a blank within the text for a shell; Namespace(api_key=['a', 'b'])
        (r"(?<![\w-])(\w{1,200})=", rf"{_QUOTED}|\[[^\]]*(?:\]|$)", MASK),
        (r"(?<![\w-])(--?[\w.-]{1,200})(?:=|\s+)", _QUOTED, MASK),
        (r"""["']([\w.-]{1,200})["']\s*:\s*""", r"\[[^\]]*(?:\]|$)", f'["{MASK}"]'),
        (r"""["']([\w.-]{1,200})["']\s*:\s*""", _QUOTED, f'"{MASK}"'),
        (r"""\\["']([\w.-]{1,200})\\+["']\s*:\s*""", r"""\\+["'][^\\"']*\\*["']?""", f'"{MASK}"'),
        # ['--api-key', 'a'], as Python prints a command line
        (r"""["'](--?[\w.-]{1,200})["']""", rf"""(?:\s*,\s*(?!["']--)(?:{_QUOTED}))+""", f", '{MASK}'"),
        (r"[?&]([\w-]{1,200})=", r"""[^&\s"'#]+""", MASK),
    )
)
"""What stands in front of a value and names it, what may be the value, and what is shown in its place."""
_HEADER_SECRET = re.compile(
    r"""((?<![\w-])(?:(?:proxy-)?authorization|(?:x-)?api-key|x-[\w-]*(?:key|token|secret))["']?\s*[:=]\s*["']?"""
    r"""(?:(?:bearer|basic|token)\s+)?)[^"'\s]+""",
    re.IGNORECASE,
)
_COOKIE = re.compile(r"""((?<![\w-])(?:set-)?cookie["']?\s*:\s*["']?)[^"'\r\n]+""", re.IGNORECASE)
_BEARER = re.compile(r"(\bbearer\s+)(?=[\w.~+/-]*\d)[\w.~+/-]{8,}=*", re.IGNORECASE)
_ALONE = re.compile(r"(\s*(?:bearer\s+|basic\s+(?=[\w+/-]{8}))(?=\S))\S+(\s*)", re.IGNORECASE)
"""A value that is an authorization and nothing else."""
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|$)", re.DOTALL
)
_URL_SECRET = re.compile(r"""(://)(?:[^/@\s"']+|[^\s/@:"']*:(?!\d{1,5}/)(?:(?!://)[^\s"']){0,500})@""")
_KEY = re.compile(
    rf"(?<!\w)(?<!\w-)(?:{KEY_BEGINS}[\w+~-]{{16,}}|AKIA[0-9A-Z]{{12,}}|AIza[\w-]{{20,}}|eyJ[\w-]{{10,}}\.[\w.-]+)"
)
"""Length alone tells nothing here: names of models and digests of images are long too."""


def masked(command: Sequence[str]) -> tuple[str, ...]:
    """A command line without its secrets, fit to be shown."""
    return _masked(tuple(command))


@lru_cache(64)
def _masked(command: tuple[str, ...]) -> tuple[str, ...]:
    # the processes of this machine are looked at every second, and seldom change
    return tuple(printable(word, 4000) for word in without_secrets(command))


def without_secrets(words: Sequence[str]) -> list[str]:
    """The same as it stands, for what takes care itself of what it shows."""
    return _walked(words, _word)


def text_without_secrets(text: str) -> str:
    """A line of a log, a message, or a value without secrets."""
    return _word(text) if len(text.split()) > 1 else _walked([text], _word)[0]


def _walked(words: Sequence[str], inner: Callable[[str], str]) -> list[str]:
    out: list[str] = []
    hide = first = False
    own: tuple[str, ...] = ()
    for whole in words:
        found = _IN_FRONT.match(whole)
        named = found and any(names_secret(part.strip("\"'(")) for part in found[0].split("="))
        front = found[0] if found and not named else ""
        word = whole[len(front) :]
        front = inner(front)
        flag, equals, value = word.partition("=")
        secret = _is_secret_flag(flag.rstrip("\"'"))
        if first and not secret:
            # the value itself, even where it begins with a dash
            out.append(_hidden(word))
            first = False
        elif secret:
            out.append(f"{front}{inner(flag)}={_hidden(value)}" if equals else front + inner(flag))
            hide = not equals
            # --use-auth-token may be a switch, that no value follows
            first = hide and not flag.startswith(("--use-", "--use_"))
        elif hide and not _FLAG.fullmatch(word):
            # --api-key takes any number of values.
            out.append(_hidden(word))
        elif word in own:
            hide, first = False, True
            out.append(whole)
        elif word[:2] in own and word[1:2] != "-":
            hide = False
            out.append(f"{front}{word[:2]}{MASK}")
        elif equals and value and _is_variable(flag):
            hide = False
            out.append(f"{front}{flag}={_hidden(value)}")
        elif equals and _is_variable(value.partition("=")[0]) and "=" in value:  # --env=NAME=value
            hide = False
            name, _, value = value.partition("=")
            out.append(f"{front}{flag}={name}={_hidden(value)}")
        else:
            hide = False
            out.append(inner(whole))
        own = () if whole in _ENDS else _BEHIND.get(word.rpartition("/")[2], own)
    return out


def _is_secret_flag(flag: str) -> bool:
    return flag.startswith("-") and (
        _CUT_SHORT.fullmatch(flag) is not None or (_FLAG_NAME.fullmatch(flag) is not None and names_secret(flag))
    )


def _hidden(value: str) -> str:
    """What is shown of a value whose name tells of a secret."""
    return value if is_switch(value.strip("\"'")) else MASK


def _is_variable(name: str) -> bool:
    """It is one, or an option or label of another program (splunk-token, com.example.token), called like a secret."""
    return _NAME.fullmatch(name) is not None and names_secret(name)


def _word(word: str) -> str:
    """One word of a command line. A process may have taken its whole command line as its title, in one word."""
    if alone := _ALONE.fullmatch(word):
        return f"{alone[1]}{MASK}{alone[2]}"
    if (whole := _json(word)) is not None:
        return whole
    word = _PEM.sub(MASK, word)
    for name, value, mask in _NAMED:
        word = _behind(word, name, value, mask)
    word = _BEARER.sub(rf"\1{MASK}", _HEADER_SECRET.sub(rf"\1{MASK}", _COOKIE.sub(rf"\1{MASK}", word)))
    word = _KEY.sub(MASK, _URL_SECRET.sub(rf"\1{MASK}@", word))
    pieces = re.split(r"(\s+)", word)
    if len(pieces) > 1:
        pieces[::2] = _walked(pieces[::2], lambda piece: piece)
        word = "".join(pieces)
    return word


def _behind(text: str, name: re.Pattern[str], value: re.Pattern[str], mask: str) -> str:
    out: list[str] = []
    at = 0
    for found in name.finditer(text):
        named = found.start() >= at and (names_secret(found[1]) or found[0] in ("?pwd=", "&pwd="))
        if named and (held := value.match(text, found.end())) and _hidden(held[0]) == MASK:
            out += [text[at : found.end()], mask]
            at = held.end()
    return "".join([*out, text[at:]])


def _json(word: str) -> str | None:
    """JSON, alone or behind `--flag=`; to the letter where it holds no secret. None for what is none."""
    at = min((at for at in (word.find("{"), word.find("[")) if at >= 0), default=-1)
    if at < 0 or (at > 0 and word[at - 1] not in "='\""):
        return None
    try:
        found = json.loads(word[at:], object_pairs_hook=_once)
        hidden = value_without_secrets(found)
        front = word[:at] and _word(word[:at])
        if hidden == found:
            return front + word[at:]
        tight = None if ": " in word[at:] else (",", ":")
        return front + json.dumps(hidden, separators=tight, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A key that is there twice would hide the first value."""
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError
    return dict(pairs)


def value_without_secrets(value: Any, named: bool = False) -> Any:
    """A value of JSON or TOML without secrets; `named`: what it is called says that it is one."""
    if isinstance(value, Mapping):
        return {
            text_without_secrets(key): value_without_secrets(one, named or names_secret(key))
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        if not named and value and all(isinstance(one, str) for one in value):
            return without_secrets(value)
        return [value_without_secrets(one, named) for one in value]
    if isinstance(value, str):
        return _hidden(value) if value and named else text_without_secrets(value)
    return MASK if named and isinstance(value, int | float) and not isinstance(value, bool) else value
