"""Secrets in command lines and in other text from outside, masked: the one place that knows what looks like one.

They turn up behind flags and in variables, in JSON, in headers and URLs, and typed where a name was meant.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from string import ascii_lowercase
from typing import Any

from kvtop.errors import KEY_BEGINS, printable
from kvtop.sources.secret_names import is_switch, names_headers, names_secret

MASK = "***"

_FLAG = re.compile(r"--[a-z][\w.-]*(=.*)?", re.IGNORECASE | re.DOTALL)
_FLAG_NAME = re.compile(r"--?[\w.-]*")
_SHORT = re.compile(r"-[A-Za-z]{1,20}")
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
_COMMAND = re.compile(r"--?[\w-]*(?:cmd|command|exec|entrypoint|wrap)", re.IGNORECASE)
"""A flag whose value is a command line: --health-cmd=curl -u a:b."""
_ENDS = frozenset(("|", "||", "&&", ";", "&"))
_QUOTED = r'"(?:\\.|[^"\\])*(?:"|$)' + r"|'(?:\\.|[^'\\])*(?:'|$)"
_NAMED: tuple[tuple[re.Pattern[str], re.Pattern[str], str], ...] = tuple(
    (re.compile(name), re.compile(value, re.DOTALL), mask)
    for name, value, mask in (
        # quotes keep a blank within the text for a shell; Namespace(api_key=['a', 'b'])
        (r"(?<![\w-])(\w{1,200})=", rf"{_QUOTED}|\[[^\]]*(?:\]|$)", MASK),
        (r"(?<![\w-])(--?[\w.-]{1,200})(?:=|\s+)", _QUOTED, MASK),
        # A=1,API_KEY=a,B=2: a comma may stand within the value
        (
            r"""(?<=[,;|:=])["']?([\w.-]{1,200})=""",
            rf"""{_QUOTED}|(?:(?i:bearer|basic|token)\s+)?(?:(?![,;|][\w.-]{{1,200}}=)(?:[^\s"']|["'](?=\w)))+""",
            MASK,
        ),
        (r"""["']([\w.-]{1,200})["']\s*:\s*""", r"\[[^\]]*(?:\]|$)", f'["{MASK}"]'),
        (r"""["']([\w.-]{1,200})["']\s*:\s*""", _QUOTED, f'"{MASK}"'),
        (r"""\\["']([\w.-]{1,200})\\+["']\s*:\s*""", r"""\\+["'][^\\"']*\\*["']?""", f'"{MASK}"'),
        # ['--api-key', 'a'], as Python prints a command line
        (r"""["'](--?[\w.-]{1,200})["']""", rf"""(?:\s*,\s*(?!["']--)(?:{_QUOTED}))+""", f", '{MASK}'"),
        (r"[?&]([\w-]{1,200})=", r"""[^&\s"'#]+""", MASK),
    )
)
"""What stands in front of a value and names it, what may be the value, and what is shown in its place."""
_HEADER_LIST = re.compile(
    rf"""(?<![\w-])([\w-]{{0,100}}headers)(["']?\s*[:=]\s*)({_QUOTED}|(?:=(?:bearer|basic|token)\s+|[^\s"'])+)""",
    re.IGNORECASE | re.DOTALL,
)
"""A list of headers by its name; see `names_headers`."""
_HEADER_SECRET = re.compile(
    r"""((?<![\w-])(?:(?:proxy-)?authorization|(?:x-)?api-key|x-[\w-]*(?:key|token|secret))["']?\s*[:=]\s*["']?"""
    r"""(?:(?:bearer|basic|token)\s+)?)[^"'\s]+""",
    re.IGNORECASE,
)
_COOKIE = re.compile(r"""((?<![\w-])(?:set-)?cookie["']?\s*:\s*["']?)[^"'\r\n]+""", re.IGNORECASE)
_BEARER = re.compile(
    r"""(?i:(\bbearer(?:\s|%20|\+)+)(?=[\w.~+/-]{0,500}?\d)|((?:\b(?-i:Bearer|BEARER)|["'=:]\s?bearer)(?:\s|%20|\+)+)"""
    r"""(?!authentic|authori[sz]|certific|challenge|credential|expected|instead|invalid|mechanism|missing|prefix"""
    r"""|protocol|provided|require|request|response|security|without))[\w.~+/-]{8,}=*"""
)
"""Behind what is written as the name of a scheme, letters alone are a secret too, but for words about it."""
_BASIC = re.compile(r"(\bbasic(?:\s|%20|\+)+)([\w+/-]{8,1000}={0,2})", re.IGNORECASE)
_URL_SAFE = str.maketrans("-_", "+/")
_ALONE = re.compile(
    r"""(\s*(?:(?:(?:--?[\w.-]{1,200}|\w{1,200})=)?["']?bearer\s+|basic\s+(?=[\w+/-]{8}))(?=\S))\S+?(["']?\s*)""",
    re.IGNORECASE,
)
"""A value that is an authorization and nothing else."""
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|$)", re.DOTALL
)
_URL_SECRET = re.compile(r"""(://)(?:[^/@\s"']+|[^\s/@:"']*:(?!\d{1,5}/)(?:(?!://)[^\s"']){0,500})@""")
_ROWS = "|".join(ascii_lowercase[at : at + 4] for at in range(23))
_KEY = re.compile(
    rf"""(?x)(?<!\w)(?<!\w-)(?:
    {KEY_BEGINS}[\w+~-]{{16,}}
    | (?:sk[-_]|gsk_|gh[a-z]_|github_pat_|glpat-|nvapi-|xox[a-z]-)(?!learn\b|image\b)(?=[\w+~-]{{0,15}}\d)[\w+~-]{{4,}}
    | {KEY_BEGINS}(?=[a-z0-9]{{0,12}}(?:{_ROWS}|(?P<one>[a-z])(?P=one){{3}}))[\w+~-]{{4,}}
    | (?:sk-|hf_)(?=[A-Za-z]{{0,12}}[a-z][A-Z][A-Za-z]{{0,12}}[a-z][A-Z])[A-Za-z0-9]{{8,}}(?![\w-])
    | (?:hf_|xai-)(?![a-z]{{3,12}}[a-z0-9]{{0,12}}[0-9]b(?!\w))(?=(?:[A-Za-z]{{0,12}}[0-9]){{3}})
        [A-Za-z0-9]{{4,}}(?![\w-])
    | AKIA[0-9A-Z]{{12,}}
    | AIza[\w-]{{20,}}
    | eyJ[\w-]{{10,2000}}+\.[\w.-]+
    )"""
)
"""Length alone tells nothing here: names of models and digests of images are long too. What is short is a key where it
has a digit, letters in the alphabet's order, one letter in a row, or small and capital ones mixed: not sk-learn,
hf_transfer, hf_llama70b."""


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
        elif word[:2] in own and word not in own and word[1:2] != "-":
            hide = False
            out.append(f"{front}{word[:2]}{MASK}")
        elif word in own or (f"-{word[-1:]}" in own and _SHORT.fullmatch(word)):  # curl -fu a:b
            hide, first = False, True
            out.append(whole)
        elif equals and value and _is_variable(flag):
            hide = False
            out.append(f"{front}{flag}={_hidden(value)}")
        elif equals and _is_variable(value.partition("=")[0]) and "=" in value:  # --env=NAME=value
            hide = False
            name, _, value = value.partition("=")
            out.append(f"{front}{flag}={name}={_hidden(value)}")
        else:
            hide = False
            out.append(f"{front}{inner(flag)}={inner(value)}" if _is_text(flag, value) else inner(whole))
        own = () if whole in _ENDS else _BEHIND.get(_program(word), own)
    return out


