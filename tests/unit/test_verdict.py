"""The verdict on one turn: each kind, and what keeps it from being named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_
from triage_scenes import LAW, NEW, SERVER, T, diff, sample, scene, turn

from kvtop.capture.turn import Route, TurnState
from kvtop.triage.in_a_row import finding
from kvtop.triage.kinds import Because, Kind, Varies, Verdict, Who
from kvtop.triage.result import Cause, Phases
from kvtop.triage.reuse import Expected
from kvtop.triage.seen import Seen
from kvtop.triage.verdict import why

KEY_ORDER = Cause(
    Kind.TOOL_KEY_ORDER, "/tools/4/function/parameters", "tools[4].function.parameters",
    "tools[4] “edit” has the same keys in another order", "Sort the keys of tool schemas in the gateway.", Who.GATEWAY,
)  # fmt: skip
COMPACTED = Cause(Kind.COMPACTION, "/messages", "messages", "The history was compacted.", "Nothing.", Who.NOBODY)
SALT = Cause(Kind.CACHE_SALT_CHANGED, "/cache_salt", "cache_salt", "Another cache_salt.", "Keep one.", Who.CLIENT)
OTHER = Cause(Kind.OTHER_CONVERSATION, "", "", "Another conversation.", "Nothing.", Who.NOBODY)
CLOCK = replace(KEY_ORDER, kind=Kind.VOLATILE_TEXT, who=Who.CLIENT, values=(Varies.DATE_TIME,))

BROKE = Expected(12_608, True, 12_608, 12_608, 12_622, (), 10, 10)
"""What the law expects of a prompt that leaves the old one at token 12,622."""
WELL = with_(NEW, cached_tokens=20_000, first_token_at=T + 61.2, ended_at=T + 71)
"""It had what it should have had, and read 1,016 tokens in 1.2 s."""
HALF = with_(NEW, cached_tokens=12_608, first_token_at=T + 68.6, ended_at=T + 78)


LOADED = [sample(60, load_bytes=0), sample(76, load_bytes=3e9)]
HIT_A_TIER = [sample(60, external_hits=0), sample(76, external_hits=9)]


def test_the_prefix_broke() -> None:
    found = why(scene(turn=HALF, expected=BROKE, diff=diff(KEY_ORDER)))
    assert (found.verdict, found.reason) == (Verdict.PROMPT_DIVERGED, "tool_key_order")
    assert found.sentence == (
        "Turn 14 waited 8.6 s: the prefix broke at token 12,622 in tools[4] (key order); 7,376 tokens were read again, "
        "7.4 s"
    )
    assert found.fix == KEY_ORDER.fix
    assert found.evidence[0] == KEY_ORDER.says
    assert "12,608 cached, which is what the prompt allows" in found.evidence[1]
    assert found.rules_out == ("a lost cache: the engine gave all that this prompt could have had",)
    assert (found.expected_cached_tokens, found.cached_tokens, found.diff is None) == (12_608, 12_608, False)


def test_nothing_is_claimed_of_a_route_that_is_not_known() -> None:
    found = why(Seen(with_(WELL, route=Route.OTHER)))
    assert found.verdict is Verdict.UNKNOWN and "nothing to mend" not in found.sentence
    assert found.sentence.endswith("kvtop does not know its route, so its prompt was compared with none")


def test_two_causes_are_both_told() -> None:
    found = why(scene(turn=HALF, expected=BROKE, diff=diff(KEY_ORDER, replace(CLOCK, says="A clock."))))
    assert found.evidence[:2] == (KEY_ORDER.says, "A clock.")
    assert found.reason == "tool_key_order"


def test_why_the_sentence_names_the_cheaper_one() -> None:
    dear = replace(CLOCK, says="A clock.", section="messages[3]", pointer="/messages/3", lost_tokens=5_000)
    found = why(scene(turn=HALF, expected=BROKE, diff=diff(dear, replace(KEY_ORDER, lost_tokens=2_376))))
    said = "the sentence names what the prompt meets first: while that varies, mending the others gains nothing"
    assert found.reason == "tool_key_order" and found.evidence.count(said) == 1
    plain = why(scene(turn=HALF, expected=BROKE, diff=diff(replace(KEY_ORDER, lost_tokens=7_000), dear)))
    assert said not in plain.evidence


def test_by_design_is_said_so() -> None:
    found = why(scene(turn=HALF, expected=BROKE, diff=diff(COMPACTED)))
    assert (found.verdict, found.reason) == (Verdict.PROMPT_DIVERGED, "compaction")
    assert found.sentence.endswith("its history was compacted, by design; 7,376 tokens were read again, 7.4 s")


def test_another_salt_is_a_changed_prompt_whose_tokens_are_the_same() -> None:
    cold = Expected(0, True, 0, 0, 0)
    found = why(scene(expected=cold, diff=diff(SALT, common=20_015, reread=0)))
    assert (found.verdict, found.reason) == (Verdict.PROMPT_DIVERGED, "cache_salt_changed")
    assert "it was sent with another cache salt than the turn before; 20,016 tokens were read again" in found.sentence


def test_a_break_without_a_diff_is_told_by_the_ids_alone() -> None:
    found = why(scene(turn=HALF, expected=BROKE))
    assert (found.verdict, found.reason) == (Verdict.PROMPT_DIVERGED, None)
    assert "the prefix broke at token 12,622; 7,408 tokens were read again" in found.sentence
    other = with_(HALF, relation="first", parent=None, conversation="c14")
    assert why(scene(turn=other, expected=BROKE)).verdict is not Verdict.PROMPT_DIVERGED


def test_a_break_that_only_structure_tells() -> None:
    changed = with_(HALF, changed=["tools"], first_token_at=T + 75)
    found = why(scene(turn=changed, expected=None))
    assert (found.verdict, found.evidence[0]) == (Verdict.PROMPT_DIVERGED, "other than in the turn before: tools")
    assert why(scene(turn=with_(changed, changed=[]), expected=None)).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "more",
    [
        {"diff": diff(KEY_ORDER, reread=496), "expected": replace(BROKE, plain=19_520)},  # no news
        {"diff": diff(append_only=True), "expected": replace(BROKE, plain=20_000)},
        {"diff": diff(OTHER), "turn": with_(HALF, relation="first", conversation="c14")},  # another conversation
    ],
)
def test_what_is_no_break(more: dict[str, Any]) -> None:
    values = {"turn": HALF, "expected": BROKE, **more}
    assert why(scene(**values)).verdict is not Verdict.PROMPT_DIVERGED


def test_few_tokens_that_were_read_again_are_not_denied() -> None:
    turn = with_(WELL, cached_tokens=19_632)
    law = Expected(19_632, True, 19_632, 19_632, 19_640, (), 10, 10)
    well = why(scene(turn=turn, expected=law, diff=diff(KEY_ORDER, reread=384)))
    assert well.verdict is Verdict.NO_FAULT and well.split.changed == 384
    assert well.sentence == "Turn 14: 93 % cached, TTFT 1.2 s; 384 tokens read again, too few to notice"
    assert finding(well, turn).clauses == ("384 tokens read again, too few to notice",)


def test_the_rate_of_a_long_input_is_its_own() -> None:
    """A server that read slower before: 30 s is not what took 22."""
    first = with_(NEW, relation="first", parent=None, conversation="c14", prompt_tokens=18_240, queue_s=0.0)
    found = why(scene(turn=first, baseline=None, expected=None, rate=600.0))
    assert (found.verdict, found.evidence) == (
        Verdict.NEW_TOKENS, ("18,240 tokens were read in 22 s, 829 a second",),
    )  # fmt: skip


def test_two_conversations_are_no_broken_one() -> None:
    """Another task's messages stand where the first one's stood; only what both should have said alike is a fault."""
    other = with_(HALF, relation="first", parent=None, conversation="c14")
    for kind in (Kind.TOOL_REMOVED, Kind.TEXT_EDITED):
        head = replace(KEY_ORDER, kind=kind, lost_tokens=1_394)
        found = why(scene(turn=other, expected=BROKE, diff=diff(replace(OTHER, lost_tokens=6_000), head)))
        assert found.verdict is not Verdict.PROMPT_DIVERGED
        found = why(scene(turn=other, expected=BROKE, diff=diff(head)))  # it says what the other one says
        assert (found.verdict, found.reason) == (Verdict.PROMPT_DIVERGED, str(kind))
    talk = replace(OTHER, section="messages[1]", lost_tokens=5_394)
    clock = replace(CLOCK, lost_tokens=2_000)
    found = why(scene(turn=other, expected=BROKE, diff=diff(talk, clock)))
    assert (found.verdict, found.reason) == (Verdict.PROMPT_DIVERGED, "volatile_text")
    assert "2,000 tokens were read again" in found.sentence
    assert found.evidence[:1] == (CLOCK.says,)
    behind = replace(clock, section="messages[9].content")  # the two had parted before
    assert why(scene(turn=other, expected=BROKE, diff=diff(talk, behind))).verdict is not Verdict.PROMPT_DIVERGED
    summary = with_(HALF, relation="compaction", conversation="c1")
    assert why(scene(turn=summary, expected=BROKE, diff=diff(COMPACTED))).reason == "compaction"


def test_what_another_prompt_had_left_in_the_cache_was_not_read_again() -> None:
    found = why(scene(turn=with_(HALF, cached_tokens=19_984), expected=BROKE, diff=diff(KEY_ORDER)))
    assert found.verdict is not Verdict.PROMPT_DIVERGED
    assert "19,984 came from the cache, more than the prompts looked at explain" in found.evidence
    some = why(scene(turn=with_(HALF, cached_tokens=16_000), expected=BROKE, diff=diff(KEY_ORDER)))
    assert "4,016 tokens were read again" in some.sentence


def test_a_break_whose_cached_tokens_nobody_told() -> None:
    found = why(scene(turn=with_(HALF, cached_tokens=None), expected=BROKE, diff=diff(KEY_ORDER)))
    assert (found.verdict, found.cached_tokens) == (Verdict.PROMPT_DIVERGED, None)
    assert "the server does not say what it had cached" in found.evidence


def test_a_lost_cache_goes_before_a_prompt_that_broke_too() -> None:
    """It broke at 12,622, and even of what was left it got nothing."""
    found = why(scene(expected=BROKE, diff=diff(KEY_ORDER)))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, None)
    assert found.candidates


def test_new_tokens() -> None:
    first = with_(NEW, relation="first", parent=None, conversation="c14", prompt_tokens=18_240)
    cold = Expected(0, True, 0, 0, 4, (Because.BELOW_MATCH_UNIT,))
    found = why(scene(turn=first, baseline=None, expected=cold))
    assert (found.verdict, found.reason, found.fix) == (Verdict.NEW_TOKENS, None, None)
    assert found.sentence == "Turn 14 waited 22 s: 18,240 new tokens, a long input; nothing to mend"
    assert found.expected_because == (Because.BELOW_MATCH_UNIT,)
    unknown = why(scene(turn=first, baseline=None, expected=None, rate=None))
    assert unknown.verdict is Verdict.NEW_TOKENS
    slower = with_(first, first_token_at=T + 150, ended_at=T + 160)
    assert why(scene(turn=slower, baseline=None, expected=cold)).verdict is Verdict.UNKNOWN, "18 s do not explain 90"


def test_no_fault() -> None:
    found = why(scene(turn=WELL))
    assert (found.verdict, found.reason, found.fix, found.candidates) == (Verdict.NO_FAULT, None, None, ())
    assert found.sentence == "Turn 14: 95 % cached, TTFT 1.2 s; nothing to mend"
    assert found.phases == Phases(None, None, pytest.approx(9.8))


@pytest.mark.parametrize("because", list(Because))
def test_what_the_law_explains_is_no_fault(because: Because) -> None:
    """A first divergence on a hybrid got nothing, and nothing was expected: never an engine's fault."""
    short = with_(NEW, prompt_tokens=2_900, first_token_at=T + 63)
    expected = Expected(0, True, 0, 0, 874, (because,), None, 10)
    found = why(scene(turn=with_(short, relation="first", conversation="c14"), expected=expected))
    assert (found.verdict, found.expected_because) == (Verdict.NO_FAULT, (because,))
    assert any("0 tokens were expected of this prompt as it is" in line for line in found.evidence)


