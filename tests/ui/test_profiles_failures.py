"""How the page of the profiles tells of a start or a server that failed: why in full, cut text with its sign."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from kvtop.live.profiles import Checked
from kvtop.profiles.running.record import Stage, Who
from kvtop.ui.profiles import start
from kvtop.ui.profiles.layout import plan, roomy
from kvtop.ui.profiles.words import since

from .page_app import shown
from .profile_box import CHOSEN, ERROR, NOTE, NOW, TAIL, Held, failed, known, report, running, starting, stopped, view
from .test_profiles_screen import SIZES, Page

TOO_LONG = (
    "ValidationError: User-specified max_model_len (8000000) is greater than the derived max_model_len "
    "(max_position_embeddings=40960.0 or model_max_length=None in model's config.json). To allow overriding this "
    "maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used with "
    "extreme caution. If the model uses relative position encoding (RoPE), positions exceedi…; "
    "it ended with exit code 1 before it answered"
)
"""Of a real start: as long as one gets."""


def words(rows: list[str]) -> str:
    return " ".join(" ".join(rows).split())


def failed_page(why: str, *, checked: bool = True) -> Page:
    held = Held(view(failed("badlen", why), CHOSEN, stopped(), tail=replace(TAIL, of="badlen")))
    if checked:
        made = report(ERROR, NOTE, NOTE, NOTE)
        held.checked = Checked("badlen", made)
        held.reports = {"badlen": made}
    return Page(held, "badlen")


async def test_on_a_small_page_why_a_start_failed_stands_before_what_check_says() -> None:
    page = failed_page("OSError: no such model")
    async with page.app.run_test(size=(60, 15)) as pilot:
        await pilot.pause()
        rows = shown(page.app)
        assert any("× OSError: no such model" in row for row in rows) and not any("Check" in row for row in rows)


@pytest.mark.parametrize("size", [*SIZES, (100, 30)])
async def test_why_a_start_failed_is_told_in_full(size: tuple[int, int]) -> None:
    page = failed_page(TOO_LONG)
    async with page.app.run_test(size=size) as pilot:
        await pilot.pause()
        rows = shown(page.app)
    panel = rows[next(i for i, row in enumerate(rows) if row.startswith(" Last start badlen")) :]
    assert f"× {TOO_LONG}" in words(panel)
    assert any(row.startswith(" Check badlen ─") for row in rows)
    assert sum(row.startswith(" Log ─") for row in rows) == 1, "and there is room for the end of the log"


async def test_what_check_says_gives_way_no_more_than_it_has_to() -> None:
    page = failed_page("OSError: no such model; it ended with exit code 1")
    async with page.app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        rows = shown(page.app)
    assert " × shm_too_small  tier 64.0 GiB, /dev/shm has 62.8 GiB" in rows and " × OSError: no such" in "\n".join(rows)


async def test_a_check_that_has_a_row_left_counts_nothing_that_it_does_not_show() -> None:
    page = failed_page("x" * 250)
    async with page.app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        rows = shown(page.app)
    at = next(i for i, row in enumerate(rows) if row.startswith(" Check badlen ─"))
    assert rows[at].endswith("1 error, 3 notes; it would not start")
    assert "more" not in rows[at + 1]


@pytest.mark.parametrize("size", SIZES)
async def test_why_a_server_failed_after_it_was_ready_is_told_in_full(size: tuple[int, int]) -> None:
    why = (
        "engine core exited unexpectedly; starting cleanup (its log does not say why: killed, or out of memory?); "
        "it ended with exit code 0 though nobody asked for that"
    )
    one = running("mine")
    assert one.record is not None
    record = one.record.__class__(
        name="mine", state="failed", started_at=NOW - 400, ready_at=NOW - 353, ended_at=NOW - 7, why=why,
        stages=[Stage("process", NOW - 400, NOW - 353)], log="/tmp/none.log",
    )  # fmt: skip
    row = replace(one, state="failed", record=record, since=NOW - 7, pid=None)
    page = Page(Held(view(row, CHOSEN)), "mine")
    async with page.app.run_test(size=size) as pilot:
        await pilot.pause()
        rows = shown(page.app)
    at = next(i for i, row in enumerate(rows) if row.startswith(" Last start mine ─"))
    assert rows[at].endswith("─ ready after 47 s, failed 7 s ago")
    assert f"× {why}" in words(rows[at:])


async def test_a_first_line_that_is_cut_shows_that_it_is() -> None:
    page = failed_page(TOO_LONG)
    async with page.app.run_test(size=(80, 24)) as pilot:
        page.screen._say(f"badlen did not start: {TOO_LONG}", "bad")
        await pilot.pause()
        rows = shown(page.app)
    assert rows[1].endswith("…") and rows[2].startswith(" Profiles ─")


@pytest.mark.parametrize("size", [(50, 10), (40, 10)])
async def test_a_question_keeps_its_keys(size: tuple[int, int]) -> None:
    old = replace(running(), known=known("start-small-and-long"))
    page = Page(Held(view(old, replace(CHOSEN, known=known("tier-with-a-name")))), "tier-with-a-name")
    async with page.app.run_test(size=size) as pilot:
        rows = await page.press(pilot, "s")
        assert rows[-1].startswith("stop start-sma… (pid 41233, 2 req") and rows[-1].endswith("  y/n")


@pytest.mark.parametrize("logs", [True, False])
@pytest.mark.parametrize("h", range(14, 60, 3))
def test_however_much_is_told_every_part_keeps_its_rows(h: int, logs: bool) -> None:
    for profiles in (1, 5, 30):
        rooms = plan(h, profiles)
        for wanted in range(14):
            found = roomy(rooms, wanted, lambda n, wanted=wanted: min(n, wanted or 1), logs=logs)
            assert found.list == rooms.list and min(found.check, found.start, found.log) >= 0
            assert found.check + found.start + found.log == rooms.check + rooms.start + rooms.log
            if rooms.start:
                assert found.check >= 1 and (not logs or not rooms.log or found.log >= min(3, rooms.log))
                assert found.start >= min(wanted, rooms.start)


@pytest.mark.parametrize("size", SIZES)
async def test_while_another_one_starts_it_is_told_why_the_chosen_one_failed(size: tuple[int, int]) -> None:
    why = "ValueError: there is no room for a KV cache of 40960 tokens; it ended with exit code 1"
    lost = failed("qwen27-dflash2", why)
    held = Held(view(starting(), lost))
    held.checked = Checked(lost.name, report(NOTE))
    page = Page(held, lost.name)
    async with page.app.run_test(size=size) as pilot:
        text = words(await page.press(pilot))
        assert f"× {why}" in text and "Start coder-30b-lmcache" in text and "nothing stands in the way" not in text


@pytest.mark.parametrize("many", [1, 4])
async def test_at_60x15_a_start_tells_the_stage_that_it_is_at(many: int) -> None:
    begun = starting()
    assert begun.record is not None
    stages = [Stage(stage.name, NOW - 160, NOW - 150) for stage in begun.record.stages[:-1]]
    late = [
        *stages,
        Stage("weights", NOW - 150, NOW - 90),
        Stage("compile", NOW - 90, NOW - 50),
        Stage("port", NOW - 50),
    ]
    state = msgspec.structs.replace(begun.record, stages=late)
    held = Held(
        view(replace(begun, record=state), *(replace(CHOSEN, known=known(f"p{i}")) for i in range(many)), CHOSEN)
    )
    held.checked = Checked("qwen27-dflash2", report(ERROR, NOTE))
    page = Page(held, "qwen27-dflash2")
    async with page.app.run_test(size=(60, 15)) as pilot:
        rows = await page.press(pilot)
        assert any(row.startswith(" Start coder-30b-lmcache") for row in rows)
        assert any("▸ waits for port 8002" in row for row in rows) and not any("shm_too_small" in row for row in rows)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("after", [0, 1])
async def test_a_server_without_its_keeper_says_so(size: tuple[int, int], after: int) -> None:
    runs = running()
    assert runs.record is not None
    state = msgspec.structs.replace(runs.record, after_stop=after)
    held = Held(view(replace(runs, unkept=True, record=state), CHOSEN))
    page = Page(held, "qwen27-2x3090")
    async with page.app.run_test(size=size) as pilot:
        rows = await page.press(pilot)
        (row,) = (one for one in rows if "qwen27-2x3090" in one and "runs" in one and "●" in one)
        assert "its keeper is gone" in row or "no keeper" in row
        said = "! its keeper is gone: its log is not rotated" + ", its after_stop will not run by itself" * after
        assert said in words(rows) and (after or "after_stop" not in words(rows))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("unkept", [False, True])
async def test_a_server_without_its_sidecar_says_so(size: tuple[int, int], unkept: bool) -> None:
    runs = running()
    assert runs.record is not None
    state = msgspec.structs.replace(runs.record, sidecars=[Who(1, "b"), Who(2, "b")])
    page = Page(Held(view(replace(runs, unkept=unkept, sidecars_ended=1, record=state), CHOSEN)), "qwen27-2x3090")
    async with page.app.run_test(size=size) as pilot:
        rows = await page.press(pilot)
        (row,) = (one for one in rows if "qwen27-2x3090" in one and "runs" in one and "●" in one)
        assert "1 of 2 sidecars has ended" in row or "sidecar ended" in row
        assert "keeper" not in row or unkept
        before = "its keeper is gone: its log is not rotated; " if unkept else ""
        assert f"! {before}1 of 2 sidecars has ended" in words(rows)


def test_a_start_without_its_sidecar_says_so() -> None:
    begins = starting()
    assert begins.record is not None
    row = replace(begins, sidecars_ended=1, record=msgspec.structs.replace(begins.record, sidecars=[Who(1, "b")]))
    assert since(row, NOW, None)[0].endswith("left; sidecar ended")
    said = "".join(text for line in start.rows(row, NOW, 80, 12) for text, _ in line)
    assert said.rstrip().endswith("! its sidecar has ended")


@pytest.mark.parametrize("size", SIZES)
async def test_what_a_stop_has_left_is_told_in_full(size: tuple[int, int]) -> None:
    ended = stopped()
    assert ended.record is not None
    notes = [
        "1 process was left behind and killed",
        f"removed its tier file /dev/shm/vllm_offload_{'x' * 40}.mmap (1 MiB)",
        "its keeper was gone before it told that after_stop had run; kvtop profile stop qwen27 offers it",
    ]
    state = msgspec.structs.replace(ended.record, notes=notes, after_owed=True)
    held = Held(view(replace(ended, record=state), CHOSEN))
    notes[-1] = "its keeper was gone before it told that after_stop had run: x runs it"
    page = Page(held, ended.name)
    async with page.app.run_test(size=size) as pilot:
        text = words(await page.press(pilot))
        assert f"! {'; '.join(notes)}" in text and "Last start qwen27-2x3090" in text


@pytest.mark.parametrize("failed", [False, True])
async def test_on_a_small_page_what_a_stop_has_left_takes_no_room_of_check(failed: bool) -> None:
    ended = stopped()
    assert ended.record is not None
    state = msgspec.structs.replace(ended.record, notes=["1 process was left behind and killed"])
    if failed:
        state = msgspec.structs.replace(state, state="failed", why="it was killed by SIGKILL", ask=None)
    held = Held(view(replace(ended, state=state.state, record=state), CHOSEN))
    page = Page(held, ended.name)
    async with page.app.run_test(size=(60, 15)) as pilot:
        text = words(await page.press(pilot))
        assert ("! 1 process was left behind" in text, "Check qwen27-2x3090" in text) == (failed, not failed)
