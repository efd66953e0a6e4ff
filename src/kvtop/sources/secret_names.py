"""Which names say that what they hold is a secret: of variables, flags, keys of JSON, and parameters of a query."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORDS = re.compile(r"[^\W\d_]+")
_ALWAYS = re.compile(
    r".*(?:password|passwort|kennwort|passwd|passphrase|passcode|secret|credential|cookie|apikey|accesskey|privatekey)s?"
    r"|pwd|jwt|bearer|authorization|creds?"
)
"""Words that tell, wherever they stand in a name."""
_PLACES = re.compile(
    "files?|filename|paths?|dir|directory|folder|ur[li]|endpoint|host|port|sock|socket|type|mode|method|name|ids?|index"
    "|counts?|len|length|limit|size|threshold|budget|ttl|timeout|expiry|enabled|required|policy|provider|server"
    "|parallelism|details|only"
)
"""At the end of a name: where a secret is, or how it is handled, and not what it is."""
_SWITCHES = re.compile("allow|no|use|skip|ignore|requires?|return|add|num|max|min")
"""At the beginning of a name: whether something is done, or how much of it."""
_OFF = re.compile("disabled?|enable")
"""The same within it."""
_STAGES = re.compile("prod(?:uction)?|staging|dev(?:elopment)?|live|old|new|backup|json")
"""Behind a name: which of several of that kind it is."""
_OF_TOKENS = re.compile(
    "num|max|min|batched|scheduled|queued|long|prefill|decode|special|skip|add|eos|bos|pad|unk|sep|cls|mask|image|audio"
    "|video|start|end|think|thinking|reasoning|per|first|last|next|stop|tool|draft|spec|prompt|completion|text|speculative|tree"
)
"""Words beside `token` where it is a piece of a prompt."""
_BEFORE_TOKEN = re.compile(
    "|".join(one for one in _OF_TOKENS.pattern.split("|") if one != "tool")
    + "|begin|break|newline|placeholder|prefix|suffix|middle|vision|eo[a-z]|bo[aci]"
)
"""The word right in front of it where it is one, and not what lets a registry of images or a tool in."""
_OF_KEYS = re.compile("public|cache|sort|primary|foreign|partition|hash|block|group|index|(?:mon|don|tur|hot)key")
_BEFORE_KEY = re.compile("api|access|account|admin|auth|master")
"""The word right in front of `key` where it lets somebody in, whatever else stands before it."""
_BEHIND_API_KEY = re.compile(
    "headers?|env|vars?|variable|prefix|format|hash|field|param|parameter|query|ref|label|helper|store|rotation"
    "|validation|check"
)
"""At the end of a name that holds `api key`: where or how one is given; see `_PLACES` too."""
_OF_PASSES = re.compile(
    "first|second|forward|backward|num|single|multi|one|two|compile|fusion|optimization|by|low|high|band|all|full"
)
_NO_PASSES = re.compile("(?:by|com|encom|over|under|tres|sur|multi|single|two|one|low|high|band|all|full)pass")
_GIVEN = re.compile("api|auth|access|hf|hub|bearer|refresh|secret|user")
"""Words beside `tokens` where they let somebody in."""
_BEHIND_AUTH = re.compile("headers?|key|string|basic|value")
_LAST = re.compile("(?:o|basic|digest|http|proxy)?auth|sig|signature|psk|t?otp|(?:db|root|user|admin|sudo)?pw")
"""Words that tell at the end of a name only."""
_OF_PATS = re.compile("github|gh|ghcr|cr|git|gitlab|gl|gitea|forgejo|codeberg|bitbucket|devops|ado")
"""Words in front of `pat` where it is a personal access token."""
_LOGINS = re.compile(r".*(?:basic|digest)[._-]?auth[._-]users", re.IGNORECASE)
"""A list of names with passwords, as a reverse proxy reads it from a label."""
_HEADER_LIST = re.compile(r"(?:.*[_-])?otlp[_-](?:.*[_-])?headers", re.IGNORECASE)
_SWITCH = re.compile("true|false", re.IGNORECASE)
_MOST = 200
"""Characters of a name that are looked at, from its end."""


@lru_cache(4096)
def names_secret(name: str) -> bool:
    """Whether a value of that name lets somebody in: HF_TOKEN, api-key, dbPassword; not max_num_batched_tokens, not
    VLLM_API_KEY_FILE. Dashes in front do not matter, and of a dotted name the last part counts."""
    if _LOGINS.fullmatch(name[-_MOST:]):
        return True
    parts = (_WORDS.findall(_HUMP.sub("_", part)) for part in reversed(name[-_MOST:].split(".")))
    words = [word.lower() for word in next((part for part in parts if part), ())]
    if words == ["use", "auth", "token"]:
        return True  # once Hugging Face's name for a token itself
    if len(words) > 1 and _STAGES.fullmatch(words[-1]):
        words.pop()
    if not words or (len(words) > 1 and _SWITCHES.fullmatch(words[0])) or _any(_OFF, words):
        return False
    if _PLACES.fullmatch(words[-1]):
        return words[-2:] == ["secret", "id"]
    return _tells(words[-1], words[:-1])


def names_headers(name: str) -> bool:
    """Whether a value of that name is a list of headers, `a=b,c=d`, any of which may let somebody in:
    OTEL_EXPORTER_OTLP_HEADERS."""
    return _HEADER_LIST.fullmatch(name[-_MOST:]) is not None


def is_switch(value: str) -> bool:
    """Whether it turns something on or off, and is no secret whatever its name tells: USE_AUTH_TOKEN=true."""
    return _SWITCH.fullmatch(value) is not None


def _tells(last: str, before: Sequence[str]) -> bool:
    if last == "pwd" and not before:
        return False  # the folder that a shell is in
    if _any(_ALWAYS, (*before, last)):
        return True
    if last.endswith("key") or last == "keys":
        return _any(_BEFORE_KEY, before[-1:]) or not _any(_OF_KEYS, (*before, last))
    if any(pair in (("api", "key"), ("api", "keys")) for pair in pairwise(before)):
        return _BEHIND_API_KEY.fullmatch(last) is None
    if last.endswith("pass") and not _NO_PASSES.fullmatch(last):
        return not _any(_OF_PASSES, before)
    if last == "tokens":
        return _any(_GIVEN, before)
    if last.endswith("token"):
        return _any(_GIVEN, before) or not _any(_BEFORE_TOKEN, before[-1:])
    if "token" in before:
        return _any(_GIVEN, before) or not _any(_OF_TOKENS, (*before, last))
    if last == "pat":
        return _any(_OF_PATS, before)
    return _LAST.fullmatch(last) is not None or ("auth" in before and _BEHIND_AUTH.fullmatch(last) is not None)


def _any(of: re.Pattern[str], words: Sequence[str]) -> bool:
    return any(of.fullmatch(word) for word in words)