def test_a_first_divergence_that_gets_nothing_of_what_it_shares() -> None:
    """On a hybrid: no fault of anybody, however long it took."""
    law = Expected(0, True, 0, 19_984, 20_000, (Because.HYBRID_BOUNDARY,), None, 10)
    other = with_(NEW, relation="first", parent=None, conversation="c14")
    found = why(scene(turn=other, expected=law))
    assert (found.verdict, found.reason, found.fix) == (Verdict.NO_FAULT, None, None)
    assert found.sentence == (
        "Turn 14 waited 22 s: 19,984 tokens that it shares with an earlier prompt were read again; "
        "expected on this model, the next one hits"
    )
    long = with_(other, prompt_tokens=90_000, first_token_at=T + 151, ended_at=T + 160)
    assert why(scene(turn=long, expected=law)).verdict is Verdict.NEW_TOKENS
    slow = with_(other, first_token_at=T + 151, ended_at=T + 160)
    assert why(scene(turn=slow, expected=law)).verdict is Verdict.UNKNOWN, "21,000 tokens do not explain 91 s"


def test_queued() -> None:
    waits = with_(WELL, queue_s=7.4, first_token_at=T + 74, ended_at=T + 80)
    before = turn(12, 55, prompt_tokens=123_180, cached_tokens=11_792, first_token_at=T + 150, ended_at=T + 160)
    found = why(scene(turn=waits, others=(before,)))
    assert found.verdict is Verdict.QUEUED
    assert found.sentence == "Turn 14 waited 14 s, 7.4 s of it in the queue behind turn 12"
    assert found.phases == Phases(7.4, pytest.approx(6.6), pytest.approx(6.0))
    assert why(scene(turn=waits)).sentence == "Turn 14 waited 14 s, 7.4 s of it in the queue"


