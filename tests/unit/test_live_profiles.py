"""The loop over the profiles: one look at a time, checks when something changed, errands that outlive the screen."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from live_fakes import Inline, Time

from kvtop.live import errands, profile_look
from kvtop.live.profile_look import ProfileLook
from kvtop.live.profile_view import Figures, ProfilesView
from kvtop.live.profiles import KEEP_S, Checked, Profiles
from kvtop.profiles import check
from kvtop.profiles.check.obstacles import FREED
from kvtop.profiles.check.report import Finding, Memory, Report
from kvtop.profiles.folder import Entry
from kvtop.profiles.running import record
from kvtop.profiles.running.record import Record, Stage, Start
from kvtop.profiles.running.stages import starting
from kvtop.profiles.standing import Known, Standing
from kvtop.readings import VllmProcess

EMPTY = Report("a", (), (), Memory(None, None, None, None, None), (), ("vllm",), {})


def standing(name: str, state: str = "stopped") -> Standing:
    return Standing(Known(name, Path(f"/p/{name}.toml"), "venv", "m", 8000, "127.0.0.1"), state)


class Looks:
    """What looks, as a test says."""

    def __init__(self) -> None:
        self.view = ProfilesView(1.0, "/p", (standing("a"), standing("b")))
        self.asked: list[str | None] = []
        self.kept: list[dict[str, Figures]] = []

    def look(self, chosen: str | None, processes: Sequence[VllmProcess]) -> ProfilesView:
        self.asked.append(chosen)
        return self.view

    def entry(self, name: str) -> Entry | None:
        return Entry(name, Path(f"/p/{name}.toml"), None) if self.view.row(name) is not None else None

    def keep(self, figures: dict[str, Figures]) -> None:
        self.kept.append(figures)


class Loop:
    """The loop over time that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **more: object) -> None:
        self.time, self.looks = Time(), Looks()
        self.machine = 0
        self.reports: list[tuple[str, object]] = []
        self.changes = 0
        self.profiles = Profiles(
            lambda: self.looks, Inline, self.time.clock, self.time.sleep, machine=lambda: self.machine, **more
        )  # type: ignore[arg-type]

        def report(entry: Entry, *, replacing: object = None, ask_vllm: bool = True, **_: object) -> Report:
            self.reports.append((entry.name, (replacing, ask_vllm)))
            return replace(EMPTY, profile=entry.name)

        monkeypatch.setattr(check, "report", report)

    async def __aenter__(self) -> Loop:
        def changed() -> None:
            self.changes += 1

        self.task = asyncio.create_task(self.profiles.run(changed))
        await self.time.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_it_looks_more_often_while_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Loop(monkeypatch) as loop:
        assert loop.looks.asked == [None] and loop.profiles.view.rows
        await loop.time.go(6)
        assert len(loop.looks.asked) == 3
        loop.profiles.choose("a")
        await loop.time.settle()
        assert loop.looks.asked[-1] == "a", "at once"
        before = len(loop.looks.asked)
        await loop.time.go(4)
        assert len(loop.looks.asked) == before + 4
        loop.looks.view = replace(loop.looks.view, rows=(standing("a", "starting"), standing("b")))
        await loop.time.go(1)
        before = len(loop.looks.asked)
        await loop.time.go(2)
        assert len(loop.looks.asked) == before + 4


async def test_nothing_new_is_told_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Loop(monkeypatch) as loop:
        await loop.time.go(30)
        assert loop.changes == 1


async def test_a_check_is_made_for_the_chosen_one_first_and_again_when_something_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Loop(monkeypatch) as loop:

        def of_b() -> list[tuple[object, object]]:
            return [how for name, how in loop.reports if name == "b"]

        await loop.time.go(10)
        assert loop.reports == []
        loop.profiles.choose("b")
        await loop.time.go(10)
        assert loop.reports == [("b", (None, False)), ("a", (None, False))], "no cursor ever asks vLLM itself"
        assert loop.profiles.reports["b"].profile == "b" and loop.profiles.reports["a"].profile == "a"
        loop.machine = 1
        await loop.time.go(3)
        assert len(of_b()) == 2 and len(loop.reports) == 4
        loop.profiles.check_again()
        await loop.time.go(3)
        assert of_b()[2:] == [(None, True)]
        changed = replace(standing("b"), known=replace(standing("b").known, model="other"))
        loop.looks.view = replace(loop.looks.view, rows=(standing("a"), changed))
        await loop.time.go(3)
        assert len(of_b()) == 4
        loop.profiles.choose(None)
        before = len(loop.reports)
        loop.machine = 2
        await loop.time.go(10)
        assert len(loop.reports) == before


