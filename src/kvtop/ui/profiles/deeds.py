"""What a key of the page does: asks what there is to ask, then has kvtop's own commands do it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtop import paths
from kvtop.errors import KvtopError
from kvtop.model.starting import LIVE
from kvtop.profiles.check.report import Report
from kvtop.ui.draw import clip, safe
from kvtop.ui.numbers import exact

if TYPE_CHECKING:
    from kvtop.live.errands import Done
    from kvtop.live.profiles import Profiles
    from kvtop.profiles.standing import Standing

NAME_CELLS = 24


@dataclass(frozen=True, slots=True)
class Question:
    """Asked once; `yes` is done when the answer is yes."""

    wordings: Sequence[str]
    """Longest first, without the keys."""
    yes: Callable[[], Awaitable[None]]


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
    ) -> None:
        """`say(text, tone)`: tone is ok, warn or bad; `begun` is told whose server is about to start; `requests`: how
        many a server has under way, None where that is not known."""
        self._profiles, self._say, self._ask, self._begun, self._requests = profiles, say, ask, begun, requests

    # ---- start
    async def start(self, row: Standing) -> None:
        if (why := self._cannot_start(row)) is None:
            await self._after_check(row, None, "start", [], lambda: self._start(row))
        else:
            self._say(why, "warn")

    async def _start(self, row: Standing) -> None:
        self._begun(row)
        done = await self._do(["profile", "start", row.name, "--yes", "--detach"], f"starts {row.name}")
        if done is not None:
            self._say("", "ok")

    def _cannot_start(self, row: Standing) -> str | None:
        name = safe(row.name)
        if row.known.problem:
            return f"{safe(row.known.file.name)} cannot be used: {safe(row.known.problem)}"
        if row.known.runner == "attach":
            return f"{name} is only watched: its runner is attach, and it is started where it runs"
        if row.state in (*LIVE, "foreign"):
            verb = {"starting": "is starting", "stopping": "is being stopped"}.get(row.state, "runs")
            return f"{name} {verb} already"
        return None

    # ---- switch
    async def switch(self, row: Standing) -> None:
        if (why := self._cannot_start(row)) is not None:
            self._say(why, "warn")
            return
        live, view = self._profiles.view.live, self._profiles.view
        if len(live) > 1:
            self._say(f"{len(live)} servers run: stop one of them first", "warn")
            return
        if live:
            old = live[0]
            if old.state != "running":
                verb = "is starting" if old.state == "starting" else "is being stopped"
                self._say(f"{safe(old.name)} {verb}: wait for that, or stop it first", "warn")
                return
            questions = [f"stop {self._named(old)} and start {_name(row)}", f"stop {_name(old)}, start {_name(row)}"]
            await self._after_check(row, old, "switch", questions, lambda: self._switch(row, old))
            return
        if len(view.foreign) > 1:
            self._say(f"{len(view.foreign)} servers run that kvtop did not start: stop one of them first", "warn")
        elif view.foreign:
            other = view.foreign[0]
            questions = [f"stop {other.words}, which kvtop did not start, and start {_name(row)}",
                         f"stop process {other.pid} and start {_name(row)}"]  # fmt: skip
            owner = view.row(other.profile)
            await self._after_check(row, owner, "switch", questions, lambda: self._switch(row, None))
        else:
            await self.start(row)

    async def _switch(self, row: Standing, old: Standing | None) -> None:
        self._begun(row)
        done = await self._do(["profile", "switch", row.name, "--yes"], f"switches to {row.name}")
        if done is not None:
            self._say("", "ok")
            return
        former = self._profiles.view.row(old.name) if old is not None else None
        if former is not None and not self._profiles.view.live and self._cannot_start(former) is None:
            question = f"{_name(row)} did not start: start {_name(former)} again"
            self._ask(Question([question], lambda: self._start(former)))

    # ---- restart, stop
    async def restart(self, row: Standing) -> None:
        if row.state not in ("starting", "running"):
            self._say(f"{safe(row.name)} does not run under kvtop: there is nothing to start afresh", "warn")
            return
        questions = [f"stop {self._named(row)} and start it again", f"restart {_name(row)}"]
        await self._after_check(row, row, "restart", questions, lambda: self._restart(row))

    async def _restart(self, row: Standing) -> None:
        self._begun(row)
        words = ["profile", "switch", row.name, "--restart", "--yes"]
        if await self._do(words, f"restarts {row.name}") is not None:
            self._say("", "ok")

    async def stop(self, row: Standing) -> None:
        if row.state in LIVE:
            self._ask(Question([f"stop {self._named(row)}", f"stop {_name(row)}"], lambda: self._stop(row, row.name)))
        elif row.state == "foreign" and row.pid is not None:
            pid = str(row.pid)
            questions = [f"stop {self._named(row)}, which kvtop did not start", f"stop process {pid}"]
            self._ask(Question(questions, lambda: self._stop(row, pid)))
        else:
            self._say(f"{safe(row.name)} does not run", "warn")

    async def _stop(self, row: Standing, which: str) -> None:
        words = ["profile", "stop", which, "--yes"]
        done = await self._do(words, f"stops {row.name}", beside=True)
        if done is not None:
            first = done.out.strip().splitlines()
            self._say("; ".join([*(safe(line) for line in first[:1]), *map(safe, done.said)]), "ok")

    # ---- import
    async def take_in(self, path: str) -> str:
        """Make a profile of that file; its name, empty where that did not work."""
        # kvtop's command may run elsewhere.
        file = str(paths.from_home(path.strip()).absolute())
        done = await self._do(["profile", "import", file, "--json"], f"imports {file}")
        if done is None:
            return ""
        made = done.document
        left_out = [safe(str(note)) for note in made.get("left_out", [])]
        name = str(made.get("name", ""))
        note = f"; {len(left_out)} to look at: {left_out[0]}" if left_out else ""
        self._say(f"{safe(name)} was made of {safe(file)}{note}", "warn" if left_out else "ok")
        return name

    # ---- what they share
    async def _after_check(
        self,
        row: Standing,
        old: Standing | None,
        verb: str,
        questions: Sequence[str],
        deed: Callable[[], Awaitable[None]],
    ) -> None:
        """An error refuses; a warning asks, and so does what ends a server."""
        self._say(f"checks {safe(row.name)}; the first time vLLM is asked for its flags, up to a minute", "t")
        try:
            report = await self._profiles.report(row, replacing=old)
        except KvtopError as error:
            self._say(_two(error.what, error.fix), "bad")
            return
        if refused := report.refuses():
            more = f"; {len(refused) - 1} more" if len(refused) > 1 else ""
            one = refused[0]
            self._say(_two(f"no {verb}: {one.rule}: {safe(one.says)}{more}", one.fix), "bad")
            return
        self._say("", "t")
        warned = _warned(report)
        if questions:
            self._ask(Question([f"{text}{part}" for text in questions for part in (*warned, "")[:2]], deed))
        elif warned:
            self._ask(Question([f"start {_name(row)}{part}" for part in warned], deed))
        else:
            await deed()

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

    def _named(self, row: Standing) -> str:
        """`qwen27 (pid 41233, 2 requests running)`."""
        n = self._requests(row)
        parts = [f"pid {row.pid}" if row.pid is not None else ""]
        if n is not None and row.state != "starting":
            parts.append(f"{exact(n)} request{'' if n == 1 else 's'} running")
        known = [part for part in parts if part]
        return f"{_name(row)} ({', '.join(known)})" if known else _name(row)


def _warned(report: Report) -> list[str]:
    """` in spite of 2 warnings (exposed_without_key)`; nothing where there are none."""
    asks = report.asks()
    if not asks:
        return []
    n = f" in spite of {len(asks)} warning{'' if len(asks) == 1 else 's'}"
    names = ", ".join(dict.fromkeys(one.rule for one in asks))
    return [f"{n} ({names})", n]


def _name(row: Standing) -> str:
    return clip(safe(row.name), NAME_CELLS)


def _two(what: str, fix: str) -> str:
    return f"{safe(what)}. {safe(fix)}" if fix else safe(what)