def test_queued_by_the_samples_alone() -> None:
    line = [sample(60 + i, running=8, waiting=3, kv_cache_usage_share=0.97, load_bytes=5.0) for i in range(9)]
    found = why(scene(turn=with_(WELL, samples=line, first_token_at=T + 69.1, ended_at=T + 75)))
    assert (found.verdict, found.rules_out) == (Verdict.QUEUED, ("a KV load: none moved while it waited",))
    assert found.evidence == ("8 ran and 3 waited meanwhile", "the KV pool was 97 % full")


def test_who_is_read_while_another_one_waits_does_not_queue() -> None:
    """The samples do not say which of the two runs: its own new tokens explain its wait."""
    line = [sample(60 + i, running=1, waiting=1, load_bytes=5.0) for i in range(9)]
    read = with_(WELL, samples=line, cached_tokens=0, prompt_tokens=16_000, first_token_at=T + 69.1, ended_at=T + 75)
    assert why(scene(turn=read, rate=1_000.0)).verdict is not Verdict.QUEUED
    assert why(scene(turn=read, rate=20_000.0)).verdict is Verdict.QUEUED, "at this rate they do not"


@pytest.mark.parametrize(
    "more",
    [
        {"queue_s": 1.9, "first_token_at": T + 63},
        {"queue_s": 7.0, "first_token_at": T + 75},
        {"queue_s": 14.0, "first_token_at": T + 75, "samples": LOADED},
        {"queue_s": 14.0, "first_token_at": T + 75, "samples": HIT_A_TIER},
    ],
)
def test_what_is_no_queue(more: dict[str, Any]) -> None:
    """Short, not most of the wait, or a KV load, which counts as queue time too."""
    assert why(scene(turn=with_(WELL, **more))).verdict is not Verdict.QUEUED


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([sample(60, external_hits=100), sample(76, external_hits=3_172)], ["3,072 tokens"]),
        (LOADED, ["3.0 GB of KV"]),
        ([sample(60, external_hits=100, load_bytes=5), sample(76, external_hits=100, load_bytes=5)], []),
        ([sample(60, external_hits=100)], []),
        ([sample(60), sample(76)], []),
        # what others load after its first token is not its own; the first look after that may still be of it
        ([sample(60, external_hits=0), sample(76, external_hits=0), sample(90, external_hits=9)], []),
    ],
)
def test_what_a_tier_gave_while_it_waited(samples: list[Any], said: list[str]) -> None:
    found = why(scene(turn=with_(WELL, first_token_at=T + 75, samples=samples)))
    lines = [line for line in found.evidence if "came from a tier while it waited" in line]
    assert lines == [f"{much} came from a tier while it waited" for much in said]


