"""One turn on a page of its own: what was captured of it, else what the counters tell of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType

from kvtop.errors import KvtopError
from kvtop.model.shown_turn import Turn, TurnKey
from kvtop.model.view import Sentence
from kvtop.ui import keys
from kvtop.ui.captured_words import Looked, blocks, blocks_in_flight
from kvtop.ui.draw import Line, pick, safe, wrap
from kvtop.ui.headline import headline as page_headline
from kvtop.ui.keys import Keymap
from kvtop.ui.numbers import exact, hms, short
from kvtop.ui.screens.page import LEFT_S, Page
from kvtop.ui.turn_words import (
    APART,
    OWN,
    UNTOLD,
    flying,
    headline,
    legend_of_phases,
    legend_of_tokens,
    origin,
    phases_bar,
    prompt_so_far,
    saved,
    so_far,
    table,
    tokens_bar,
    ttft,
    waited_style,
)
from kvtop.ui.watching import Capturing, Explaining
from kvtop.ui.widgets.panel import rule

if TYPE_CHECKING:
    from kvtop.live.desk import Desk, Detail
    from kvtop.triage.result import Why
    from kvtop.ui.screens.dashboard import Dashboard


TALL = 28
"""Rows from which on more messages of a long prompt are listed."""


class TurnScreen(Page):
    """The turn under the dashboard's cursor; n and N walk through the table."""

    ON = keys.TURN
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings(keys.TURN)]

    def __init__(self, keymap: Keymap, dashboard: Dashboard, now: Callable[[], float]) -> None:
        super().__init__(keymap, now)
        self.dashboard = dashboard
        self._key = dashboard.cursor
        """The turn that is shown. The dashboard's cursor goes elsewhere where that is not kept any more."""
        self._detail: Detail | None = None
        """Of the last captured turn that was read."""
        self._read_for: Turn | None = None
        """The row as it was when its detail was asked for."""
        self._said = ""
        """Why it cannot be read."""
        self._why: tuple[TurnKey, Why] | None = None
        """Of the last captured turn that was worked out."""
        self._trouble = ""
        """Why it cannot be."""

    @property
    def turn(self) -> Turn | None:
        """None: it is not kept any more."""
        scene = self.dashboard.made
        place = scene.table.place(self._key) if scene is not None else None
        return scene.rows[place] if scene is not None and place is not None else None

    def tick(self) -> None:
        super().tick()
        if self.is_current:
            here = self.turn
            self.dashboard.cursor = self._key if here is None else here.key
            self.dashboard.look()
            if (here := self.turn) is not None:
                self._key = here.key
            self._ask()
            self.set_foot()
            self.redraw()

    # ---- a captured turn in full
    @property
    def detail(self) -> Detail | None:
        """Of the turn that is shown; None while it is read, or where it is none that was captured."""
        turn = self.turn
        known = self._detail is not None and turn is not None and turn.captured and self._detail.turn.id == turn.id
        return self._detail if known else None

    @property
    def why(self) -> Why | None:
        """Why the turn that is shown took its time; None while that is worked out."""
        known, turn = self._why, self.turn
        return known[1] if known is not None and turn is not None and turn.key == known[0] else None

    @property
    def fix(self) -> str:
        """What is to be done about it."""
        found = self.turn.finding if self.turn is not None else None
        return found.fix if found is not None else ""

    def on_mount(self) -> None:
        super().on_mount()
        self._ask()

    def _ask(self) -> None:
        """Read what belongs to the turn that is shown, where that was not done since it last changed."""
        turn, watch = self.turn, self.dashboard.watch_box
        if turn is None or not turn.captured or not isinstance(watch, Capturing):
            return
        before = self._read_for
        if before is not None and _told_of(before) == _told_of(turn):
            return
        self._read_for = turn
        self.run_worker(self._read(watch.desk, turn), name="turn", exit_on_error=False)
        if not flying(turn) and isinstance(watch.desk, Explaining):
            self._trouble = ""
            self.run_worker(
                self._explain(watch.desk, turn), name="why", group="why", exclusive=True, exit_on_error=False
            )

    async def _explain(self, desk: Explaining, turn: Turn) -> None:
        await asyncio.sleep(LEFT_S)  # a page that is left ends what it began
        try:
            self._why = turn.key, await desk.why(turn.id)
        except KvtopError as error:
            self._trouble = error.what
        self.set_foot()
        self.redraw()

    async def _read(self, desk: Desk, turn: Turn) -> None:
        await asyncio.sleep(LEFT_S)
        said, found = "", None
        try:
            found = await desk.detail(turn.id)
            said = "" if found is not None else "it is not in the store any more"
        except KvtopError as error:
            said = error.what
        if self._read_for is not turn:
            return  # another one was asked for meanwhile
        self._detail, self._said = found or self._detail, said
        if said:
            self._read_for = None
        self.redraw()

    @property
    def _explains(self) -> bool:
        watch = self.dashboard.watch_box
        return isinstance(watch, Capturing) and isinstance(watch.desk, Explaining)

    def _promised(self, turn: Turn) -> Turn:
        """Its row, which guesses nothing while the verdict is on its way here."""
        known = turn.finding is not None or self.why is not None or self._trouble or not self._explains
        return turn if known or flying(turn) or not turn.captured else replace(turn, judging=True)

    def hidden_keys(self) -> frozenset[str]:
        """A turn that was not captured has no bodies."""
        turn = self.turn
        if turn is None or not turn.captured:
            return frozenset({"raw", "diff", "replay", "copy-fix"})
        useless = {"replay": flying(turn), "copy-fix": not self.fix}
        return self.dashboard.pages.useless() | {id for id, there in useless.items() if there}

    def action_copy_fix(self) -> None:
        if self.fix:
            self.app.copy_to_clipboard(self.fix)
            self.app.notify("the fix is on its way to the clipboard", timeout=3, markup=False)

    def action_diff(self) -> None:
        self.dashboard.open(self.dashboard.pages.diff, self.turn)

    def action_replay(self) -> None:
        self.dashboard.open(self.dashboard.pages.replay, self.turn)

    def action_raw(self) -> None:
        turn, watch = self.turn, self.dashboard.watch_box
        if turn is not None and not turn.captured:
            said = "Its bodies were not captured: only the counters tell of it."
            self.app.notify(f"{said} {self.keymap.shown('tap')} starts a tap.", markup=False)
            return
        if turn is not None and turn.captured and isinstance(watch, Capturing):
            from kvtop.ui.screens.raw import RawScreen

            self.app.push_screen(RawScreen(self.keymap, watch.desk, turn, self.now))

    def _moved(self) -> None:
        self._key = self.dashboard.cursor
        self.dashboard.looked_at(self._key)
        self.offset_lines = 0
        self._ask()
        self.set_foot()
        self.redraw()

    def action_next_turn(self) -> None:
        if self.turn is not None:  # else the next one stands in its place
            self.dashboard.action_down()
        self._moved()

    def action_previous_turn(self) -> None:
        self.dashboard.action_up()
        self._moved()

    def head(self, w: int) -> list[Line]:
        scene, turn = self.dashboard.made, self.turn
        if scene is None or turn is None:
            name = str(self._key[1]) if self._key is not None and self._key[0] == "captured" else ""
            first = f"Turn {name} is not kept any more:" if name else "This turn is not kept any more:"
            return page_headline(
                Sentence("GONE", "dim", first, "it was forgotten, or newer ones took its place."), [], w
            )
        turn = self._promised(turn)
        tone, first, rest = headline(turn, scene.server)
        chip = _chip(turn, tone)
        tone = waited_style(turn) if turn.waited and chip != "UNSURE" else tone
        return page_headline(Sentence(chip, tone, first, rest), [origin(turn, scene.server, scene.view.at, w - 12)], w)

    def lines(self, w: int, h: int) -> list[Line]:
        scene, turn = self.dashboard.made, self.turn
        if scene is None or turn is None:
            return []
        server, room, turn = scene.server, w - 2, self._promised(turn)
        out: list[Line] = []

        def block(title: str, notes: list[str], rows: list[Line]) -> None:
            note = pick([*notes, ""], w - len(title) - 6)
            out.append(rule(title, w, [(note, "d")] if note else None))
            out.extend([(" ", "t"), *row] for row in rows)

        if flying(turn):
            came = [] if turn.ttft_s is None else [ttft(turn, room)]
            block("So far", [], [so_far(turn, scene.view.at, room), *came])
            if rows := prompt_so_far(turn, True, room):
                block("Prompt", [], rows)
            if turn.captured:
                for title, notes, rows in blocks_in_flight(self.detail, room, h >= TALL):
                    block(title, notes, rows)
                return out
            text = "The rest is counted when it ends, and stands here then."
            block("What the counters tell", [], wrap([(text, "d")], room))
            return out
        if turn.captured:
            if self._said and self.detail is None:
                block("Request", [], wrap([("! ", "warn"), (safe(self._said), "t")], room))
                return out
            known = Looked(self.detail, self.why, self._trouble, self._explains)
            diff_key = "" if self.dashboard.pages.comparing is None else self.keymap.shown("diff")
            for title, notes, rows in blocks(turn, known, server, room, h >= TALL, diff_key=diff_key):
                block(title, notes, rows)
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
            ["means"] if turn.n > 1 else [f"exact, from {'its note' if turn.own > 1 else 'the counters'}", "exact"],
            [*table(turn, server, room), saved(turn, server, room)],
        )
        says: list[Line] = []
        if turn.n > 1:
            says += wrap([(APART, "t")], room)
        if turn.ended_at is not None:
            at = scene.view.at
            when = f"began {hms(turn.started_at, at)}, " if turn.started_at is not None else ""
            ended = f"ended {hms(turn.ended_at, at)}, as the replay noted it."
            if turn.own <= 1:
                ended = f"seen to end {hms(turn.ended_at, at)}, between two reads of /metrics."
            says += wrap([(f"{when}{ended}", "t")], room)
        block("Evidence", [], [*says, *wrap([(OWN if turn.own else UNTOLD, "d")], room)])
        return out


def _told_of(turn: Turn) -> object:
    """What its row says that its page has to be read anew for."""
    return turn.key, turn.state, turn.cached_tokens, turn.verdict, turn.finding


def _chip(turn: Turn, tone: str) -> str:
    if flying(turn):
        return "IN FLIGHT"
    if turn.finding is not None and turn.finding.tone == "unsure" and turn.finding.tells:
        return "UNSURE"
    if turn.waited:
        return "SLOW"
    if tone == "bad" and turn.finding is not None and turn.state == "done":
        return "LOOK"
    return {"bad": "FAILED", "ok": "OK", "dim": "DONE"}.get(tone, "LOOK")
