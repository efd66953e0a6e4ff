"""The pages that a captured turn opens beside its own: its diff, its replay."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import App

from kvtop.model.shown_turn import Turn
from kvtop.ui.keys import Keymap
from kvtop.ui.turn_words import flying
from kvtop.ui.watching import Capturing, Comparing, Replays, Sending, Watching

NOT_CAPTURED = "Its prompt was not captured: only the counters tell of it."


class TurnPages:
    """`watch`: what is asked for them."""

    def __init__(self, watch: Watching, keymap: Keymap, now: Callable[[], float]) -> None:
        self._watch, self._keymap, self._now = watch, keymap, now

    @property
    def comparing(self) -> Comparing | None:
        """What lays two prompts beside each other, where there is anything of the kind."""
        desk = self._watch.desk if isinstance(self._watch, Capturing) else None
        return desk if isinstance(desk, Comparing) else None

    @property
    def sending(self) -> Sending | None:
        """What sends turns once more, where there is anything of the kind."""
        desk = self._watch.desk if isinstance(self._watch, Capturing) else None
        return desk.replaying if isinstance(desk, Replays) else None

    def useless(self) -> frozenset[str]:
        """Actions that mean nothing here."""
        there = {"diff": self.comparing, "replay": self.sending}
        return frozenset(id for id, what in there.items() if what is None)

    def diff(self, app: App[str], turn: Turn | None) -> bool:
        """False: it was not opened."""
        desk = self.comparing
        if desk is None or turn is None or not self._captured(app, turn):
            return False
        from kvtop.ui.screens.diff import DiffScreen

        screen = DiffScreen(
            self._keymap, lambda: desk.sheet(turn.id), self._now, title=f"Turn {turn.id}", agent=turn.agent or "",
            replay=None if self.sending is None else lambda: self.replay(app, turn),
        )  # fmt: skip
        app.push_screen(screen)
        return True

    def replay(self, app: App[str], turn: Turn | None) -> bool:
        """False: it was not opened."""
        sender = self.sending
        if sender is None or turn is None or not self._captured(app, turn):
            return False
        if flying(turn):
            app.notify("It has not ended yet.", markup=False)
            return False
        from kvtop.ui.screens.replay import ReplayScreen

        app.push_screen(ReplayScreen(self._keymap, sender, turn.id, self._now))
        return True

    def _captured(self, app: App[str], turn: Turn) -> bool:
        if not turn.captured:
            app.notify(f"{NOT_CAPTURED} {self._keymap.shown('tap')} starts a tap.", markup=False)
        return turn.captured
