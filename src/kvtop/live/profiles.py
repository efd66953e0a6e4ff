"""The profiles, followed: a loop of its own, every look in a thread, one frozen view for the screen.

What a start has come to is read from its record and its log, which its keeper writes: so it is the same after kvtop was
closed and opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvtop.clock import Clock
from kvtop.errors import KvtopError, printable
from kvtop.live import errands
from kvtop.live.endpoint import Sleep, rest
from kvtop.live.errands import Done
from kvtop.live.failures import Failures, keep_answer
from kvtop.live.profile_asks import InTheWay, family, in_the_way, running, url_of
from kvtop.live.profile_view import Figures, Looking, ProfilesView
from kvtop.live.work import called
from kvtop.readings import VllmProcess
from kvtop.worker import Caller

if TYPE_CHECKING:
    from kvtop.profiles.check.report import Report
    from kvtop.profiles.folder import Entry
    from kvtop.profiles.standing import Standing

LOG = logging.getLogger("kvtop.live")

PASSING = ("port_taken", "gpu_overlap", "vram_held", "health_answered_by_other", "program_missing")
"""Rules of what others hold just now, or have stopped, as the daemon of docker: that ends without a word."""
BUSY_S, SEEN_S, IDLE_S = 0.5, 1.0, 3.0
"""Between two looks: while a server starts or stops, while the page is open, else."""
LOOK_S = 30.0
"""A look that takes longer is given up."""
CHECK_S = 180.0
"""vLLM may be asked for its flags, which takes it a minute or two."""
RUNS = ("starting", "running", "stopping", "foreign")
"""What a profile's own server holds is no obstacle to it."""
AGAIN_S = 5.0
"""A check that found something in the way is made again after so long: who listens, or starts, may have changed."""
FRESH_S = 5.0
MISSED_CELLS = 160
"""Of a cause, in a line that is told once: the page has all of it."""
KEEP_S = 30.0
"""Figures are written to disk at most so often."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What check says of a profile, here and now."""

    profile: str
    report: Report | None = None
    error: str = ""
    """Why there is no report."""
    working: bool = False
    """It is being worked out; an earlier report may stand meanwhile."""
    asks_vllm: bool = False
    """It waits for vLLM's own help."""
    of: object = None
    """What it was worked out from."""
    restart: bool = False
    """As it will be when its own server is gone."""


