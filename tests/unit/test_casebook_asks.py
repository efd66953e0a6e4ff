"""What a casebook asks a server for, and what it makes of the turns around one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from captured_turns import FULL
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_
from triage_server import Template, WordServer, system_first

from kvtop.capture.api.routes import read_request
from kvtop.capture.store.store import Store
from kvtop.capture.turn import Captured, Record, Route, Sample, Source, TurnState
from kvtop.triage.casebook import Casebook, Known
from kvtop.triage.differ import Counted, Sent
from kvtop.triage.engine import Engine, Layers
from kvtop.triage.ids import count
from kvtop.triage.judge import read
from kvtop.triage.kinds import Kind, Reason, Verdict
from kvtop.triage.seen import Server
from kvtop.triage.shortened import shortened

URL = "http://127.0.0.1:8000"
T = 1_796_000_000.0
RULES = "Read a file before you change it, and test each change. " * 30


class Counting(WordServer):
    """Notes which turns it was asked for."""

    def __init__(self, template: Template = system_first) -> None:
        super().__init__(template)
        self.turns: list[str] = []

    async def counted(self, sent: Sent) -> Counted:
        self.turns.append(sent.name)
        return await super().counted(sent)


def messages(steps: int, who: str = "", said: str = "", *, thinks: bool = False) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "system", "content": who + RULES}, {"role": "user", "content": "Mend it."}]
    for i in range(steps):
        found += [
            {"role": "assistant", "content": f"Step {i}."} | ({"reasoning": f"I think of {i}."} if thinks else {}),
            {"role": "user", "content": f"{said}Go on with file {i}. " * 20},
        ]
    return found


class Box:
    """A store that turns are put into, and what is said of them."""

    def __init__(self, store: Store, server: Counting, layers: Layers) -> None:
        self.store, self.server = store, server
        self._engine = Engine(block=16, layers=layers)
        self._n = 0

    def put(self, said: list[dict[str, Any]], **known: Any) -> int:
        """A minute after the last one; its usage is the server's count."""
        body = json.dumps({"model": "m", "messages": said}).encode()
        tokens = count(self.server.encode(self.server.template(read(body, Route.CHAT))))
        at = T + 60 * self._n
        self._n += 1
        turn = with_(
            FULL, source=Source.TAP, state=TurnState.DONE, record=Record.COMPLETE, upstream=URL, model="m", error=None,
            started_at=at, sent_at=at, first_token_at=at + 1, ended_at=at + 2, prompt_tokens=tokens,
            completion_tokens=1,
            outline=read_request("POST", "/v1/chat/completions", [], body).outline, samples=[], prompt_unproven="",
            queue_s=None, prefill_s=None, response_headers=[], request_headers=[],
        )  # fmt: skip
        return self.store.begin(with_(turn, **known), body)

    def book(self) -> Casebook:
        server = Server(unit=16, pool_tokens=100_000, version="0.32.0", engines=1, layers=self._engine.layers)
        return Casebook(self.store, self.server, Known(self._engine, 1_000.0, server))


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Callable[..., Box]]:
    stores = []

    def make(template: Template = system_first, layers: Layers = Layers.FULL) -> Box:
        stores.append(Store.open(tmp_path / f"{len(stores)}.db", write=True))
        return Box(stores[-1], Counting(template), layers)

    yield make
    for one in stores:
        one.close()


def talk(box: Box, steps: int, **last: Any) -> list[int]:
    """Turns that each go on from the one before."""
    ids: list[int] = []
    for n in range(steps):
        known = {"conversation": "c1", "parent": ids[-1] if ids else None, "relation": "next" if ids else "first"}
        ids.append(box.put(messages(n), cached_tokens=0, **(known | (last if n == steps - 1 else {}))))
    return ids


@pytest.mark.parametrize("layers", [Layers.FULL, Layers.HYBRID])
async def test_the_server_is_asked_for_two_turns_of_a_conversation(box: Callable[..., Box], layers: Layers) -> None:
    one = box(layers=layers)
    ids = talk(one, 9)
    book = one.book()
    base, expected = await book.baseline(book.turn(ids[-1]))
    assert base is not None and base.id == ids[-2]
    assert sorted(one.server.turns) == [str(ids[-2]), str(ids[-1])]
    before = book.turn(ids[-2]).prompt_tokens
    assert expected is not None and before is not None
    assert expected.tokens == (before - (layers is Layers.HYBRID)) // 16 * 16