@pytest.mark.parametrize("rule", ["port_taken", "program_missing"])
async def test_what_is_in_the_way_is_looked_at_again_until_it_is_gone(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Finding("error", rule, "", "port 8000 is taken; or the daemon does not answer", "")
    async with Loop(monkeypatch) as loop:
        found = (taken,)

        def report(entry: Entry, **_: object) -> Report:
            loop.reports.append((entry.name, None))
            return replace(EMPTY, profile=entry.name, findings=found if entry.name == "b" else ())

        monkeypatch.setattr(check, "report", report)
        loop.profiles.choose("b")
        await loop.time.go(4)
        assert [name for name, _ in loop.reports] == ["b", "a"]
        await loop.time.go(4)
        assert [name for name, _ in loop.reports] == ["b", "a", "b"]
        found = ()
        await loop.time.go(30)
        assert [name for name, _ in loop.reports] == ["b", "a", "b", "b"]
        assert loop.profiles.checked is not None and loop.profiles.checked.report is not None
        assert loop.profiles.checked.report.ok


@pytest.fixture
def process() -> Iterator[int]:
    """One that lives."""
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child.pid
        child.kill()


async def test_what_a_server_holds_itself_is_no_news_to_it(monkeypatch: pytest.MonkeyPatch, process: int) -> None:
    own = Finding("note", "port_taken", "--port", "port 8000: process 9 listens there", f"{FREED}switch stops it first")
    gone: list[object] = []
    async with Loop(monkeypatch) as loop:

        def report(entry: Entry, *, replacing: object = None, **_: object) -> Report:
            gone.append(replacing)
            return replace(EMPTY, profile=entry.name, findings=(own,))

        monkeypatch.setattr(check, "report", report)
        loop.looks.view = replace(loop.looks.view, rows=(replace(standing("a", "foreign"), pid=process),))
        loop.profiles.choose("a")
        await loop.time.go(3)
        made = loop.profiles.checked
        assert made is not None and made.report is not None and made.restart and made.report.findings == ()
        assert process in gone[-1]  # type: ignore[operator]


async def test_a_folder_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Loop(monkeypatch) as loop:
        loop.looks.look = lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied", "/p"))  # type: ignore[method-assign]
        await loop.time.go(4)
        assert "Permission denied" in loop.profiles.view.error


async def test_figures_are_kept_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {"a": Figures(5.0, 0.9, 3, 0.4)}
    async with Loop(monkeypatch, figures=lambda: seen) as loop:
        await loop.time.go(KEEP_S - 4)
        first = len(loop.looks.kept)
        await loop.time.go(2 * KEEP_S)
        assert first <= 1 and 2 <= len(loop.looks.kept) <= 4
        assert loop.looks.kept[0] == seen


async def test_one_errand_at_a_time_but_for_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    class Waits:
        def __init__(self, name: str) -> None: ...

        async def call(self, read: Callable[[], object], timeout_s: float) -> object:
            await gate
            return read()

    monkeypatch.setattr(errands, "run", lambda words: errands.Done(0, " ".join(words), ()))
    profiles = Profiles(Looks, Waits, Time().clock, Time().sleep)  # type: ignore[arg-type]
    start = asyncio.create_task(profiles.do(["start"], "starts a"))
    await asyncio.sleep(0)
    assert profiles.doing == "starts a"
    with pytest.raises(errands.KvtopError, match="kvtop starts a just now"):
        await profiles.do(["start"], "starts b")
    stop = asyncio.create_task(profiles.do(["stop"], "stops a", beside=True))
    await asyncio.sleep(0)
    gate.set_result(None)
    assert [(await one).out for one in (start, stop)] == ["start", "stop"]
    assert profiles.doing == ""


@pytest.mark.parametrize(
    ("code", "err", "what", "fix", "said"),
    [
        (0, "stops qwen27\n  it was killed\n", "", "", ("stops qwen27", "it was killed")),
        (1, "× port_taken: by 9\nkvtop: a would not work: port_taken\n  mend that\n", "a would not work: port_taken",
         "mend that", ("× port_taken: by 9",)),
        (1, "kvtop: a did not start: x\n  the log\nkvtop: nothing runs now\n  kvtop profile start b\n",
         "a did not start: x; nothing runs now", "kvtop profile start b", ()),
        (1, "kvtop: a did not start: x\n  the log\nstarts b again\n", "a did not start: x", "the log",
         ("starts b again",)),
        (0, "kvtop: one\n  do it\nkvtop: two\n", "", "", ("one", "two")),
        (3, "", "it ended with exit code 3", "", ()),
        (1, "kvtop: \x1b[31mred\n", "\\x1b[31mred", "", ()),
    ],
)  # fmt: skip
def test_the_words_of_a_command(code: int, err: str, what: str, fix: str, said: tuple[str, ...]) -> None:
    done = errands.read(code, "", err)
    assert (done.what, done.fix, done.said) == (what, fix, said)


def test_an_errand_is_kvtops_own_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path))
    done = errands.run(["profile", "list", "--json"])
    assert (done.code, done.out.strip(), done.what) == (0, "[]", "")
    assert "there is no profile 'nobody'" in errands.run(["profile", "start", "nobody"]).what