def _is_secret_flag(flag: str) -> bool:
    return flag.startswith("-") and (
        _CUT_SHORT.fullmatch(flag) is not None or (_FLAG_NAME.fullmatch(flag) is not None and names_secret(flag))
    )


def _hidden(value: str) -> str:
    """What is shown of a value whose name tells of a secret."""
    return value if is_switch(value.strip("\"'")) else MASK


def _is_text(flag: str, value: str) -> bool:
    """Whether a word is a flag or a variable with a text of several words for its value."""
    return (
        len(value.split(maxsplit=1)) > 1
        and (_FLAG_NAME.fullmatch(flag) is not None or _NAME.fullmatch(flag) is not None)
        and not names_headers(flag)
    )


def _program(word: str) -> str:
    """The name of the program that a word may call, which may be within quotes or the value of a flag."""
    flag, _, value = word.partition("=")
    called = value if _COMMAND.fullmatch(flag) else word
    return re.split(r"""[/"'`(]""", called.rstrip("\"'"))[-1]


def _is_variable(name: str) -> bool:
    """It is one, or an option or label of another program (splunk-token, com.example.token), called like a secret."""
    return _NAME.fullmatch(name) is not None and names_secret(name)


def _word(word: str) -> str:
    """One word of a command line. A process may have taken its whole command line as its title, in one word."""
    if alone := _ALONE.fullmatch(word):
        return f"{alone[1]}{MASK}{alone[2]}"
    if (whole := _json(word)) is not None:
        return whole
    word = _HEADER_LIST.sub(_headers, _PEM.sub(MASK, word))
    for name, value, mask in _NAMED:
        word = _behind(word, name, value, mask)
    word = _BASIC.sub(_login, _HEADER_SECRET.sub(rf"\1{MASK}", _COOKIE.sub(rf"\1{MASK}", word)))
    word = _BEARER.sub(lambda found: f"{found[1] or found[2]}{MASK}", word)
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


def _headers(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{_listed(found[3])}" if names_headers(found[1]) else found[0]


def _listed(value: str) -> str:
    """A list of headers, `a=b,c=d`, without their values."""
    quote = value[:1] if value[:1] in ("'", '"') else ""
    end = quote if len(value) > 1 and value.endswith(quote) else ""
    pairs = (one.partition("=") for one in value.strip(quote or None).split(","))
    return quote + ",".join(f"{name}={MASK}" if sign else MASK for name, sign, _ in pairs) + end


def _login(found: re.Match[str]) -> str:
    """A name and a password in Base64, which a word behind "basic" is not."""
    given = found[2].rstrip("=").translate(_URL_SAFE)
    try:
        login = binascii.a2b_base64(given + "=" * (-len(given) % 4)).decode()
        hidden = ":" in login and login.isprintable()
    except ValueError:
        hidden = False
    return f"{found[1]}{MASK}" if hidden else found[0]


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
        return {text_without_secrets(key): named_without_secrets(key, one, named) for key, one in value.items()}
    if isinstance(value, list | tuple):
        if not named and value and all(isinstance(one, str) for one in value):
            return without_secrets(value)
        return [value_without_secrets(one, named) for one in value]
    if isinstance(value, str):
        return _hidden(value) if value and named else text_without_secrets(value)
    return MASK if named and isinstance(value, int | float) and not isinstance(value, bool) else value


def named_without_secrets(name: str, value: Any, named: bool = False) -> Any:
    """The same of a value by its name; `named`: the name of what it stands in says that it is a secret."""
    if isinstance(value, str) and value and names_headers(name) and not named:
        return _listed(value)
    return value_without_secrets(value, named or names_secret(name))
