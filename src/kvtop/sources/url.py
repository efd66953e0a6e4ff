"""Addresses as people write them -> the base URL of a server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from kvtop.errors import UsageError, is_key, keyless

VLLM_PORT = 8000
"""Where `vllm serve` listens unless told otherwise."""

_ROUTES = re.compile(
    r"/(metrics|health|version|tokenize|v1(/(models|chat/completions|completions|responses|messages))?)/*$"
)
_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*)://")
_OPENING = re.compile(r"\s*(?:--?[\w-]+=)?(?:[a-zA-Z][a-zA-Z0-9+.-]*:)?//")
"""What may stand before a user and a password: an option's name, a scheme."""
_HOST = re.compile(r"^[\w.-]+$")
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses to listen on, as in a server's log, and where such a server is reached on this machine."""

_PATH = "/%:@!$&'()*+,;=~-._"
"""What a path may hold as it is; anything else is written as %XX."""

_EXAMPLES = "for instance http://127.0.0.1:8000, gpubox:8000 or 8000"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address, taken apart."""

    tls: bool
    host: str
    """A name, or an address without brackets."""
    port: int
    base: str = ""
    """Path before /metrics, for a server behind a gateway; no slash at its end."""
    userinfo: str | None = field(default=None, repr=False)
    """`user:password` as given in the URL. For the Authorization header alone."""

    @property
    def authority(self) -> str:
        """host:port as the Host header and the screen write it."""
        return authority(self.host, self.port)

    @property
    def url(self) -> str:
        """The URL to show and to compare by: without user and password."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.base}"


def discreet(text: str) -> str:
    """A text that a person typed, fit for a message: what may be a URL's user, password, query or fragment is gone.

    What stands before the last @ may be a password, whatever it holds; what follows ? or # may be a key.
    """
    query = min((at for at in (text.find("?"), text.find("#")) if at >= 0), default=len(text))
    at = text.rfind("@")
    if at < 0:
        return text[:query] + ("?***" if query < len(text) else "")
    opening = _OPENING.match(text)
    shown = text[: opening.end()] if opening else ""
    return shown + ("***@" + discreet(text[at + 1 :]) if at < query else "***")


def _nonsense(given: str, why: str) -> UsageError:
    return UsageError(f"not a server's URL: '{keyless(discreet(given), 80)}': {why}; {_EXAMPLES}")


def parse(given: str) -> Endpoint:
    """Take apart what a person wrote: `8000`, `:8000`, `host:8000`, `::1`, a whole URL, even with /metrics at its end.

    Without a scheme it is http and, where no port is named, vLLM's port 8000. Raises UsageError, one line.
    """
    text = given.strip()
    if not text:
        raise _nonsense(given, "nothing there")
    if is_key(text):
        raise UsageError(f"what looks like an API key stands where a server's URL is meant; {_EXAMPLES}")
    if not text.isprintable() or " " in text or "\\" in text:
        raise _nonsense(given, "a character that no URL has")
    scheme = _SCHEME.match(text)
    if scheme and scheme[1].lower() not in ("http", "https"):
        raise _nonsense(given, f"{keyless(scheme[1], 20)} is not http or https")
    if not scheme:
        if text.isdecimal() or re.fullmatch(r":\d+", text):
            text = f"127.0.0.1:{text.lstrip(':')}"
        elif text.count(":") > 1 and not text.startswith("[") and "@" not in text:
            text = f"[{text.rstrip('/')}]"
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        # Its message may quote a piece of a password.
        raise _nonsense(given, "host or port cannot be read") from None
    if not host or not (_HOST.match(host) or ":" in host):
        raise _nonsense(given, "no host name")
    if not host.isascii():
        host = _ascii(host, given)
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise _nonsense(given, "'?' and '#' do not belong here")
    if port == 0 or (parts.netloc.endswith(":") and not scheme):
        raise _nonsense(given, "a port is 1 to 65535")
    tls = parts.scheme == "https"
    if port is None:
        port = (443 if tls else 80) if scheme else VLLM_PORT
    base = quote(parts.path.rstrip("/"), safe=_PATH)
    while (shorter := _ROUTES.sub("", base).rstrip("/")) != base:
        base = shorter
    userinfo = unquote(parts.netloc.rpartition("@")[0]) or None
    return Endpoint(tls, _ANYWHERE.get(host, host), port, base, userinfo)


def _ascii(host: str, given: str) -> str:
    """A name with letters outside ASCII as the name service has it: xn--... Raises UsageError where that is not clear,
    for instance because a character would be replaced by another one."""
    try:
        name = host.encode("idna").decode("ascii")
        if ":" not in host and name.encode("ascii").decode("idna") == host:
            return name
    except UnicodeError:
        pass
    raise _nonsense(given, "host name with letters that it cannot have; write it in ASCII (xn--...)")


_LISTEN = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.%\w]+\]|[\w.-]+)?:)?(?P<port>[0-9]{1,5})", re.ASCII)


def listen_address(given: str) -> tuple[str, int]:
    """Where to listen, as a person wrote it: `8001`, `:8001`, `127.0.0.1:8001`, `[::1]:8001`, with http:// or without.

    (host, port): the host without brackets, 127.0.0.1 where none is named. Unlike `parse`, 0.0.0.0 stays what it is:
    here it means every address. Raises UsageError, one line.
    """
    text = given.strip()
    if text.lower().startswith("http://"):
        text = text[len("http://") :].rstrip("/")
    found = _LISTEN.fullmatch(text)
    port = int(found["port"]) if found else 0
    if found is None or not 0 < port < 65536:
        raise UsageError(
            f"not an address to listen on: '{keyless(discreet(given), 80)}'; for instance 127.0.0.1:8001, [::1]:8001 "
            "or 8001"
        )
    return (found["host"] or "127.0.0.1").strip("[]"), port


def authority(host: str, port: int | None) -> str:
    """host:port, with brackets around an IPv6 address; without a port the host."""
    named = f"[{host}]" if ":" in host else host
    return named if port is None else f"{named}:{port}"


def normalise(url: str) -> str:
    """The one way in which kvtop writes a server's URL: scheme, host, port, and a path only where a gateway needs one.

    User and password are left out; give the URL as typed to `VllmSource` to have them used. Raises UsageError.
    """
    return parse(url).url


def with_userinfo(url: str, given: str) -> str:
    """A URL that `normalise` made, with the user and the password that another one was given with."""
    userinfo = parse(given).userinfo
    return url if userinfo is None else url.replace("://", f"://{quote(userinfo, safe=':')}@", 1)