def test_a_look_reads_folder_records_and_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path))
    folder = tmp_path / "config" / "profiles"
    look = ProfileLook(lambda: 1_000.0)
    assert look.look(None, ()).rows == ()
    folder.mkdir(parents=True)
    (folder / "a.toml").write_text('[serve]\nmodel = "/m/x"\nport = 8123\nargs = ["--kv-offloading-size", "2"]\n')
    (folder / "broken.toml").write_text("[serve]\nmodel 3\n")
    log = tmp_path / "a.log"
    polled = '(APIServer pid=1) INFO:     127.0.0.1:5000 - "GET /metrics HTTP/1.1" 200 OK\n'
    log.write_text(f"one --api-key geheim\n\ntwo\n{polled * 100}")
    record.write(Record(name="a", state="stopped", started_at=900.0, ended_at=950.0, log=str(log)))
    record.remember("a", Start(800.0, 60.0, {"weights": 40.0}))
    server = VllmProcess(os.getpid(), "api", ("vllm", "serve", "/m/other", "--port", "9000"), 9000, ports=(9000,))
    seen = look.look("a", (server,))
    a, broken = seen.rows
    assert (a.name, a.state, a.known.port, a.known.tier_bytes) == ("a", "stopped", 8123, 2 << 30)
    assert a.starts[0].took_s == 60.0 and (seen.tail.lines, seen.tail.polls) == (("one --api-key ***", "two"), 100)
    assert broken.state == "unreadable" and "line 2" in broken.known.problem
    assert [one.words for one in seen.foreign] == [f"process {os.getpid()} on port 9000"]
    same = replace(server, command=("vllm", "serve", "/m/x", "--port=8123", "--kv-offloading-size=2"), ports=(8123,))
    seen = look.look("a", (same,))
    assert (seen.rows[0].state, seen.rows[0].pid, seen.foreign[0].profile) == ("foreign", os.getpid(), "a")
    gone = replace(same, pid=4_000_000)
    assert look.look("a", (gone,)).rows[0].state == "stopped", "a process that has ended since is no server"
    (folder / "a.toml").unlink()
    assert [row.name for row in look.look("a", ()).rows] == ["broken"]
    look.keep({"a": Figures(5.0, 0.5, 2, 1.5)})
    assert (ProfileLook().look(None, ()).figures or {})["a"] == Figures(5.0, 0.5, 2, 1.5)
    (tmp_path / "state" / "figures.json").write_text('{"a": 3}')
    assert ProfileLook().look(None, ()).figures == {}