def drops_thoughts(prompt: Any) -> str:
    """The reasoning before the last user message is not printed."""
    last = max((i for i, one in enumerate(prompt.messages) if one.get("role") == "user"), default=0)
    return system_first(prompt, thoughts=lambda _, i: i > last)


def opens_a_thought(prompt: Any) -> str:
    """The head of an answer holds what no history holds."""
    return system_first(prompt) + "<think>\n\n</think>\n\n"


async def test_where_a_template_prints_the_history_otherwise_each_turn_is_asked_for(box: Callable[..., Box]) -> None:
    one = box(opens_a_thought)
    ids = talk(one, 4)
    book = one.book()
    await book.baseline(book.turn(ids[-1]))
    assert sorted(one.server.turns) == [str(id) for id in ids]


_SAID = st.lists(
    st.tuples(
        st.sampled_from(["user", "assistant", "tool", "system"]), st.sampled_from(["a", "b c", "", "assistant\n"])
    ),
    min_size=1,
    max_size=7,
)


async def test_where_reasoning_is_sent_each_turn_is_asked_for(box: Callable[..., Box]) -> None:
    one = box(drops_thoughts)
    ids = [one.put(messages(n, thinks=True), conversation="c1", relation="next", cached_tokens=0) for n in range(4)]
    book = one.book()
    await book.baseline(book.turn(ids[-1]))
    assert sorted(one.server.turns) == [str(id) for id in ids[1:]]


@given(said=_SAID, thoughts=st.booleans(), template=st.sampled_from([system_first, opens_a_thought]))
def test_what_is_cut_out_of_a_longer_prompt_is_what_the_server_would_say(
    said: list[tuple[str, str]], thoughts: bool, template: Template
) -> None:
    server = WordServer(template)
    whole = [
        {"role": role, "content": text} | ({"reasoning": "hm"} if thoughts and role == "assistant" else {})
        for role, text in said
    ]

    def turn(length: int) -> tuple[Captured, bytes]:
        body = json.dumps({"model": "m", "messages": whole[:length]}).encode()
        ids = server.encode(template(read(body, Route.CHAT)))
        outline = read_request("POST", "/v1/chat/completions", [], body).outline
        return Captured(route=Route.CHAT, outline=outline, prompt_tokens=count(ids)), ids

    longer, ids = turn(len(whole))
    for length in range(1, len(whole)):
        old, told = turn(length)
        assert shortened(old, longer, ids) in (None, told)


async def test_a_title_between_two_turns_is_another_conversation(box: Callable[..., Box]) -> None:
    one = box()
    ids = talk(one, 3)
    asks = [{"role": "system", "content": "You write titles. " * 60}, {"role": "user", "content": "Mend it. " * 300}]
    title = one.put(asks, conversation="c4", parent=ids[-1], relation="side", cached_tokens=0)
    last = one.put(messages(3), conversation="c1", parent=ids[-1], relation="next", cached_tokens=0)
    book = one.book()
    found = await book.why(book.turn(title))
    assert (found.verdict, found.fix) == (Verdict.NO_FAULT, None)
    assert found.diff is not None and Kind.OTHER_CONVERSATION in {cause.kind for cause in found.diff.causes}
    assert (await book.diff(book.turn(last))).diff.old == str(ids[-1])


async def test_turns_in_between_are_looked_at_with_their_samples(box: Callable[..., Box]) -> None:
    """The counters fell while another turn ran: only its samples show it."""

    def sample(at: float, tokens: float) -> Sample:
        return Sample(at=at, prompt_tokens=tokens, cached_tokens=0, generation_tokens=0)

    one = box()
    first = one.put(messages(1), conversation="c1", relation="first", cached_tokens=0, samples=[sample(T + 3, 900)])
    other = [{"role": "user", "content": "Something else."}]
    one.put(other, conversation="c2", relation="first", cached_tokens=0, samples=[sample(T + 63, 20)])
    late = [sample(T + 120, 4_000), sample(T + 122, 5_000)]
    lost = one.put(messages(2), conversation="c1", parent=first, relation="next", cached_tokens=0, samples=late)
    book = one.book()
    found = await book.why(book.turn(lost))
    assert (found.verdict, found.reason) == (Verdict.ENGINE_LOST_CACHE, Reason.RESTART), found
    assert "its counters began again" in found.sentence
