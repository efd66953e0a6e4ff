"""What a key of the page does: asks what there is to ask, then has kvtop's own commands do it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtop import paths
from kvtop.errors import KvtopError
from kvtop.model.starting import LIVE
from kvtop.ui.draw import clip, safe
from kvtop.ui.profiles import questions
from kvtop.ui.profiles.words import early_end, ended_early

if TYPE_CHECKING:
    from kvtop.live.errands import Done
    from kvtop.live.profile_asks import InTheWay
    from kvtop.live.profiles import Profiles
    from kvtop.profiles.check.report import Finding, Report
    from kvtop.profiles.standing import Standing

NAME_CELLS = 24
_OPTION = re.compile(r"(?:^|(?<=\s))--(?:name|force|format|service|pid)\b")


@dataclass(frozen=True, slots=True)
class Question:
    """Asked once; `yes` is done when the answer is yes."""

    wordings: Sequence[str]
    """Longest first, without the keys."""
    yes: Callable[[], Awaitable[None]]
    answered: Callable[[], None] = lambda: None
    """Told of a yes and of a no."""
    later: Callable[[], None] = lambda: None
    """Told where the question was left without an answer."""
    stands: Callable[[], bool] = lambda: True
    """False: what it speaks of is not so any more, and nobody is to answer it."""
    gone: str = "what runs has changed meanwhile: press the key again"
    """Said then."""


class Deeds:
    """All of it beside the loop."""

    def __init__(
        self,
        profiles: Profiles,
        say: Callable[[str, str], None],
        ask: Callable[[Question], None],
        *,
        begun: Callable[[Standing], None],
        requests: Callable[[Standing], int | None],
        key: Callable[[str], str],
    ) -> None:
        """`say(text, tone)`: tone is ok, warn or bad; `begun` is told whose server is about to start; `requests`: how
        many a server has under way, None where that is not watched; `key`: of an action."""
        self._profiles, self._say, self._ask, self._begun, self._requests = profiles, say, ask, begun, requests
        self._key = key

    # ---- start
    async def start(self, row: Standing) -> None:
        if (why := self._cannot_start(row)) is not None:
            self._say(why, "warn")
            return
        stands = self._unchanged()
        report = await self._checked(row, None, "start")
        if report is not None and report.asks():
            self._ask(Question(questions.start(row, report), lambda: self._start(row), stands=stands))
        elif report is not None:
            await self._start(row)

    async def _start(self, row: Standing) -> None:
        self._begun(row)
        done = await self._do(["profile", "start", row.name, "--yes", "--detach"], f"starts {row.name}")
        if done is not None:
            self._say("", "ok")

    def _cannot_start(self, row: Standing) -> str | None:
        name, stop = safe(row.name), self._key("stop-profile")
        if row.stranger:
            return f"{name} {self._is(row)} already, and is of no profile: {stop} stops it"
        if row.known.problem:
            return f"{safe(row.known.file.name)} cannot be used: {safe(row.known.problem)}"
        if row.known.runner == "attach":
            return f"{name} is only watched: its runner is attach, and it is started where it runs"
        if row.state == "foreign":
            return f"{name} {self._is(row)} already, which kvtop did not start: {stop} stops it"
        if row.state in LIVE:
            verb = {"starting": "is starting", "stopping": "is being stopped"}.get(row.state, "runs")
            again = f": {self._key('restart-profile')} starts it afresh" if row.state == "running" else ""
            return f"{name} {verb} already{again}"
        return None

    def _is(self, row: Standing) -> str:
        """Of a server that kvtop did not start: it may load still."""
        here = next((one for one in self._profiles.view.foreign if one.pid == row.pid), None)
        return "runs" if here is None or here.listens else "is there"

    # ---- switch
    async def switch(self, row: Standing) -> None:
        if (why := self._cannot_start(row)) is not None:
            self._say(why, "warn")
            return
        live, stands = self._profiles.view.live, self._unchanged()
        if len(live) > 1:
            self._say(
                f"{len(live)} servers run: stop one of them first, {self._key('stop-profile')} on its row", "warn"
            )
        elif not live and self._profiles.view.foreign:
            await self._switch_from_others(row)
        elif not live:
            await self.start(row)
        elif live[0].state != "running":
            verb = "is starting" if live[0].state == "starting" else "is being stopped"
            self._say(f"{safe(live[0].name)} {verb}: wait for that, or stop it first", "warn")
        elif (report := await self._checked(row, live[0], "switch")) is not None:
            old = live[0]
            wordings = questions.switch(old, await self._count(old), row, report)
            self._ask(Question(wordings, lambda: self._switch(row, _only(old)), stands=stands))

    async def _switch_from_others(self, row: Standing) -> None:
        """No profile's server runs, but servers that kvtop did not start do: what is not in the way is left alone."""
        stands = self._unchanged()
        found = await self._in_the_way(row)
        if found is None:
            return
        if len(found) > 1:
            words = "; ".join(f"{one.server.words} holds {safe(one.holds)}" for one in found)
            stop = f"{self._key('stop-profile')} on its row stops one"
            self._say(f"{len(found)} servers that kvtop did not start are in its way: {words}. {stop}", "warn")
            return
        if not found:
            if (report := await self._checked(row, None, "switch")) is not None:
                wordings = questions.beside(self._profiles.view.foreign, row, report)
                self._ask(Question(wordings, lambda: self._start(row), stands=stands))
            return
        one = found[0]
        here = next((other for other in self._profiles.view.listed if other.pid == one.server.pid), None)
        if here is None:
            self._profiles.look_soon()
            self._say(f"{one.server.words} holds {safe(one.holds)}, and has just come: press the key again", "warn")
        elif (report := await self._checked(row, here, "switch")) is not None:
            wordings = questions.clear(one, await self._count(here), row, report)
            self._ask(Question(wordings, lambda: self._clear(row, one), stands=stands))

    async def _in_the_way(self, row: Standing) -> tuple[InTheWay, ...] | None:
        """None where that could not be told, which is said."""
        self._say(f"looks at what is in the way of {safe(row.name)} …", "t")
        try:
            return await self._profiles.in_the_way(row)
        except KvtopError as error:
            self._say(_two(error.what, error.fix), "bad")
            return None

    async def _clear(self, row: Standing, one: InTheWay) -> None:
        """Whoever said yes meant that server, and no other one that has come since."""
        found = await self._in_the_way(row)
        if found is None:
            return
        if any(other.server.pid != one.server.pid for other in found):
            self._say(f"nothing was stopped: others are in the way of {safe(row.name)} by now", "warn")
            return
        await self._switch(row, ["--stop-foreign", "--only", str(one.server.pid)])

    async def _switch(self, row: Standing, more: Sequence[str]) -> None:
        words = ["profile", "switch", row.name, "--yes", *more]
        if not await self._starts(words, row, f"switches to {row.name}"):
            self.offer()

    def offer(self) -> None:
        """Where a switch has failed, to start again what it has ended: until that is answered."""
        found = self._offered()
        if found is None or self._profiles.doing:
            return
        new, former = found
        question = f"{_name(new)} did not start: start {_name(former)} again"

        def stands() -> bool:
            still = self._offered()
            return still is not None and [one.name for one in still] == [new.name, former.name]

        self._ask(
            Question(
                [question],
                lambda: self._start(former),
                lambda: self._profiles.answered(new),
                lambda: self._profiles.failures.put_off(new),
                stands,
                "",
            )
        )

    def _offered(self) -> tuple[Standing, Standing] | None:
        """See `Failures.offer`."""
        found = self._profiles.failures.offer(self._profiles.view)
        return found if found is not None and self._cannot_start(found[1]) is None else None

    async def _starts(self, words: Sequence[str], row: Standing, meanwhile: str) -> bool:
        """Whether its server is ready by now. One that its user has ended meanwhile has not failed."""
        before = row.record.started_at if row.record is not None else None
        self._begun(row)
        done = await self._do(words, meanwhile)
        if done is not None:
            self._say("", "ok")
            return True
        now = self._profiles.view.row(row.name)
        state = now.record if now is not None else None
        if state is not None and state.started_at != before and ended_early(state):
            self._say(early_end(state), "warn")
        elif state is not None and state.started_at != before and state.state == "failed":
            self._say(
                f"{safe(row.name)} did not start: {safe(state.why)}; {self._key('log')} shows the whole log", "bad"
            )
        return False

    # ---- restart, stop
    async def restart(self, row: Standing) -> None:
        stands = self._unchanged()
        if row.state != "running":
            self._say(self._no_restart(row), "warn")
        elif (report := await self._checked(row, row, "restart")) is not None:
            wordings = questions.restart(row, await self._count(row), report)
            self._ask(Question(wordings, lambda: self._restart(row), stands=stands))

    def _no_restart(self, row: Standing) -> str:
        name, start = safe(row.name), self._key("start-profile")
        if row.state == "foreign":
            then = "" if row.stranger else f", then {start} starts it"
            return f"kvtop did not start {name}: {self._key('stop-profile')} stops it{then}"
        if row.state == "starting":
            return f"{name} is starting: {self._key('stop-profile')} ends that, then {start} starts it afresh"
        return self._cannot_start(row) or f"{name} does not run: {start} starts it"

    async def _restart(self, row: Standing) -> None:
        await self._starts(
            ["profile", "switch", row.name, "--restart", "--yes", *_only(row)], row, f"restarts {row.name}"
        )

    async def stop(self, row: Standing) -> None:
        if row.settles:
            self._say(f"the after_stop of {safe(row.name)} runs: wait for its end", "warn")
        elif row.state in LIVE or (row.state == "foreign" and row.pid is not None):
            which = str(row.pid) if row.state == "foreign" else row.name
            wordings = questions.stop(row, await self._count(row))
            self._ask(Question(wordings, lambda: self._stop(row, which), stands=lambda: _which(row) in self._there()))
        elif row.left or row.owed:

            def stands() -> bool:
                now = self._profiles.view.row(row.name)
                return now is not None and (now.state, now.left, now.owed) == (row.state, row.left, row.owed)

            self._ask(Question(questions.left(row), lambda: self._stop(row, row.name, yes=row.owed), stands=stands))
        else:
            self._say(f"{safe(row.name)} does not run", "warn")

    async def _stop(self, row: Standing, which: str, *, yes: bool = True) -> None:
        """`yes`: also to end what kvtop did not start, and to run what is owed."""
        words = ["profile", "stop", which, *(["--yes"] if yes else []), *_only(row)]
        done = await self._do(words, f"stops {row.name}", beside=True)
        if done is not None:
            first = done.out.strip().splitlines()
            self._say("; ".join([*(safe(line) for line in first[:1]), *map(safe, done.said)]), "ok")

    async def _count(self, row: Standing) -> int | None:
        """Requests under way at its server: as it is watched, else as it says when it is asked."""
        if row.state not in ("running", "foreign"):
            return None
        seen = self._requests(row)
        return seen if seen is not None else await self._profiles.requests(row)

    # ---- import
    async def take_in(self, path: str) -> str:
        """Make a profile of that file, with the options behind it, or of `--pid N`; its name, empty where that did
        not work."""
        typed, more = _options(path.strip())
        # kvtop's command may run elsewhere.
        file = str(paths.from_home(typed).absolute()) if typed else " ".join(more[:2])
        source = [file] if typed else []
        done = await self._do(["profile", "import", *source, *more, "--json"], f"imports {file}")
        if done is None:
            return ""
        made = done.document
        left_out = [safe(str(note)) for note in made.get("left_out", [])]
        name = str(made.get("name", ""))
        note = f"; {len(left_out)} to look at: {left_out[0]}" if left_out else ""
        if len(left_out) > 1:
            note += f"; all of them stand on top of its file: {self._key('edit-profile')}"
        self._say(f"{safe(name)} was made of {safe(file)}{note}", "warn" if left_out else "ok")
        return name

    # ---- what they share
    def _there(self) -> frozenset[tuple[str, float | None]]:
        """The servers that there are."""
        return frozenset(_which(row) for row in self._profiles.view.listed if row.state in (*LIVE, "foreign"))

    def _unchanged(self) -> Callable[[], bool]:
        """Until a server of kvtop's comes or goes: whoever is asked has read of those that are there now. Others come
        and go as they like: what the answer ends of them is looked at once more then."""
        live = {*map(_which, self._profiles.view.live)}
        return lambda: {*map(_which, self._profiles.view.live)} == live

    async def _checked(self, row: Standing, old: Standing | None, verb: str) -> Report | None:
        """What check says when `old` is gone; None where it refuses, which is said."""
        self._say(f"checks {safe(row.name)} …", "t")
        asks = f"checks {safe(row.name)}: vLLM is asked for its flags, which takes it a minute or two"
        try:
            report = await self._profiles.report(row, replacing=old, asking=lambda: self._say(asks, "t"))
        except KvtopError as error:
            self._say(_two(error.what, error.fix), "bad")
            return None
        if refused := report.refuses():
            more = f"; {len(refused) - 1} more" if len(refused) > 1 else ""
            one = refused[0]
            fix = f". Fix: {safe(one.fix)}" if one.fix else ""
            self._say(f"no {verb}: {one.rule}: {safe(one.says)}{more}{fix}{self._way_out(row, one, verb)}", "bad")
            return None
        self._say("", "t")
        return report

    def _way_out(self, row: Standing, one: Finding, verb: str) -> str:
        """The key that stops what holds its port."""
        view = self._profiles.view
        holders = [other for other in view.listed if other.state in (*LIVE, "foreign") and other.name != row.name]
        if verb != "start" or one.rule != "port_taken":
            return ""
        if row.known.port is None or not any(other.facts.port == row.known.port for other in holders):
            return ""
        return f"; {self._key('switch-profile')} stops that and starts {_name(row)}"

    async def _do(self, words: Sequence[str], meanwhile: str, *, beside: bool = False) -> Done | None:
        """None where it did not work: that is said."""
        self._say(f"{safe(meanwhile)} …", "t")
        try:
            done = await self._profiles.do(words, meanwhile, beside=beside)
        except KvtopError as error:
            self._say(_two(error.what, error.fix), "bad")
            return None
        if done.what:
            self._say(_two(done.what, done.fix), "bad")
            return None
        return done


def _options(typed: str) -> tuple[str, list[str]]:
    """(path, options behind it). A path with spaces needs no quotes."""
    found = _OPTION.search(typed)
    if found is None:
        return typed, []
    try:
        more = shlex.split(typed[found.start() :])
    except ValueError:
        more = typed[found.start() :].split()
    return typed[: found.start()].strip(), more


def _which(row: Standing) -> tuple[str, float | None]:
    """One server, told from others under that name: its number comes to be known in the middle of its start."""
    return row.name, row.record.started_at if row.record is not None and row.state in LIVE else row.pid


def _only(row: Standing) -> list[str]:
    """What is ended is what whoever said yes has read of, though this page should have stood still meanwhile."""
    return ["--only", str(row.pid) if row.state == "foreign" or row.record is None else row.record.mark]


def _name(row: Standing) -> str:
    return clip(safe(row.name), NAME_CELLS)


def _two(what: str, fix: str) -> str:
    return f"{safe(what)}. {safe(fix)}" if fix else safe(what)