def test_a_look_sees_a_change_of_the_file_of_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path))
    folder, config = tmp_path / "config" / "profiles", tmp_path / "serve.yaml"
    folder.mkdir(parents=True)
    (folder / "a.toml").write_text(f'[venv]\ncwd = "{tmp_path}"\n[serve]\nconfig = "serve.yaml"\n')
    (folder / "b.toml").write_text('[serve]\nmodel = "m"\nargs = ["--config", "\\u0000"]\n')
    look = ProfileLook()

    def seen() -> tuple[int | None, bool | None]:
        row = look.look(None, ()).row("a")
        assert row is not None
        return row.known.port, row.changed

    assert seen() == (None, None)
    config.write_text("model: m\nport: 8011\n")
    assert seen() == (8011, None), "it is made"
    row = look.look(None, ()).row("a")
    assert row is not None
    setup = record.Setup(port_told=True, fingerprint=row.known.fingerprint)
    record.write(Record(name="a", state="stopped", setup=setup))
    assert seen() == (8011, False)
    config.write_text("model: other\nport: 8012\n")
    assert seen() == (8012, True)
    config.unlink()
    assert seen() == (None, True)


def test_a_folder_is_read_again_only_where_a_file_has_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path))
    folder = tmp_path / "config" / "profiles"
    folder.mkdir(parents=True)
    (folder / "a.toml").write_text(f'[serve]\nconfig = "{tmp_path}/serve.yaml"\n')
    reads: list[Path | None] = []

    def read_all(where: Path | None = None) -> list[Entry]:
        reads.append(where)
        return whole(where)

    whole = profile_look.folder.read_all
    monkeypatch.setattr(profile_look.folder, "read_all", read_all)
    look = ProfileLook()
    for _ in range(5):
        look.look(None, ())
    assert len(reads) == 2, "the second time with the stamp of the file of --config"


@pytest.mark.parametrize("doing", ["pre-start command 1 of 2", "sidecar cache, asked at http://127.0.0.1:9/"])
def test_what_runs_before_the_server_is_told_and_has_one_name_when_it_is_over(doing: str) -> None:
    state = Record(name="a", state="starting", started_at=100.0, doing=doing, stages=[Stage("before", 100.0)])
    row = replace(standing("a", "starting"), record=state)
    assert row.seen is not None
    now = starting(row.seen, (), 101.0)
    assert now is not None and now.stages[0].words == doing
    state.doing, state.stages = "", [Stage("before", 100.0, 102.0), Stage("process", 102.0)]
    over = starting(row.seen, (), 103.0)
    assert over is not None and [one.words for one in over.stages][:2] == ["pre-start", "process up"]


def test_the_stages_of_a_first_start_and_of_a_later_one() -> None:
    state = Record(name="a", state="starting", started_at=100.0, port=8002, shards=4, shards_done=1)
    state.stages = [Stage("process", 100.0, 110.0), Stage("weights", 110.0)]
    row = replace(standing("a", "starting"), record=state)
    assert row.seen is not None
    first = starting(row.seen, (), 130.0)
    assert first is not None
    assert [(one.words, one.state, one.took_s) for one in first.stages] == [
        ("process up", "done", 10.0), ("weights, 1 of 4 shards", "now", 20.0), ("KV cache", "next", None),
        ("port 8002 answers", "next", None),
    ]  # fmt: skip
    assert (first.place, first.left_s, first.fraction) == ("stage 2", None, None)
    past = (Start(0.0, 100.0, {"process": 10.0, "weights": 60.0, "compile": 20.0, "port": 10.0}),)
    later = starting(row.seen, past, 130.0)
    assert later is not None and later.place == "stage 2 of 4"
    assert [one.words for one in later.stages][2:] == ["compile", "port 8002 answers"]
    assert later.left_s is not None and 60 < later.left_s < 80 and later.stages[1].share == 0.25
    first_words, rest = later.wordings[0]
    assert first_words == "weights, 1 of 4 shards,"
    assert rest.replace("\xa0", " ").startswith("stage 2 of 4, 30 s so far, about ")


