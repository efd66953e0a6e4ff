"""Secrets in command lines and in other text from outside, masked: the one place that knows what looks like one.

They turn up behind flags and in variables, in JSON, in headers and URLs, and typed where a name was meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from kvtop.errors import printable

MASK = "***"

_WORD = r"(?:api[-_]?keys?|(?:secret|access|auth|private)[-_]?key|token|password|passwd|passphrase|secret|credentials?)"
_SECRET_FLAG = re.compile(
    rf"^--?[\w.-]*{_WORD}s?$"
    # argparse takes a flag that is cut short as long as no other one begins like it
    r"|^--(api[-_]ke?|hf[-_]t(o(ke?)?)?)$",
    re.IGNORECASE,
)
_NOT_SECRET = re.compile(r"(num|max|min|batched|long|prefill|special|skip|add)[\w-]*token", re.IGNORECASE)
_VARIABLE = r"\w*(?:key|token|password|passwd|passphrase|secret|credentials?)|\w+_(?:pass|pwd)"
_ENV_SECRET = re.compile(rf"^({_VARIABLE})=", re.IGNORECASE)
_QUOTED = r'"(?:\\.|[^"\\])*(?:"|$)' + r"|'(?:\\.|[^'\\])*(?:'|$)"
_QUOTED_SECRET = re.compile(
    # no flag is longer: without a limit .-.-.- takes quadratic time
    rf"(?<![\w-])((?:{_VARIABLE})=|--?[\w.-]{{0,80}}{_WORD}(?:=|\s+))({_QUOTED})",
    re.IGNORECASE,
)
"""NAME='a b' within a text for a shell: quotes keep a blank in it."""
_JSON_SECRET = re.compile(rf"""(["'][\w.-]*{_WORD}["']\s*:\s*)(?:(\[[^\]]*(?:\]|$))|{_QUOTED})""", re.IGNORECASE)
_HEADER_SECRET = re.compile(
    r"""((?<![\w-])(?:(?:proxy-)?authorization|(?:x-)?api-key|x-[\w-]*(?:key|token|secret))["']?\s*[:=]\s*["']?"""
    r"""(?:(?:bearer|basic|token)\s+)?)[^"'\s]+""",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(\bbearer\s+)(?=[\w.~+/-]*\d)[\w.~+/-]{8,}=*", re.IGNORECASE)
_FLAG = re.compile(r"--[a-z][\w.-]*(=.*)?", re.IGNORECASE | re.DOTALL)
_URL_SECRET = re.compile(r"""(://)(?:[^/@\s"']+|[^\s/@:"']*:(?!\d{1,5}/)(?:(?!://)[^\s"']){0,500})@""")
_QUERY_SECRET = re.compile(
    r"""([?&](?:[\w-]*(?:key|token|password|passwd|passphrase|secret|signature)|sig|pass|pwd)=)[^&\s"'#]+""",
    re.IGNORECASE,
)
_KEY = re.compile(
    r"""(?x)(?<!\w)(?<!\w-)(?:
    (?:[spr]k[-_] | hf_ | gsk_ | gh[a-z]_ | github_pat_ | glpat- | npm_ | nvapi- | pypi- | xai- | xox[a-z]-)[\w+~-]{16,}
    | AKIA[0-9A-Z]{12,} | AIza[\w-]{20,} | eyJ[\w-]{10,}\.[\w.-]+
    )"""
)
"""How keys begin. Length alone tells nothing here: names of models and digests of images are long too."""
_LIST = re.compile(rf"(?<![\w-])((?:{_VARIABLE})=)\[[^\]]*(?:\]|$)", re.IGNORECASE)
"""Namespace(api_key=['a', 'b'])"""
_WORDS = re.compile(rf"""(["']--?[\w.-]{{0,80}}{_WORD}["'])(?:\s*,\s*(?!["']--)(?:{_QUOTED}))+""", re.IGNORECASE)
"""['--api-key', 'a'], as Python prints a command line."""


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
    for word in words:
        flag, equals, value = word.partition("=")
        secret = bool(_SECRET_FLAG.match(flag)) and not _NOT_SECRET.search(flag)
        if first and not secret:
            # the value itself, even where it begins with a dash
            out.append(MASK)
            first = False
        elif secret:
            out.append(f"{inner(flag)}={MASK}" if equals else inner(flag))
            hide = first = not equals
        elif hide and not _FLAG.fullmatch(word):
            # --api-key takes any number of values.
            out.append(MASK)
        elif _ENV_SECRET.match(word):
            hide = False
            out.append(f"{flag}={MASK}")
        elif equals and _ENV_SECRET.match(value):  # --env=NAME=value
            hide = False
            out.append(f"{flag}={value.partition('=')[0]}={MASK}")
        else:
            hide = False
            out.append(inner(word))
    return out


def _word(word: str) -> str:
    """One word of a command line. A process may have taken its whole command line as its title, in one word."""
    word = _json(word)
    word = _QUOTED_SECRET.sub(_assigned, word)
    word = _JSON_SECRET.sub(lambda found: f'{found[1]}["{MASK}"]' if found[2] else f'{found[1]}"{MASK}"', word)
    word = _BEARER.sub(rf"\1{MASK}", _HEADER_SECRET.sub(rf"\1{MASK}", word))
    word = _QUERY_SECRET.sub(rf"\1{MASK}", _URL_SECRET.sub(rf"\1{MASK}@", word))
    word = _LIST.sub(_assigned, _WORDS.sub(rf"\1, '{MASK}'", _KEY.sub(MASK, word)))
    pieces = re.split(r"(\s+)", word)
    if len(pieces) > 1:
        pieces[::2] = _walked(pieces[::2], lambda piece: piece)
        word = "".join(pieces)
    return word


def _assigned(found: re.Match[str]) -> str:
    return found[0] if _NOT_SECRET.search(found[1]) else f"{found[1]}{MASK}"


def _json(word: str) -> str:
    """JSON, alone or behind `--flag=`; to the letter where it holds no secret."""
    at = min((at for at in (word.find("{"), word.find("[")) if at >= 0), default=-1)
    if at < 0 or (at > 0 and word[at - 1] not in "='\""):
        return word
    try:
        found = json.loads(word[at:])
        hidden = _hidden(found, False)
        if hidden == found:
            return word
        tight = None if ": " in word[at:] else (",", ":")
        return word[:at] + json.dumps(hidden, separators=tight, ensure_ascii=False)
    except (ValueError, RecursionError):
        return word


_NAMED = re.compile(rf"^[\w.-]*{_WORD}$", re.IGNORECASE)


def _hidden(value: Any, secret: bool) -> Any:
    if isinstance(value, dict):
        return {
            key: _hidden(one, secret or bool(_NAMED.match(key) and not _NOT_SECRET.search(key)))
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_hidden(one, secret) for one in value]
    return MASK if secret and isinstance(value, str) and value else value
