"""The way to the page of the profiles, from the dashboard and from the page without a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.app import App

from kvtop.model.view import BoxView
from kvtop.ui import keys
from kvtop.ui.keys import Keymap
from kvtop.ui.watching import Profiling, Watching

if TYPE_CHECKING:
    from kvtop.live.profiles import Profiles
    from kvtop.live.verdicts import News
    from kvtop.profiles.standing import Standing


class ProfilePage:
    """What both need of it."""

    def __init__(
        self, watch: Watching, keymap: Keymap, now: Callable[[], float], choose_url: Callable[[str], None]
    ) -> None:
        """`choose_url` shows the server at a URL."""
        self._watch, self._keymap, self._now, self._choose_url = watch, keymap, now, choose_url
        self._wish = ""
        """The URL of a server that starts, until it is watched."""
        self._led_here: set[str] = set()
        """What was said since the page was seen last, and leads to it."""

    @property
    def profiles(self) -> Profiles | None:
        """None: there are none here."""
        return self._watch.profiles if isinstance(self._watch, Profiling) else None

    def open(self, app: App[str]) -> None:
        profiles = self.profiles
        if profiles is None:
            return
        from kvtop.ui.screens.profiles import ProfilesScreen

        app.push_screen(
            ProfilesScreen(
                self._keymap, profiles, self._now,
                begun=self._begun, requests=self._requests_of, seen=lambda: self._seen(app),
            )
        )  # fmt: skip

    def _seen(self, app: App[str]) -> None:
        """The page is on the screen: what led there would lie over its question."""
        for note in [one for one in app._notifications if one.message in self._led_here]:
            app._unnotify(note)
        self._led_here.clear()

    def pointed(self, told: News, app: App[str]) -> str:
        """What is told of profiles, with the key that leads to their page from the screen that is seen; empty where
        that is the page itself, and tells it."""
        under = [getattr(screen, "ON", keys.DASHBOARD) for screen in app.screen_stack]
        here = under.pop()
        if here == keys.PROFILES:
            return "" if told.told_there else told.text
        text = told.text if told.text.endswith("…") else f"{told.text}."
        there = "" if here in (keys.DASHBOARD, keys.NO_SERVER) else " on the dashboard"
        leads = f"{self._keymap.shown('profiles')}{there} leads to the profiles"
        if keys.PROFILES in under:
            leads = f"{self._keymap.shown('back')} leads back to the profiles"
        self._led_here.add(f"{text} {leads}")
        return f"{text} {leads}"

    def starting(self) -> str:
        """The profile whose server starts now; empty: none."""
        profiles = self.profiles
        row = profiles.view.starting if profiles is not None else None
        return row.name if row is not None else ""

    def _begun(self, row: Standing) -> None:
        """What this kvtop starts is what its user wants to see."""
        if isinstance(self._watch, Profiling):
            self._watch.watch_profile(row.name)
        from kvtop.live.profile_asks import url_of_next

        self._wish = url_of_next(row)

    def settle(self, view: BoxView) -> bool:
        """Whether the server that was started here is watched by now: it is chosen then, once."""
        url = next((server.url for server in view.servers if server.url == self._wish), "")
        if url:
            self._wish = ""
            self._choose_url(url)
        return bool(url)

    def _requests_of(self, row: Standing) -> int | None:
        """Under way at its server, as far as it is watched and answers."""
        for server in self._watch.view("5m").servers:
            if server.profile == row.name and server.state.good:
                return server.window.all.requests.running
        return None
