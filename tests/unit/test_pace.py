"""The pace at which a turn was read: never slower than its wait allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_
from triage_scenes import NEW, T

from kvtop.triage.seen import pace

READ = with_(NEW, prompt_tokens=101_036, cached_tokens=6_016, sent_at=T, prefill_s=None, queue_s=None)


def after(s: float, **more: float | int | None) -> float | None:
    return pace(with_(READ, first_token_at=T + s, ended_at=T + s + 1, **more), 1_060.0)


def test_its_own_where_the_queue_is_known() -> None:
    assert after(78.0, queue_s=2.0) == pytest.approx(95_020 / 76)
    assert after(200.0, queue_s=0.0) == pytest.approx(95_020 / 200)
    assert after(78.0, prefill_s=50.0) == pytest.approx(95_020 / 50)


def test_the_servers_where_it_may_have_queued_but_no_slower_than_it_waited() -> None:
    assert after(200.0) == 1_060.0
    assert after(78.0) == pytest.approx(95_020 / 78)


def test_the_servers_where_it_read_too_little_to_tell() -> None:
    assert after(78.0, cached_tokens=101_000, queue_s=0.0) == 1_060.0
    assert after(78.0, cached_tokens=None, queue_s=0.0) == 1_060.0


@given(waited=st.floats(0.1, 500), queue=st.none() | st.floats(0, 600), rate=st.floats(1, 1e5))
def test_what_was_read_never_takes_longer_than_the_wait(waited: float, queue: float | None, rate: float) -> None:
    turn = with_(READ, first_token_at=T + waited, ended_at=T + 501, queue_s=queue)
    found = pace(turn, rate)
    assert found is not None
    if queue is None or queue < waited:
        assert 95_020 / found <= waited * 1.001
