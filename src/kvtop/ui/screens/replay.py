"""A turn and the one before it once more, to their server when it is idle: what that costs, and what came of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType

from kvtop.errors import KvtopError
from kvtop.model.view import Sentence
from kvtop.ui import keys
from kvtop.ui.draw import Line, pick, safe
from kvtop.ui.headline import headline
from kvtop.ui.keys import Keymap
from kvtop.ui.numbers import secs
from kvtop.ui.screens.page import Page
from kvtop.ui.watching import Sending
from kvtop.ui.widgets.panel import rule

if TYPE_CHECKING:
    from kvtop.live.replaying import Offer
    from kvtop.triage.kinds import Kind
    from kvtop.triage.replayed import Replayed, Run

LOG = logging.getLogger("kvtop.ui")
CHIP = "REPLAY"
SAID_AFTER_S = 2.0
"""So long nobody wonders how long it takes."""
WIDEST = 110
"""Cells of a row: wider ones are hard to follow."""


class ReplayScreen(Page):
    """It works out the cost, and waits to be told to send. Going back ends what it does."""

    ON = keys.REPLAY
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings(keys.REPLAY)]

    def __init__(self, keymap: Keymap, sender: Sending, id: int, now: Callable[[], float]) -> None:
        super().__init__(keymap, now)
        self.sender, self.turn_id = sender, id
        self.offer: Offer | None = None
        self.runs: list[Run] = []
        self.found: Replayed | None = None
        self.said: tuple[str, str] | None = None
        """Why it cannot be done, and what to do about it."""
        self.working = ""
        """plans or sends; empty: nothing is done."""
        self._since = now()
        """When that began, or the request that is sent just now."""
        self._kind: Kind | None = None
        """Without which both are sent, too."""
        self._hasty = False
        """A key was pressed for what can be done only when the cost is known."""

    def on_mount(self) -> None:
        super().on_mount()
        self._plan()

    def tick(self) -> None:
        super().tick()
        if self.working:
            self.redraw()

    def on_unmount(self) -> None:
        """Textual has cancelled the work with its screen; what had been sent by then is told."""
        if self.working != "sends":
            return
        found = self.sender.so_far()
        said = found.sentence if found is not None else "nothing was sent"
        self.app.notify(f"replay of turn {self.turn_id}: {said}", severity="warning", timeout=10, markup=False)

    # ---- working
    def _begin(self, working: str) -> None:
        self.working, self._since, self.said, self._hasty = working, self.now(), None, False
        self.set_foot()
        self.redraw()

    def _end(self) -> None:
        self.working = ""
        self.set_foot()
        self.redraw()

    def _plan(self) -> None:
        self.runs, self.found = [], None
        self._begin("plans")
        self.run_worker(self._planned(), name="replay", group="replay", exclusive=True, exit_on_error=False)

    async def _planned(self) -> None:
        from kvtop.triage.replay import refused

        try:
            self.offer = offer = await self.sender.offer(self.turn_id, () if self._kind is None else (self._kind,))
            if not offer.plan.idle:
                busy = refused(offer.plan)
                self.said = busy.what, busy.fix
        except KvtopError as error:
            self.said = error.what, error.fix
        except Exception as error:
            LOG.exception("planning a replay failed")
            self.said = f"kvtop's own replay failed ({type(error).__name__})", "kvtop --debug tells more"
        self._end()

    async def _sent(self, offer: Offer) -> None:
        try:
            self.found = await self.sender.send(offer, self._told)
        except KvtopError as error:
            self.said = error.what, error.fix
            self.found = self.sender.so_far() if self.runs else None
        except Exception as error:
            LOG.exception("a replay failed")
            self.said = f"kvtop's own replay failed ({type(error).__name__})", "kvtop --debug tells more"
        self._end()

    def _told(self, run: Run) -> None:
        self.runs.append(run)
        self._since = self.now()
        self.redraw()

    # ---- what can be done
    @property
    def ready(self) -> bool:
        """It can be sent."""
        idle = self.offer is not None and self.offer.plan.idle
        return idle and not self.working and self.found is None and self.said is None

    def hidden_keys(self) -> frozenset[str]:
        if self.working:
            return frozenset({"send", "with-fix"})
        return frozenset() if self.offer is not None and self.offer.pair.kinds else frozenset({"with-fix"})

    def action_send(self) -> None:
        """Send it; where it cannot be sent, or was, look what it would cost now."""
        if self._too_soon():
            return
        if not self.ready or self.offer is None:
            self._plan()
            return
        self._begin("sends")
        self.run_worker(self._sent(self.offer), name="replay", group="replay", exclusive=True, exit_on_error=False)

    def _too_soon(self) -> bool:
        """Something is done already; a key that has to be pressed again is told of."""
        if self.working == "plans":
            self._hasty = True
            self.redraw()
        return bool(self.working)

    def action_with_fix(self) -> None:
        """Also without the next cause that can be repaired; behind the last one without none."""
        if self._too_soon() or self.offer is None or not self.offer.pair.kinds:
            return
        order: list[Kind | None] = [None, *self.offer.pair.kinds]
        at = order.index(self._kind) if self._kind in order else 0
        self._kind = order[(at + 1) % len(order)]
        self._plan()

    # ---- painting
    def head(self, w: int) -> list[Line]:
        who = f"Turn {self.turn_id} and the one before it, once more"
        if self.offer is not None:
            who = f"{safe(self.offer.pair.old).capitalize()} and {safe(self.offer.pair.new)} once more"
        tone, rest = self._doing()
        context = [] if self.offer is None else [f"to {safe(self.offer.plan.url)}"]
        return headline(Sentence(CHIP, tone, f"{who}:", rest), context, w)

    def _doing(self) -> tuple[str, str]:
        """Tone, and what is done or was."""
        key, waited = self.keymap.shown("send"), self.now() - self._since
        if self.working == "plans" and self._hasty:
            return "warn", "still working out what it would cost: nothing is sent, press the key again then."
        if self.working == "plans":
            return "dim", "works out what it would cost" + (
                f", for {secs(waited)} now" if waited >= SAID_AFTER_S else ""
            )
        if self.working:
            return "dim", f"request {len(self.runs) + 1} is sent; {self.keymap.shown('back')} breaks it off."
        if self.said is not None:
            return "bad", f"cannot be done; {key} looks again."
        if self.found is not None:
            return "ok", f"done; {key} looks what another one would cost."
        return "warn", f"nothing was sent yet. {key} sends it, {self.keymap.shown('back')} does not."

    def lines(self, w: int, h: int) -> list[Line]:
        from kvtop.ui import replay_words as words

        room, out = w - 1, []

        def block(title: str, notes: list[str], rows: list[Line]) -> None:
            note = pick([*notes, ""], w - len(title) - 6)
            out.append(rule(title, w, [(note, "d")] if note else None))
            out.extend([(" ", "t"), *row] for row in rows)

        if self.said is not None:
            block("Why not", [], words.trouble(*self.said, room))
        if self.found is not None:
            block("Result", [self.found.verdict.value.replace("_", " ")], words.result(self.found, room))
        if self.offer is None:
            return out
        if self.found is None and not self.runs:
            block("What it costs", [], words.cost(self.offer, room))
        counted = [] if self.offer.plan.counted else ["tokens are guessed from bytes"]
        since = self.now() - self._since if self.working == "sends" else None
        block("Requests", counted, words.rows(self.offer, self.runs, since, min(room, WIDEST)))
        if not self.working:
            block("Repair", [], words.fixes(self.offer, self.keymap.shown("with-fix"), room))
        return out
