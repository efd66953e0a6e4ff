"""What a row says of how its turn went."""

from __future__ import annotations

import pytest

from kvtop.model.shown_turn import Turn
from kvtop.ui.draw import pick
from kvtop.ui.verdicts import failure

PROMPT = "prompt too long"
OUTPUT = "asks for more output than fits"


def failed(error: str, status: int = 400) -> Turn:
    return Turn(1, 10.0, state="failed", source="tap", status=status, error=error)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            "max_completion_tokens=32000 cannot be greater than max_model_len=16384. "
            "Please request fewer output tokens.",
            OUTPUT,
        ),
        ("max_tokens=32000 cannot be greater than max_model_len=16384. Please request fewer output tokens.", OUTPUT),
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 16384 "
            "tokens and your request has 100 input tokens (32000 > 16384 - 100).",
            OUTPUT,
        ),
        (
            "This model's maximum context length is 16384 tokens. However, you requested 32000 output tokens and your "
            "prompt contains at least 100 input tokens, for a total of at least 32100 tokens.",
            OUTPUT,
        ),
        (
            "This model's maximum context length is 16384 tokens. However, you requested 32100 tokens (100 in the "
            "messages, 32000 in the completion). Please reduce the length of the messages or completion.",
            OUTPUT,
        ),
        ("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000", OUTPUT),
        (
            "This model's maximum context length is 16384 tokens. However, your prompt contains 20000 input tokens, "
            "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.",
            PROMPT,
        ),
        (
            "This model's maximum context length is 16384 tokens. However, your prompt contains 900000 characters "
            "(more than 300000 characters, which is the upper bound for 16384 input tokens).",
            PROMPT,
        ),
        ("The engine prompt length 20000 exceeds the max_model_len 16384. Please reduce prompt.", PROMPT),
        ("Input length (20000) exceeds model's maximum context length (16384).", PROMPT),
        ("prompt_token_ids length (20000) exceeds max_model_len (16384).", PROMPT),
        (
            "The decoder prompt (length 20000) is longer than the maximum model length of 16384. Make sure that "
            "`max_model_len` is no smaller than the number of text tokens.",
            PROMPT,
        ),
        (
            "The decoder prompt (length 16384) plus the number of requested output tokens (at least 1) is longer than "
            "the maximum model length of 16384. Make sure that `max_model_len` is no smaller than the number of text "
            "tokens (prompt + requested output tokens).",
            PROMPT,
        ),
        ("the prompt has 900 tokens and a canvas read adds 200, more than max_model_len=1024", PROMPT),
        ("prompt is too long: 208310 tokens > 200000 maximum", PROMPT),
        ("The model `nope` does not exist.", "no such model"),
    ],
)
def test_what_servers_say_at_length_is_told_apart_in_few_words(error: str, said: str) -> None:
    assert f"failed: 400 {said}" in failure(failed(error))
    assert failure(failed(error))[0] == f"failed: 400 {error}", "all of it where there is room"
    other = OUTPUT if said == PROMPT else PROMPT
    assert f"failed: 400 {other}" not in failure(failed(error))


def test_more_output_than_fits_is_said_with_its_numbers_and_in_the_cells_of_a_small_screen() -> None:
    words = failure(failed("max_tokens=32000 cannot be greater than max_model_len=16384. Please request fewer."))
    assert pick(words, 60) == "failed: 400 asks for 32.0k of output, the context is 16.4k"
    assert pick(words, 44) == "failed: 400 asks for more output than fits"
    assert pick(words, 28) == "failed: 400 too much output"
    longest = failure(failed(f"max_tokens={'9' * 250} cannot be greater than max_model_len=1"))
    assert "failed: 400 too much output" in longest


@pytest.mark.parametrize(
    "error",
    [
        "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller truncation size.",
        "max_tokens_per_query (70000) must be less than max_model_len (16384).",
        "logprobs.content length (20000) in choice 0 exceeds max_model_len (16384).",
        "The engine is on fire\x1b[31m today and nobody knows why",
    ],
)
def test_of_an_error_that_is_not_known_its_own_first_words_are_shown(error: str) -> None:
    words = failure(failed(error))
    assert not any(PROMPT in said or "output" in said for said in words)
    narrow = pick(words, 34)
    begun = narrow.removeprefix("failed: 400 ").removesuffix("…").rstrip()
    assert narrow.endswith("…") and len(begun) > 3 and error.startswith(begun)
    assert all("\x1b" not in said for said in words)
    assert pick(words, 12) == "failed: 400"
