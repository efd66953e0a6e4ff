"""No server: where kvtop looked, what can be done, and what is known of this box."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import zip_longest
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Input

from kvtop.errors import UsageError
from kvtop.model.here import is_local
from kvtop.model.view import BoxView, Sentence
from kvtop.readings import HostReading
from kvtop.sources.url import parse
from kvtop.ui import keys
from kvtop.ui.draw import Line, columns, fit, safe, wrap
from kvtop.ui.headline import headline
from kvtop.ui.keys import Keymap
from kvtop.ui.numbers import exact, gib, span
from kvtop.ui.screens.page import Body, Page
from kvtop.ui.widgets import gpu
from kvtop.ui.widgets.foot import Foot
from kvtop.ui.widgets.panel import rule


class UrlInput(Input):
    """The line that a URL is typed into."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "close", "close")]
    DEFAULT_CSS = """
    UrlInput { display: none; height: 1; border: none; padding: 0 1; background: $shade-cursor; color: $text; }
    UrlInput:focus { border: none; background: $shade-cursor; }
    UrlInput.open { display: block; }
    """

    def action_close(self) -> None:
        """Put it away, and what was asked with it."""
        if isinstance(self.screen, NoServerScreen):
            self.screen.close_input()


class NoServerScreen(Page):
    """Shown while no server is known. What it says comes from `view()`; it looks at nothing itself."""

    ON = keys.NO_SERVER
    BINDINGS = keys.bindings(keys.NO_SERVER)

    def __init__(
        self,
        keymap: Keymap,
        view: Callable[[], BoxView | None],
        on_url: Callable[[str], None],
        on_demo: Callable[[], None],
        *,
        now: Callable[[], float] = time.time,
        url: str = "",
    ) -> None:
        """`on_url` gets a checked base URL, `on_demo` is called for the simulated box; both then change the screen.

        `url`: one to be mended, put into the open line.
        """
        super().__init__(keymap, now)
        self.view, self.on_url, self.on_demo, self.url = view, on_url, on_demo, url
        self.said = ""
        """What is wrong with the URL, or the question about it."""
        self.asked: str | None = None
        """The URL of another host that a second enter will watch."""

    def compose(self) -> ComposeResult:
        yield Body(id="body")
        yield UrlInput(self.url, placeholder="http://127.0.0.1:8000", select_on_focus=False, id="url")
        yield Foot(self.keymap, self.ON, id="foot")

    def on_mount(self) -> None:
        super().on_mount()
        if self.url:
            self.action_give_url()

    def tick(self) -> None:
        super().tick()
        if self.is_current:
            self.redraw()

    # ---- a URL
    def action_give_url(self) -> None:
        box = self.query_one(UrlInput)
        box.add_class("open")
        box.focus()
        self._say("")

    def action_demo(self) -> None:
        self.on_demo()

    def close_input(self) -> None:
        """Back to the page."""
        box = self.query_one(UrlInput)
        box.remove_class("open")
        box.value = ""
        self.set_focus(None)
        self.asked = None
        self._say("")

    def on_input_changed(self) -> None:
        self.asked = None
        self._say("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            server = parse(event.value)
        except UsageError as error:
            self._say(error.what)
            return
        if server.userinfo is not None:
            self._say("no password here: api_key_env or api_key_file in config.toml names a key")
            return
        url = server.url
        if not is_local(url) and self.asked != url:
            self.asked = url
            self._say(
                f"{url} is not this box: kvtop would read it over the network. enter again watches it, esc leaves it"
            )
            return
        self.close_input()
        self.on_url(url)

    def _say(self, text: str) -> None:
        self.said = text
        self.redraw()

    # ---- painting
    def head(self, w: int) -> list[Line]:
        view = self.view()
        looked = view.discovery.at if view and view.discovery else None
        if view is None or looked is None:
            sentence = Sentence("NO SERVER", "warn", "Looking for a vLLM server on this box.")
            contexts: list[str] = []
        else:
            sentence = Sentence("NO SERVER", "warn", "No vLLM server found on this box.", "kvtop goes on looking.")
            ago = span(max(0.0, self.now() - looked))
            contexts = [f"last looked {ago} ago", f"{ago} ago"]
            if view.looks > 1:
                contexts.insert(0, f"looked {exact(view.looks)} times, last {ago} ago")
        return headline(sentence, contexts, w)

    def lines(self, w: int, h: int) -> list[Line]:
        if self.said:
            return [
                rule("Give a URL", w),
                *_padded(wrap([("! ", "warn"), (safe(self.said), "bright")], w - 2)),
                *self._found_and_known(w),
            ]
        return self._found_and_known(w)

    def _found_and_known(self, w: int) -> list[Line]:
        view = self.view()
        return [*self._looked(view, w), *self._offers(w), *_this_box(view, w)]

    @staticmethod
    def _looked(view: BoxView | None, w: int) -> list[Line]:
        looked = view.discovery.looked if view and view.discovery else ()
        if not looked:
            return []
        place_w = min(max(len(place) for place, _ in looked) + 1, 26, max(8, w // 3))
        rows: list[Line] = [rule("Where kvtop looked", w)]
        for place, seen in looked:
            names, parts = wrap([(safe(place), "t")], place_w), wrap([(safe(seen), "d")], max(8, w - place_w - 4))
            empty: Line = []
            for name, part in zip_longest(names, parts, fillvalue=empty):
                rows.append([(" ", "t"), *columns([name, part], [place_w, w - place_w - 3])])
        return rows

    def _offers(self, w: int) -> list[Line]:
        offers = [
            (
                self.keymap.shown("give-url"),
                "give a URL",
                "kvtop http://host:8000 does the same; a host that is not this box is asked for once",
            ),
            (self.keymap.shown("demo"), "look at a demo", "a simulated box: no GPU, no server, no network"),
            ("", "name one", '[[server]] url = "http://..." in config.toml is watched at each start'),
            ("", "ask the doctor", "kvtop doctor says what it sees here, and what would let it see more"),
        ]
        name_w = 17 if w >= 60 else 15
        rows: list[Line] = [rule("What you can do", w)]
        for key, name, text in offers:
            for i, part in enumerate(wrap([(text, "d")], max(10, w - name_w - 5))):
                shown: Line = [(name, "t")] if i == 0 else []
                rows.append([(f" {key if i == 0 else '':<3}", "t bold"), *fit(shown, name_w), *part])
        return rows


def _padded(rows: list[Line]) -> list[Line]:
    return [[(" ", "t"), *row] for row in rows]


def _this_box(view: BoxView | None, w: int) -> list[Line]:
    if view is None:
        return []
    facts = [("GPU", gpu.in_words(view.gpu), ""), ("host", host_words(view.host), "")]
    host = view.host
    if host is not None:
        for process in host.processes:
            if process.role == "api":
                where = f"port {process.port}" if process.port else "its port is not known"
                facts.append(("vLLM", f"process {process.pid} is alive, {where}; it may still be loading", ""))
        for file in host.offload_files:
            if file.stale:
                text = f"{file.path}, {gib(file.bytes)}, no process holds it: kvtop doctor says how to remove it"
                facts.append(("left over", text, "! "))
    rows: list[Line] = [rule("This box", w)]
    for name, text, mark in facts:
        for i, part in enumerate(wrap([(mark, "warn"), (safe(text), "t")], max(10, w - 13))):
            rows.append([(" ", "t"), *fit([(name, "d")] if i == 0 else [], 11), *part])
    return rows


def host_words(reading: HostReading | None) -> str:
    """`125.6 GiB RAM, 104.2 GiB available; /dev/shm 62.8 GiB, 62.1 GiB free`."""
    if reading is None:
        return "not read yet"
    ram = f"{gib(reading.memory_total_bytes)} RAM, {gib(reading.memory_available_bytes)} available"
    total, used = reading.shm_total_bytes, reading.shm_used_bytes
    free = None if total is None or used is None else total - used
    return f"{ram}; /dev/shm {gib(total)}, {gib(free)} free"
