"""Which turn a captured one is compared with, and what of its conversation is told with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from captured_turns import FULL
from msgspec.structs import replace
from triage_server import WordServer

from kvtop import paths
from kvtop.capture.api.routes import read_request
from kvtop.capture.store.store import Store
from kvtop.capture.turn import Captured, Record, Source, TurnState
from kvtop.triage.casebook import Casebook, Known, NotFound
from kvtop.triage.engine import Engine
from kvtop.triage.ids import pack, unpack
from kvtop.triage.kinds import Kind, Verdict
from kvtop.triage.prompt import Prompt
from kvtop.triage.seen import KvFacts, Server

pytestmark = pytest.mark.asyncio

PROPERTIES = {name: {"type": "string", "description": f"the {name} of it " * 8} for name in ("path", "first", "count")}
PLAIN = {"type": "object", "properties": PROPERTIES}
TURNED = {"type": "object", "properties": dict(reversed(PROPERTIES.items()))}


class Shop:
    """Turns are put in one after the other, a minute apart."""

    def __init__(self, store: Store) -> None:
        self.store, self.count = store, 0

    def turn(
        self,
        said: list[str],
        schema: dict[str, Any] = PLAIN,
        *,
        parent: int | None = None,
        talk: str = "c1",
        salt: str | None = None,
        **known: Any,
    ) -> int:
        tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ("read", "edit")]
        messages = [{"role": "system", "content": f"You help with {talk}. " * 30}]
        messages += [
            {"role": "user" if i % 2 == 0 else "assistant", "content": f"{t} " * 30} for i, t in enumerate(said)
        ]
        salted = {"cache_salt": salt} if salt else {}
        body = json.dumps({"model": "q", "messages": messages, "tools": tools} | salted).encode()
        outline = read_request("POST", "/v1/chat/completions", [], body).outline
        at = FULL.started_at + 60 * self.count
        self.count += 1
        turn = replace(
            FULL, source=Source.TAP, state=TurnState.DONE, record=Record.COMPLETE, error=None, model="q",
            prompt_tokens=None, cached_tokens=None, started_at=at, sent_at=at, first_token_at=at + 1,
            ended_at=at + 5, conversation=talk,
            parent=parent, relation="next" if parent else "first", samples=[], prompt_unproven="", outline=outline,
        )  # fmt: skip
        return self.store.begin(replace(turn, **known), body)


@pytest.fixture
def shop(own_home: Path) -> Shop:
    return Shop(Store.open(paths.turns_file(), write=True))


def book(shop: Shop) -> Casebook:
    return Casebook(shop.store, WordServer(), Known(engine=Engine(block=16)))


async def test_what_it_continues_comes_before_what_shares_more_of_its_head(shop: Shop) -> None:
    first = shop.turn(["one"])
    shop.turn(["one"], TURNED, talk="c1", relation="branch", conversation="c2")  # the same head, other schemas
    second = shop.turn(["one", "yes", "two"], TURNED, parent=first)
    cases = book(shop)
    found = (await cases.diff(cases.turn(second))).diff
    assert (found.old, [cause.kind for cause in found.causes]) == (str(first), [Kind.TOOL_KEY_ORDER])
    assert (found.expected_cached_tokens or 0) > (found.tokens.reusable or 0)  # the other one left it there


class Heard:
    """KV events of which nobody knows anything but since when they were asked for."""

    def __init__(self) -> None:
        self.since: list[int] = []

    async def facts(self, turn: Captured, prompt: Prompt, ids: bytes, old: Captured) -> KvFacts:
        self.since.append(old.id)
        return KvFacts()


async def test_kv_events_are_asked_for_since_the_turn_that_should_have_given_it(shop: Shop) -> None:
    first = shop.turn(["one"])
    other = shop.turn(["one"], TURNED, talk="c1", relation="branch", conversation="c2")
    second = shop.turn(["one", "yes", "two"], TURNED, parent=first)
    heard = Heard()
    cases = Casebook(shop.store, WordServer(), Known(engine=Engine(block=16)), events=heard)
    await cases.why(cases.turn(second))
    assert heard.since == [other], "not since the one whose prompt it is compared with"


async def test_without_a_parent_the_longest_common_beginning_decides(shop: Shop) -> None:
    shop.turn(["other"], talk="c9")
    near = shop.turn(["one", "yes"])
    last = shop.turn(["one", "yes", "two"], talk="c1")
    cases = book(shop)
    assert (await cases.base(cases.turn(last))).id == near


async def test_a_first_turn_that_holds_another_ones_question_and_its_answer_goes_on_with_that(shop: Shop) -> None:
    long = " ".join(f"w{n}" for n in range(200))  # the shop says it thirty times
    asked = shop.turn([long])
    shop.turn(["other"], talk="c1", conversation="c7")  # the same head, and later
    broken = shop.turn([f"Note. {long}", "yes", "and then?"], conversation="c8")
    cases = book(shop)
    found = (await cases.diff(cases.turn(broken))).diff
    assert (found.old, [cause.kind for cause in found.causes]) == (str(asked), [Kind.TEXT_EDITED])


class Backwards(WordServer):
    """As many tokens as there are, in a wrong order."""

    def encode(self, text: str) -> bytes:
        return pack(unpack(super().encode(text))[::-1])


async def test_tokens_that_cannot_be_those_of_the_server_leave_the_texts_to_decide(shop: Shop) -> None:
    first = shop.turn(["one " * 90])
    second = shop.turn(["one " * 90, "yes", "two"], parent=first, prompt_tokens=9_000, cached_tokens=256)
    cases = Casebook(shop.store, Backwards(), Known(engine=Engine(block=16)))
    found = await cases.why(cases.turn(second))
    assert found.diff is not None and (found.diff.method, found.expected_cached_tokens) == ("text", None)
    assert "are not believed" in found.diff.notes[-1] and not found.rules_out
    assert (await cases.diff(cases.turn(second))).diff.notes == found.diff.notes


@pytest.mark.parametrize("odd", [{"schema": TURNED}, {"salt": "s"}])
async def test_after_a_turn_that_stepped_aside_the_one_before_it_counts(shop: Shop, odd: dict[str, Any]) -> None:
    first = shop.turn(["one"])
    before = shop.turn(["one", "yes", "two"], parent=first)
    aside = shop.turn(["one", "yes", "two", "yes", "three"], parent=before, **odd)
    back = shop.turn(["one", "yes", "two", "yes", "three", "yes", "four"], parent=aside)
    on = shop.turn(["one", "yes", "two", "yes", "three", "yes", "four", "yes", "five"], parent=back)
    cases = book(shop)
    assert [(await cases.base(cases.turn(id))).id for id in (aside, back, on)] == [before, before, back]
    assert [len((await cases.diff(cases.turn(id))).diff.causes) for id in (aside, back, on)] == [1, 0, 0]


async def test_a_first_turn_has_nothing_to_be_compared_with(shop: Shop) -> None:
    only = shop.turn(["one"])
    cases = book(shop)
    with pytest.raises(NotFound, match="begins a conversation"):
        await cases.diff(cases.turn(only))
    found = await cases.why(cases.turn(only))
    assert found.verdict is not Verdict.ENGINE_LOST_CACHE and found.diff is None


async def test_a_cause_is_told_with_how_often_the_agent_had_it(shop: Shop) -> None:
    parent, said = shop.turn(["one"]), ["one"]
    for n in range(1, 7):
        said = [*said, f"yes {n}", f"go on {n}"]
        parent = shop.turn(said, TURNED if n % 2 else PLAIN, parent=parent)
    cases = book(shop)
    (cause,) = (await cases.diff(cases.turn(parent))).diff.causes
    assert cause.kind is Kind.TOOL_KEY_ORDER and cause.seen == "in each of the last 6 turns of this agent"


async def test_what_a_turn_cost_stays_whatever_comes_later(shop: Shop) -> None:
    """Whether its own prefill was timed, or only that of turns before it."""
    for talk, prefill in (("c1", 0.9), ("c2", None)):
        timed: dict[str, Any] = {"prompt_tokens": 2_000, "cached_tokens": 288, "queue_s": None, "prefill_s": 0.5}
        timed |= {"talk": talk}
        first = shop.turn(["one"], **timed)
        broke = shop.turn(["one", "yes", "two"], TURNED, parent=first, **timed | {"prefill_s": prefill})
        told = []
        for rate in (500.0, 9_000.0):
            cases = Casebook(shop.store, WordServer(), Known(engine=Engine(block=16), rate=rate))
            found, diff = await cases.why(cases.turn(broke)), (await cases.diff(cases.turn(broke))).diff
            told.append((found.sentence, found.split, found.diff and found.diff.causes, diff.causes))
            shop.turn(["later"], **timed | {"prefill_s": 4.0, "talk": f"later {talk} {rate}"})
        assert told[0] == told[1]
        causes = told[0][2]
        assert causes and 0 < sum(cause.lost_s or 0.0 for cause in causes) <= 1.0, "it waited 1 s"


async def test_of_what_was_lost_those_in_between_are_asked_for_their_tokens(shop: Shop) -> None:
    talk = {"prompt_tokens": 1_200, "cached_tokens": 0}
    first = shop.turn(["one"], **talk)
    shop.turn(["other"], talk="c9", prompt_tokens=900, cached_tokens=800)
    second = shop.turn(["one", "yes", "two"], parent=first, **talk)
    asked: list[int] = []

    class Book(Casebook):
        async def _ids(self, turn: Captured) -> bytes:
            asked.append(turn.id)
            return await super()._ids(turn)

    for pool, n in ((None, 0), (5_000, 3)):
        asked.clear()
        known = Known(engine=Engine(block=16), server=Server(unit=16, pool_tokens=pool))
        cases = Book(shop.store, WordServer(), known)
        await cases.why(cases.turn(second))
        assert len(asked) == n
        await cases.diff(cases.turn(second))
        assert len(asked) == n, "a diff needs none of them"


async def test_a_diff_charges_its_causes_as_why_does_where_another_prompt_left_more_in_the_cache(shop: Shop) -> None:
    """Of 1,072 tokens that the turn before left, its form allows 304; another turn of the new form left 928."""
    timed = {"queue_s": 0.0, "prefill_s": 0.5}
    other = shop.turn(["one", "yes", "two"], conversation="c9", prompt_tokens=1_074, cached_tokens=0, **timed)
    first = shop.turn(["one", "yes", "two"], prompt_tokens=1_074, cached_tokens=1_072, **timed)
    shop.turn(["one"], TURNED, relation="branch", conversation="c2", prompt_tokens=934, cached_tokens=304, **timed)
    read = {"prompt_tokens": 1_214, "cached_tokens": 928}
    last = shop.turn(["one", "yes", "two", "yes", "three"], TURNED, parent=first, **read, **timed)
    cases = Casebook(shop.store, WordServer(), Known(engine=Engine(block=16), server=Server(unit=16)))
    turn = cases.turn(last)
    why, same, asked = await cases.why(turn), await cases.diff(turn), await cases.diff(turn, cases.turn(first))
    assert why.diff is not None and (why.diff.old, why.diff.tokens.reread, why.split.changed) == (str(first), 768, 144)
    assert same.diff.causes == asked.diff.causes == why.diff.causes
    (cause,) = same.diff.causes
    assert (cause.told_tokens, cause.lost_s) == (144, pytest.approx(0.5 * 144 / 286))
    (cause,) = (await cases.diff(turn, cases.turn(other))).diff.causes  # it was not judged against that one
    assert (cause.told_tokens, cause.lost_s) == (286, 0.5), "no more than it read"
