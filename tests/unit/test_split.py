"""A prompt's tokens by what became of them: one account for the row, the page and the commands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_
from triage_scenes import NEW, OLD, SERVER, T, diff, scene, turn

from kvtop.cli.why import lines, tokens
from kvtop.triage import document
from kvtop.triage.in_a_row import finding
from kvtop.triage.kinds import Because, Kind, Verdict, Who
from kvtop.triage.result import Cause, Split, Why
from kvtop.triage.reuse import Expected
from kvtop.triage.seen import Seen, Server
from kvtop.triage.verdict import why

CLOCK = Cause(Kind.VOLATILE_TEXT, "/messages/0", "messages[0]", "A clock.", "Put it last.", Who.CLIENT)
BEFORE = with_(OLD, prompt_tokens=2_950, cached_tokens=2_816)
UNIT_128 = Server(unit=128, pool_tokens=200_000, version="0.32.0", engines=1, offload=False)


def mixed(law: int, cached: int, reread: int, **more: Any) -> Seen:
    """The old prompt had 2,944 tokens in whole blocks; `law` of them are the same, and the server had `cached`."""
    now = with_(NEW, prompt_tokens=3_563, cached_tokens=cached)
    expected = Expected(law, True, law, law, law + 5, (), 10, 10)
    values = {"turn": now, "baseline": BEFORE, "expected": expected, "server": UNIT_128}
    told = diff(CLOCK, common=law + 5, reread=reread)
    return scene(**{**values, "diff": told, **more})


def untimed(found: Why) -> Split:
    return replace(found.split, read_s=None)


def test_the_prompt_broke_and_the_engine_lost_a_share() -> None:
    found = why(mixed(896, 512, 2_048))
    assert (found.verdict, found.expected_cached_tokens, found.cached_tokens) == (Verdict.PROMPT_DIVERGED, 896, 512)
    assert "2,048 tokens were read again" in found.sentence
    said = next(line for line in found.evidence if line.startswith("besides"))
    assert "384 tokens" in said and "512 of 896" in said
    assert untimed(found) == Split(3_563, 512, changed=2_048, lost=384)
    assert (found.split.before, found.split.reread, found.split.new) == (2_944, 2_432, 619)
    assert not any("lost cache" in line for line in found.rules_out)


def test_what_cost_more_is_named_first() -> None:
    found = why(mixed(2_176, 0, 768))
    assert found.verdict in (Verdict.ENGINE_LOST_CACHE, Verdict.UNKNOWN) and "2,176 tokens" in found.sentence
    said = next(line for line in found.evidence if line.startswith("besides"))
    assert "768 tokens were read again" in said and "text that changes each time" in said
    assert untimed(found) == Split(3_563, 0, changed=768, lost=2_176)
    assert not any("a changed prompt" in line for line in found.rules_out)
    other = why(mixed(896, 0, 2_048))
    assert other.verdict is Verdict.PROMPT_DIVERGED and untimed(other) == Split(3_563, 0, changed=2_048, lost=896)


def test_the_prompt_alone_and_the_engine_alone() -> None:
    assert untimed(why(mixed(896, 896, 2_048))) == Split(3_563, 896, changed=2_048, lost=0)
    same = mixed(2_944, 128, 0, diff=diff(common=2_950, reread=0, append_only=True))
    found = why(same)
    assert untimed(found) == Split(3_563, 128, lost=2_816) and found.split.new == 619
    assert not any(line.startswith("besides") for line in found.evidence)


def test_a_queued_turn_tells_what_it_read_again_too() -> None:
    queued = with_(NEW, prompt_tokens=3_563, cached_tokens=896, queue_s=18.0)
    found = why(mixed(896, 896, 2_048, turn=queued))
    assert found.verdict is Verdict.QUEUED and untimed(found) == Split(3_563, 896, changed=2_048, lost=0)
    assert any("2,048 tokens were read again" in line for line in found.evidence)


def test_besides_is_said_behind_other_evidence_alone() -> None:
    broke = "the prefix broke in messages[0] (text that changes each time): 2,048 tokens were read again for that"
    queued = with_(NEW, prompt_tokens=3_563, cached_tokens=896, queue_s=18.0)
    waits = why(mixed(896, 896, 2_048, turn=queued))
    assert waits.evidence[1:3] == ("the KV pool was 10 % full", f"besides, {broke}")
    assert why(mixed(896, 896, 2_048, turn=with_(queued, samples=[]))).evidence[0] == broke


def test_what_no_state_was_saved_for_was_read_before() -> None:
    expected = Expected(0, True, 0, 12_608, 12_610, (Because.HYBRID_BOUNDARY,), 10, 10)
    first = with_(NEW, prompt_tokens=13_000, relation="first", conversation="c14", first_token_at=T + 73)
    found = why(scene(turn=first, expected=expected))
    assert "12,608 tokens that it shares with an earlier prompt were read again" in found.sentence
    assert untimed(found) == Split(13_000, 0, lost=0, unsaved=12_608) and found.split.new == 392


def test_unknown_is_not_zero() -> None:
    none = Split(3_563, None)
    assert (none.new, none.before, none.reread) == (None, None, None)
    nobody_knows = why(scene(expected=None, diff=None, turn=with_(NEW, relation="first", parent=None)))
    assert (nobody_knows.split.reread, nobody_knows.split.before, nobody_knows.split.new) == (None, None, 21_016)
    told = document.why(why(scene(turn=with_(NEW, cached_tokens=None))))["tokens"]
    assert told["prompt"] == 21_016
    assert [told[name] for name in ("cached", "reread", "reread_changed", "reread_lost", "new")] == [None] * 5


def test_the_row_and_the_document_have_the_same_numbers() -> None:
    seen = mixed(896, 512, 2_048)
    found = why(seen)
    assert finding(found, seen.turn).reread_tokens == 2_432
    assert document.why(found)["tokens"] == {
        "prompt": 3_563, "cached": 512, "reread": 2_432, "reread_changed": 2_048, "reread_lost": 384,
        "reread_unsaved": 0, "new": 619,
    }  # fmt: skip


def test_the_command_has_them_in_a_line() -> None:
    said = next(line for line in lines(why(mixed(896, 512, 2_048))) if line.startswith("tokens"))
    assert said == "tokens    3,563: 512 cached, 2,048 read again (behind a change), 384 read again (lost), 619 new"
    assert tokens(Split(3_563, 512)) == "3,563: 512 cached, 3,051 read"
    assert tokens(Split(3_563)) == ""


def evicted(*between: str) -> Why:
    """By turns of these conversations."""
    others = tuple(
        turn(11 + i, 20 + 10 * i, conversation=talk, prompt_tokens=150_000, cached_tokens=0)
        for i, talk in enumerate(between)
    )
    found = why(scene(others=others, server=SERVER))
    assert found.reason == "evicted"
    return found


@pytest.mark.parametrize(("between", "words"), [(("c1", "c1"), "in one form"), (("c1", "c2"), "fewer conversations")])
def test_the_fix_of_an_eviction_fits_what_evicted_it(between: tuple[str, ...], words: str) -> None:
    fix = evicted(*between).fix
    assert fix is not None and words in fix
