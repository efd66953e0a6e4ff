"""The diff of two turns: where the prompts part, what that cost, and both texts, token by token."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual.binding import BindingType

from kvtop.errors import KvtopError
from kvtop.model.view import Sentence
from kvtop.triage.sheet import Sheet
from kvtop.ui import keys
from kvtop.ui.diff import table, words
from kvtop.ui.diff.blocks import What
from kvtop.ui.diff.document import Document
from kvtop.ui.diff.layout import ABOVE, OF_THE_CHANGE, Layout, Place
from kvtop.ui.diff.rows import Row, View
from kvtop.ui.draw import Line, safe, wrap
from kvtop.ui.headline import headline
from kvtop.ui.keys import Keymap
from kvtop.ui.numbers import exact, secs
from kvtop.ui.screens.page import LEFT_S, Page

LOG = logging.getLogger("kvtop.ui")
SIDE_BY_SIDE = 120
"""From so many cells on both prompts stand beside each other, unless its reader chose."""
NARROWEST = 60
"""Below that they never do."""
SAID_AFTER_S = 2.0
"""So long nobody wonders how long it takes."""


class DiffScreen(Page):
    """It opens with the first difference; only what is looked at is laid out."""

    ON = keys.DIFF
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings(keys.DIFF)]

    def __init__(
        self,
        keymap: Keymap,
        load: Callable[[], Awaitable[Sheet]],
        now: Callable[[], float],
        *,
        title: str = "",
        agent: str = "",
        replay: Callable[[], object] | None = None,
    ) -> None:
        """`load` may raise KvtopError, which is shown; going back cancels it. `title`: what is told of it before it is
        loaded. `replay` opens the replay of both; None: there is none."""
        super().__init__(keymap, now)
        self._load, self._title, self._agent = load, safe(title), agent
        self._replay = replay
        self.doc: Document | None = None
        self.said: tuple[str, str] | None = None
        """Why it cannot be shown, and what to do about it."""
        self._since = now()
        self.side: bool | None = None
        """Both prompts beside each other; None: where there is room."""
        self.parted = False
        """Each token is told apart."""
        self.opened: frozenset[int] = frozenset()
        """Where folds begin that are open."""
        self.current: int | None = None
        """The change that was gone to; None: whichever is in view."""
        self._layout: Layout | None = None
        self._laid_for: tuple[object, ...] = ()
        self._place: Place | None = None
        """None: as it opens."""
        self._seen: list[Row] = []
        self._causes: dict[int, int] = {}
        """Rows of the screen that a cause stands in."""

    # ---- reading
    def on_mount(self) -> None:
        super().on_mount()
        self.run_worker(self._read(), name="diff", exit_on_error=False)

    async def _read(self) -> None:
        await asyncio.sleep(LEFT_S)  # a page that is left ends what it began
        try:
            self.doc = Document(await self._load())
        except KvtopError as error:
            self.said = (error.what, error.fix)
        except Exception as error:
            LOG.exception("the diff failed")
            self.said = (f"kvtop's own diff failed ({type(error).__name__})", "kvtop --debug tells more")
        self.set_foot()
        self.redraw()

    def tick(self) -> None:
        super().tick()
        if self.doc is None and self.said is None:
            self.redraw()

    # ---- painting
    def head(self, w: int) -> list[Line]:
        """The sentence; before there is a sheet, what is done or why there is none."""
        if self.doc is None:
            first = f"{self._title}:" if self._title else "Two prompts:"
            tone, rest = "dim", "reads both prompts"
            waited = self.now() - self._since
            if self.said is not None:
                tone, rest = "bad", "cannot be shown"
            elif waited >= SAID_AFTER_S:
                rest += f", for {secs(waited)} now"
            return headline(Sentence(words.CHIP, tone, first, rest), [], w)
        sheet = self.doc.sheet
        return headline(words.sentence(sheet, self.doc.places), words.contexts(sheet, self._agent), w)

    def rows_seen(self, w: int, h: int) -> list[Line]:
        out = self.head(w)[:h]
        before, self._seen, self._causes, self._rows = self._seen, [], {}, 0
        if self.doc is None:
            if self.said is not None:
                what, fix = self.said
                rows = wrap([("× ", "bad"), (safe(what), "t")], max(1, w - 1), 2)
                rows += wrap([(safe(fix), "d")], max(1, w - 1)) if fix else []
                out += [[], *([(" ", "t"), *row] for row in rows)]
            return out[:h]
        out += self._over(self.doc, w, h, len(out))
        self._rows = max(0, h - len(out) - 1)
        if not self._rows:
            self._seen = before
            return out[:h]
        layout = self._laid_out(self.doc, w, before)
        if self._place is not None:
            self._place = layout.settled(self._place, self._rows)
        self._seen = layout.seen(layout.opening(self._rows) if self._place is None else self._place, self._rows)
        out.append(self._titles(self.doc, layout))
        self._top = len(out)
        return [*out, *(row.line for row in self._seen)]

    def _over(self, doc: Document, w: int, h: int, above: int) -> list[Line]:
        """The bar, the causes and the notes, as far as the screen has room for them."""
        out: list[Line] = []
        if h >= 14:
            out += [[(" ", "t"), *row] for row in words.bar(doc.sheet, doc.places, w - 2)]
        if h >= 17:
            most = 2 if h < 20 else 3 if h < 28 else 5 if h < 40 else 9
            rows = table.causes(doc.sheet, doc.places, w, most)
            told = len(doc.sheet.diff.causes)
            shown = told if told <= most else most - 1
            self._causes = {above + len(out) + 1 + n: n for n in range(shown)}
            out += rows
            out += table.notes(doc.sheet, w, 1 if h < 30 else 3)
        return out

    def _laid_out(self, doc: Document, w: int, before: list[Row]) -> Layout:
        """The layout of what is chosen. `before`: the rows that were seen; what was looked at stays where it was."""
        view = View(w, self._is_side(w), self.parted and doc.sheet.tokens)
        wanted = (view, self.opened)
        if self._layout is None or self._laid_for[:2] != wanted:
            self._layout = Layout(doc, view, self.opened)
        if self._place is not None and before and self._laid_for != (*wanted, self._rows):
            y = self._looked_at(doc, before) if self._laid_for[1:2] == (self.opened,) else 0  # what unfolds grows down
            up = min(y, max(0, self._rows - OF_THE_CHANGE))
            self._place = self._layout.moved(self._layout.find(before[y]), -up)
        self._laid_for = (*wanted, self._rows)
        return self._layout

    def _looked_at(self, doc: Document, seen: list[Row]) -> int:
        """The row at which the change begins that was gone to, else the first one in view, else the first row."""
        changed = [n for n, row in enumerate(seen) if not row.block.what.equal]
        wanted = doc.places.changes[self.current] if self.current is not None else -1
        return next((n for n in changed if seen[n].block.hunk == wanted), changed[0] if changed else 0)

    def _is_side(self, w: int) -> bool:
        wanted = w >= SIDE_BY_SIDE if self.side is None else self.side
        return wanted and w >= NARROWEST

    def _titles(self, doc: Document, layout: Layout) -> Line:
        # the names are the new prompt's: beside each other they stand over the old one, which has not all of it
        side = layout.view.side
        pieces = [row.new for row in self._seen if row.new >= 0 and (row.old >= 0 or not side)]
        where = doc.places.sections(pieces[0], pieces[-1]) if pieces else ""
        return words.titles(doc.sheet, layout.view, where, self._ahead(doc, layout))

    def _ahead(self, doc: Document, layout: Layout) -> list[str]:
        """Which change is looked at, and where the next one is; what was appended at the end is none of them."""
        changes = doc.places.changes[: doc.changed]
        if not self._seen or not changes:
            return []
        now, many = max(0, self._now(layout)), len(changes)
        if now >= many:
            return [
                f"appended, behind {f'{exact(many)} changes' if many > 1 else 'the only change'}",
                "no change below",
            ]
        if many == 1:
            return ["the only change", "no change below"]
        n = f"change {now + 1} of {exact(many)}, "
        if now + 1 == many:
            return [f"{n}none further down", "no change below"]
        piece = doc.sheet.hunks[changes[now + 1]].new.start
        if doc.sheet.tokens:
            at = exact(doc.number(piece, new=True) if piece < len(doc.sheet.new) else doc.sheet.diff.tokens.new)
            return [f"{n}next at {at}", f"next change at {at}", f"next {at}"]
        section = safe(doc.places.section(piece))
        return [f"{n}next in {section}", f"next change in {section}", "more below"] if section else ["more below"]

    # ---- what can be done
    def hidden_keys(self) -> frozenset[str]:
        """What means nothing here just now."""
        none = frozenset({"replay"}) if self._replay is None else frozenset()
        if self.doc is None:
            return keys.OF_THE_DIFF | none
        sheet, hidden = self.doc.sheet, set(none)
        if not self.doc.places.changes:
            hidden |= {"next-change", "previous-change"}
        if not sheet.tokens:
            hidden.add("tokens")
        if self.size.width < NARROWEST:
            hidden.add("side")
        hidden |= {cause for n, cause in enumerate(keys.CAUSES) if n >= len(sheet.diff.causes)}
        return frozenset(hidden)

    def on_resize(self, event: object) -> None:
        self.set_foot()
        self.redraw()

    def _where(self) -> tuple[Layout, Place] | None:
        """The layout on the screen and the place of its first row; None while nothing is shown."""
        if self._layout is None or not self._rows:
            return None
        return self._layout, self._layout.opening(self._rows) if self._place is None else self._place

    def _now(self, layout: Layout) -> int:
        """The change that its reader looks at; -1: what is before the first one."""
        if self.current is not None:
            return self.current
        if self._place is None:
            return 0
        return layout.change_at(layout.moved(self._place, min(ABOVE, self._rows - 1)))

    def _to(self, place: Place, current: int | None = None) -> None:
        self._place, self.current = place, current
        self.redraw()

    def scroll_lines(self, lines: int) -> None:
        if (where := self._where()) is not None:
            layout, place = where
            self._to(layout.settled(layout.moved(place, lines), self._rows))

    def action_first(self) -> None:
        self._to((0, 0))

    def action_last(self) -> None:
        if (where := self._where()) is not None:
            self._to(where[0].last(self._rows))

    def action_next_change(self) -> None:
        self._step(1)

    def action_previous_change(self) -> None:
        self._step(-1)

    def _step(self, by: int) -> None:
        where = self._where()
        if where is None or self.doc is None or not self.doc.places.changes:
            return
        layout, place = where
        n = self._now(layout)
        inside = self.current is None and n >= 0 and layout.change(n) < layout.moved(place, ABOVE)
        n = n if by < 0 and inside and self._place is not None else n + by
        n = max(0, min(n, len(self.doc.places.changes) - 1))
        self._to(layout.gone_to(n, self._rows), n)

    def action_cause(self, n: int) -> None:
        """To where the n-th cause stands, from 1."""
        where = self._where()
        if where is None or self.doc is None or not 0 < n <= len(self.doc.places.at_cause):
            return
        change = self.doc.places.at_cause[n - 1]
        if change is None:
            self._to((0, 0))  # it is of the request, and told before its text
        else:
            self._to(where[0].gone_to(change, self._rows), change)

    def action_replay(self) -> None:
        if self._replay is not None:
            self._replay()

    def action_side(self) -> None:
        self.side = not self._is_side(self.size.width)
        self.redraw()

    def action_tokens(self) -> None:
        self.parted = not self.parted
        self.redraw()

    def action_fold(self) -> None:
        """Open the folds that are in view; where there is none, close them all."""
        self._keep()
        folds = {row.block.new.start for row in self._seen if row.block.what is What.FOLD}
        self.opened = self.opened | folds if folds else frozenset()
        self.redraw()

    def _keep(self) -> None:
        """What is on top stays there."""
        if self._place is None and (where := self._where()) is not None:
            self._place = where[1]

    def clicked(self, x: int, y: int) -> None:
        """A fold opens, a cause is gone to."""
        if y in self._causes:
            self.action_cause(self._causes[y] + 1)
        elif self._seen and 0 <= y - self._top < len(self._seen):
            block = self._seen[y - self._top].block
            if block.what is What.FOLD:
                self._keep()
                self.opened |= {block.new.start}
                self.redraw()
