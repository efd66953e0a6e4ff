"""What the panels of the dashboard have in common: they draw from a scene."""

from __future__ import annotations

from kvtop.model.box import EngineWindow
from kvtop.model.view import ServerView
from kvtop.ui.draw import Line
from kvtop.ui.scene import Scene, age, nothing_yet, second_row
from kvtop.ui.widgets.panel import Panel

NOTHING = EngineWindow()


class BoxPanel(Panel):
    """A panel of the dashboard. `feed` gives it the next scene."""

    FED_BY_METRICS = False
    """Its numbers come from /metrics: they grow old with it."""

    scene: Scene | None = None

    def feed(self, scene: Scene) -> None:
        """Show this scene."""
        self.scene = scene
        self.redraw()

    @property
    def server(self) -> ServerView | None:
        return self.scene.server if self.scene else None

    @property
    def at(self) -> float:
        """Unix time of the view."""
        return self.scene.view.at if self.scene else 0.0

    @property
    def now(self) -> EngineWindow:
        """The chosen window of the chosen server."""
        return self.server.window.all if self.server else NOTHING

    @property
    def hour(self) -> EngineWindow:
        return self.server.hour.all if self.server else NOTHING

    @property
    def life(self) -> EngineWindow:
        return self.server.life.all if self.server else NOTHING

    @property
    def empty(self) -> bool:
        """No scrape of this server was ever read."""
        return nothing_yet(self.server)

    def grey(self) -> bool:
        return self.FED_BY_METRICS and bool(age(self.server, self.at))

    def state(self) -> tuple[object, ...]:
        """What every panel of the server's numbers hangs on, beside the numbers themselves."""
        server, scene = self.server, self.scene
        if server is None or scene is None:
            return (None,)
        since = int(self.at - server.waiting_since) if server.waiting_since is not None else None
        return (
            server.url, server.engine, server.window_key, server.window_words, second_row(server)[0], server.config,
            age(server, self.at), self.empty, since, scene.thresholds,
        )  # fmt: skip

    def context(self, w: int) -> Line:
        """What `note` says while the numbers are fresh."""
        return []

    def note(self, w: int) -> Line:
        if self.FED_BY_METRICS:
            if self.empty:
                return [("no data yet", "d")]
            if old := age(self.server, self.at):
                return [(old, "warn")]
        return self.context(w)
