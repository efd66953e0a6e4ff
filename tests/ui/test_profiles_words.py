"""What the page of the profiles says of each, in words: pure functions of one view."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kvtop.live.profile_view import Figures, Foreign, Tail
from kvtop.live.profiles import Checked
from kvtop.profiles.running.record import Ask, Record, Stage
from kvtop.profiles.standing import Known, Standing
from kvtop.ui.draw import Line
from kvtop.ui.profiles import findings, log, start, table, words

from .page_app import shown
from .profile_box import (
    CHOSEN,
    ERROR,
    NEVER,
    NOTE,
    NOW,
    SETUP,
    Held,
    failed,
    known,
    report,
    running,
    starting,
    stopped,
    view,
)
from .test_profiles_screen import Page

GIB = 1 << 30


def text(lines: list[Line]) -> str:
    return "\n".join("".join(part for part, _ in line).rstrip() for line in lines)


def test_what_check_refuses_or_has_not_seen_yet_cannot_be_started() -> None:
    rows = (stopped(), CHOSEN, NEVER)
    assert words.sentence(view(*rows), NOW, {})[2] == "3 not checked yet"
    seen = {CHOSEN.name: report(ERROR), NEVER.name: report(NOTE)}
    assert words.sentence(view(*rows), NOW, seen)[2] == "1 can be started, 1 not checked yet"
    assert words.sentence(view(*rows), NOW, {**seen, stopped().name: report()})[2] == "2 can be started"


def test_the_headline_tells_the_last_failure_and_servers_of_others() -> None:
    other = (Foreign(14952, 18401),)
    reports = {"adopted": report(), CHOSEN.name: report()}
    tone, first, rest = words.sentence(view(failed("adopted"), CHOSEN, foreign=other), NOW, reports)
    assert first == "process 14952 on port 18401 runs, which kvtop did not start;"
    assert (tone, rest) == ("warn", "adopted failed 30 s ago, 1 can be started"), "not the one that failed"
    _, first, _ = words.sentence(view(running("tiny"), CHOSEN, foreign=other), NOW, {})
    assert first == "tiny runs for 10 h 37 m, beside 1 that kvtop did not start;"
    earlier = replace(failed("adopted"), record=Record(name="adopted", state="failed", started_at=NOW - 99_000))
    assert "failed" not in words.sentence(view(earlier, stopped()), NOW, {})[2], "another one was started since"


def test_an_old_reason_is_none_of_a_file_that_was_mended() -> None:
    row = failed()
    assert words.since(row, NOW, report(), None)[0].startswith("30 s ago: OSError")
    mended = replace(row, known=replace(row.known, changed_at=NOW - 5))
    assert words.since(mended, NOW, None)[0] == "changed since it failed 30 s ago; not checked yet"
    assert words.since(mended, NOW, report(NOTE))[0] == "changed since it failed 30 s ago; 1 note; ready to start"
    assert "failed" not in words.sentence(view(mended), NOW, {})[2]


def test_an_end_for_a_restart_is_no_switch() -> None:
    row = stopped("tiny")
    assert row.record is not None
    row.record.ask = Ask("a switch to tiny", NOW - 190)
    assert words.by_whom(row) == "for a restart"
    row.record.ask = Ask("a switch to other", NOW - 190)
    assert words.by_whom(row) == "by a switch"


def test_a_small_tier_is_told_as_it_is() -> None:
    row = replace(CHOSEN, known=known("x", tier_bytes=GIB // 4))
    assert words.tier(row)[0] == "256 MiB" and words.tier(CHOSEN)[0] == "64 GiB"
    assert words.tier(replace(CHOSEN, known=known("x", tier_bytes=3 * GIB // 2)))[0] == "1.5 GiB"
    small = replace(report().memory, cpu_tier_bytes=GIB // 4, shm_free_bytes=GIB - 1)
    assert text([findings.memory_row(small, 80)]).startswith(" memory   tier 0.25   /dev/shm 1.0   host free 104.2")


@pytest.mark.parametrize(
    ("sizes", "w", "said"),
    [
        ((32, 0.25, None), 120, ["32GiB", "256MiB", "–"]),
        ((32, 0.25, 1.5), 100, ["32 GiB", "256 MiB", "1.5 GiB"]),
        ((32, 64, None), 120, ["32 GiB", "64 GiB", "–"]),
        ((32, 4096), 120, ["32G", "4096G"]),
        ((None,), 120, ["–"]),
    ],
)
def test_the_tiers_of_a_column_have_one_form(sizes: tuple[float | None, ...], w: int, said: list[str]) -> None:
    tiers = [None if size is None else int(size * GIB) for size in sizes]
    rows = [replace(CHOSEN, known=known(f"x{n}", tier_bytes=tier)) for n, tier in enumerate(tiers)]
    lines = ["".join(part for part, _ in line) for line in table.rows(table.Shown(view(*rows), {}, NOW), 0, w, 9)]
    end = lines[1].index("tier") + 4
    assert [re.split(r"  +", line[:end])[-1] for line in lines[2:]] == said


@pytest.mark.parametrize(
    ("size", "w", "said"),
    [
        (4096, 120, "4096G"),
        (4096, 160, "4096 GiB"),
        (512, 120, "512GiB"),
        (23.5, 80, "23.5G"),
        (1000.5, 80, "1000G"),
        (97656.25, 80, "97656G"),
        (1048576, 80, "1024T"),
        (64 / GIB, 80, "64B"),
    ],
)
def test_a_tier_is_never_cut(size: float, w: int, said: str) -> None:
    row = replace(CHOSEN, known=known("x", tier_bytes=round(size * GIB)))
    rows = text(table.rows(table.Shown(view(row), {}, NOW), 0, w, 6))
    assert f" {said}  " in rows and f"{said}i" not in rows


def test_what_runs_is_not_said_not_to_start() -> None:
    made = Checked("qwen27-2x3090", report(ERROR), restart=True)
    said = text(findings.rows(running(), made, 120, 6, "c"))
    assert "it runs; for a restart: 1 error" in said and "would not start" not in said
    made = Checked("coder-30b-lmcache", report(), restart=True)
    assert text(findings.rows(starting(), made, 120, 6, "c")).splitlines()[0].endswith("─ it starts")


def test_of_a_start_that_is_over_as_many_stages_as_fit_are_told_and_how_many_more() -> None:
    ends = [8.0, 72.0, 90.0, 96.0, 120.0, 121.0]
    names = ("process", "weights", "compile", "kv_cache", "graphs", "port")
    stages = [Stage(name, NOW - 500 + a, NOW - 500 + b) for name, a, b in zip(names, [0.0, *ends], ends, strict=False)]
    state = Record(name="tiny", state="running", started_at=NOW - 500, ready_at=NOW - 379, stages=stages)
    row = Standing(known("tiny"), "running", 7, NOW - 379, state)
    line = text(start.rows(row, NOW, 80, 3)).splitlines()[2]
    assert line == " · process up 8.0 s   weights 64 s   compile 18 s   CUDA graphs 24 s   2 more"
    assert "more" not in text(start.rows(row, NOW, 160, 3))
    assert "3 more" in text(start.rows(row, NOW, 60, 3)) or "4 more" in text(start.rows(row, NOW, 60, 3))


def test_a_log_without_a_line_of_this_start_says_so() -> None:
    said = text(log.rows(Tail((), "~/tiny.log", "tiny", NOW), 80, 5, follows=True))
    assert "nothing yet since it was started at 12:00:00" in said


def test_polls_that_were_left_out_are_counted() -> None:
    tail = Tail(("INFO 11-30 12:00:01 [x.py:1] here",), "~/tiny.log", "tiny", NOW, polls=1_200)
    assert "~/tiny.log, 1,200 polls left out" in text(log.rows(tail, 80, 5, follows=False))
    assert "following, 1,200 polls left out" in text(log.rows(tail, 80, 5, follows=True))
    assert "polls" not in text(log.rows(replace(tail, polls=0), 80, 5, follows=False))


def test_the_port_has_a_column_where_there_is_room() -> None:
    rows = text(table.rows(table.Shown(view(running(), CHOSEN), {}, NOW), 0, 120, 6)).splitlines()
    at = rows[1].index("port")
    assert rows[2][at : at + 4] == "8002"
    assert "port" not in text(table.rows(table.Shown(view(CHOSEN), {}, NOW), 0, 80, 6))


CHANGED = replace(known("tier", port=21005, tier_bytes=GIB, model="other", gpus=("7",)), fingerprint="1 now")
"""Of a file that says something else than at the start of its server."""


@pytest.mark.parametrize("w", [80, 120, 200])
def test_a_server_that_runs_is_shown_as_it_was_started(w: int) -> None:
    row = replace(running("tier"), known=CHANGED)
    said = text(table.rows(table.Shown(view(row), {}, NOW), 0, w, 6)).splitlines()[2]
    assert "21005" not in said and "other" not in said and "64" in said
    assert ("8002" in said and "0,1" in said) == (w >= 120)
    assert said.endswith("pid 41233; its profile was changed since" if w == 200 else "for 10 h 37 m; changed since")
    same = replace(row, known=replace(CHANGED, fingerprint="1 as-started"))
    assert "changed" not in text(table.rows(table.Shown(view(same), {}, NOW), 0, w, 6))
    broken = Known("tier", CHANGED.file, problem="tier.toml, line 25: not TOML")
    said = text(table.rows(table.Shown(view(replace(row, known=broken)), {}, NOW), 0, 120, 6)).splitlines()[2]
    assert "8002" in said and "runs" in said and said.endswith("for 10 h 37 m; file cannot be used")
    stays = replace(row, state="stopped", known=CHANGED)
    assert "21005" in text(table.rows(table.Shown(view(stays), {}, NOW), 0, 120, 6)).splitlines()[2]


def test_what_check_says_is_of_the_file_and_the_panel_tells_that_another_one_runs() -> None:
    row = replace(running("tier"), known=CHANGED)
    made = Checked("tier", report(NOTE), restart=True)
    first = text(findings.rows(row, made, 120, 6, "c")).splitlines()[0]
    assert first.endswith("─ it runs, its profile was changed since; for a restart: 1 note")
    broken = replace(row, known=Known("tier", CHANGED.file, problem="tier.toml, line 25: not TOML"))
    assert "it runs; its file cannot be used now" in text(findings.rows(broken, None, 120, 6, "c"))


def test_what_has_just_failed_is_not_ready_to_start_before_its_file_is_changed() -> None:
    row = failed("badlen")
    made = Checked("badlen", report(NOTE))
    assert text(findings.rows(row, made, 120, 6, "c")).splitlines()[0].endswith("─ 1 note; its last start failed")
    assert (
        text(findings.rows(row, Checked("badlen", report()), 120, 6, "c"))
        .splitlines()[0]
        .endswith("─ its last start failed")
    )
    mended = replace(row, known=replace(row.known, changed_at=NOW - 5))
    assert "1 note; ready to start" in text(findings.rows(mended, made, 120, 6, "c"))
    assert row.record is not None
    row.record.setup = SETUP
    of_base = replace(row, known=replace(row.known, fingerprint="1 now"))
    assert "1 note; ready to start" in text(findings.rows(of_base, made, 120, 6, "c")), "what it extends was changed"
    row.record.ready_at = NOW - 40
    assert "1 note; ready to start" in text(findings.rows(row, made, 120, 6, "c")), "its start went well"


@pytest.mark.parametrize("w", [60, 80, 120])
def test_what_a_profile_says_about_itself_stands_beside_its_name(w: int) -> None:
    row = replace(CHOSEN, known=replace(CHOSEN.known, about="two cards, CPU tier of 32 GiB"))
    first = text(findings.rows(row, Checked(CHOSEN.name, report(NOTE)), w, 6, "c")).splitlines()[0]
    assert len(first) == w and first.endswith("─ 1 note; ready to start")
    assert ("qwen27-dflash2: two cards, CPU tier of 32 GiB ─" in first) == (w >= 80)


def test_a_median_out_of_a_histogram_is_about() -> None:
    def cell(requests: int | None) -> str:
        seen = {CHOSEN.name: Figures(NOW, 0.5, requests, 0.016)}
        return text(table.rows(table.Shown(view(CHOSEN, figures=seen), {}, NOW), 0, 200, 6)).splitlines()[2]

    assert " ~16 ms " in cell(31) and " ~16 ms " in cell(None) and "  16 ms " in cell(1)


def test_a_server_that_is_not_seen_to_listen_is_not_said_to_run() -> None:
    one, two = Foreign(7, 8000, listens=False), Foreign(8, 8001)
    assert (
        words.sentence(view(CHOSEN, foreign=(one,)), NOW, {})[1]
        == "process 7 on port 8000 is there, which kvtop did not start;"
    )
    assert (
        words.sentence(view(CHOSEN, foreign=(one, two)), NOW, {})[1] == "2 servers are there that kvtop did not start;"
    )


def test_a_start_that_was_stopped_has_one_age() -> None:
    state = Record(
        name="tiny", state="stopped", started_at=NOW - 36, ended_at=NOW - 5, ask=Ask("kvtop profile stop", NOW - 21)
    )
    row = Standing(known("tiny"), "stopped", None, NOW - 5, state)
    assert "stopped after 15 s, 5 s ago" in text(start.rows(row, NOW, 120, 8))
    assert words.since(row, NOW, None)[0].startswith("5 s ago: stopped after 15 s")


async def test_check_takes_the_rows_of_a_start_that_never_was() -> None:
    held = Held(view(CHOSEN, tail=Tail()))
    many = tuple(replace(NOTE, rule=f"rule_{i}") for i in range(12))
    held.checked = Checked(CHOSEN.name, report(*many))
    page = Page(held, CHOSEN.name)
    async with page.app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert "rule_11" in page.text() and "c shows all" not in page.text()
        held.view = view(starting(CHOSEN.name))
        page.screen.redraw()
        await pilot.pause()
        assert "c shows all" in "\n".join(shown(page.app))