def test_a_load_is_told_where_it_may_be_the_reason() -> None:
    found = why(scene(turn=with_(WELL, queue_s=14.0, first_token_at=T + 75, samples=LOADED)))
    assert found.verdict is Verdict.UNKNOWN
    assert "KV came back from a tier meanwhile" in found.sentence


def test_slow_decode() -> None:
    slow = with_(WELL, completion_tokens=301, ended_at=T + 161.2)
    others = tuple(turn(20 + i, 200 + 20 * i, completion_tokens=305) for i in range(3))
    found = why(scene(turn=slow, others=others))
    assert found.verdict is Verdict.SLOW_DECODE
    assert found.sentence == "Turn 14 wrote 3.0 tokens a second for 100 s; turns of this server write 38"
    alone = why(scene(turn=slow))
    assert (alone.verdict, alone.sentence) == (Verdict.SLOW_DECODE, "Turn 14 wrote 3.0 tokens a second for 100 s")


@pytest.mark.parametrize(
    ("ended", "tokens", "known"),
    [(161.2, 2_001, True), (161.2, 15, True), (64.0, 20, True), (161.2, 401, False), (None, 301, True)],
)
def test_what_is_no_slow_decode(ended: float | None, tokens: int, known: bool) -> None:
    others = tuple(turn(20 + i, 200 + 20 * i, completion_tokens=305) for i in range(3)) if known else ()
    writes = with_(WELL, completion_tokens=tokens, ended_at=None if ended is None else T + ended)
    assert why(scene(turn=writes, others=others)).verdict is Verdict.NO_FAULT


