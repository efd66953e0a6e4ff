"""A replay that the screen asks for, against a box over HTTP: planned, sent, noted, and given up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace as replace_
from pathlib import Path
from typing import Any

import pytest
from loopback import Exchange, serving, vllm
from msgspec.structs import replace

from kvtop.capture.store.store import Store
from kvtop.capture.turn import Captured, Route, TurnState
from kvtop.clock import SystemClock
from kvtop.config import Settings
from kvtop.errors import KvtopError, UsageError
from kvtop.live.casebooks import Casebooks, Place
from kvtop.live.factories import real
from kvtop.live.replaying import Replaying
from kvtop.model.judge import Thresholds
from kvtop.sim.scenarios import SCENARIOS
from kvtop.sim.server import SimBox
from kvtop.sim.thread import BoxThread
from kvtop.triage import replay_notes
from kvtop.triage.kinds import Kind
from kvtop.triage.replay_server import ReplayServer
from kvtop.triage.replayed import Name, Run
from kvtop.worker import Worker

SYSTEM = "You are a coding agent. " + "Work with care, and tell what you did. " * 100
SCHEMA = {"a": {"type": "string"}, "b": {"type": "string"}}


@pytest.fixture
def box() -> Iterator[str]:
    thread = BoxThread(SimBox(replace_(SCENARIOS["healthy"], past_s=1.0, cast=lambda stage: [])))
    try:
        yield thread.start()
    finally:
        thread.stop()


class Told:
    """Captured turns as the dashboard keeps them, and the server that they went to."""

    def __init__(self, path: Path, url: str) -> None:
        self.path, self.url = path, url
        self.answers = True

    def captured(self, id: int) -> Captured | None:
        with Store.open(self.path) as store:
            return store.turn(id)

    def place(self, upstream: str) -> Place | None:
        source = real(Settings(), SystemClock()).server
        return Place(self.url, source=lambda: source(self.url, None), rate=1_000.0) if self.answers else None


def put(path: Path, upstream: str) -> int:
    def body(said: int, names: list[str]) -> bytes:
        tools = [{"type": "function", "function": {"name": "read", "parameters": {
            "type": "object", "properties": {name: SCHEMA[name] for name in names}}}}]  # fmt: skip
        talk: list[Any] = [{"role": "system", "content": SYSTEM}]
        talk += [{"role": "user", "content": f"message {i} " * 60} for i in range(said)]
        return json.dumps({"model": "devstral-small-24b-fp8", "messages": talk, "tools": tools}).encode()

    first = Captured(
        upstream=upstream, route=Route.CHAT, model="m", stream=True, started_at=100.0, sent_at=100.0,
        first_token_at=101.0, ended_at=102.0, status=200, state=TurnState.DONE, relation="first", completion_tokens=2,
    )  # fmt: skip
    with Store.open(path, write=True) as store:
        one = store.begin(first, body(1, ["a", "b"]))
        store.finish(replace(first, id=one, conversation=f"c{one}"), b"{}")
        second = replace(
            first, started_at=110.0, sent_at=110.0, first_token_at=111.0, ended_at=112.0, conversation=f"c{one}",
            parent=one, relation="next", changed=["tools"],
        )  # fmt: skip
        two = store.begin(second, body(2, ["b", "a"]))
        store.finish(replace(second, id=two), b"{}")
    return two


@pytest.fixture
def asked(own_home: Path, tmp_path: Path, box: str) -> tuple[Replaying, Told, int]:
    path = tmp_path / "turns.db"
    id, told = put(path, box), Told(path, box)
    cases = Casebooks(lambda: Store.open(path), Thresholds())
    return Replaying(told, cases, told, Worker), told, id  # type: ignore[arg-type]


async def test_it_says_what_it_costs_and_then_sends_and_notes(asked: tuple[Replaying, Told, int]) -> None:
    replaying, told, id = asked
    offer = await replaying.offer(id, [Kind.TOOL_KEY_ORDER])
    assert (offer.pair.old, offer.pair.new, offer.pair.kinds) == ("turn 1", f"turn {id}", (Kind.TOOL_KEY_ORDER,))
    assert offer.plan.url == told.url and offer.plan.write_tokens
    assert replay_notes.read() == () and replaying.so_far() is None
    assert offer.plan.idle, offer.plan.busy
    runs: list[Run] = []
    found = await replaying.send(offer, runs.append)
    await asyncio.sleep(0)
    assert [run.name for run in runs] == list(Name) and found.runs == tuple(runs)
    notes = replay_notes.read()
    assert [note.prompt_tokens for note in notes] == [run.prompt_tokens for run in runs]
    assert {note.server for note in notes} == {told.url}


async def test_what_cannot_be_asked_is_one_line(asked: tuple[Replaying, Told, int]) -> None:
    replaying, told, id = asked
    told.answers = False
    with pytest.raises(KvtopError, match="does not answer"):
        await replaying.offer(id)
    told.answers, told.url = True, "http://gpubox.example:8000"
    with pytest.raises(UsageError, match="is not this machine") as refused:
        await replaying.offer(id)
    assert refused.value.fix == "--allow-remote sends the prompts there"
    with pytest.raises(KvtopError, match="not kept at hand"):
        await replaying.offer(99)
    assert replay_notes.read() == ()


async def test_one_that_is_given_up_ends_and_the_next_one_has_its_thread(asked: tuple[Replaying, Told, int]) -> None:
    replaying, _, id = asked
    first = asyncio.create_task(replaying.offer(id))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert first.cancelled()
    assert (await replaying.offer(id)).pair.new == f"turn {id}"


@pytest.mark.parametrize("known", [True, False])
async def test_a_request_that_is_cut_off_where_vllm_answered_before_asks_for_no_other_url(known: bool) -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.path == "/metrics":
            await vllm()(exchange)
        else:
            exchange.close()

    async with serving(handle) as box:
        server = ReplayServer(box.url)
        if known:
            await server.scrape()
        with pytest.raises(KvtopError, match="closes the connection without an answer") as caught:
            await server.post("/v1/chat/completions", b"{}")
        await server.aclose()
    said = f"{caught.value.what}; {caught.value.fix}"
    assert ("does it want https?" in said, "name the URL" in said) == (not known, not known)
