"""No server: where kvtop looked, what can be done, and what is known of this box."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import cast

from textual import events
from textual.app import App, ComposeResult
from textual.widgets import Input

from kvtop.errors import UsageError
from kvtop.model.here import is_here
from kvtop.model.sentence import no_server
from kvtop.model.view import BoxView, Sentence
from kvtop.readings import HostReading
from kvtop.sources.url import parse
from kvtop.ui import keys
from kvtop.ui.draw import Line, cells, fit, ljust, pick_line, safe, width, wrap
from kvtop.ui.headline import headline
from kvtop.ui.keys import Keymap
from kvtop.ui.messages import Changed
from kvtop.ui.numbers import ago, exact, gib, secs, span
from kvtop.ui.profile_page import ProfilePage
from kvtop.ui.scene import nothing_yet
from kvtop.ui.screens.page import Body, Page
from kvtop.ui.widgets import gpu
from kvtop.ui.widgets.foot import Foot
from kvtop.ui.widgets.line_input import LineInput
from kvtop.ui.widgets.panel import rule

NARROW = 60
"""On fewer cells names have no column of their own."""


class UrlInput(LineInput):
    """The line that a URL is typed into."""

    DEFAULT_CSS = "UrlInput.offered, UrlInput.offered:focus { color: $dim; }"

    def offer(self, url: str) -> None:
        """Put a URL in: what is typed or pasted first takes its place, while a key that moves or deletes edits it."""
        self.value = url
        self.cursor_position = len(url)
        self.set_class(bool(url), "offered")

    def on_key(self, event: events.Key) -> None:
        if event.is_printable:
            self._take_its_place()
        self.remove_class("offered")

    def on_paste(self, event: events.Paste) -> None:
        if event.text:
            self._take_its_place()

    def _take_its_place(self) -> None:
        if self.has_class("offered"):
            self.offer("")


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
        profiles: ProfilePage | None = None,
    ) -> None:
        """`on_url` gets a checked base URL, `on_demo` is called for the simulated box; both then change the screen.

        `url`: one to be mended, put into the open line.
        """
        super().__init__(keymap, now)
        self.view, self.on_url, self.on_demo, self.url = view, on_url, on_demo, url
        self.profiles = profiles
        self.said = ""
        """What is wrong with the URL, or the question about it."""
        self.asked: str | None = None
        """The URL of another host that a second enter will watch."""

    def compose(self) -> ComposeResult:
        yield Body(id="body")
        yield UrlInput(placeholder="http://127.0.0.1:8000", select_on_focus=False, id="url")
        yield Foot(self.keymap, self.ON, id="foot", hide=self.hidden_keys())

    def on_mount(self) -> None:
        super().on_mount()
        if self.url:
            self.action_give_url()
            self.query_one(UrlInput).offer(self.url)

    def tick(self) -> None:
        super().tick()
        if self.is_current:
            self.redraw()

    # ---- a URL
    def action_give_url(self) -> None:
        for box in self.query(UrlInput):
            box.open_line()
        self._say("")
        self.tick()

    def action_profiles(self) -> None:
        if self.profiles is not None:
            self.profiles.open(cast("App[str]", self.app))

    def hidden_keys(self) -> frozenset[str]:
        there = self.profiles is not None and self.profiles.profiles is not None
        return frozenset() if there else frozenset({"profiles"})

    def action_demo(self) -> None:
        self.on_demo()

    def on_line_input_closed(self) -> None:
        """Back to the page, and from there to what is watched, if anything is."""
        self.asked = None
        self._say("")
        self.tick()
        self.post_message(Changed())

    @property
    def typing(self) -> bool:
        """The line for a URL is open."""
        return any(box.is_open for box in self.query(UrlInput))

    def prompt(self) -> list[Line]:
        """What the keys do while a URL is typed; all others are text."""
        if not self.typing:
            return []
        watch, clear, close, end = ("enter", "watch it"), ("ctrl+u", "clear"), ("esc", "close"), ("ctrl+c", "quit")
        wordings = ((watch, clear, close, end), (watch, clear, close), (watch, close))
        return [
            [
                part
                for i, (key, word) in enumerate(named)
                for part in ((f"{'  ' if i else ''}{key}", "t bold"), (f" {word}", "d"))
            ]
            for named in wordings
        ]

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
        view = self.view()
        if self.asked != url and not is_here(url, view.host if view is not None else None):
            self.asked = url
            self._say(
                f"{url} is not this box: kvtop would read it over the network. enter again watches it, esc leaves it"
            )
            return
        for box in self.query(UrlInput):
            box.action_close()
        self.on_url(url)

    def _say(self, text: str) -> None:
        self.said = text
        self.redraw()

    # ---- painting
    def head(self, w: int) -> list[Line]:
        view = self.view()
        contexts: list[str] = []
        if view is not None and view.servers:
            if any(server.url == self.url and nothing_yet(server) for server in view.servers):
                said = f"{self.url} has never answered."
                sentence = Sentence("NO ANSWER", "warn", said, "Another URL takes its place.")
            else:
                sentence = Sentence("OK", "ok", "Another server is there now.", "esc shows it.")
        else:
            sentence = no_server(view.discovery if view is not None else None)
            if view is not None and view.discovery is not None and view.discovery.at is not None:
                ago = span(max(0.0, self.now() - view.discovery.at))
                often = [f"looked {exact(view.looks)} times, last {ago} ago"] if view.looks > 1 else []
                contexts = [*often, f"last looked {ago} ago", f"{ago} ago"]
        return headline(sentence, contexts, w)

    def lines(self, w: int, h: int) -> list[Line]:
        if self.said:
            return [
                rule("Give a URL", w),
                *([(" ", "t"), *row] for row in wrap([("! ", "warn"), (safe(self.said), "bright")], w - 1)),
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
        widest = max(cells(safe(place)) for place, _ in looked) + 3
        name_w = max(min(widest, w - max(cells(safe(seen)) for _, seen in looked) - 1), min(widest, w // 3))
        rows = [Fact([], safe(place), [[(safe(seen), "d")]]) for place, seen in looked]
        return [rule("Where kvtop looked", w), *told(rows, w, name_w)]

    def _offers(self, w: int) -> list[Line]:
        offers = (
            *self._profiles_offer(),
            (
                self.keymap.shown("give-url"),
                "give a URL",
                "kvtop http://host:8000 does the same; a host that is not this box is asked for once",
                "kvtop http://host:8000 does the same",
                "as kvtop http://host:8000",
            ),
            (
                self.keymap.shown("demo"),
                "look at a demo",
                "a simulated box: no GPU, no server, no network",
                "a simulated box",
            ),
            (
                "",
                "name one",
                '[[server]] url = "http://..." in config.toml is watched at each start',
                "a [[server]] of config.toml is watched at each start",
                "[[server]] in config.toml",
            ),
            (
                "",
                "ask the doctor",
                "kvtop doctor says what it sees here, and what would let it see more",
                "kvtop doctor says what it sees and what it lacks",
                "kvtop doctor",
            ),
        )
        keys_w = max(cells(key) for key, *_ in offers) + 2
        rows = [
            Fact([(ljust(key, keys_w), "t bold")], name, [[(text, "d")] for text in texts])
            for key, name, *texts in offers
        ]
        return [rule("What you can do", w), *told(rows, w, keys_w + 17)]

    def _profiles_offer(self) -> tuple[tuple[str, ...], ...]:
        """`p  start a profile  4 profiles; the last one used is qwen27-2x3090, 10 h ago, 6 m to start`."""
        profiles = self.profiles.profiles if self.profiles is not None else None
        if profiles is None:
            return ()
        view = profiles.view
        broken = sum(bool(row.known.problem) for row in view.rows)
        n = len(view.rows) - broken
        key = self.keymap.shown("profiles")
        if not view.rows:
            none = "none yet: it can make one of a script, compose file, unit or YAML file"
            return ((key, "start a profile", none, "there is none yet"),)
        many = f"{n} profile{'' if n == 1 else 's'}"
        if broken:
            many += f" and {broken} file{'' if broken == 1 else 's'} that cannot be used"
        used = view.last_used
        if used is None or used.record is None:
            return ((key, "start a profile", f"{many}; none was started yet", many),)
        long_ago = f"{ago(self.now() - used.record.started_at)} ago"
        took = f", {secs(used.starts[-1].took_s)} to start" if used.starts else ""
        last = f"{many}; the last one used is {safe(used.name)}"
        if used.state == "failed":
            came = f"{safe(used.name)}, used last, {'did not start' if used.record.ready_at is None else 'failed'}"
            return ((key, "start a profile", f"{many}; {came}, {long_ago}", f"{many}; {came}", came),)
        return ((key, "start a profile", f"{last}, {long_ago}{took}", f"{last}, {long_ago}", last, many),)


@dataclass(frozen=True)
class Fact:
    """A line of the page: what stands before the name, the name, and what there is to say, longest wording first."""

    lead: Line
    name: str
    texts: list[Line]


def told(facts: Sequence[Fact], w: int, name_w: int) -> list[Line]:
    """Names in a column of `name_w` cells and beside it the longest wording that fits in a row, else the last one.

    On a narrow page a column of text would be a few cells wide: there each fact is a paragraph of its own.
    """
    rows: list[Line] = []
    for fact in facts:
        head: Line = [*fact.lead, (fact.name, "t")]
        if w < NARROW:
            start = width(fact.lead) or 2
            room = w - 1 - width(head) - 2
            text = pick_line(fact.texts, room)
            rows += [[(" ", "t"), *row] for row in wrap([*head, (": ", "d"), *text], w - 1, start)]
            continue
        beside = wrap(pick_line(fact.texts, w - name_w - 1), w - name_w - 1)
        names = [[*fact.lead, *row] for row in wrap([(fact.name, "t")], name_w - width(fact.lead) - 2)]
        empty: Line = []
        for name, part in zip_longest(names, beside, fillvalue=empty):
            rows.append([(" ", "t"), *fit(name, name_w), *part])
    return rows


def _this_box(view: BoxView | None, w: int) -> list[Line]:
    if view is None:
        return []
    facts = [("GPU", gpu.in_words(view.gpu), ""), ("host", host_words(view.host), "")]
    host = view.host
    if host is not None:
        for process in host.processes:
            if process.role == "api":
                port = process.port or next(iter(process.ports), None)
                where = f"port {port}" if port else "its port is not known"
                loads = "" if process.ports or process.contained else "; it may still be loading"
                facts.append(("vLLM", f"process {process.pid} is alive, {where}{loads}", ""))
        for file in host.offload_files:
            if file.stale:
                text = f"{file.path}, {gib(file.bytes)}, no process holds it: kvtop doctor says how to remove it"
                facts.append(("left over", text, "! "))
    rows = [Fact([], name, [[(mark, "warn"), (safe(text), "t")]]) for name, text, mark in facts]
    return [rule("This box", w), *told(rows, w, 11)]


def host_words(reading: HostReading | None) -> str:
    """`125.6 GiB RAM, 104.2 GiB available; /dev/shm 62.8 GiB, 62.1 GiB free`."""
    if reading is None:
        return "not read yet"
    if reading.error:
        return reading.error
    ram = f"{gib(reading.memory_total_bytes)} RAM, {gib(reading.memory_available_bytes)} available"
    total, used = reading.shm_total_bytes, reading.shm_used_bytes
    free = None if total is None or used is None else total - used
    return f"{ram}; /dev/shm {gib(total)}, {gib(free)} free"
