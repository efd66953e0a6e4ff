"""A server whose tokens cannot be those of the prompts is not believed: never 'the same'."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest
from captured_turns import FULL
from triage_server import WordServer, sent

from kvtop.errors import KvtopError
from kvtop.sources.http import Answer
from kvtop.triage import prompted
from kvtop.triage.differ import diverge
from kvtop.triage.doubt import doubt
from kvtop.triage.ids import pack, unpack
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


class Backwards(WordServer):
    """As many tokens as there are, in a wrong order."""

    def encode(self, text: str) -> bytes:
        return pack(unpack(super().encode(text))[::-1])


SAME = " ".join(f"rule{n}" for n in range(900))
ASKED = {"old": f"{SAME} one", "new": f"{SAME} two and more"}
HALF = {"old": SAME.replace("rule450 ", "one ", 1), "new": SAME.replace("rule450 ", "two ", 1)}
APART = {"old": f"one {SAME}", "new": f"two {SAME}"}


@pytest.mark.parametrize(
    ("said", "cached", "server", "doubted"),
    [
        (ASKED, 768, Backwards(), True),
        (ASKED, 16, Backwards(), False),  # the cache does not contradict it
        (ASKED, 768, WordServer(), False),  # its tokens agree
        (HALF, 1_200, Backwards(), False),  # the texts are not the same for as long as that
        (APART, 768, WordServer(), False),  # the texts do not: another prompt left it there
        (ASKED, None, Backwards(), False),
    ],
)
def test_tokens_are_doubted_where_the_cache_and_the_texts_contradict_them(
    said: dict[str, str], cached: int | None, server: WordServer, doubted: bool
) -> None:
    found = asyncio.run(diverge(sent(prompt(said["old"])), sent(prompt(said["new"])), server))
    turn = msgspec.structs.replace(FULL, prompt_tokens=1_900, cached_tokens=cached)
    assert bool(doubt(found, turn, None, 16)) is doubted
