"""The replay of two turns, on a stand-in; and what its runs say."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from replay_box import BLOCK, Box

from kvtop.capture.turn import Route
from kvtop.errors import KvtopError
from kvtop.model.own import OwnRequest
from kvtop.triage import replay as module
from kvtop.triage.fixes import repair
from kvtop.triage.kinds import Kind, Verdict
from kvtop.triage.replay import Replay, Sent
from kvtop.triage.replayed import Live, Name, Plan, Run, judged
from kvtop.triage.resent import fresh_salt, resent

TALK = [{"role": "user", "content": "word " * 40}]
MORE = [*TALK, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and then? " * 8}]


def tools(*keys: str) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in keys}}
    return [{"type": "function", "function": {"name": "read", "parameters": schema}}]


def chat(messages: list[dict[str, Any]], **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, "stream": True, "max_tokens": 900} | more).encode()


GROWN = Sent(Route.CHAT, chat(TALK), chat(MORE))
SHUFFLED = Sent(Route.CHAT, chat(TALK, tools=tools("path", "first")), chat(MORE, tools=tools("first", "path")))


async def quick(_: float) -> None:
    return None


def replay(box: Box, sent: Sent = GROWN, **more: Any) -> Replay:
    return Replay(box, sent, sleep=quick, **more)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNTED_S", 0.05)


async def test_a_pair_that_grows_shares_all() -> None:
    box = Box()
    found = await replay(box).run()
    cold, warm, new = found.runs
    assert [run.name for run in found.runs] == [Name.COLD, Name.WARM, Name.NEW]
    assert cold.cached_tokens == 0
    assert warm.cached_tokens == ((cold.prompt_tokens or 0) - 1) // BLOCK * BLOCK
    assert found.verdict is Verdict.NO_FAULT
    assert found.document["runs"][2]["share"] == pytest.approx((new.cached_tokens or 0) / (new.prompt_tokens or 1))
    assert list(found.document) == ["url", "idle", "salt", "runs", "verdict", "sentence"]
    assert list(found.document["runs"][0]) == ["name", "prompt_tokens", "cached_tokens", "share", "ttft_s"]


async def test_what_is_sent_is_the_prompt_and_one_token() -> None:
    box = Box(offload=True)
    await replay(box, Sent(Route.CHAT, chat(TALK, temperature=0.5, max_completion_tokens=9, n=3), chat(MORE))).run()
    path, first = box.asked[0]
    assert path == "/v1/chat/completions"
    assert first["messages"] == TALK
    assert first["temperature"] == 0.5
    assert (first["stream"], first["max_tokens"], first["kv_transfer_params"]) == (
        False,
        1,
        {"max_offload_tokens": 0},
    )
    assert "max_completion_tokens" not in first
    assert "n" not in first
    assert len({asked["cache_salt"] for _, asked in box.asked}) == 1


async def test_a_shuffled_schema_and_its_repair() -> None:
    box = Box()
    fixed = repair(Kind.TOOL_KEY_ORDER, SHUFFLED.old, SHUFFLED.new, Route.CHAT)
    told: list[Name] = []
    found = await replay(box, SHUFFLED, repaired=fixed).run(told=lambda run: told.append(run.name))
    assert told == list(Name)
    by_name = {run.name: run for run in found.runs}
    assert by_name[Name.OLD_FIXED].cached_tokens == 0
    assert (by_name[Name.NEW_FIXED].share or 0) > 0.5
    assert (by_name[Name.NEW].share or 1) < 0.4
    assert found.verdict is Verdict.PROMPT_DIVERGED
    assert "With the keys of all schemas sorted in both turns the new turn gets" in found.sentence


async def test_salts_that_differ_stay_different() -> None:
    box = Box()
    sent = Sent(Route.CHAT, chat(TALK, cache_salt="a"), chat(MORE, cache_salt="b"))
    found = await replay(box, sent).run()
    assert [run.cached_tokens == 0 for run in found.runs] == [True, False, True]
    assert found.verdict is Verdict.PROMPT_DIVERGED
    assert all(asked["cache_salt"].startswith(found.salt) for _, asked in box.asked)


async def test_usage_without_details_is_filled_from_the_counters() -> None:
    found = await replay(Box(details=False)).run()
    assert found.verdict is Verdict.NO_FAULT
    assert (found.runs[1].cached_tokens or 0) > 0


async def test_another_request_in_between_is_no_ground_for_a_verdict() -> None:
    found = await replay(Box(beside=1)).run()
    assert found.verdict is Verdict.UNKNOWN
    assert found.runs[0].disturbed
    assert "another request ran in between" in found.sentence


async def test_a_server_that_ignores_the_salt_is_found_out() -> None:
    box = Box(salted=False)
    await box.post("/v1/chat/completions", resent(Route.CHAT, json.loads(GROWN.old), "live", offloads=False))
    found = await replay(box).run()
    assert found.verdict is Verdict.UNKNOWN
    assert "does not keep salts apart" in found.sentence


async def test_a_cache_that_keeps_nothing_is_no_verdict_on_the_prompt() -> None:
    found = await replay(Box(caches=False)).run()
    assert found.verdict is Verdict.UNKNOWN
    assert "sent twice in a row" in found.sentence


@pytest.mark.parametrize("busy", [{"running": 2}, {"creeping": 50}])
async def test_a_busy_server_is_refused_unless_forced(busy: dict[str, int]) -> None:
    box = Box(**busy)  # type: ignore[arg-type]
    one = replay(box)
    with pytest.raises(KvtopError, match="is busy"):
        await one.run()
    assert box.asked == []
    assert one.so_far().sentence == "nothing was sent"
    found = await one.run(force=True)
    assert len(box.asked) == 3
    assert not found.idle


async def test_what_it_will_cost_is_said_before() -> None:
    plan = await replay(Box(offload=True), Sent(Route.CHAT, GROWN.old, GROWN.new, 1000, 1500)).plan()
    assert plan == Plan("http://127.0.0.1:8000", True, "", 2500, True, 10_000, 5.0, True)
    assert plan.sentence == (
        "writes up to 2,500 tokens into a KV cache of 10,000, in about 5 s; the tier behind it is left alone "
        "(from vLLM 0.23 on)"
    )
    rated = await replay(Box(pool=2000), Sent(Route.CHAT, GROWN.old, GROWN.new, 1000, 1500), rate=100.0).plan()
    assert rated.sentence == (
        "writes up to 2,500 tokens into a KV cache of 2,000, which evicts all that is in it, in about 25 s"
    )
    guessed = await replay(Box()).plan()
    assert not guessed.counted
    assert guessed.write_tokens == pytest.approx((len(GROWN.old) + len(GROWN.new)) / 3.5, rel=0.4)
    assert "up to about" in guessed.sentence


@pytest.mark.parametrize(
    ("box", "says"),
    [(Box(down=True), "connection refused"), (Box(stats=False), "does not tell whether it is idle")],
)
async def test_a_server_that_cannot_be_asked_is_one_error(box: Box, says: str) -> None:
    with pytest.raises(KvtopError, match=says):
        await replay(box).plan()


async def test_a_refused_request_ends_it() -> None:
    one = replay(Box(status=400))
    with pytest.raises(KvtopError, match="answers 400") as failure:
        await one.run()
    assert "secret" not in str(failure.value)
    assert one.so_far().verdict is Verdict.UNKNOWN


async def test_an_answer_that_cannot_be_made_of_one_token_counts_all_the_same() -> None:
    """A call cut short after one token may be an error of the answer; the prompt was prefilled."""
    found = await replay(Box(status=500, counts_all_the_same=True)).run()
    assert found.verdict is Verdict.NO_FAULT


async def test_a_replay_that_is_cancelled_says_how_far_it_came() -> None:
    box = Box()
    warm = asyncio.Event()

    async def slow(_: float) -> None:
        return None

    one = Replay(box, GROWN, sleep=slow)
    original = box.post

    async def post(path: str, body: bytes) -> Any:
        if len(box.asked) == 2:
            warm.set()
            await asyncio.Event().wait()
        return await original(path, body)

    box.post = post  # type: ignore[method-assign]
    task = asyncio.create_task(one.run())
    await warm.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    found = one.so_far()
    assert [run.name for run in found.runs] == [Name.COLD, Name.WARM]
    assert found.sentence.startswith("stopped before new: ")


@pytest.mark.parametrize("body", [b"[]", b"{", b'"text"', b"\xff", b"[" * 100_000])
def test_what_is_no_request_is_refused_before_anything_is_sent(body: bytes) -> None:
    with pytest.raises(KvtopError, match="cannot be read"):
        Replay(Box(), Sent(Route.CHAT, body, GROWN.new))


def test_what_cannot_be_sent_again_is_refused() -> None:
    with pytest.raises(KvtopError, match="embeddings"):
        Replay(Box(), Sent(Route.EMBEDDINGS, GROWN.old, GROWN.new))
    with pytest.raises(KvtopError, match="not in it"):
        resent(Route.RESPONSES, {"input": "go on", "previous_response_id": "resp_1"}, "s", offloads=False)


def test_a_salt_is_one_that_every_version_takes() -> None:
    salt = fresh_salt()
    assert salt != fresh_salt()
    assert len(f"{salt}-fixed-2") <= 128
    assert not set(salt) & set("@/\\\0")


def runs(cold: int | None, warm: int | None, new: int | None, *fixed: int | None) -> list[Run]:
    counts = zip(Name, (cold, warm, new, *fixed), strict=False)
    return [Run(name, 2000, cached, 0.1) for name, cached in counts]


@pytest.mark.parametrize(
    ("got", "live", "verdict", "says"),
    [
        ((0, 1984, 1984), None, Verdict.NO_FAULT, "goes on where the old one ends"),
        ((0, 1984, 1968), None, Verdict.NO_FAULT, "goes on where"),
        ((0, 1984, 1952), None, Verdict.PROMPT_DIVERGED, "gets 1,952"),
        ((0, 1984, 512), None, Verdict.PROMPT_DIVERGED, "gets 512 of 1,984 tokens that could be reused: the prompts"),
        ((0, 1984, 1984), 1984, Verdict.NO_FAULT, "and got 1,984 then"),
        ((0, 1984, 1984), 0, Verdict.ENGINE_LOST_CACHE, "the prompts are not to blame"),
        ((0, 1984, 512), 512, Verdict.PROMPT_DIVERGED, "nothing was evicted"),
        ((0, 1984, 512), 0, Verdict.ENGINE_LOST_CACHE, "evicted or lost in between"),
        ((0, 1984, 512), 528, Verdict.UNKNOWN, "followed another turn"),
        ((0, 1984, 1984), 2032, Verdict.NO_FAULT, "got 2,032 then"),
        ((0, 1984, 1984), 2100, Verdict.UNKNOWN, "followed another turn"),
        ((16, 1984, 1984), 0, Verdict.UNKNOWN, "does not keep salts apart"),
        ((0, 0, 0), 0, Verdict.UNKNOWN, "gets nothing from the cache"),
        ((0, None, 5), None, Verdict.UNKNOWN, "--enable-prompt-tokens-details"),
    ],
)
def test_what_the_runs_say(got: tuple[int | None, ...], live: int | None, verdict: Verdict, says: str) -> None:
    reply = 64 if live is not None and live > 1984 else 0
    found, sentence = judged(runs(*got), Live(live, reply), unit_tokens=16, pool_tokens=10_000)
    assert found is verdict, sentence
    assert says in sentence


def test_a_new_turn_that_went_on_from_another_proves_nothing_of_that_one() -> None:
    other = Live(512, went_on_from=8, left_tokens=1968)
    verdict, says = judged(runs(0, 1984, 512), other, unit_tokens=16)
    assert verdict is Verdict.PROMPT_DIVERGED and "nothing was evicted" not in says
    assert says.endswith(
        "and got 512 then: these two prompts part; live it went on from turn 8, which left it 1,968 tokens: whether "
        "that was evicted, only a replay of those two can tell"
    )
    alike = Live(512, went_on_from=8, left_tokens=512)
    assert judged(runs(0, 1984, 512), alike, unit_tokens=16)[1].endswith("nothing was evicted"), "it left no more"
    lost = judged(runs(0, 1984, 512), Live(0, went_on_from=8, left_tokens=1968), unit_tokens=16)
    assert lost[0] is Verdict.ENGINE_LOST_CACHE, "what both have was gone too"
    gave = judged(runs(0, 1984, 512), Live(1600, 0, 8, 1600), unit_tokens=16)
    assert gave[0] is Verdict.PROMPT_DIVERGED
    assert gave[1].endswith("and got 1,600 then, all that turn 8 had left: these two prompts part, nothing was evicted")
    assert "it followed turn 8, not this old one" in judged(runs(0, 1984, 512), Live(1600, 0, 8), unit_tokens=16)[1]


async def test_each_request_is_noted_before_it_is_sent_and_when_it_is_answered() -> None:
    notes: list[OwnRequest] = []
    box = Box()
    found = await replay(box, noted=notes.append).run()
    by_id = {note.id: note for note in notes}
    assert [note.prompt_tokens for note in by_id.values()] == [run.prompt_tokens for run in found.runs]
    assert [note.cached_tokens for note in by_id.values()] == [run.cached_tokens for run in found.runs]
    assert all(note.server == box.url and note.ended_at is not None for note in by_id.values())
    assert notes[0].ended_at is None, "it is known while it runs"


async def test_a_request_that_is_broken_off_is_noted_to_have_ended() -> None:
    notes: list[OwnRequest] = []
    box, sent = Box(), asyncio.Event()

    async def post(path: str, body: bytes) -> Any:
        sent.set()
        await asyncio.Event().wait()

    box.post = post  # type: ignore[method-assign]
    task = asyncio.create_task(replay(box, noted=notes.append).run())
    await sent.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [(note.ended_at is None, note.prompt_tokens) for note in notes] == [(True, None), (False, None)]


def test_a_prompt_below_a_unit_or_above_the_pool_is_named() -> None:
    assert "no more than the 2,048 that are matched" in judged(runs(0, 0, 0), Live(), unit_tokens=2048)[1]
    assert "the KV cache holds 1,500" in judged(runs(0, 0, 0), Live(), unit_tokens=16, pool_tokens=1500)[1]


def test_the_repaired_pair_is_told_behind_the_verdict() -> None:
    _, sentence = judged(runs(0, 1984, 512, 0, 1900), Live(), unit_tokens=16, fix="the tools sorted")
    assert sentence.endswith(
        "With the tools sorted the new turn gets 1,900 of the 2,000 tokens that the old one then has "
        "(95 % of its own 2,000)"
    )
    assert judged(runs(0, 1984, 512, 64, 1900), Live(), unit_tokens=16, fix="x")[0] is Verdict.UNKNOWN


async def test_numbers_that_cannot_be_true_are_not_told() -> None:
    """The counters tell them, as they do for a turn."""
    found = await replay(Box(usage={"prompt_tokens": -5, "prompt_tokens_details": {"cached_tokens": 99_999_999}})).run()
    assert all((run.prompt_tokens or 0) > 0 for run in found.runs)
    assert all(0 <= (run.share or 0) <= 1 for run in found.runs)
    assert (found.runs[1].cached_tokens or 0) > 0 and found.verdict is Verdict.NO_FAULT


def test_a_new_prompt_that_is_shorter_gets_no_more_than_itself() -> None:
    cold, warm, new = runs(0, 10_112, 3_968)
    verdict, says = judged([cold, warm, replace(new, prompt_tokens=5_881)], Live(3_968), unit_tokens=128)
    assert verdict is Verdict.PROMPT_DIVERGED
    assert "gets 3,968 of its own 5,881 tokens" in says and "10,112" not in says
    all_of_it = [cold, warm, replace(new, prompt_tokens=5_881, cached_tokens=5_760)]
    assert judged(all_of_it, Live(5_760), unit_tokens=128)[0] is Verdict.NO_FAULT