@pytest.mark.parametrize("error", [RuntimeError("ours"), TimeoutError()])
async def test_a_look_that_fails_is_told_and_the_next_one_comes(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Loop(monkeypatch) as loop:
        sound = loop.looks.look

        def fails(*_: object) -> ProfilesView:
            raise error

        loop.looks.look = fails  # type: ignore[method-assign]
        await loop.time.go(4)
        view = loop.profiles.view
        assert "what is shown is old" in view.error and [row.name for row in view.rows] == ["a", "b"]
        assert view.at == 1.0, "the time of the last look that was one"
        loop.looks.look = sound  # type: ignore[method-assign]
        await loop.time.go(4)
        assert loop.profiles.view.error == "" and not loop.task.done()


async def test_that_vllm_is_asked_for_its_flags_is_told_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    async with Loop(monkeypatch) as loop:
        profiles = loop.profiles

        def report(entry: Entry, *, asking: Callable[[str], None], ask_vllm: bool = True, **_: object) -> Report:
            if ask_vllm:
                asking("/usr/bin/vllm")
            return replace(EMPTY, profile=entry.name)

        monkeypatch.setattr(check, "report", report)
        await profiles.report(standing("a"), replacing=None, asking=lambda: said.append("asked"))
        await asyncio.sleep(0)
        assert said == ["asked"]
        profiles._waits_for_vllm()
        assert profiles.checked is None
        profiles.checked = Checked("b", working=True)
        before = loop.changes
        profiles._waits_for_vllm()
        assert profiles.checked.asks_vllm and loop.changes == before + 1


async def test_a_look_that_is_asked_for_during_another_one_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Loop(monkeypatch) as loop:
        sound = loop.looks.look

        def look(chosen: str | None, processes: Sequence[VllmProcess]) -> ProfilesView:
            loop.looks.look = sound  # type: ignore[method-assign]
            loop.profiles.look_soon()
            return sound(chosen, processes)

        loop.looks.look = look  # type: ignore[method-assign]
        before = len(loop.looks.asked)
        await loop.time.go(3.5)
        assert len(loop.looks.asked) == before + 2


async def test_a_check_that_fails_says_so_and_the_next_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Loop(monkeypatch) as loop:
        sound = check.report

        def fails(*_: object, **__: object) -> Report:
            raise RuntimeError

        monkeypatch.setattr(check, "report", fails)
        loop.profiles.choose("a")
        await loop.time.go(2)
        checked = loop.profiles.checked
        assert checked is not None and not checked.working
        assert checked.error == "kvtop's own check failed (RuntimeError); kvtop --debug tells more"
        monkeypatch.setattr(check, "report", sound)
        loop.profiles.check_again()
        await loop.time.go(2)
        assert loop.profiles.checked is not None and loop.profiles.checked.report is not None


class Gated:
    """A worker whose calls wait for a test."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    def __call__(self, name: str) -> Gated:
        return self

    async def call(self, read: Callable[[], object], timeout_s: float) -> object:
        await self.gate.wait()
        return read()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (errands.Done(0, "", ()), []),
        (errands.Done(1, "", (), "port 8000 is taken"), ["kvtop starts a: port 8000 is taken"]),
        (OSError(28, "No space left on device"), ["kvtop starts a: No space left on device"]),
    ],
)
async def test_an_errand_goes_on_when_its_page_is_left_and_its_failure_is_told(
    answer: errands.Done | OSError, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Gated()
    missed: list[tuple[str, bool]] = []

    def run(words: Sequence[str]) -> errands.Done:
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(errands, "run", run)
    profiles = Profiles(
        Looks, worker, Time().clock, Time().sleep, missed=lambda words, shown: missed.append((words, shown))
    )  # type: ignore[arg-type]
    page = asyncio.create_task(profiles.do(["profile", "start", "a"], "starts a"))
    await asyncio.sleep(0)
    page.cancel()
    await asyncio.gather(page, return_exceptions=True)
    assert profiles.doing == "starts a", "one at a time, whoever looks"
    worker.gate.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert profiles.doing == "" and missed == [(words, False) for words in told]


async def test_an_errand_that_cannot_be_begun_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: Sequence[str]) -> errands.Done:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(errands, "run", run)
    profiles = Profiles(Looks, Inline, Time().clock, Time().sleep)  # type: ignore[arg-type]
    with pytest.raises(errands.KvtopError, match=r"^No space left on device$"):
        await profiles.do(["profile", "start", "a"], "starts a")


def test_figures_that_cannot_be_kept_are_shown_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path))
    (tmp_path / "state").write_text("no folder")
    look = ProfileLook()
    look.keep({"a": Figures(5.0, 0.5, 2, 1.5)})
    assert look.look(None, ()).figures == {"a": Figures(5.0, 0.5, 2, 1.5)}


def test_figures_that_are_kept_first_take_no_place_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path))
    ProfileLook().keep({"a": Figures(5.0, 0.5, 2, 1.5)})
    ProfileLook().keep({"b": Figures(6.0, 0.25, None, None)})
    assert set(ProfileLook().look(None, ()).figures or {}) == {"a", "b"}
