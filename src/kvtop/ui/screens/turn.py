"""One turn on a page of its own: what the counters tell of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType

from kvtop.model.view import Sentence, Turn
from kvtop.ui import keys
from kvtop.ui.draw import Line, pick, wrap
from kvtop.ui.headline import headline as page_headline
from kvtop.ui.keys import Keymap
from kvtop.ui.numbers import exact, hms, short
from kvtop.ui.screens.page import Page
from kvtop.ui.turn_words import (
    APART,
    UNTOLD,
    about,
    flying,
    headline,
    legend_of_phases,
    legend_of_tokens,
    phases_bar,
    prompt_so_far,
    saved,
    so_far,
    table,
    tokens_bar,
    ttft,
)
from kvtop.ui.widgets.panel import rule

if TYPE_CHECKING:
    from kvtop.ui.screens.dashboard import Dashboard


class TurnScreen(Page):
    """The turn under the dashboard's cursor; n and N walk through the table."""

    ON = keys.TURN
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings(keys.TURN)]

    def __init__(self, keymap: Keymap, dashboard: Dashboard, now: Callable[[], float]) -> None:
        super().__init__(keymap, now)
        self.dashboard = dashboard

    @property
    def turn(self) -> Turn | None:
        scene = self.dashboard.made
        return scene.turn if scene else None

    def tick(self) -> None:
        super().tick()
        if self.is_current:
            self.dashboard.look()
            self.redraw()

    def action_next_turn(self) -> None:
        self.dashboard.action_down()
        self.redraw()

    def action_previous_turn(self) -> None:
        self.dashboard.action_up()
        self.redraw()

    def head(self, w: int) -> list[Line]:
        scene, turn = self.dashboard.made, self.turn
        if scene is None or turn is None:
            return [[("this turn is no longer kept", "d")], []]
        tone, first, rest = headline(turn, scene.server)
        chip = (
            "IN FLIGHT" if flying(turn) else "SLOW" if turn.waited else {"bad": "FAILED", "ok": "OK"}.get(tone, "LOOK")
        )
        tone = "bad" if turn.waited else tone
        return page_headline(Sentence(chip, tone, first, rest), [about(turn, scene.server, w - 12)], w)

    def lines(self, w: int, h: int) -> list[Line]:
        scene, turn = self.dashboard.made, self.turn
        if scene is None or turn is None:
            return []
        server, room = scene.server, w - 2
        out: list[Line] = []

        def block(title: str, notes: list[str], rows: list[Line]) -> None:
            note = pick([*notes, ""], w - len(title) - 6)
            out.append(rule(title, w, [(note, "d")] if note else None))
            out.extend([(" ", "t"), *row] for row in rows)

        if flying(turn):
            block("So far", [], [so_far(turn, scene.view.at, room)])
            if rows := prompt_so_far(turn, True, room):
                block("Prompt", [], rows)
            text = "The rest is counted when it ends, and stands here then."
            block("What the counters tell", [], wrap([(text, "d")], room))
            return out
        size = f"{exact(turn.prompt_tokens)} tokens"
        block(
            "Prompt",
            [f"{size}, mean of {turn.n} requests", f"{size}, a mean"] if turn.n > 1 else [size],
            [tokens_bar(turn, room), legend_of_tokens(turn, True, room)],
        )
        took = short(turn.duration_s)
        block(
            "Time",
            [f"{took} from arrival to the last token", f"{took} in all"] if turn.duration_s is not None else [],
            [phases_bar(turn, room), legend_of_phases(turn, room), ttft(turn, room)],
        )
        block(
            "Reuse and writing",
            ["exact, from the counters", "exact"] if turn.n == 1 else ["means"],
            [*table(turn, server, room), saved(turn, server, room)],
        )
        says: list[Line] = []
        if turn.n > 1:
            says += wrap([(APART, "t")], room)
        if turn.ended_at is not None:
            when = f"began {hms(turn.started_at)}, " if turn.started_at is not None else ""
            says += wrap([(f"{when}seen to end {hms(turn.ended_at)}, between two reads of /metrics.", "t")], room)
        block("Evidence", [], [*says, *wrap([(UNTOLD, "d")], room)])
        return out