def test_writing_goes_first_where_it_took_longer_than_all_else() -> None:
    others = tuple(turn(20 + i, 200 + 20 * i, completion_tokens=305) for i in range(3))
    slow = with_(NEW, completion_tokens=301, ended_at=T + 400)
    assert why(scene(turn=slow, others=others)).verdict is Verdict.SLOW_DECODE
    assert why(scene(turn=with_(slow, ended_at=T + 95), others=others)).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("more", "verdict", "sentence"),
    [
        ({"state": TurnState.FAILED, "status": 400, "error": "prompt too long"}, Verdict.FAILED,
         "Turn 14 failed: 400 prompt too long"),
        ({"state": TurnState.FAILED, "status": None, "error": None}, Verdict.FAILED, "Turn 14 failed"),
        ({"state": TurnState.CUT, "status": 200, "error": None}, Verdict.FAILED,
         "Turn 14 broke off on the server's side"),
        ({"state": TurnState.FAILED, "status": 500, "error": "\x1b[31mred"}, Verdict.FAILED,
         "Turn 14 failed: 500 \\x1b[31mred"),
        ({"state": TurnState.ABORTED, "first_token_at": None, "ended_at": T + 72}, Verdict.ABORTED,
         "Turn 14 was aborted by its client after 12 s, before its first token"),
        ({"state": TurnState.ABORTED}, Verdict.ABORTED, "Turn 14 was aborted by its client after 32 s"),
        ({"finish_reason": "abort"}, Verdict.ABORTED, "Turn 14 was aborted by the server after 32 s"),
        ({"state": TurnState.IN_FLIGHT, "ended_at": None}, Verdict.UNKNOWN, "Turn 14 is still in flight"),
    ],
)  # fmt: skip
def test_one_that_did_not_end_well(more: dict[str, Any], verdict: Verdict, sentence: str) -> None:
    found = why(scene(turn=with_(NEW, **more)))
    assert (found.verdict, found.sentence) == (verdict, sentence)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"turn": with_(NEW, cached_tokens=None)}, "the server does not say what it had cached"),
        ({"expected": None}, "what should have been cached is not known"),
        ({"turn": with_(WELL, first_token_at=T + 82)}, "its new tokens, the cache and the queue do not explain it"),
    ],
)
def test_what_cannot_be_told_is_said_so(more: dict[str, Any], says: str) -> None:
    found = why(scene(**more))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, None)
    assert says in found.sentence


@pytest.mark.parametrize("timed", [{"prefill_s": 21.9}, {"alone": True}])
def test_a_server_that_read_slower_than_usual_is_told_with_both_rates(timed: dict[str, Any]) -> None:
    """1,016 tokens take 1.0 s at the usual rate."""
    slow = with_(WELL, first_token_at=T + 82, **timed)
    found = why(scene(turn=slow))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, None)
    assert found.sentence == (
        "Turn 14 waited 22 s: its 1,016 new tokens were read at 46 a second, 1,000 are usual: the server was slower"
    )
    assert found.evidence == ("at the usual 1,000 tokens a second they take 1.0 s, and took 22 s",)
    assert found.split.new == 1_016 and "do not explain" not in found.sentence
    row = finding(found, slow)
    assert row.cells[0] == "slow prefill: 46 tok/s"
    assert row.clauses[1] == "read at 46 tok/s: the server was slower than usual"


