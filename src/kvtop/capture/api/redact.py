"""Secrets taken out of what is kept of a request beside its body: header values, the query, an error's text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from urllib.parse import unquote

REMOVED = "(removed)"

MAX_HEADERS = 200
"""Headers of one message that are kept."""
MAX_VALUE = 4_000
"""Characters of a header's value, or of a path with its query, that are kept."""

_NAMES = re.compile(
    r"auth|cookie|token|secret|api.?key|[-_.]key|^key|passw|pwd|credential|signature|^sig$|jwt|bearer|csrf|xsrf"
    r"|(?<![a-z])(?:pass(?:phrase|code|key)?|pw|tok|pin(?:code)?|t?otp|mfa)(?![a-z])",
    re.IGNORECASE,
)
_MORE = r"(?<![a-z])[a-z]{0,12}(?:sess(?:ion)?|sid)(?:[-_]?id)?(?![a-z])"
_HEADERS = re.compile(
    rf"{_MORE}|(?:^|[-_.])access$|^d_?po_?p|(?:^|[-_.])(?:(?:client|peer|ssl|tls)[-_.]?)?cert(?:ificate)?(?![a-z])",
    re.IGNORECASE,
)
"""What a header may be called besides: elsewhere such a name is of something else."""
_PARAMETERS = re.compile(rf"{_MORE}|(?:^|[-_.])(?:access|code|ticket|assertion)$|^k$", re.IGNORECASE)
"""The same of a query's parameter."""
_HINT = re.compile(r"(?:x-)?(?:parent-)?session[-_](?:id|affinity)", re.IGNORECASE)
"""Headers in which agents name their session and others what lets a client in."""
_OWN_HINT = re.compile(r"x-(?:claude-code|codex|opencode|kilocode|litellm)-.*", re.IGNORECASE)
"""Headers of one program, that hold nothing which lets anybody in."""
_ID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|ses_[0-9a-z]{8,40}|\(session [0-9a-f]{16}\)")
"""A session as agents number it, or the digest of one that looks otherwise."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_VALUES = re.compile(
    r"""(?ix)
    (?<![A-Za-z0-9])(?:
    (?:bearer|basic|token)\s+(?=\S*\d)[\w.~+/=-]{12,}    # an authorization under another name
    | (?:sk|pk|rk|hf|gsk|xai|gh[oprsu]|github_pat|glpat|npm|nvapi|pypi|AKIA|AIza|xox[abceposr])[-_][\w-]{8,}
    | (?:AKIA|AIza)[\w-]{12,}
    | (?:api[-_]?key|secret|passw(?:or)?d|pwd|passphrase)\s+(?=\S*\d)[^\s"'(),;]{6,}
    | eyJ[\w-]{6,}\.[\w-]{4,}\.[\w-]*                    # a JSON web token
    )
    """
)
_USERINFO = re.compile(r"(?i)(?<![a-z0-9+.-])([a-z][a-z0-9+.-]*+://)[^/\s?#]*@")
_LOOSE_USERINFO = re.compile(
    r"""(?ix)
    (?<![\w.+%@-])(?!\+?(?:mailto|e?-?mail|contact|from|author|maintainer|sips?|xmpp|acct|npm|jsr|pkg):)
    ([\w.+%-]*+:)(?!//|\(removed\)@)[^\s/?&=;,"'<>]{1,256}@(?!sha\d|v\d)
    (?=[a-z_\[]|\d{1,3}\.\d{1,3}\.\d{1,3}\.\d)
    """
)
"""`user:password@host` without the scheme of a URL in front; no address to write to, no package of a version."""
_NAME = re.compile(r"""(?<![\w.%\[\]+-])([\w.%\[\]+-]++)\\*+["']?\s*+([=:])\s*+""")
"""What a value inside a value is called: `name=`, `name: `, `"name": `."""
_QUOTED = r"""\\++"[^"\\]*+ | "(?:[^"\\]|\\.)*+ | '[^']*+ | (?:(?:bearer|basic|token)\s++)?"""
_NAMED_VALUES = {
    "=": re.compile(rf"""(?ix) {_QUOTED} [^\s"'&;?\#<>]*+"""),
    ":": re.compile(rf"""(?ix) {_QUOTED} [^\s"',;}}\]]*+"""),
}
_ALONE = re.compile(
    r"""(?ix)
    \s*+(?: (?:bearer|basic|token|digest|negotiate|dpop)\s+\S{8,}
    | (?:[\w-]{0,40}[-_])?(?:api[-_]?key|token|secret|passw(?:or)?d|pwd|pw|passphrase)\s+\S+ )\s*
    """
)
"""A whole value that is an authorization."""
_PROSE_NAME = re.compile(
    r"""(?ix)
    [\w.]*(?:error|exception|failure|failed|denied|required|unauthori[sz]ed)
    | tokeni[sz]\w* | author(?:s|ity)? | keywords? | keyboard\w*
    | (?:[\w.]*[_.])?tokens(?:_\w+)? | (?:[\w.]*[_.])?token_(?:ids?|counts?|limits?|budget)
    """
)
"""What an error names that is no secret, though it is called much alike."""
_PROSE = re.compile(
    r"(?:must|is|are|was|has|should|cannot|can|not|no|missing|invalid|required|expected|unknown|input|field|extra"
    r"|value|string|the|please)(?=\s+\w|[.,;!]?\s*$)",
    re.IGNORECASE,
)
"""How an error goes on behind a name and a colon, where it tells of the name and not its value."""
_AUTHORITY = re.compile(r"(?i)^(?:[a-z][a-z0-9+.-]*://(?:[^?#]*@)?[^/?#]*|//[^/?#]*@[^/?#]*)")
"""In front of a target's path; a password may hold a slash. Two slashes alone are what a doubled base leaves."""
_NAMED = re.compile(r"(?i)(?:access|auth|api)?[-_]?(?:token|key|secret|auth|bearer)s?")
_OPAQUE = re.compile(r"(?=.*\d)[\w.~+=-]{16,}")
"""A segment of a path: one that is called so, and one behind it that is nothing but a secret."""
_DECODED = 8
"""Times that a text is looked at as one that was percent-encoded."""


def secret(name: str) -> bool:
    """What is called so may hold a secret."""
    return _NAMES.search(_HUMP.sub("_", name)) is not None


def _secret_header(name: str) -> bool:
    return secret(name) or _HEADERS.search(_HUMP.sub("_", name)) is not None


def _secret_parameter(name: str) -> bool:
    return secret(name) or _PARAMETERS.search(_HUMP.sub("_", name)) is not None


def headers(given: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers in order, with the values of those that may carry a secret replaced."""
    return [(name[:200], _value(name, value)) for name, value in given[:MAX_HEADERS]]


def target(path: str) -> str:
    """Path and query of a request's target, with the values of parameters that look like secrets replaced."""
    path, _, query = _AUTHORITY.sub("", path, count=1).partition("#")[0].partition("?")
    shown = _path(path[:MAX_VALUE])
    return f"{shown}?{_query(query[:MAX_VALUE])}" if query else shown


def text(given: str) -> str:
    """A text without what looks like a key, a token or the user and password of a URL."""
    return _VALUES.sub(REMOVED, _USERINFO.sub(rf"\1{REMOVED}@", given))


def url(given: str) -> str:
    """A URL without user, password and what a parameter or a shape calls a secret."""
    return _shown(given)


def error(given: str) -> str:
    """An error's text without secrets, named ones too (`?api_key=`, `"password": "…"`); names of counts and of other
    errors stay with what they say."""
    shown = _without(given, prose=True)
    return "".join(_shown(word) if "%" in word else word for word in re.split(r"(\s+)", shown))


def _value(name: str, value: str) -> str:
    if secret(name):
        return REMOVED
    if name.lower() == "sec-websocket-protocol":
        return _protocols(value[:MAX_VALUE])
    if _HINT.fullmatch(name):
        return value if _ID.fullmatch(value) else digest(value)
    if _secret_header(name) and not _OWN_HINT.fullmatch(name):
        return REMOVED
    return _shown(value[:MAX_VALUE])


def digest(value: str, what: str = "session") -> str:
    """Tells equal values from others, and nothing else."""
    return f"({what} {hashlib.blake2b(value.encode('utf-8', 'replace'), digest_size=8).hexdigest()})" if value else ""


def _protocols(value: str) -> str:
    """Browsers cannot set headers on a WebSocket: what lets one in is a protocol, `name.SECRET` or `name, SECRET`."""
    kept, hides = [], False
    for item in value.split(","):
        word = item.strip()
        name, dot, rest = word.partition(".")
        if hides or (secret(word) and not (dot and rest and secret(name)) and (dot or re.search(r"\d", word))):
            shown, hides = REMOVED if word else "", False
        elif secret(name):
            shown, hides = f"{name}.{REMOVED}" if dot else name, not dot
        else:
            shown = _shown(word)
        kept.append(shown)
    return ", ".join(kept)


def _shown(value: str) -> str:
    """A value without the secrets in it; nothing of one that holds them percent-encoded."""
    shown = _without(value)
    plain = shown
    for _ in range(_DECODED):
        before, plain = plain, unquote(plain)
        if plain == before:
            break
        if _without(plain) != plain:
            return REMOVED
    return shown


def _without(value: str, *, prose: bool = False) -> str:
    if _ALONE.fullmatch(value) and not prose:
        return REMOVED
    kept, at, done = [], 0, 0
    while found := _NAME.search(value, at):
        at = found.end()
        in_query = found[2] == "=" and value[found.start() - 1 : found.start()] in ("?", "&")
        hides = _secret_parameter if in_query else secret
        if not hides(name := _decoded(found[1])) or (prose and not in_query and _tells(found, name, value)):
            continue
        given = _NAMED_VALUES[found[2]].match(value, at)
        if given and given[0]:
            opening = given[0][: len(given[0]) - len(given[0].lstrip("\\\"'"))]
            kept += [value[done:at], opening, REMOVED]
            at = done = given.end()
    return _LOOSE_USERINFO.sub(rf"\1{REMOVED}@", text("".join(kept) + value[done:]))


def _tells(found: re.Match[str], name: str, value: str) -> bool:
    """Whether an error's name is none of a secret, or is spoken of and not given a value."""
    if _PROSE_NAME.fullmatch(name):
        return True
    return found[0].endswith(": ") and _PROSE.match(value, found.end()) is not None


def _decoded(given: str) -> str:
    for _ in range(_DECODED):
        plain = unquote(given)
        if plain == given:
            break
        given = plain
    return given


def _path(path: str) -> str:
    shown, before = [], ""
    for part in re.split(r"([/;&])", path):
        opaque = _NAMED.fullmatch(_decoded(before)) and _OPAQUE.fullmatch(_decoded(part))
        shown.append(REMOVED if opaque else _parameter(part))
        before = part if part not in ("", "/") else before
    return "".join(shown)


def _query(query: str) -> str:
    return "".join(_parameter(part) for part in re.split(r"([&;?])", query))


def _parameter(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if equals and _secret_parameter(_decoded(name)):
        return f"{_shown(name)}={REMOVED}"
    return f"{_shown(name)}={_shown(value)}" if equals else _shown(name)
