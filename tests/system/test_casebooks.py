"""Captured turns with the server that they went to: asked for tokens where it answers, else compared as texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvtop.capture.store.store import Store
from kvtop.capture.turn import Captured, Route, TurnState
from kvtop.clock import SystemClock
from kvtop.config import Server, Settings
from kvtop.errors import KvtopError
from kvtop.live.casebooks import Casebooks, Place
from kvtop.live.factories import StoreLike, real
from kvtop.live.patience import Gate
from kvtop.model.judge import Thresholds
from kvtop.sim.server import SimBox
from kvtop.sim.thread import BoxThread
from kvtop.triage.kinds import Verdict
from kvtop.triage.kv_facts import Unheard

GIVEN: list[tuple[int, str]] = []
HURRY = Gate(hurry=True)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": {}}}}}
    for name in ("read", "edit")
]
LONG = "Look at the file, and say what is in it. " * 200
SYSTEM = "You are a coding agent. " + "Work with care, and tell what you did. " * 300


@pytest.fixture(scope="module")
def box() -> Iterator[str]:
    thread = BoxThread(SimBox("healthy"))
    try:
        yield thread.start()
    finally:
        thread.stop()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "turns.db"


def books(path: Path) -> Casebooks:
    def opened() -> StoreLike | None:
        return Store.open(path) if path.exists() else None

    return Casebooks(opened, Thresholds(), lambda turn, verdict: GIVEN.append((turn.id, verdict)))


def body(*said: str, tools: list[Any]) -> bytes:
    talk = [{"role": "system", "content": SYSTEM}, *({"role": "user", "content": text} for text in said)]
    return json.dumps({"model": "m", "messages": talk, "tools": tools}).encode()


def broken(path: Path, upstream: str) -> int:
    """Two turns; the second one has the keys of a tool in another order."""
    first = Captured(
        upstream=upstream, route=Route.CHAT, model="m", stream=True, started_at=100.0, sent_at=100.0,
        first_token_at=101.0, ended_at=102.0, status=200, state=TurnState.DONE, prompt_tokens=5_600, cached_tokens=0,
        cached_source="usage", completion_tokens=2, request_bytes=10_000, relation="first",
    )  # fmt: skip
    turned = [json.loads(json.dumps(tool)) for tool in TOOLS]
    turned[1]["function"]["parameters"] = dict(reversed(turned[1]["function"]["parameters"].items()))
    with Store.open(path, write=True) as store:
        one = store.begin(first, body(LONG, tools=TOOLS))
        store.finish(replace(first, id=one, conversation=f"c{one}"), b"{}")
        second = replace(
            first, cached_tokens=3_072, started_at=110.0, sent_at=110.0, first_token_at=150.0, ended_at=151.0,
            conversation=f"c{one}", parent=one, relation="next", changed=["tools"],
        )  # fmt: skip
        two = store.begin(second, body(LONG, "and again", tools=turned))
        store.finish(replace(second, id=two), b"{}")
    return two


def test_with_a_server_tokens_are_counted(path: Path, box: str) -> None:
    id = broken(path, box)
    made = books(path)
    source = real(Settings(), SystemClock()).server
    found = made.why(id, Place(box, source=lambda: source(box, None), rate=1_000.0), HURRY)
    assert found.verdict is Verdict.PROMPT_DIVERGED and found.reason == "tool_key_order"
    assert GIVEN[-1] == (id, "prompt_diverged")
    assert found.diff is not None and found.diff.method == "server_tokens" and found.reread_tokens
    sheet = made.sheet(id, Place(box, source=lambda: source(box, None)), HURRY)
    assert sheet.tokens and (sheet.old_label, sheet.new_label) == ("turn 1", f"turn {id}")
    assert "".join(sheet.new).count("and again") == 1


def test_what_the_watch_has_read_is_not_asked_again(path: Path, box: str) -> None:
    import asyncio

    async def read() -> Any:
        source = real(Settings(), SystemClock()).server(box, None)
        try:
            return await source.scrape(), await source.facts()
        finally:
            await source.aclose()

    id = broken(path, box)
    found = books(path).why(id, Place(box, latest=asyncio.run(read()), rate=1_000.0), HURRY)
    assert found.diff is not None and found.diff.method == "server_tokens"
    assert found.diff.match_unit_tokens, "the scrape told it"


def test_kv_events_are_read_for_a_verdict_alone(path: Path, box: str) -> None:
    id = broken(path, box)
    asked: list[Unheard] = []

    async def events() -> Unheard:
        asked.append(Unheard("nobody listened"))
        return asked[-1]

    source = real(Settings(), SystemClock()).server
    place = Place(box, source=lambda: source(box, None), rate=1_000.0, events=events)
    books(path).sheet(id, place, HURRY)
    assert asked == []
    assert books(path).why(id, place, HURRY).verdict is Verdict.PROMPT_DIVERGED
    assert len(asked) == 1


@pytest.mark.parametrize("place", [None, Place("http://127.0.0.1:1"), Place("http://127.0.0.1:1/", rate=5.0)])
def test_without_one_texts_are_compared(path: Path, place: Place | None) -> None:
    id = broken(path, "http://127.0.0.1:1")
    found = books(path).why(id, place, HURRY)
    assert found.verdict is Verdict.PROMPT_DIVERGED and found.reason == "tool_key_order"
    assert found.diff is not None and found.diff.method == "text" and not found.diff.exact
    sheet = books(path).sheet(id, place, HURRY)
    assert not sheet.tokens and sheet.new_label == f"turn {id}"


def test_one_that_stops_answering_in_the_middle_is_done_without(path: Path, box: str) -> None:
    id = broken(path, box)
    source = real(Settings(), SystemClock()).server

    def key() -> str | None:
        raise OSError("the key's file is gone")

    found = books(path).why(id, Place("http://127.0.0.1:1", source=lambda: source(box, None)), HURRY)
    assert found.diff is not None and found.diff.method == "text"
    with pytest.raises(OSError, match="gone"):  # ours, not the server's: the loop above tells it apart
        books(path).why(id, Place(box, key, source=lambda: source(box, None)), HURRY)


def test_a_turn_that_is_not_kept_is_an_error_that_says_so(path: Path, box: str) -> None:
    with pytest.raises(KvtopError, match="not kept any more"):
        books(path).why(1, None, HURRY)
    broken(path, box)
    for place in (None, Place(box)):
        with pytest.raises(KvtopError, match="not kept any more"):
            books(path).why(99, place, HURRY)
    with pytest.raises(KvtopError, match="begins a conversation"):
        books(path).sheet(1, None, HURRY)


def test_another_process_at_the_same_port_may_have_another_model(path: Path, box: str) -> None:
    id = broken(path, box)
    made = books(path)
    source = real(Settings(), SystemClock()).server
    for started, kept in ((1.0, False), (1.0, True), (2.0, False)):
        before = len(made._memory) if made._memory else 0
        memory = made._remembered(Place(box, started_at=started))
        assert (len(memory) == before > 0) is kept
        made.why(id, Place(box, source=lambda: source(box, None), started_at=started), HURRY)
        assert len(memory) > 0


def test_a_key_is_never_shown() -> None:
    secret = Place("http://user:geheim@127.0.0.1:8000", Server(url="http://x", api_key_env="X").api_key)
    assert "geheim" not in repr(secret)