def test_what_its_new_tokens_take_is_told_where_they_do_not_explain_the_wait() -> None:
    found = why(scene(turn=with_(WELL, first_token_at=T + 82)))
    assert "at the usual 1,000 tokens a second its 1,016 take 1.0 s" in found.evidence


def test_a_long_input_that_was_read_slower_tells_the_usual_rate() -> None:
    first = with_(NEW, relation="first", parent=None, conversation="c14", prompt_tokens=18_240)
    first = with_(first, first_token_at=T + 91, ended_at=T + 99, prefill_s=30.0)
    cold = Expected(0, True, 0, 0, 4, (Because.BELOW_MATCH_UNIT,))
    found = why(scene(turn=first, baseline=None, expected=cold))
    assert found.verdict is Verdict.NEW_TOKENS
    assert found.evidence[0] == "18,240 tokens were read in 30 s, 608 a second; 1,000 are usual"


def test_what_was_read_meanwhile_is_evidence() -> None:
    reads = turn(12, 59, prompt_tokens=120_000, cached_tokens=0, first_token_at=T + 81)
    found = why(scene(turn=with_(WELL, first_token_at=T + 82), others=(reads,)))
    assert "turn 12 was being read at the same time: 120,000 new tokens" in found.evidence


def test_tools_that_came_back_are_told() -> None:
    """Turn 14 goes on from 13 with the tools of the turn that it is compared with, which is an earlier one."""
    base = scene().baseline
    assert base is not None
    back = with_(WELL, parent=base.id + 1, changed=["tools"])
    line = f"its tools are those of turn {base.id} again, and other ones than in turn {base.id + 1}"
    assert line in why(scene(turn=back, diff=diff())).evidence
    assert line not in why(scene(turn=back, diff=diff(KEY_ORDER))).evidence
    assert line not in why(scene(turn=with_(back, parent=base.id), diff=diff())).evidence


def test_more_than_expected_is_no_negative_loss() -> None:
    found = why(scene(turn=with_(WELL, cached_tokens=20_992)))
    assert found.verdict is Verdict.NO_FAULT
    assert "20,992 came from the cache, more than the prompts looked at explain" in found.evidence


def test_a_number_that_cannot_be_true_is_not_known() -> None:
    for told in (-5, 21_017):
        assert why(scene(turn=with_(NEW, cached_tokens=told))).cached_tokens is None


@pytest.mark.parametrize("told", [999_999, -100, 10**30])
def test_a_number_that_cannot_be_true_sends_nobody_to_a_flag_that_is_on(told: int) -> None:
    usage = {"prompt_tokens": 21_016, "prompt_tokens_details": {"cached_tokens": told}}
    found = why(scene(turn=with_(NEW, cached_tokens=None, usage=usage)))
    assert "the number of cached tokens that the server tells cannot be true" in found.sentence
    assert "--enable-prompt-tokens-details" not in found.sentence
    silent = why(scene(turn=with_(NEW, cached_tokens=None, usage={"prompt_tokens_details": None})))
    assert "--enable-prompt-tokens-details" in silent.sentence


def test_an_answer_in_one_piece_has_no_ttft() -> None:
    whole = with_(WELL, stream=False, first_token_at=None)
    assert why(scene(turn=whole)).sentence == "Turn 14: 95 % cached, its TTFT is not known; nothing to mend"
    lost = with_(NEW, stream=False, first_token_at=None, samples=[sample(60, started_at=T + 30)])
    assert why(scene(turn=lost)).verdict is Verdict.ENGINE_LOST_CACHE


def test_a_turn_of_which_nothing_is_known() -> None:
    found = why(Seen(turn=turn(1, 0, first_token_at=None, ended_at=None, state=None, completion_tokens=None)))
    assert (found.verdict, found.phases, found.expected_cached_tokens) == (Verdict.NO_FAULT, Phases(), None)


def test_ids_that_may_be_wrong_are_given_one_unit() -> None:
    server = replace(SERVER, unit=1_072)
    less = with_(NEW, cached_tokens=LAW.tokens - 1_072, samples=[sample(60, started_at=T + 30)])
    assert why(scene(turn=less, server=server)).verdict is Verdict.ENGINE_LOST_CACHE
    assert why(scene(turn=less, server=server, exact=False)).verdict is not Verdict.ENGINE_LOST_CACHE
