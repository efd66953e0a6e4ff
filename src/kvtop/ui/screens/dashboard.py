"""The dashboard: what its user has chosen, and the panels in their places."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, cast

from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.screen import Screen

from kvtop.config import Settings
from kvtop.model.shown_turn import Turn, TurnKey
from kvtop.model.view import WINDOWS, BoxView, ServerView
from kvtop.ui import keys
from kvtop.ui.draw import Line, safe
from kvtop.ui.filter import HINTS, misread
from kvtop.ui.keys import Keymap
from kvtop.ui.layout import PANELS, Rect, plan
from kvtop.ui.line_edit import edited, pasted
from kvtop.ui.messages import OtherUrl
from kvtop.ui.profile_page import ProfilePage
from kvtop.ui.scene import Chooser, Scene, age, nothing_yet
from kvtop.ui.turn_pages import TurnPages
from kvtop.ui.turn_words import flying
from kvtop.ui.watching import Capturing, Recording, Watching
from kvtop.ui.widgets.box import BoxPanel
from kvtop.ui.widgets.cache import CachePanel
from kvtop.ui.widgets.facts import Facts
from kvtop.ui.widgets.foot import Foot
from kvtop.ui.widgets.gpu import GpuPanel
from kvtop.ui.widgets.head import Head
from kvtop.ui.widgets.hidden import Hidden
from kvtop.ui.widgets.offload import OffloadPanel
from kvtop.ui.widgets.preview import Preview
from kvtop.ui.widgets.queue import QueuePanel
from kvtop.ui.widgets.strip import Strip
from kvtop.ui.widgets.ttft import TtftPanel
from kvtop.ui.widgets.turns import TurnsPanel


class Dashboard(Screen[None]):
    """Asks for a view, makes a scene of it with its user's choices, and feeds the panels that can be seen."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings(keys.DASHBOARD)]
    AUTO_FOCUS = ""
    DEFAULT_CSS = """
    Dashboard { layers: base; overflow: hidden; background: $background; }
    """

    def __init__(self, watch: Watching, settings: Settings, keymap: Keymap, now: Callable[[], float]) -> None:
        super().__init__()
        self.watch_box, self.settings, self.keymap, self.now = watch, settings, keymap, now
        self.pages = TurnPages(watch, keymap, now)
        self.profile_page = ProfilePage(watch, keymap, now, self.choose_url)
        self.notice = ""
        """What kvtop has to say of itself, in place of what is watched."""
        self.window_key = settings.window if settings.window in {key for key, _, _ in WINDOWS} else "5m"
        self.selected = 0
        self.engine: str | None = None
        self.given = ""
        """The URL that was given on the no-server screen; empty: none was."""
        self.typed: frozenset[str] = frozenset()
        """The URLs of the command line, and what was given in their place."""
        self.cursor: TurnKey | None = None
        self.words = ""
        """The filter of the turns."""
        self.typing = False
        self.shown = frozenset(PANELS) - frozenset(settings.hide)
        self.frozen: BoxView | None = None
        self.made: Scene | None = None
        self._placed: object = None
        self._undrawn = False
        """Something was chosen that is not drawn yet."""
        self._chooser = Chooser()

    # ---- drawing
    def compose(self) -> ComposeResult:
        yield Head(self.keymap, id="head")
        yield Strip(self.keymap, id="strip")
        yield CachePanel(id="cache")
        yield OffloadPanel(id="offload")
        yield QueuePanel(id="queue")
        yield TtftPanel(id="ttft")
        yield GpuPanel(id="gpu")
        yield Facts(id="facts")
        yield TurnsPanel(id="turns")
        yield Preview(self.keymap, id="preview")
        yield Hidden(self.keymap, id="hidden")
        yield Foot(self.keymap, keys.DASHBOARD, id="foot")

    def on_mount(self) -> None:
        self.look()

    def on_resize(self) -> None:
        self._draw()

    def on_screen_resume(self) -> None:
        self.look()

    def look(self) -> None:
        """Take a new view, unless the picture is held, and draw it."""
        self._take()
        self._draw()

    def _take(self) -> None:
        view = self.frozen or self.watch_box.view(self.window_key, self.selected, self.engine)
        if self.profile_page.settle(view):
            view = self.watch_box.view(self.window_key, self.selected, self.engine)
        made = Scene(
            view,
            self.settings.thresholds,
            self.shown,
            self.cursor,
            self.words,
            frozen_at=self.frozen.at if self.frozen else None,
            notice=self.notice,
        )
        self.made = self._chooser.choose(made)
        if self.cursor is not None:
            self.cursor = self.made.cursor

    def _draw(self) -> None:
        scene = self.made
        if scene is None or not self.is_mounted:
            return
        self._undrawn = False
        with self.app.batch_update():
            self._place(scene)
            for panel in self.query_children(BoxPanel):
                if panel.display:
                    panel.feed(scene)
            self.tick()

    def _place(self, scene: Scene) -> None:
        """Move the panels where this size and this box want them; nothing is done where nothing changed."""
        w, h = self.size
        view = scene.view
        cards = len(view.gpu.gpus) if view.gpu else 0
        lines = len(view.lines) + (1 if view.warning and view.lines else 0)
        wanted = (w, h, scene.shown, cards, lines)
        if wanted == self._placed:
            return
        self._placed = wanted
        rects = plan(w, h, scene.shown, cards, lines)
        for child in self.children:
            if child.has_class("-textual-system"):
                continue  # Textual's own, such as toasts
            rect = rects.get(child.id or "")
            child.display = rect is not None
            if rect is not None:
                _move(child, rect)

    def tick(self) -> None:
        """Once a second, and after each drawing: the clock and the keys."""
        scene = self.made
        demo, held = (scene is not None and scene.view.demo), self.frozen is not None
        one = scene is None or len(scene.view.lines) <= 1
        profiles = self.profile_page.profiles is None
        useless = {"next-server": one, "other-url": self._unanswered() is None, "profiles": profiles}
        hide = self.pages.useless() | {id for id, there in useless.items() if there}
        for foot in self.query_children(Foot):  # none while the screen is taken down
            foot.set(
                clock=self.now(),
                word="FROZEN" if held else "DEMO" if demo else "",
                hide=hide,
                prompt=self._prompt() if self.typing else (),
            )

    def _prompt(self) -> list[Line]:
        """What is being typed, and what can be; longest first."""
        typed: Line = [("/", "t bold"), (safe(self.words), "t"), ("▏", "bright")]
        enter, esc = "enter keeps it", "esc shows all"
        if wrong := misread(self.words):
            said = f"  {safe(wrong)} is no filter"
            return [[*typed, (said + end, "warn")] for end in (": compare like new>10k", "")] + [typed]
        hints = [f"  {hint}  {enter}  {esc}" for hint in HINTS] if not self.words else []
        return [*([*typed, (hint, "d")] for hint in (*hints, f"  {enter}  {esc}", f"  {esc}")), typed]

    def moves_by_itself(self) -> bool:
        """Something on the screen counts seconds, though nothing new may come from below."""
        scene = self.made
        if scene is None or self.frozen is not None:
            return False
        server = scene.server
        return nothing_yet(server) or bool(age(server, scene.view.at)) or any(flying(t) for t in scene.rows[:8])

    # ---- choosing a turn
    def _step(self, n: int) -> None:
        rows = self.made.rows if self.made else ()
        if not rows or self.made is None:
            return
        at = self.made.table.place(self.made.cursor) or 0
        self.choose_turn(rows[max(0, min(at + n, len(rows) - 1))].key)

    def choose_turn(self, key: TurnKey) -> None:
        """Put the cursor on this row and show it."""
        self.cursor = key
        for panel in self.query(TurnsPanel):
            panel.reveal(key)
        self._again()

    def _turns_seen(self) -> int:
        """Rows that the table has room for; a key may be quicker than the table is."""
        return max((panel.room for panel in self.query(TurnsPanel)), default=1)

    def action_up(self) -> None:
        self._step(-1)

    def action_down(self) -> None:
        self._step(1)

    def action_page_up(self) -> None:
        self._step(-self._turns_seen())

    def action_page_down(self) -> None:
        self._step(self._turns_seen())

    def action_first(self) -> None:
        self._step(-100_000)

    def action_last(self) -> None:
        self._step(100_000)

    def action_turn(self) -> None:
        turn = self.made.turn if self.made else None
        if turn is not None:
            from kvtop.ui.screens.turn import TurnScreen

            self.cursor = turn.key
            self.looked_at(turn.key)
            self.app.push_screen(TurnScreen(self.keymap, self, self.now))

    def looked_at(self, turn: TurnKey | None) -> None:
        """Its page, or its diff, was opened: the sentence need not tell of it any more."""
        if turn is not None and self.made and self.made.server:
            self.watch_box.opened(self.made.server.url, turn)

    def action_diff(self) -> None:
        self.open(self.pages.diff, self.made.turn if self.made else None)

    def action_replay(self) -> None:
        self.open(self.pages.replay, self.made.turn if self.made else None)

    def open(self, page: Callable[[App[str], Turn | None], bool], turn: Turn | None) -> None:
        """One of `pages` of this turn; the cursor stays with it."""
        if page(cast("App[str]", self.app), turn) and turn is not None:
            self.cursor = turn.key
            self.looked_at(turn.key)

    def on_turns_panel_chosen(self, message: TurnsPanel.Chosen) -> None:
        if message.again:
            self.action_turn()
        else:
            self.choose_turn(message.key)
            self._draw()

    # ---- choosing what is shown
    def _again(self) -> None:
        """The same box, other choices. Of many quick keys only the last one is drawn: drawing takes most of the time,
        and the key that leaves waits behind them."""
        if self.made is not None:
            self._take()
            self._undrawn = True
            self.check_idle()

    def on_idle(self) -> None:
        if self._undrawn:
            self._draw()

    def action_window(self) -> None:
        names = [key for key, _, _ in WINDOWS]
        self.set_window(names[(names.index(self.window_key) + 1) % len(names)])

    def set_window(self, key: str) -> None:
        """What the figures cover: a key of WINDOWS."""
        self.window_key = key
        self._thaw()
        self._again()

    def action_freeze(self) -> None:
        self.frozen = None if self.frozen else (self.made.view if self.made else None)
        self._again()

    def _thaw(self) -> None:
        """Another window, server or engine is another picture: the held one has no numbers of it."""
        self.frozen = None

    def action_panel(self, name: str) -> None:
        self.shown ^= {name}
        self._again()

    def action_next_server(self) -> None:
        view = self.made.view if self.made else None
        if view is not None and len(view.lines) > 1:
            chosen = next((i for i, line in enumerate(view.lines) if line.selected), -1)
            engines = len(view.servers) <= 1
            self.choose_line(-1 if engines and chosen == len(view.lines) - 1 else (chosen + 1) % len(view.lines))

    def choose_url(self, url: str) -> None:
        """The server at this URL; the first one where it is not watched."""
        servers = self.watch_box.view(self.window_key).servers
        self.selected = next((i for i, server in enumerate(servers) if server.url == url), 0)
        self.engine = self.cursor = None
        self._thaw()

    def choose_line(self, index: int) -> None:
        """A line of the strip: a server, or an engine (-1: all engines together)."""
        view = self.made.view if self.made else None
        if view is None:
            return
        if len(view.servers) > 1:
            self.selected, self.engine = index, None
            self.cursor = None
        else:
            self.engine = view.lines[index].key if 0 <= index < len(view.lines) else None
        self._thaw()
        self._again()

    def on_strip_chosen(self, message: Strip.Chosen) -> None:
        view = self.made.view if self.made else None
        again = view is not None and len(view.servers) <= 1 and view.lines[message.index].selected
        self.choose_line(-1 if again else message.index)
        self._draw()

    # ---- filter
    def action_filter(self) -> None:
        if "turns" in self.shown:
            self.typing = True
            self.tick()

    def action_back(self) -> None:
        """Esc: the filter goes."""
        self.typing = False
        self.words = ""
        self._again()

    def on_key(self, event: events.Key) -> None:
        if not self.typing and event.key in self.keymap.action("filter").keys:
            # at once: what is typed right behind it would come before its action
            event.stop()
            self.action_filter()
            return
        if not self.typing:
            return
        event.stop()
        event.prevent_default()
        if event.key == "enter":
            self.typing = False
        elif event.key == "escape":
            self.action_back()
            return
        else:
            self.words = edited(self.words, event)
        self._again()

    def on_paste(self, event: events.Paste) -> None:
        if self.typing:
            event.stop()
            self.words = pasted(self.words, event)
            self._again()

    # ---- elsewhere
    def _unanswered(self) -> str | None:
        """The server at the URL that was given, where it was asked and has never answered."""
        server = self.made.server if self.made else None
        if server is None or server.url not in {self.given, *self.typed}:
            return None
        return server.url if nothing_yet(server) and server.failed_tries else None

    def action_other_url(self) -> None:
        if (url := self._unanswered()) is not None:
            self.post_message(OtherUrl(url))

    def action_tap(self) -> None:
        if not isinstance(self.watch_box, Capturing):
            return
        from kvtop.ui.screens.tap import TapScreen

        keep_days = self.settings.capture.keep_days
        self.app.push_screen(TapScreen(self.keymap, self.watch_box.desk, self._server_now, self.now, keep_days))

    def _server_now(self) -> ServerView | None:
        """The chosen server as it is now, for a page that lies over the dashboard."""
        self.look()
        return self.made.server if self.made else None

    def action_profiles(self) -> None:
        self.profile_page.open(cast("App[str]", self.app))

    def action_history(self) -> None:
        server, watch = self.made.server if self.made else None, self.watch_box
        if server is None or not isinstance(watch, Recording):
            return
        from kvtop.ui.screens.history import HistoryScreen

        selected = self.selected
        title = "History" if server.engine is None else "History, all engines"
        self.app.push_screen(
            HistoryScreen(
                self.keymap,
                lambda name, span_s, columns: watch.series(name, span_s, columns, selected),
                server.label,
                self.now,
                title=title,
            )
        )


def _move(child: object, rect: Rect) -> None:
    styles = child.styles  # type: ignore[attr-defined]
    styles.offset = (rect.x, rect.y)
    styles.width, styles.height = rect.w, rect.h
