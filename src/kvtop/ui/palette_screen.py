"""Textual's command palette, made fit for keys that come faster than its pictures."""

from __future__ import annotations

import contextlib
from typing import Any

from textual._callback import invoke
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.command import CommandList, CommandPalette
from textual.css.query import NoMatches
from textual.errors import NoWidget
from textual.events import Click
from textual.message import Message
from textual.timer import Timer, TimerCallback
from textual.worker import Worker

GONE = (NoMatches, LookupError)
"""What Textual raises for a part of the palette, or a row of its list, that is gone or not there yet."""


class PaletteScreen(CommandPalette):
    """The palette that the app opens. What it lists: see `palette`."""

    def compose(self) -> ComposeResult:
        for part in super().compose():
            yield Commands() if isinstance(part, CommandList) else part

    # ---- what comes while its parts are not there yet, or no more
    def _action_command_list(self, action: str) -> None:
        with contextlib.suppress(*GONE):  # also a page of a list that has not been painted yet
            super()._action_command_list(action)

    def _action_cursor_down(self) -> None:
        with contextlib.suppress(*GONE):
            super()._action_cursor_down()

    def _watch__list_visible(self) -> None:
        with contextlib.suppress(*GONE):
            super()._watch__list_visible()

    async def _watch__show_busy(self) -> None:
        with contextlib.suppress(*GONE):
            await super()._watch__show_busy()

    async def _dispatch_message(self, message: Message) -> None:
        with contextlib.suppress(*GONE):
            await super()._dispatch_message(message)

    def set_timer(self, delay: float, callback: TimerCallback | None = None, **options: Any) -> Timer:
        """Textual's timers of the palette go on while it closes."""

        async def late() -> None:
            if callback is not None:
                with contextlib.suppress(*GONE):
                    await invoke(callback)

        return super().set_timer(delay, late, **options)

    # ---- once, and nobody's loss

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


class Commands(CommandList):
    """The palette's list."""

    async def _on_click(self, event: Click) -> None:
        """A click on a row that a new search took away meanwhile. Textual calls its own after this one."""
        row = event.style.meta.get("option")
        if row is not None and row >= self.option_count:
            event.prevent_default()
