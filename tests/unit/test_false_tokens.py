"""A server whose tokens cannot be those of the prompts is not believed: never 'the same'."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from triage_server import WordServer, sent

from kvtop.errors import KvtopError
from kvtop.sources.http import Answer
from kvtop.triage import prompted
from kvtop.triage.differ import diverge
from kvtop.triage.ids import pack
from kvtop.triage.prompt import Prompt


def prompt(*said: str, role: str = "user") -> Prompt:
    return Prompt(messages=tuple({"role": role, "content": text} for text in said))


class Liar(WordServer):
    """The same two tokens for all."""

    def encode(self, text: str) -> bytes:
        return pack([1, 2])


@pytest.mark.parametrize("new", [("hello there",), ("hello", "go on"), ("other",)])
def test_other_words_under_the_same_tokens_are_not_the_same(new: tuple[str, ...]) -> None:
    with pytest.raises(KvtopError, match="the same tokens for two prompts whose words differ"):
        asyncio.run(diverge(sent(prompt("hello")), sent(prompt(*new)), Liar()))


@pytest.mark.parametrize("inputs", [{"truncate_prompt_tokens": 2}, {"truncation": "auto"}])
def test_of_prompts_that_the_server_cuts_the_rest_may_be_the_same(inputs: dict[str, object]) -> None:
    old, new = (replace(prompt(said), inputs=inputs) for said in ("hello there", "good day, there"))
    found = asyncio.run(diverge(sent(old), sent(new), Liar()))
    assert (found.diff.tokens.common, found.diff.tokens.lost) == (2, 0)


@pytest.mark.parametrize("new", [prompt("hello"), prompt(" hello\n"), prompt("hello", role="user")])
def test_what_a_template_may_well_print_alike_is(new: Prompt) -> None:
    server = WordServer(lambda one: "".join(str(message["content"]).strip() for message in one.messages))
    found = asyncio.run(diverge(sent(prompt("hello")), sent(new), server))
    assert found.diff.append_only


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (b'{"tokens": [1, 2], "count": 2}', [1, 2]),
        (b'{"tokens": [1, 2]}', [1, 2]),
        (b'{"tokens": [1, 2], "count": 9000}', None),
        (b'{"tokens": [], "count": 1}', None),
    ],
)
def test_a_count_that_is_not_that_of_its_ids(body: bytes, ids: list[int] | None) -> None:
    assert prompted.tokens(Answer(200, {}, body)) == ids
