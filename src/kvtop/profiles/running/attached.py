"""Servers that somebody else starts (runner attach): does each answer at its health URL? All are asked at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from kvtop.errors import UsageError, printable
from kvtop.profiles.profile import Profile
from kvtop.readings import State
from kvtop.sources.http import HttpClient, HttpFailure
from kvtop.sources.url import parse

TIMEOUT_S = 2.0
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Answering:
    """What came of one question."""

    ready: bool
    why: str = ""
    """Of one that is not: `10.0.0.7:8000 timed out`. Fit for a screen."""
    at: float = 0.0
    """Unix time at which it was asked."""


async def ask_all(profiles: Mapping[str, Profile], timeout_s: float = TIMEOUT_S) -> dict[str, Answering]:
    """Whether their servers answer, by name; none takes the others' time."""
    found = await asyncio.gather(*(ask(profile, timeout_s) for profile in profiles.values()))
    return dict(zip(profiles, found, strict=True))


async def ask(profile: Profile, timeout_s: float = TIMEOUT_S) -> Answering:
    """Whether the server of one profile answers with 200."""
    at, url = time.time(), profile.start.health_url
    try:
        if url:
            parts = urlsplit(url)
            endpoint = parse(f"{parts.scheme}://{parts.netloc}")
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        else:
            endpoint, path = parse(profile.attach.url), "/health"
    except UsageError as error:
        return Answering(False, printable(error.what, 300), at)
    except ValueError:
        return Answering(False, "start.health_url cannot be read", at)
    client = HttpClient(endpoint, timeout_s=timeout_s, max_bytes=_MAX_BYTES)
    try:
        status = (await client.get(path)).status
    except HttpFailure as failure:
        return Answering(False, f"{endpoint.authority} {_words(failure)}", at)
    finally:
        await client.aclose()
    return Answering(True, at=at) if status == 200 else Answering(False, f"{endpoint.authority} answers {status}", at)


def _words(failure: HttpFailure) -> str:
    if failure.state is State.TIMEOUT:
        return "timed out"
    return "refuses" if failure.state is State.REFUSED else f"gives no answer: {printable(failure.cause, 200)}"
