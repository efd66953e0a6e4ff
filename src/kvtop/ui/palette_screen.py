"""Textual's command palette, made fit for keys that come faster than its pictures."""

from __future__ import annotations

import contextlib
from typing import Any

from textual.await_complete import AwaitComplete
from textual.command import CommandPalette
from textual.errors import NoWidget
from textual.events import Click
from textual.worker import Worker


class PaletteScreen(CommandPalette):
    """The palette that the app opens. What it lists: see `palette`."""

    def _action_command_list(self, action: str) -> None:
        with contextlib.suppress(LookupError):  # a page of a list that has not been painted yet
            super()._action_command_list(action)

    def _on_click(self, event: Click) -> None:  # type: ignore[override]
        """A click where the screen was before it was made smaller. Textual calls its own after this one."""
        try:
            self.get_widget_at(event.screen_x, event.screen_y)
        except NoWidget:
            event.prevent_default()

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Once: a second escape that was on its way would close the screen below."""
        return super().dismiss(result) if self.is_current else AwaitComplete()

    def run_worker(self, *args: Any, **options: Any) -> Worker[Any]:
        """A search that finds the palette closed before it began fails, and that is nobody's loss."""
        return super().run_worker(*args, **options | {"exit_on_error": False})
