"""What a part of a prompt cost in seconds: by the turn's own times, never more than its wait, and always the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_
from triage_scenes import LAW, NEW, SERVER, T, diff, scene

from kvtop.cli.why import tokens
from kvtop.model.words import secs
from kvtop.triage.cost import cost_s, priced, reading_s
from kvtop.triage.in_a_row import finding
from kvtop.triage.kinds import Kind, Verdict, Who
from kvtop.triage.result import Cause, Tokens
from kvtop.triage.seen import Gone, KvFacts, Server
from kvtop.triage.verdict import why

READ = with_(NEW, prompt_tokens=101_036, cached_tokens=6_016, sent_at=T, prefill_s=None, queue_s=None, alone=None)
GONE = KvFacts(gone=(Gone(T + 30, "GPU", 512),))
"""Shows an eviction."""


def after(s: float, rate: float | None = 1_060.0, **more: float | int | None) -> float | None:
    return reading_s(with_(READ, first_token_at=T + s, ended_at=T + s + 1, **more), rate)


def cause(lost: int | None) -> Cause:
    return Cause(
        Kind.VOLATILE_TEXT, "/messages/0", "messages[0]", "A clock.", "Put it last.", Who.CLIENT, lost_tokens=lost
    )


def test_its_own_times_tell() -> None:
    assert after(78.0, queue_s=2.0) == 76.0
    assert after(200.0, queue_s=0.0) == 200.0
    assert after(78.0, prefill_s=50.0) == 50.0
    assert after(78.0, prefill_s=90.0, queue_s=8.0) == 70.0, "no longer than it waited without its queue"
    assert after(78.0, alone=True) == 78.0


def test_where_it_may_have_queued_the_pace_of_those_before_it_tells_but_no_more_than_the_wait() -> None:
    assert after(200.0) == pytest.approx(95_020 / 1_060)
    assert after(78.0) == 78.0
    assert after(78.0, rate=None) is None
    assert after(78.0, cached_tokens=None, queue_s=0.0) is None
    assert after(78.0, cached_tokens=101_036, queue_s=0.0) is None


@given(
    waited=st.floats(0.1, 500), queue=st.none() | st.floats(0, 600), prefill=st.none() | st.floats(0, 600),
    rate=st.none() | st.floats(1, 1e5), lost=st.lists(st.integers(0, 200_000), max_size=5),
)  # fmt: skip
def test_nothing_costs_more_than_the_wait(
    waited: float, queue: float | None, prefill: float | None, rate: float | None, lost: list[int]
) -> None:
    turn = with_(READ, first_token_at=T + waited, ended_at=T + 501, queue_s=queue, prefill_s=prefill)
    most = max(0.0, waited - (queue or 0.0)) + 1e-6
    assert (reading_s(turn, rate) or 0.0) <= most
    assert all((cost_s(turn, tokens, rate) or 0.0) <= most for tokens in lost)
    assert sum(one.lost_s or 0.0 for one in priced([cause(tokens) for tokens in lost], turn, rate)) <= most


def test_one_number_for_a_cause_the_sentence_and_the_page() -> None:
    """It waited 4.3 s for 10,245 tokens; by the server's speed of now that would be 9.2 s."""
    slow = with_(READ, prompt_tokens=10_245, cached_tokens=0, first_token_at=T + 4.3, queue_s=0.0, prefill_s=4.2)
    broken = priced([cause(10_245)], slow, 1_113.0)
    assert broken[0].lost_s == pytest.approx(4.2)
    for rate in (4_000.0, 5_000.0, 9_000.0):
        found = why(scene(turn=with_(NEW, first_token_at=T + 64.3, prefill_s=4.2, queue_s=0.0), events=GONE, rate=rate))
        assert f"the engine lost 20,000 tokens, {secs(4.2 * 20_000 / 21_016)}, evicted" in found.sentence
        assert found.split.seconds(20_000) == pytest.approx(4.2 * 20_000 / 21_016)
        assert found.split.seconds(found.split.new) == pytest.approx(4.2 * 1_016 / 21_016)


PART = with_(
    NEW, prompt_tokens=21_790, cached_tokens=17_952, first_token_at=T + 67.2, queue_s=0.1, prefill_s=7.0, alone=True
)
"""It lost 2,048 tokens of the 3,838 that it read."""


def test_how_much_of_the_wait_it_was_is_said() -> None:
    found = why(scene(turn=PART, events=GONE))
    assert found.sentence == ("Turn 14 waited 7.2 s: the engine lost 2,048 of 20,000 tokens, 3.7 s, evicted")
    said = finding(found, PART)
    assert said.clauses[0] == "the engine lost 2,048 of 20,000 tokens, 3.7 s, evicted"
    assert said.cells == ("engine lost 2.0k: evicted", "engine lost it: evicted", "evicted")


def test_what_most_of_the_wait_went_into_is_said() -> None:
    more = with_(PART, prompt_tokens=23_790)
    found = why(scene(turn=more, events=GONE))
    assert found.sentence.endswith("2,048 of 20,000 tokens, 2.5 s, evicted; the rest, 4.7 s: 3,790 new tokens")
    assert finding(found, more).clauses[0].endswith("evicted; the rest, 4.7 s: 3,790 new tokens")
    for alone, says in ((False, "other requests ran"), (None, "what else is not known")):
        unclear = with_(PART, prefill_s=None, queue_s=None, alone=alone, first_token_at=T + 80)
        found = why(scene(turn=unclear, events=GONE))
        assert found.sentence.endswith(f"2.0 s, evicted; the rest, 18 s: 1,790 new tokens and {says}")


def test_a_loss_that_nothing_explains_is_told_by_the_row_as_by_the_page() -> None:
    ruled_out = KvFacts(complete=True, held=20_000)
    found = why(scene(turn=with_(PART, cached_tokens=18_976), events=ruled_out, server=SERVER, expected=LAW))
    assert found.verdict is Verdict.UNKNOWN and "nothing shows how" in found.sentence
    said = finding(found, PART)
    assert said.tone == "unsure" and said.tells and said.reread_tokens == 1_024
    assert said.cells[0].startswith("1.0k less than expected")
    assert said.clauses[0].startswith("it got 1.0k less than expected: nothing shows how")


def test_without_a_server_each_estimate_is_marked() -> None:
    told = replace(diff(cause(None), reread=2_944), method="text", exact=False)
    found = why(scene(diff=told, expected=None, turn=with_(NEW, cached_tokens=5_248, changed=["messages"])))
    assert found.verdict is Verdict.PROMPT_DIVERGED and found.split.guessed
    assert "~2,944 tokens were read again, ~" in found.sentence and "about" not in found.sentence
    assert tokens(found.split) == "21,016: 5,248 cached, ~2,944 read again (behind a change), ~12,824 new"


def test_without_a_server_nobody_knows_its_unit_and_nothing_is_rounded_to_one() -> None:
    """The old prompt had 20,016 tokens, of which 5,248 came from the cache."""
    bare = replace(diff(cause(None)), method="text", exact=False, tokens=Tokens(old=20_016, new=21_016))
    turn = with_(NEW, cached_tokens=5_248, changed=["messages"])
    found = why(scene(diff=bare, expected=None, turn=turn, server=Server()))
    assert tokens(found.split) == "21,016: 5,248 cached, ~14,768 read again (behind a change), ~1,000 new"
