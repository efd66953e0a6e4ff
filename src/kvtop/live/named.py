"""Servers as their user named them: in config.toml, or as a URL that was given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from kvtop.config import Server
from kvtop.errors import UsageError
from kvtop.sources.url import normalise, with_userinfo


class Named:
    """By the URL that is shown."""

    def __init__(self, servers: Sequence[Server]) -> None:
        """Those whose URL is none are left out."""
        self._servers: dict[str, Server] = {}
        for server in servers:
            with contextlib.suppress(UsageError):
                self._servers[normalise(server.url)] = server
        self._typed: dict[str, str] = {}
        """URL -> as given, which may hold a user and a password."""

    @property
    def urls(self) -> list[str]:
        """Those of config.toml."""
        return list(self._servers)

    def server(self, url: str) -> Server | None:
        """Its table in config.toml."""
        return self._servers.get(url)

    def add(self, url: str, given: str) -> None:
        """It was given so, on the command line or the screen."""
        configured = self._servers.get(url)
        self._typed[url] = configured.url if configured is not None and "@" not in given else given

    def moved(self, before: str, url: str) -> None:
        """The server at a URL is asked at another one from now on: with the same name, user, password and key."""
        configured = self._servers.get(before)
        if configured is not None:
            self._servers[url] = configured
        self._typed[url] = with_userinfo(url, self._typed[before])

    def typed(self, url: str) -> str:
        """As given: it may hold a user and a password."""
        configured = self._servers.get(url)
        return self._typed.get(url, configured.url if configured is not None else url)

    def label(self, url: str) -> str:
        """Its name, else host:port."""
        configured = self._servers.get(url)
        return configured.name if configured is not None and configured.name else url.partition("://")[2]

    def key(self, url: str) -> Callable[[], str | None]:
        """What reads its API key; it may ask the disk."""
        configured = self._servers.get(url)
        return configured.api_key if configured is not None else lambda: None
