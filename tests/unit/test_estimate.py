"""Prompts guessed from their bytes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvtop.capture import estimate
from kvtop.capture.api.routes import read_request
from kvtop.capture.estimate import Guess, Sizes
from kvtop.capture.turn import Captured, prompt_bytes

ONE = Captured(id=1, upstream="http://a", model="m", conversation="c1", request_bytes=4_000, prompt_tokens=1_000)


def next_one(**more: object) -> Captured:
    made = Captured(
        id=9, upstream="http://a", model="m", conversation="c1", request_bytes=4_400, parent=1, relation="next"
    )
    return replace(made, **more)


def test_nothing_is_guessed_before_something_ended() -> None:
    sizes = Sizes()
    assert sizes.guess(next_one()) is None
    sizes.learn(replace(ONE, prompt_tokens=None))
    assert sizes.guess(next_one()) is None


def test_the_turn_before_tells_what_is_cached() -> None:
    sizes = Sizes()
    sizes.learn(ONE)
    assert sizes.guess(next_one()) == Guess(1_100, 1_000)
    assert sizes.guess(next_one(request_bytes=2_000, relation="retry")) == Guess(500, 500), "never more than the prompt"
    for relation in ("first", "side", "subagent", "compaction", None):
        assert sizes.guess(next_one(relation=relation)) == Guess(1_100, None)
    assert sizes.guess(next_one(parent=5)) == Guess(1_100, None)
    assert sizes.guess(next_one(changed=["system"])) == Guess(1_100, None), "its head is another"


def asked(body: dict[str, object], id: int, **more: object) -> Captured:
    """A turn as a recorder writes it."""
    raw = json.dumps(body).encode()
    outline = read_request("POST", "/v1/chat/completions", [], raw).outline
    made = Captured(id=id, upstream="http://a", model="m", conversation=f"c{id}", request_bytes=len(raw))
    return replace(made, outline=outline, prompt_bytes=prompt_bytes(outline), **more)


def test_a_short_prompt_is_not_guessed_from_what_stands_around_it() -> None:
    around = {"model": "m", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.7, "seed": 123}
    around |= {"max_tokens": 400, "user": "someone with a long name", "x": "y" * 40}
    tools = [{"type": "function", "function": {"name": f"t{i}", "description": "d" * 400}} for i in range(20)]
    long = around | {"tools": tools, "messages": [{"role": "user", "content": "w" * 20_000}]}
    short = asked(around | {"messages": [{"role": "user", "content": "stop me 0"}]}, 2)
    assert (short.request_bytes or 0) > 200 and short.prompt_bytes == 40
    sizes = Sizes()
    sizes.learn(asked(long, 1, prompt_tokens=14_000))
    guess = sizes.guess(short)
    assert guess is not None and 10 <= guess.prompt_tokens <= 25, "it has 15"
    again = sizes.guess(asked(long, 3))
    assert again is not None and again.prompt_tokens == 14_000


def test_a_row_of_before_is_guessed_from_its_whole_body() -> None:
    sizes = Sizes()
    sizes.learn(replace(ONE, prompt_bytes=2_000))
    assert sizes.guess(next_one(request_bytes=4_000, prompt_bytes=None)) == Guess(2_000, 1_000)


def test_the_conversation_goes_before_the_model() -> None:
    sizes = Sizes()
    sizes.learn(ONE)
    sizes.learn(replace(ONE, id=2, conversation="c2", request_bytes=8_000))
    assert sizes.guess(next_one(parent=None)) == Guess(1_100)
    assert sizes.guess(next_one(parent=None, conversation="c3")) == Guess(550)
    assert sizes.guess(next_one(parent=None, conversation="c3", model="other")) is None
    assert sizes.guess(next_one(parent=None, conversation="c3", upstream="http://b")) is None


def test_a_later_turn_knows_better_in_whatever_order_they_come() -> None:
    late, early = replace(ONE, id=7, request_bytes=5_000), ONE
    for order in ((late, early), (early, late)):
        sizes = Sizes()
        for turn in order:
            sizes.learn(turn)
        assert sizes.guess(next_one(parent=None)) == Guess(880)


def test_what_is_remembered_is_bounded() -> None:
    sizes = Sizes()
    for i in range(estimate.REMEMBERED + 10):
        sizes.learn(replace(ONE, id=i + 1, conversation=f"c{i}"))
    assert len(sizes._of_conversation) == len(sizes._prompts) == estimate.REMEMBERED


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_guess_is_a_prompt_that_can_be(asked: int, tokens: int, size: int) -> None:
    sizes = Sizes()
    sizes.learn(replace(ONE, request_bytes=size, prompt_tokens=tokens))
    guess = sizes.guess(next_one(request_bytes=asked))
    if guess is not None:
        assert guess.prompt_tokens >= 1
        assert guess.cached_tokens is None or 0 <= guess.cached_tokens <= guess.prompt_tokens