class Profiles:
    """`run` until cancelled; `view` and `checked` are what is known now."""

    def __init__(
        self,
        made: Callable[[], Looking],
        worker: Callable[[str], Caller],
        clock: Clock,
        sleep: Sleep,
        *,
        processes: Callable[[], Sequence[VllmProcess]] = tuple,
        machine: Callable[[], object] = lambda: None,
        figures: Callable[[], Mapping[str, Figures]] = dict,
        missed: Callable[[str, bool], None] = lambda words, shown: None,
    ) -> None:
        """`made` makes what looks, in its thread. `processes`: the vLLM processes of this machine as of the last look
        at it; `machine`: what a check hangs on besides the profile, equal as long as nothing of it changed; `figures`:
        what is seen of profiles' servers now; `missed` is told of starts that failed, which the page shows as well
        (True), and what went wrong with an errand that nobody waits for any more (False)."""
        self.view = ProfilesView()
        self.checked: Checked | None = None
        """Of the profile that is looked at, or was last."""
        self.reports: dict[str, Report] = {}
        """The last one of each profile whose file has not changed since."""
        self._reported_of: dict[str, object] = {}
        """What each was worked out from."""
        self.failures = Failures()
        self._doing: list[str] = []
        self._made, self._clock, self._sleep = made, clock, sleep
        self._processes, self._machine, self._figures, self._missed = processes, machine, figures, missed
        self._errands: set[asyncio.Task[Any]] = set()
        self._looker, self._checker = worker("profiles"), worker("profile-check")
        self._asked = worker("profile-check-asked")
        """For what a key asks, which waits for no check that goes on by itself."""
        self._worker = worker
        self._looking: Looking | None = None
        self._chosen: str | None = None
        self._wake = asyncio.Event()
        self._wanted = asyncio.Event()
        """A check is wanted."""
        self._thoroughly = False
        self._begun = self._ended = 0
        """Looks that were begun; the last one that is over."""
        self._looked = asyncio.Event()
        self._running = False
        self._kept_at = self._checked_at = 0.0
        self._changed: Callable[[], None] = lambda: None

    # ---- the loop
    async def run(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        checks = asyncio.create_task(self._check())
        self._running = True
        try:
            while True:
                await self._look()
                busy = any(row.state in ("starting", "stopping") for row in self.view.rows) or self.doing
                await rest(self._sleep, BUSY_S if busy else SEEN_S if self._chosen is not None else IDLE_S, self._wake)
                self._wake.clear()  # not before: a look that was asked for during the last one is still to come
        finally:
            self._running = False
            checks.cancel()
            await asyncio.gather(checks, return_exceptions=True)

    async def fresh(self) -> None:
        """Wait for a look that begins now, but not for ever; while nobody runs it, for none."""
        if not self._running:
            return
        wanted = self._begun + 1
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FRESH_S):
                while self._ended < wanted:
                    self._looked.clear()
                    await self._looked.wait()

    async def _look(self) -> None:
        self._begun += 1
        begun = self._begun
        try:
            await self._looked_at()
        finally:
            self._ended = begun
            self._looked.set()

    async def _looked_at(self) -> None:
        chosen, processes, figures = self._chosen, tuple(self._processes()), dict(self._figures())
        keep = bool(figures) and self._clock.mono() - self._kept_at >= KEEP_S

        def look() -> ProfilesView:
            if self._looking is None:
                self._looking = self._made()
            if keep:
                self._looking.keep(figures)
            return self._looking.look(chosen, processes)

        try:
            view = await called(self._looker, look, LOOK_S, f"no answer for {LOOK_S:g} s; what is shown is old")
        except KvtopError as error:
            view = replace(self.view, error=error.what)
        except Exception as error:
            LOG.exception("looking at the profiles failed")
            view = replace(self.view, error=f"kvtop itself failed at it: {type(error).__name__}; what is shown is old")
        if keep:
            self._kept_at = self._clock.mono()
        before, self.view = self.view, view
        for row in self.failures.news(view):
            why = row.record.why if row.record is not None else ""
            self._missed(f"{printable(row.name, 80)} did not start: {printable(why, MISSED_CELLS)}", True)
        for row in before.rows:
            now = view.row(row.name)
            if now is None or now.known != row.known:
                self.reports.pop(row.name, None)
                self._reported_of.pop(row.name, None)
        if _without_time(view) != _without_time(before) or view.starting is not None:
            self._changed()
        if self._stale() or self._unasked() is not None:
            self._wanted.set()

    # ---- what the page looks at
    def choose(self, name: str | None) -> None:
        """The profile that is looked at; None: the page is closed."""
        if name != self._chosen:
            self._chosen = name
            self._wake.set()
            if self._stale():
                self._wanted.set()

    def look_soon(self) -> None:
        self._wake.set()

    # ---- check
    def check_again(self) -> None:
        """Also asking vLLM for its flags, where they are not known."""
        self._thoroughly = True
        self._wanted.set()

    def _basis(self, row: Standing) -> object:
        states = tuple((one.name, one.state, one.pid) for one in self.view.rows)
        return (row.known, states, self._machine())

    def _stale(self) -> bool:
        row = self.view.row(self._chosen) if self._chosen is not None else None
        if row is None or not row.known.runner:
            return False
        done = self.checked
        if done is None or done.profile != row.name or done.of != self._basis(row):
            return True
        in_the_way = done.report is not None and any(one.rule in PASSING for one in done.report.findings)
        return not done.working and in_the_way and self._clock.mono() - self._checked_at >= AGAIN_S

    async def _check(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            thoroughly, self._thoroughly = self._thoroughly, False
            row = self.view.row(self._chosen) if self._chosen is not None else None
            if row is None or not (thoroughly or self._stale()):
                if (other := self._unasked()) is not None:
                    await self._check_beside(other)
                continue
            before = self.checked
            kept = before.report if before is not None and before.profile == row.name else None
            basis, mine = self._basis(row), row.state in RUNS
            self.checked = Checked(row.name, kept, working=True, of=basis, restart=mine)
            self._changed()
            try:
                made = await self._report(
                    self._checker, row, row if mine else None, ask_vllm=thoroughly, asking=self._waits_for_vllm
                )
                made = _but_its_own(made) if mine else made
                self._checked_at = self._clock.mono()
                self.checked = Checked(row.name, made, of=basis, restart=mine)
                self.reports[row.name], self._reported_of[row.name] = made, basis
            except KvtopError as error:
                self.checked = Checked(row.name, None, error.what, of=basis, restart=mine)
            except Exception as error:
                LOG.exception("checking %s failed", row.name)
                what = f"kvtop's own check failed ({type(error).__name__}); kvtop --debug tells more"
                self.checked = Checked(row.name, None, what, of=basis, restart=mine)
            self._changed()

    def _waits_for_vllm(self) -> None:
        if self.checked is not None and self.checked.working:
            self.checked = replace(self.checked, asks_vllm=True)
            self._changed()

    def _unasked(self) -> Standing | None:
        """While the page is open, another profile whose report is missing or of another machine; one a look."""
        if self._chosen is None:
            return None
        rows = [
            row for row in self.view.rows
            if row.known.runner not in ("", "attach") and not row.known.problem and row.name != self._chosen
            and self._reported_of.get(row.name) != self._basis(row)
        ]  # fmt: skip
        return min(rows, key=lambda row: row.name in self.reports, default=None)

    async def _check_beside(self, row: Standing) -> None:
        """For its row in the list; what goes wrong with it is told when it is chosen."""
        basis, mine = self._basis(row), row.state in RUNS
        self._reported_of[row.name] = basis
        try:
            made = await self._report(self._checker, row, row if mine else None, ask_vllm=False)
            self.reports[row.name] = _but_its_own(made) if mine else made
        except KvtopError:
            return
        except Exception:
            LOG.exception("checking %s failed", row.name)
            return
        self._changed()

    async def report(
        self, row: Standing, *, replacing: Standing | None, asking: Callable[[], None] = lambda: None
    ) -> Report:
        """What check says before a start. `replacing`: whose server is ended first; `asking` is called where vLLM has
        to be asked for its flags, which takes it a minute or two. Raises KvtopError."""
        return await self._report(self._asked, row, replacing, ask_vllm=True, asking=asking)

    async def _report(
        self,
        worker: Caller,
        row: Standing,
        replacing: Standing | None,
        *,
        ask_vllm: bool,
        asking: Callable[[], None] = lambda: None,
    ) -> Report:
        looking, name = self._looking, row.name
        loop = asyncio.get_running_loop()

        def work() -> Report:
            from kvtop.profiles.check import report

            going = family(replacing) if replacing is not None else None
            entry = looking.entry(name) if looking is not None else None
            if entry is None:
                raise KvtopError(f"{name}: its file is gone")
            return report(entry, replacing=going, ask_vllm=ask_vllm, asking=lambda program: _told(loop, asking))

        late = f"check has not answered for {CHECK_S:g} s"
        return await called(worker, work, CHECK_S, late, "another check is still under way")

    async def in_the_way(self, row: Standing) -> tuple[InTheWay, ...]:
        """The servers that kvtop did not start, and that hold the port or a card of this profile. Raises KvtopError."""
        looking, name = self._looking, row.name
        entries = [found for one in self.view.rows if (found := self.entry(one.name)) is not None]

        def work() -> tuple[InTheWay, ...]:
            entry = looking.entry(name) if looking is not None else None
            if entry is None:
                raise KvtopError(f"{name}: its file is gone")
            return in_the_way(entry, entries)

        late = f"looking at what is in the way took longer than {LOOK_S:g} s"
        return await called(self._asked, work, LOOK_S, late, "another check is still under way")

    async def requests(self, row: Standing) -> int | None:
        """Under way at its server, which is asked; None where it does not tell."""
        url = url_of(row)
        return await running(url) if url else None

    def entry(self, name: str) -> Entry | None:
        """As it was read last."""
        return self._looking.entry(name) if self._looking is not None else None

    # ---- errands
    def answered(self, new: Standing) -> None:
        """What is offered for this failed start (`Failures.offer`) was, with yes or no: no kvtop asks again."""
        self.failures.answered(new)
        kept = asyncio.create_task(keep_answer(self._worker("answered"), new))
        self._errands.add(kept)
        kept.add_done_callback(self._errands.discard)

    @property
    def doing(self) -> str:
        """What kvtop does for its user just now, in words: `starts qwen27`. Empty: nothing."""
        return self._doing[-1] if self._doing else ""

    async def do(self, words: Sequence[str], meanwhile: str, *, beside: bool = False) -> Done:
        """A command of kvtop, to its end; it goes on when whoever waits for it is gone, and when kvtop is closed. One
        at a time, but for one that goes `beside` another: a stop of what is being started. Raises KvtopError."""
        if self._doing and (not beside or meanwhile in self._doing):
            raise KvtopError(f"kvtop {self.doing} just now")
        self._doing.append(meanwhile)
        self.failures.begins(words, self._clock.wall())
        self._wake.set()
        self._changed()
        errand = asyncio.create_task(self._errand(words, meanwhile))
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)
        try:
            return await asyncio.shield(errand)
        except asyncio.CancelledError:
            errand.add_done_callback(lambda errand: self._unheard(errand, words, meanwhile))
            raise

    async def _errand(self, words: Sequence[str], meanwhile: str) -> Done:
        try:
            late = f"kvtop {words[0]} has not ended in a day"
            done = await called(self._worker("errand"), lambda: errands.run(words), errands.LONGEST_S, late)
            await self.fresh()  # what is said of it and what is shown agree
            return done
        finally:
            self._doing.remove(meanwhile)
            self._wake.set()
            self._changed()

    def _unheard(self, errand: asyncio.Task[Done], words: Sequence[str], meanwhile: str) -> None:
        """The page that asked for it was left before it ended."""
        if errand.cancelled():
            return
        error = errand.exception()
        if error is None:
            wrong = errand.result().what
        else:
            wrong = error.what if isinstance(error, KvtopError) else f"kvtop itself failed ({type(error).__name__})"
        if wrong and not self.failures.is_told(words, self.view):
            self._missed(f"kvtop {printable(meanwhile, 120)}: {printable(wrong, MISSED_CELLS)}", False)


def _but_its_own(report: Report) -> Report:
    """Without what a stop would give back: what a server holds itself is no news to it."""
    from kvtop.profiles.check.obstacles import FREED

    return replace(report, findings=tuple(one for one in report.findings if not one.fix.startswith(FREED)))


def _told(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    """From a thread that may outlive the loop."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(what)


def _without_time(view: ProfilesView) -> object:
    return (view.rows, view.error, view.tail, view.foreign, view.attached, view.figures, view.strangers)
