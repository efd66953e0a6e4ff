"""The tap: which ones run, what goes through, how one is started and ended, and how an agent is pointed at it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType

from kvtop.capture.control import howto
from kvtop.errors import KvtopError
from kvtop.live.desk import Desk, TapRow
from kvtop.model.view import Sentence, ServerView
from kvtop.ui import keys
from kvtop.ui.draw import Line, pick, safe, wrap
from kvtop.ui.headline import headline
from kvtop.ui.keys import Keymap
from kvtop.ui.numbers import exact, hms, pct
from kvtop.ui.screens.page import Page
from kvtop.ui.widgets.notes import FLAG, past_words, usage_words
from kvtop.ui.widgets.panel import rule

if TYPE_CHECKING:
    from kvtop.capture.control.plan import Leg
    from kvtop.capture.control.running import Running

LOG = logging.getLogger("kvtop.ui")

WHAT = (
    "A tap is a port in front of the server: agents connect to it instead, every byte is passed on as it is, and each "
    "turn is kept on this machine. It goes on when kvtop is closed."
)
USUAL_PORT = "127.0.0.1:8001"
"""What `kvtop tap` listens on unless it is told otherwise."""
ANY_PORT = "127.0.0.1:PORT"
"""As long as it is not known which port a tap would take: one that is named might be another server's."""


