"""The words in which a start is followed."""

from __future__ import annotations

import pytest

from kvtop.cli.profile import following
from kvtop.profiles.running.client import Step
from kvtop.profiles.running.look import Seen
from kvtop.profiles.running.progress import Left
from kvtop.profiles.running.record import Record, Stage, Who


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "about 1 s"),
        (7.4, "about 7 s"),
        (32.0, "about 30 s"),
        (58.0, "about 60 s"),
        (212.0, "about 3 m 30 s"),
        (611.0, "about 10 m 00 s"),
    ],
)
def test_a_length_that_is_only_expected_is_rough(seconds: float, words: str) -> None:
    assert following.about(seconds) == words


def test_the_line() -> None:
    state = Record(name="coder-30b", port=8002, stages=[Stage("process", 0.0, 9.0), Stage("weights", 9.0)])
    state.shards_done, state.shards = 9, 14
    step = Step(Seen("coder-30b", "starting", state), Left(212.0, 5, 0.4, 384.0, 352.0), 161.0)
    assert following.sentence("coder-30b", step) == (
        "coder-30b starts: weights, 9 of 14 shards; 2 m 41 s so far, about 3 m 30 s left (n=5)"
    )
    first = Step(step.seen, None, 3.0)
    assert following.sentence("x", first).endswith("3 s so far, time left not known: no good start yet")
    unknown = Step(step.seen, None, 3.0, of_starts=2)
    assert following.left_words(unknown) == "time left not known"
    late = Step(step.seen, Left(0.0, 2, 1.0, 9.0, 9.0), 3.0)
    assert following.left_words(late) == "longer than usual (n=2)"


def test_what_is_not_known_is_null() -> None:
    assert following.document(Seen("x", "stopped")) == {
        "profile": "x",
        "state": "stopped",
        "pid": None,
        "port": None,
        "url": None,
        "since": None,
        "ready_s": None,
        "stages": [],
        "kv_cache_tokens": None,
        "block_tokens": None,
        "exit_code": None,
        "error": None,
        "notes": [],
        "log": None,
    }


def test_of_a_server_that_is_ready_a_sidecar_that_has_ended_is_told() -> None:
    gone = Who(2**22 + 1, "0")
    state = Record(name="x", state="running", started_at=1.0, ready_at=2.0, sidecars=[gone])
    words = following.ready_words(Seen("x", "running", state))
    assert words == "x is ready after 1.0 s: http://127.0.0.1:8000; its sidecar has ended"
