"""Starts that fail while nobody looks at the page: told once each, and what ran before is offered again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from live_fakes import Inline, Time

from kvtop.live import errands
from kvtop.live.failures import Failures, keep_answer
from kvtop.live.profile_view import ProfilesView
from kvtop.live.profiles import Profiles
from kvtop.profiles.running import record
from kvtop.profiles.running.record import Ask, Record
from kvtop.profiles.standing import Known, Standing

NOW = 1_795_953_600.0
SWITCH = ["profile", "switch", "new", "--yes"]


def row(name: str, state: str, **of_record: object) -> Standing:
    known = Known(name, Path(f"/p/{name}.toml"), "venv", "m", 8000, "127.0.0.1")
    record = Record(name=name, state=state, **of_record) if of_record else None  # type: ignore[arg-type]
    return Standing(known, state, record=record)


def seen(*rows: Standing) -> ProfilesView:
    return ProfilesView(NOW, "/p", rows)


OLD = row(
    "old", "stopped", started_at=NOW - 900, ready_at=NOW - 800, ended_at=NOW + 5, ask=Ask("a switch to new", NOW + 1)
)
FAILED = row("new", "failed", started_at=NOW + 6, ended_at=NOW + 20, why="OSError: no such model", former="old")


def ours() -> Failures:
    failures = Failures()
    failures.begins(SWITCH, NOW)
    return failures


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (row("a", "starting", started_at=NOW), row("a", "failed", started_at=NOW, why="x"), True),
        (row("a", "stopped"), row("a", "failed", started_at=NOW, why="x"), True),
        (row("a", "failed", started_at=NOW - 9, why="x"), row("a", "failed", started_at=NOW, why="x"), True),
        (row("a", "failed", started_at=NOW, why="x"), row("a", "failed", started_at=NOW, why="x; left"), False),
        (
            row("a", "running", started_at=NOW, ready_at=NOW + 1),
            row("a", "failed", started_at=NOW, ready_at=NOW + 1),
            False,
        ),
        (row("a", "starting", started_at=NOW), row("a", "stopped", started_at=NOW, ask=Ask("x", NOW)), False),
        (row("a", "starting", started_at=NOW), row("a", "running", started_at=NOW, ready_at=NOW + 1), False),
    ],
)
def test_a_start_that_fails_is_news_once(before: Standing, after: Standing, told: bool) -> None:
    failures = Failures()
    assert failures.news(ProfilesView()) == ()
    assert failures.news(seen(before)) == ()
    assert failures.news(seen(after)) == ((after,) if told else ())
    assert failures.news(seen(after)) == ()
    assert Failures().news(seen(after)) == (), "what failed before kvtop looked is no news"


UNREADABLE = replace(FAILED, known=Known("new", Path("/p/new.toml"), problem="line 2"), state="unreadable")
NO_FOLDER = replace(seen(), error="/p: Permission denied")


@pytest.mark.parametrize("between", [seen(UNREADABLE), seen(), NO_FOLDER, seen(replace(FAILED, state="foreign"))])
def test_a_start_that_failed_is_not_told_again_when_its_row_comes_back(between: ProfilesView) -> None:
    failures = Failures()
    failures.news(seen(row("new", "starting", started_at=NOW + 6)))
    assert failures.news(seen(FAILED)) == (FAILED,)
    assert [failures.news(look) for look in (between, seen(FAILED)) * 2] == [()] * 4


def test_a_start_that_failed_before_kvtop_looked_is_no_news_wherever_its_file_was() -> None:
    assert FAILED.record is not None
    record = msgspec.structs.replace(FAILED.record, started_at=NOW - 90, ended_at=NOW - 80)
    old = seen(replace(FAILED, record=record))
    for first in (seen(replace(UNREADABLE, record=record)), seen(), NO_FOLDER):
        failures = Failures()
        assert [failures.news(look) for look in (first, old, first, old)] == [()] * 4


def test_a_profile_that_is_made_and_fails_between_two_looks_is_news() -> None:
    failures = Failures()
    failures.news(seen())
    assert failures.news(seen(FAILED)) == (FAILED,)


def test_a_start_that_fails_while_its_file_cannot_be_read_is_news() -> None:
    failures = Failures()
    failures.news(seen(row("new", "starting", started_at=NOW + 6)))
    assert failures.news(seen(UNREADABLE)) == (UNREADABLE,)
    assert failures.offer(seen(UNREADABLE)) is None


def test_what_a_switch_has_ended_is_offered_until_that_is_answered() -> None:
    failures, view = ours(), seen(OLD, FAILED)
    assert failures.offer(view) == (FAILED, OLD)
    assert failures.offer(view) == (FAILED, OLD), "also when the page was left and opened again"
    failures.answered(FAILED)
    assert failures.offer(view) is None
    assert FAILED.record is not None
    again = replace(FAILED, record=msgspec.structs.replace(FAILED.record, started_at=NOW + 40))
    assert failures.offer(seen(OLD, again)) == (again, OLD), "the next one that fails is another"


@pytest.mark.parametrize(
    "view",
    [
        seen(OLD, row("new", "starting", started_at=NOW + 6)),
        seen(OLD, row("new", "running", started_at=NOW + 6, ready_at=NOW + 9)),
        seen(OLD, row("new", "failed", started_at=NOW + 6, ready_at=NOW + 9, why="x")),
        seen(OLD, FAILED, row("third", "starting", started_at=NOW + 30)),
        seen(OLD, FAILED, row("third", "stopped", started_at=NOW + 30, ask=Ask("kvtop profile stop", NOW + 40))),
        seen(OLD, row("new", "failed", started_at=NOW + 6, ended_at=NOW + 20, why="OSError: no such model")),
        seen(row("old", "running", started_at=NOW + 30, ready_at=NOW + 40), FAILED),
        seen(FAILED),
        seen(OLD),
        ProfilesView(),
    ],
)
def test_nothing_is_offered_for_anything_else(view: ProfilesView) -> None:
    assert ours().offer(view) is None


def test_it_is_offered_by_whichever_kvtop_looks_until_one_has_the_answer(own_home: Path) -> None:
    assert FAILED.record is not None
    record.write(FAILED.record)
    failures = Failures()
    assert failures.offer(seen(OLD, FAILED)) == (FAILED, OLD)
    record.answered("new", NOW + 5)
    assert record.read("new") == FAILED.record, "that was another start"
    asyncio.run(keep_answer(Inline("x"), FAILED))
    now = record.read("new")
    assert now == msgspec.structs.replace(FAILED.record, former="")
    assert Failures().offer(seen(OLD, replace(FAILED, record=now))) is None


class Looks:
    def __init__(self) -> None:
        self.view = seen(row("old", "running", started_at=NOW - 900, ready_at=NOW - 800), row("new", "stopped"))

    def look(self, chosen: object, processes: object) -> ProfilesView:
        return self.view


async def test_a_switch_that_fails_after_its_page_was_left_is_told_once_with_name_and_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time, looks = Time(), Looks()
    told: list[tuple[str, bool]] = []

    def run(words: object) -> errands.Done:
        looks.view = seen(OLD, FAILED)
        return errands.Done(1, "", (), "new did not start: OSError: no such model; nothing runs now", "")

    monkeypatch.setattr(errands, "run", run)
    profiles = Profiles(
        lambda: looks, Inline, time.clock, time.sleep, missed=lambda words, shown: told.append((words, shown))
    )  # type: ignore[arg-type, return-value]
    profiles.failures.begins = lambda words, now: Failures.begins(profiles.failures, words, NOW)  # type: ignore[method-assign]
    loop = asyncio.create_task(profiles.run(lambda: None))
    await time.settle()
    page = asyncio.create_task(profiles.do(SWITCH, "switches to new"))
    await asyncio.sleep(0)
    page.cancel()
    await time.go(5)
    assert told == [("new did not start: OSError: no such model", True)]
    assert profiles.failures.offer(profiles.view) == (FAILED, OLD)
    loop.cancel()
    await asyncio.gather(loop, page, return_exceptions=True)