class TapScreen(Page):
    """Of the server that is chosen on the dashboard."""

    ON = keys.TAP
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings(keys.TAP)]

    def __init__(
        self,
        keymap: Keymap,
        desk: Desk,
        server: Callable[[], ServerView | None],
        now: Callable[[], float],
        keep_days: float,
    ) -> None:
        """`keep_days`: how long what a tap records is kept."""
        super().__init__(keymap, now)
        self.desk, self._ask, self.keep_days = desk, server, keep_days
        self.server: ServerView | None = None
        """As it was at the last tick."""
        self.chosen = 0
        """The agent whose lines are shown."""
        self.rows: tuple[TapRow, ...] = ()
        self.would: Leg | None = None
        """What the start key would start, as of the last look; None where that is not known, or nothing."""
        self.planned: Leg | None = None
        """What a second press of the start key starts."""
        self.ending: Running | None = None
        """What a second press of the stop key ends."""
        self.said: tuple[str, str] = ("", "t")
        """What came of the last key, and its style."""
        self.busy = False
        self._counting = False

    def on_mount(self) -> None:
        super().on_mount()
        self._look()

    def tick(self) -> None:
        super().tick()
        if self.is_current:
            self._look()
            self.redraw()

    def _look(self) -> None:
        self.server = self._ask()
        if not self._counting:
            self._counting = True
            self.run_worker(self._count(), name="taps", exit_on_error=False)

    async def _count(self) -> None:
        try:
            try:
                self.rows = await self.desk.rows()
            except Exception as error:  # whatever it is: how many connections there are is not known
                if not isinstance(error, KvtopError):
                    LOG.exception("counting the connections of taps failed")
                self.rows = tuple(TapRow(record) for record in self.desk.taps)
            server = self.server
            look = server is not None and self.planned is None and not self._mine()
            if server is not None and look:
                self.would = await self.desk.would(server.url)
        except KvtopError:
            self.would = None
        finally:
            self._counting = False
        self.redraw()

    def _free(self) -> Leg | None:
        """The way that the start key opens, or opened just now, to the server that is chosen."""
        way = self.planned or self.would
        return way if way is not None and self.server is not None and way.upstream.url == self.server.url else None

    # ---- keys
    def action_up(self) -> None:
        self.chosen = (self.chosen - 1) % len(howto.AGENTS)
        self.redraw()

    def action_down(self) -> None:
        self.chosen = (self.chosen + 1) % len(howto.AGENTS)
        self.redraw()

    def action_start_tap(self) -> None:
        """First say what would happen; the same key again does it."""
        server = self.server
        if self.busy or server is None:
            return
        self.ending = None
        if self.planned is None:
            self._do(partial(self._plan, server.url), "looks for a free port")
        else:
            way, self.planned = self.planned, None
            self._do(partial(self._start, way), f"starts a tap on {way.listen}")

    def action_stop_tap(self) -> None:
        if self.busy:
            return
        self.planned = None
        mine = self._mine()
        if not mine:
            self._say("no tap to this server runs", "warn")
        elif self.ending is None or self.ending not in mine:
            self.ending = mine[0]
            key = self.keymap.shown("stop-tap")
            open_ones = next((row.connections for row in self.rows if row.record == self.ending), None)
            held = f", {exact(open_ones)} open now" if open_ones else ""
            self._say(
                f"{key} again ends {safe(self.ending.name)}: open answers have {self.ending.drain_s:.0f} s to finish"
                f"{held}; agents that are pointed at it reach no server then",
                "warn",
            )
        else:
            record, self.ending = self.ending, None
            self._do(
                partial(self._stop, record),
                f"ends {record.name}: waits for open answers, {record.drain_s:.0f} s at most",
            )

    def _do(self, work: Callable[[], Awaitable[str]], meanwhile: str) -> None:
        self.busy = True
        self._say(meanwhile, "t")
        self.run_worker(self._done(work), name="tap", group="tap", exit_on_error=False)

    async def _done(self, work: Callable[[], Awaitable[str]]) -> None:
        try:
            self._say(await work(), "t")
        except KvtopError as error:
            self._say(f"{error.what}{f': {error.fix}' if error.fix else ''}", "bad")
        finally:
            self.busy = False
        self._look()

    async def _plan(self, url: str) -> str:
        self.planned = way = await self.desk.planned(url)
        key = self.keymap.shown("start-tap")
        days = f"{self.keep_days:g} day{'' if self.keep_days == 1 else 's'}"
        return (
            f"{key} again starts a tap: http://{way.listen} in front of {way.upstream.url}. It goes on without kvtop, "
            f"and keeps requests and answers on this machine, readable by you alone, for {days}."
        )

    async def _start(self, way: Leg) -> str:
        return await self.desk.start(way)

    async def _stop(self, record: Running) -> str:
        return await self.desk.stop(record)

    def _say(self, text: str, style: str) -> None:
        self.said = text, style
        self.redraw()

    def _mine(self) -> list[Running]:
        """The taps to the server that is chosen."""
        server = self.server
        listens = self.desk.listens(server.url) if server is not None else ()
        return [r for r in self.desk.taps if any(mapped.listen in listens for mapped in r.mappings)]

    # ---- painting
    def head(self, w: int) -> list[Line]:
        server, mine = self.server, self._mine()
        if server is None:
            return headline(Sentence("TAP", "dim", "No server is known.", "A tap needs one."), [], w)
        label = safe(server.label)
        if not mine and server.tap is not None and server.tap.by_itself:
            rest = "this simulated box tells its turns itself, as a tap in front of a server would."
            return headline(Sentence("TAP", "dim", f"No tap to {label} runs:", rest), [], w)
        if not mine:
            before = server.tap.captured if server.tap is not None else 0
            rest = f"Its turns are not captured{f'; captured before: {exact(before)}' if before else ''}."
            return headline(Sentence("TAP", "dim", f"No tap to {label} runs.", rest), [], w)
        tap = server.tap
        listens = ", ".join(self.desk.listens(server.url))
        if tap is not None and tap.by_itself:
            rest = "the simulated box tells its own turns; those that go through the tap are in kvtop turns."
            return headline(Sentence("TAP", "ok", f"{listens} is in front of {label}:", rest), [], w)
        first = f"{listens} is in front of {label}."
        past = past_words(tap) if tap is not None else []
        captured = f"{exact(tap.captured)} turn{'' if tap.captured == 1 else 's'} captured." if tap is not None else ""
        tone = "warn" if past else "ok"
        share = (
            f"{pct(tap.share)} of the prompt tokens go through it." if tap is not None and tap.share is not None else ""
        )
        rest = f"{past[0][0].upper()}{past[0][1:]}." if past else share
        return headline(Sentence("TAP", tone, first, f"{captured} {rest}".strip()), [], w)

    def lines(self, w: int, h: int) -> list[Line]:
        out: list[Line] = []
        if self.said[0]:
            mark = {"bad": "× ", "warn": "! "}.get(self.said[1], "› ")
            out += [
                [(" ", "t"), *row] for row in wrap([(mark, self.said[1]), (safe(self.said[0]), "bright")], w - 2, 2)
            ]
        n = len(self.rows)
        runs = f"{n} run{'s' if n == 1 else ''}" if n else "none runs"
        out += [
            rule("Taps of this machine", w, [(f"{runs}, none to this server" if n and not self._mine() else runs, "d")])
        ]
        for row in self.rows:
            out += self._tap(row, w)
        if not self._mine():
            out += self._offer(w)
        server = self.server
        if server is not None and server.tap is not None and server.tap.no_details:
            flag = f"This server tells no cached tokens of a request; {FLAG} in its command line lets it."
            out += [[(" ", "t"), *row] for row in wrap([(flag, "d")], w - 2)]
        if server is not None and server.tap is not None and (said := usage_words(server.tap)):
            out += [[(" ", "t"), *row] for row in wrap([(f"{said[0]}.", "d")], w - 2)]
        return [*out, *self._how(w)]

    def _tap(self, row: TapRow, w: int) -> list[Line]:
        record = row.record
        at = _local(record.since, self.now())
        held = "" if row.connections is None else f", {exact(row.connections)} open now"
        kind = "detached" if record.log is not None else "in the foreground of a terminal"
        keeps = "" if record.store is not None else ", records nothing"
        mine = record in self._mine()
        out: list[Line] = []
        for mapped in record.mappings:
            way = f"http://{safe(mapped.listen)} → {safe(mapped.upstream)}"
            out.append([(" ", "t"), (way, "bright" if mine else "t")])
        facts = [f"process {record.pid}, {kind}, since {at}{held}{keeps}", f"process {record.pid}, since {at}{held}"]
        out.append([("   ", "t"), (pick(facts, w - 4), "d")])
        if record.missed is not None and record.missed.unwritten is not None:
            waits = f"turns wait: the store cannot be written: {safe(record.missed.unwritten)}"
            out += [[("   ", "t"), *line] for line in wrap([("! ", "warn"), (waits, "bright")], w - 4, 2)]
        return out

    def _offer(self, w: int) -> list[Line]:
        server = self.server
        key = self.keymap.shown("start-tap")
        url = server.url if server is not None else "URL"
        way = self._free()
        listen = f" --listen {way.listen}" if way is not None and way.listen != USUAL_PORT else ""
        rows = wrap([(WHAT, "t")], w - 2)
        says: Line = [
            (key, "t bold"),
            (" starts one; so does ", "d"),
            (f"kvtop tap --upstream {safe(url)}{listen} --detach", "t"),
        ]
        return [[(" ", "t"), *row] for row in (*rows, *wrap(says, w - 2))]

    def _how(self, w: int) -> list[Line]:
        agent = howto.AGENTS[self.chosen]
        place = (
            f"{self.chosen + 1} of {len(howto.AGENTS)}, {self.keymap.shown('up')} {self.keymap.shown('down')} choose"
        )
        out = [rule(f"Point {agent.title.partition(' (')[0]} at it", w, [(place, "d")])]
        names: Line = []
        for i, one in enumerate(howto.AGENTS):
            names += [("  " if names else "", "d"), (one.name, "bright ul" if i == self.chosen else "d")]
        out += [[(" ", "t"), *row] for row in wrap(names, w - 2)]
        for line in howto.lines(agent, self._known()).splitlines():
            if line.startswith("#"):  # a remark, not to be copied
                out += [[(" ", "t"), *row] for row in wrap([(safe(line), "d")], w - 2, 2)]
            else:
                out += [[(" ", "t"), (safe(part), "t")] for part in _broken(line, w - 1)]
        return out

    def _known(self) -> howto.Known:
        server = self.server
        listens = self.desk.listens(server.url) if server is not None else ()
        model = server.models[0] if server is not None and server.models else None
        way = self._free()
        base = f"http://{listens[0] if listens else way.listen if way is not None else ANY_PORT}"
        return howto.Known(base, model.id if model else None, model.max_model_len if model else None)


def _broken(line: str, w: int) -> list[str]:
    """A line to copy in rows: it goes on under itself, and nothing of it is left out."""
    return [line[i : i + w] for i in range(0, len(line), w)] or [""]


def _local(text: str, now: float) -> str:
    try:
        return hms(datetime.fromisoformat(text).timestamp(), now)
    except ValueError:
        return safe(text)
