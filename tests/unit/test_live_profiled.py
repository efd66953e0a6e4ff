"""What the dashboard says of a server of a profile that has ended: by whom, or why, and nothing of another server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvtop.live.profile_view import ProfilesView
from kvtop.live.profiled import Profiled
from kvtop.model.downs import Around
from kvtop.model.sentence import LENGTH, make
from kvtop.model.view import ServerView
from kvtop.model.words import hms
from kvtop.profiles.running.record import Ask, Record, Who
from kvtop.profiles.standing import Known, Standing
from kvtop.readings import State

NOW = 1_795_953_600.0
URL = "http://127.0.0.1:8000"
TOO_LONG = (
    "ValidationError: User-specified max_model_len (8000000) is greater than the derived max_model_len "
    "(max_position_embeddings=40960.0); it ended with exit code 1 before it answered"
)
REFUSES = ServerView(URL, "127.0.0.1:8000", State.REFUSED, state_since=NOW - 20)
FAILED = {"state": "failed", "started_at": NOW - 60, "ended_at": NOW - 20, "why": TOO_LONG, "server": Who(7, "b")}
STOPPED = {"state": "stopped", "started_at": NOW - 60, "ended_at": NOW - 20, "ask": Ask("a switch to b", NOW - 25)}


def told(one: ServerView, **of_record: object) -> ServerView:
    record = Record(name="badlen", port=8000, **of_record)  # type: ignore[arg-type]
    known = Known("badlen", Path("/p/badlen.toml"), "venv", "m", 8000, "127.0.0.1")

    class Has:
        view = ProfilesView(NOW, "/p", (Standing(known, record.state, record=record),))

    return Profiled(Has(), tuple, print, print).marked(one, NOW)  # type: ignore[arg-type]


def test_one_that_ended_while_it_loaded_is_named_with_its_cause() -> None:
    one = told(REFUSES, **FAILED)
    said = make((one,), 0, Around(NOW), None)
    assert (said.chip, said.first) == ("DOWN", f"badlen ended while it loaded ({hms(NOW - 20)}):")
    assert said.rest.startswith("ValidationError: User-specified max_model_len (8000000) is greater")
    assert said.rest.endswith("…") and len(said.text) <= LENGTH
    short = told(REFUSES, **{**FAILED, "why": "OSError: no such model"})
    assert make((short,), 0, Around(NOW), None).rest == "OSError: no such model"


def test_a_start_that_came_to_no_server_did_not_start_and_says_when() -> None:
    why = "pre-start command 1 of 1 failed with exit code 3: no such disk"
    one = told(REFUSES, **{**FAILED, "why": why, "server": None})
    said = make((one,), 0, Around(NOW), None)
    assert (said.first, said.rest) == (f"badlen did not start ({hms(NOW - 20)}):", why)
    long_ago = NOW - 7 * 86_400
    old = told(REFUSES, **{**FAILED, "why": why, "server": None, "ended_at": long_ago})
    assert make((old,), 0, Around(NOW), None).first == f"badlen did not start ({hms(long_ago, NOW)}):"
    unknown = told(REFUSES, **{**FAILED, "server": None, "ended_at": None})
    assert make((unknown,), 0, Around(NOW), None).first == "badlen did not start:"


def test_an_end_before_kvtop_looked_says_when() -> None:
    ran = told(REFUSES, **{**FAILED, "ready_at": NOW - 30, "why": "killed"})
    assert make((ran,), 0, Around(NOW), None).rest == f"badlen failed at {hms(NOW - 20)}: killed"
    stopped = make((told(REFUSES, **STOPPED),), 0, Around(NOW), None)
    assert (stopped.first, stopped.rest) == (f"badlen was stopped at {hms(NOW - 20)},", "by a switch to b")


def test_one_that_had_answered_keeps_the_words_of_one_that_is_gone() -> None:
    ran = replace(REFUSES, last_good_at=NOW - 21, pid=7)
    why = "engine core exited unexpectedly; it ended with exit code 0 though nobody asked for that"
    said = make((told(ran, **{**FAILED, "ready_at": NOW - 30, "why": why}),), 0, Around(NOW), None)
    assert said.first.startswith("127.0.0.1:8000 refuses since ")
    assert said.rest.startswith("process 7 of badlen is gone: engine core exited unexpectedly") and said.rest.endswith(
        "…"
    )


@pytest.mark.parametrize(
    ("server", "record"),
    [
        (replace(REFUSES, last_good_at=NOW - 1), FAILED),
        (replace(REFUSES, last_good_at=NOW - 1), STOPPED),
        (replace(REFUSES, loader_pid=99), FAILED),
        (replace(REFUSES, loader_pid=99), {**FAILED, "server": None}),
        (replace(REFUSES, loader_pid=99), {**STOPPED, "server": Who(7, "b")}),
        (replace(REFUSES, state=State.TIMEOUT), FAILED),
        (REFUSES, {**FAILED, "why": ""}),
        (REFUSES, {**STOPPED, "ask": None}),
    ],
)
def test_what_it_may_not_be_is_not_said(server: ServerView, record: dict[str, object]) -> None:
    assert told(server, **record) == server


def test_one_that_was_ended_on_purpose_is_told_by_whom() -> None:
    one = told(replace(REFUSES, last_good_at=NOW - 20), **STOPPED)
    assert (one.profile, one.ended_by, one.failed) == ("badlen", "a switch to b", "")
