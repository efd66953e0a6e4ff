"""Secrets taken out of what is kept of a request beside its body: header values, the query, an error's text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

REMOVED = "(removed)"

MAX_HEADERS = 200
"""Headers of one message that are kept."""
MAX_VALUE = 4_000
"""Characters of a header's value, or of a path with its query, that are kept."""

_NAMES = re.compile(
    r"auth|cookie|token|secret|api.?key|[-_.]key|^key|passw|pwd|credential|signature|^sig$|jwt|bearer|csrf|xsrf",
    re.IGNORECASE,
)
_VALUES = re.compile(
    r"""(?ix)
    \b(?:bearer|basic|token)\s+(?=\S*\d)[\w.~+/=-]{12,}  # an authorization under another name
    | \b(?:sk|pk|rk|hf|gsk|xai|ghp|gho|ghs|ghu|github_pat|glpat|npm|pypi|AKIA|AIza|xox[abposr])[-_][\w-]{8,}
    | \b(?:AKIA|AIza)[\w-]{12,}
    | \beyJ[\w-]{6,}\.[\w-]{4,}\.[\w-]*                 # a JSON web token
    """
)
_USERINFO = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/@\s?#]*@")
_SCHEME = re.compile(r"(?i)[a-z][a-z0-9+.-]*://[^/?#]*")


def secret(name: str) -> bool:
    """What is called so may hold a secret."""
    return _NAMES.search(name) is not None


def headers(given: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers in order, with the values of those that may carry a secret replaced."""
    return [(name[:200], _value(name, value)) for name, value in given[:MAX_HEADERS]]


def target(path: str) -> str:
    """Path and query of a request's target, with the values of parameters that look like secrets replaced."""
    path = _SCHEME.sub("", path, count=1) if "://" in path[:12] else path
    path, _, query = path.partition("#")[0].partition("?")
    shown = text(path[:MAX_VALUE])
    return f"{shown}?{_query(query[:MAX_VALUE])}" if query else shown


def text(given: str) -> str:
    """A text without what looks like a key, a token or the user and password of a URL."""
    return _VALUES.sub(REMOVED, _USERINFO.sub(rf"\1{REMOVED}@", given))


def _value(name: str, value: str) -> str:
    if secret(name):
        return REMOVED
    value = value[:MAX_VALUE]
    if "?" in value and "=" in value:
        head, _, query = value.partition("?")
        value = f"{head}?{_query(query)}"
    return text(value)


def _query(query: str) -> str:
    return "&".join(_parameter(pair) for pair in query.split("&"))


def _parameter(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if equals and secret(unquote(name)):
        return f"{name}={REMOVED}"
    return f"{name}={text(value)}" if equals else text(name)
