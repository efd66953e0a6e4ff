"""Each reason why an engine lost what it should have had: the evidence that names it, and what keeps it from that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_
from triage_scenes import LAW, NEW, OLD, SERVER, STARTED, URL, T, sample, scene, turn

from kvtop.capture.turn import Captured, Sample, TurnState
from kvtop.model.own import OwnRequest
from kvtop.triage.engine import Layers
from kvtop.triage.kinds import Reason, Verdict
from kvtop.triage.reuse import Expected
from kvtop.triage.seen import Gone, KvFacts, Seen, Server
from kvtop.triage.verdict import why


def filler(id: int, at: float, tokens: int = 100_000, **more: Any) -> Captured:
    """Another conversation's turn that read so many new tokens."""
    return turn(id, at, prompt_tokens=tokens, cached_tokens=0, **more)


def before(**more: Any) -> Captured:
    """The turn with another first sample."""
    return with_(NEW, samples=[sample(60, computed=1_008, cached=19_008, generated=300, **more), NEW.samples[1]])


def old(*samples: Sample, **more: Any) -> Captured:
    return with_(OLD, samples=list(samples) or OLD.samples, **more)


def later(computed: float, **more: Any) -> Sample:
    """The look after the turn's end, where the server computed so much besides the two turns."""
    return with_(NEW.samples[1], prompt_tokens=NEW.samples[1].prompt_tokens + computed, **more)  # type: ignore[operator]


FILLERS = (filler(11, 15), filler(12, 25), filler(13, 35))
BETWEEN = {"computed": 301_008, "cached": 19_008, "generated": 300}
"""What the counters say where 300,000 tokens were computed meanwhile, past the tap."""
REPLAYED = (
    OwnRequest("a-cold", URL, T + 20, T + 25, 110_000, 0),
    OwnRequest("a-warm", URL, T + 26, T + 30, 200_000, 100_000),
    OwnRequest("c", URL, T - 30, T - 20, 400_000, 0),
    OwnRequest("d", URL, T + 58, T + 70, 400_000, 0),
)
"""The first two between the two turns: 210,000 new tokens."""
TIER = replace(SERVER, offload=True, tier_bytes=10_000_000)
STORED = old(sample(0, store_bytes=1e6), sample(10.2, computed=1_008, cached=19_008, generated=300, store_bytes=2e6))
FLAT = with_(
    NEW,
    samples=[
        sample(60, **BETWEEN, store_bytes=5e6, load_bytes=0),
        sample(92.2, computed=322_024, cached=19_008, generated=600, store_bytes=6e6, load_bytes=0),
    ],
)
COUNTED = tuple(with_(one, resets=0) for one in OLD.samples)
NO_LOADS = old(*[with_(one, external_hits=0) for one in OLD.samples])
LOADED = with_(NEW, samples=[with_(one, external_hits=199_984) for one in NEW.samples])
UNREAD = Expected(0, False, 20_000, 0, 4, (), None, None, 10, 20_015)
"""Where the turn before was never read to its end, only that one has the prefix."""
COLD = (
    turn(2, -200, conversation="c2", prompt_tokens=9_000, cached_tokens=8_000),
    turn(3, -100, conversation="c3", prompt_tokens=9_000, cached_tokens=8_000),
    turn(15, 100, conversation="c2", parent=2, relation="next", prompt_tokens=9_500, cached_tokens=0),
    turn(16, 120, conversation="c3", parent=3, relation="next", prompt_tokens=9_500, cached_tokens=0),
)
RESENT = with_(NEW, relation="retry", prompt_tokens=20_016)
NOTHING_HITS = (filler(11, 15, 900), filler(12, 25, 900))

NAMED: list[tuple[Reason, dict[str, Any], str, str]] = [
    (
        Reason.RESTART, {"turn": before(started_at=T + 30)},
        "it was restarted 30 s before", "the server's process began 30 s before, after turn 10 had ended",
    ),
    (
        Reason.RESTART,
        {"baseline": old(*[with_(one, started_at=None) for one in OLD.samples]),
         "turn": before(started_at=None, prompt_tokens=17.0, hits=3.0)},
        "its counters began again", "the server's counters fell since turn 10: they began again",
    ),
    (
        Reason.CACHE_RESET, {"baseline": old(*COUNTED), "turn": before(resets=1)},
        "its cache was cleared by request", "/reset_prefix_cache or /sleep was called once since turn 10",
    ),
    (
        Reason.CACHE_RESET, {"events": KvFacts(complete=True, cleared_at=(T + 40,))},
        "its cache was cleared 20 s before", "the prefix cache was cleared 20 s before",
    ),
    (
        Reason.CACHE_RESET, {"others": COLD},
        "every conversation was cold at once", "2 other conversations that went on found nothing either: turns 15–16",
    ),
    (
        Reason.EVICTED, {"others": FILLERS},
        "evicted by turns 11–13", "300,000 tokens were computed since turn 10, the pool holds 200,000",
    ),
    (
        Reason.EVICTED, {"replays": REPLAYED},
        "evicted by 210,000 tokens of a kvtop replay", "210,000 tokens were computed since turn 10",
    ),
    (
        Reason.EVICTED, {"replays": tuple(replace(one, id=f"{n}") for n, one in enumerate(REPLAYED))},
        "evicted by 210,000 tokens of 2 kvtop replays", "210,000 tokens were computed since turn 10",
    ),
    (
        Reason.EVICTED,
        {"replays": (replace(REPLAYED[0], prompt_tokens=None, ended_at=None),),
         "turn": with_(NEW, samples=[sample(60, **BETWEEN), NEW.samples[1]])},
        "evicted by requests that went past the tap, among them a kvtop replay, broken off", "300,000 tokens",
    ),
    (
        Reason.EVICTED, {"replays": REPLAYED, "others": FILLERS[:1]},
        "evicted by turn 11 and 210,000 tokens of a kvtop replay", "310,000 tokens were computed since turn 10",
    ),
    (
        Reason.EVICTED, {"replays": REPLAYED, "turn": with_(NEW, samples=[sample(60, **BETWEEN), NEW.samples[1]])},
        "evicted by 210,000 tokens of a kvtop replay and requests that went past the tap", "300,000 tokens were",
    ),
    (
        Reason.EVICTED,
        {"replays": REPLAYED, "turn": with_(
            NEW, samples=[sample(60, computed=211_010, cached=119_008, generated=302), NEW.samples[1]]
        )},
        "evicted by 210,000 tokens of a kvtop replay", "210,004 tokens were computed since turn 10",
    ),
    (
        Reason.EVICTED, {"turn": with_(NEW, samples=[sample(60, **BETWEEN), NEW.samples[1]])},
        "evicted", "300,000 tokens were computed since turn 10, the pool holds 200,000",
    ),
    (
        Reason.EVICTED, {"events": KvFacts(gone=(Gone(T + 30, "GPU", 512), Gone(T + 31, "CPU", 528)))},
        "evicted", "KV events: 1 block of this prefix left the device since turn 10",
    ),
    (
        Reason.EVICTED, {"turn": before(preempted=2), "others": (filler(11, 15, 900),)},
        "evicted by turn 11", "the pool was full since turn 10: 2 requests were preempted",
    ),
    (
        Reason.EVICTED, {"turn": before(preempted=1), "others": (filler(11, 15, 900),)},
        "evicted by turn 11", "the pool was full since turn 10: 1 request was preempted",
    ),
    (
        Reason.EVICTED, {"turn": before(kv_cache_usage_share=0.96)},
        "evicted", "running requests held 96 % of the pool since turn 10",
    ),
    (
        Reason.STILL_RUNNING,
        {"baseline": old(first_token_at=T + 70, ended_at=T + 80)},
        "turn 10 was still being read when it came", "turn 10 was still being read when it came",
    ),
    (
        Reason.STILL_RUNNING,
        {"baseline": old(first_token_at=T + 70, ended_at=T + 80, cached_tokens=0), "expected": UNREAD},
        "turn 10 was still being read when it came", "turn 10 was still being read when it came",
    ),
    (
        Reason.STILL_RUNNING,
        {"baseline": old(first_token_at=T + 2, ended_at=T + 59.8, completion_tokens=900),
         "expected": replace(LAW, tokens=20_912, at_most=20_912), "turn": with_(NEW, cached_tokens=20_000)},
        "turn 10 had ended 200 ms before it came", "and only its reply is missing",
    ),
    (
        Reason.PREVIOUS_ABORTED,
        {"baseline": old(state=TurnState.ABORTED, first_token_at=None, completion_tokens=None), "expected": UNREAD},
        "turn 10 was aborted before its prompt had been read", "turn 10 was aborted before its prompt had been read",
    ),
    (
        Reason.PREVIOUS_ABORTED,
        {"baseline": old(state=TurnState.FAILED, first_token_at=None, completion_tokens=None)},
        "turn 10 failed before its prompt had been read", "turn 10 failed before its prompt had been read",
    ),
    (
        Reason.REPLICA, {"turn": before(started_at=STARTED - 900)},
        "turn 10 went to another process behind the same address", "and it ran already then: the address has several",
    ),
    (
        Reason.REPLICA, {"turn": before(started_at=T - 900)},
        "turn 10 went to another process behind the same address", "and it ran already then: the address has several",
    ),
    (
        Reason.REPLICA, {"baseline": old(upstream="http://other:8000")},
        "turn 10 went to another server", "turn 10 went to another server",
    ),
    (
        Reason.REPLICA,
        {"baseline": old(response_headers=[("X-LiteLLM-Model-Id", "a")]),
         "turn": with_(NEW, response_headers=[("x-litellm-model-id", "b")])},
        "turn 10 went to another replica", "x-litellm-model-id of the answers is another",
    ),
    (
        Reason.OFFLOAD_NOT_LOADED, {"server": TIER, "baseline": STORED, "turn": FLAT},
        "evicted from the device, and its tier was not read", "its KV was stored, and no KV was loaded while it waited",
    ),
    (
        Reason.OFFLOAD_NOT_LOADED,
        {"server": replace(TIER, tier_bytes=None), "turn": FLAT,
         "events": KvFacts(complete=True, gone=(Gone(T + 30, "GPU", 16),), on_device=0, anywhere=20_000)},
        "evicted from the device, and its tier was not read", "20,000 tokens lay in a tier",
    ),
    (
        Reason.OFFLOAD_NOT_LOADED,  # the recorder's only look at this turn came after it
        {"server": TIER, "baseline": STORED, "turn": with_(FLAT, samples=FLAT.samples[1:]),
         "others": (with_(FILLERS[0], samples=[with_(FLAT.samples[0], at=T + 40)]), *FILLERS[1:])},
        "evicted from the device, and its tier was not read", "its KV was stored, and no KV was loaded while it waited",
    ),
    (
        Reason.EVICTED,  # what comes from a tier takes room too
        {"server": replace(TIER, tier_bytes=None), "baseline": NO_LOADS, "turn": LOADED},
        "evicted", "199,984 tokens were loaded or computed since turn 10: the pool of 200,000 could not hold",
    ),
    (
        Reason.HASH_SEED,
        {"server": replace(TIER, lasting_tier=True, version="0.28.0"), "baseline": STORED,
         "turn": before(started_at=T + 30, external_hits=0)},
        "the keys of its tier changed with the restart (hash seed)", "the tier outlived the restart",
    ),
    (
        Reason.STUCK_CACHE,
        {"turn": with_(RESENT, samples=[sample(60, computed=2_800, cached=19_008, generated=300), NEW.samples[1]]),
         "others": NOTHING_HITS, "expected": replace(LAW, common=20_016)},
        "no prompt has hit since turn 10", "the same prompt again found nothing, nor did any of 3 prompts",
    ),
    (
        Reason.METRIC_WRONG, {"turn": with_(NEW, first_token_at=T + 61.3, ended_at=T + 70)},
        "its first token came as if it had it: the number is wrong",
        "its first token came after 1.3 s; what it is said to have computed takes 21 s",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "more", "clause", "line"), NAMED, ids=[str(one[0]) for one in NAMED])
def test_a_reason_is_named_by_its_evidence(reason: Reason, more: dict[str, Any], clause: str, line: str) -> None:
    found = why(scene(**more))
    assert (found.verdict, found.reason, found.candidates) == (Verdict.ENGINE_LOST_CACHE, reason, ())
    assert clause in found.sentence
    assert any(line in one for one in found.evidence), found.evidence
    assert found.fix
    assert found.cached_tokens is not None and found.expected_cached_tokens is not None
    assert found.cached_tokens < found.expected_cached_tokens


UNNAMED: list[dict[str, Any]] = [
    {},  # nothing was seen but the loss
    {"turn": before(started_at=STARTED)},
    {"baseline": old(*COUNTED), "turn": before(resets=0)},
    {"baseline": old(*COUNTED), "turn": with_(NEW, samples=[NEW.samples[0], with_(NEW.samples[1], resets=2)])},  # later
    {"others": COLD[:3]},  # one cold conversation is no reset
    {"others": (*COLD[:3], with_(COLD[3], cached_tokens=8_900))},
    {"others": COLD, "server": replace(SERVER, pool_tokens=None)},  # or they were all evicted
    {"others": FILLERS[:1]},
    {"others": FILLERS, "server": replace(SERVER, pool_tokens=None)},
    {"others": tuple(with_(one, started_at=T - 50, first_token_at=T - 40, ended_at=T - 30) for one in FILLERS)},
    {"others": tuple(with_(one, cached_tokens=99_000) for one in FILLERS)},
    {"others": tuple(with_(one, upstream="http://other:8000") for one in FILLERS)},
    {"events": KvFacts(gone=(Gone(T + 30, "CPU", 512),))},  # from the tier alone
    {"events": KvFacts(gone=(Gone(T + 30, "GPU", 20_800),))},  # beyond what was expected
    {"events": KvFacts(gone=(Gone(T + 5, "GPU", 512),))},  # before it had ended
    {"turn": before(preempted=2), "server": replace(SERVER, engines=2)},  # on which of them?
    {"turn": before(kv_cache_usage_share=0.85)},
    {"baseline": old(ended_at=T + 59.8)},  # its prompt had been read long before, and is missing too
    {"baseline": old(state=TurnState.ABORTED)},  # it was writing
    {"baseline": old(state=TurnState.ABORTED, first_token_at=None, stream=False), "turn": NEW},
    {"server": TIER, "baseline": STORED, "turn": before(store_bytes=5e6, load_bytes=0)},  # and not evicted
    {"server": replace(TIER, lasting_tier=True, version="0.28.0")},
    {"turn": with_(RESENT, samples=[sample(60, computed=2_800, cached=19_040, generated=300), NEW.samples[1]]),
     "others": NOTHING_HITS, "expected": replace(LAW, common=20_016)},  # somebody hit
    {"turn": with_(NEW, first_token_at=T + 61.3, ended_at=T + 70), "rate": None},
    {"turn": with_(NEW, first_token_at=T + 66, ended_at=T + 70)},
    {"expected": replace(LAW, from_=7), "baseline": None},  # what gave it is not known
]  # fmt: skip


@pytest.mark.parametrize("more", UNNAMED, ids=range(len(UNNAMED)))
def test_without_its_evidence_no_reason_is_named(more: dict[str, Any]) -> None:
    found = why(scene(**more))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, None)
    assert "20,000 tokens less than expected" in found.sentence and "nothing shows how" in found.sentence
    assert found.fix is None


FITS_BOTH: list[tuple[set[Reason], dict[str, Any]]] = [
    (
        {Reason.EVICTED, Reason.STILL_RUNNING},
        {"baseline": old(first_token_at=T + 2, ended_at=T + 59.8, completion_tokens=900),
         "expected": replace(LAW, tokens=20_912, at_most=20_912),
         "turn": with_(NEW, cached_tokens=20_000, samples=[]),
         "events": KvFacts(gone=(Gone(T + 59.9, "GPU", 20_512),))},
    ),
    ({Reason.EVICTED, Reason.METRIC_WRONG},
     {"others": FILLERS, "turn": with_(NEW, first_token_at=T + 61.3, ended_at=T + 70)}),
]  # fmt: skip


@pytest.mark.parametrize(("reasons", "more"), FITS_BOTH)
def test_where_the_evidence_fits_several_none_is_named(reasons: set[Reason], more: dict[str, Any]) -> None:
    found = why(scene(**more))
    assert (found.verdict, set(found.candidates)) == (Verdict.UNKNOWN, reasons)
    assert "the evidence fits both" in found.sentence


STRONGER: list[tuple[Reason, dict[str, Any]]] = [
    (Reason.RESTART, {"turn": before(started_at=T + 30), "others": FILLERS}),
    (Reason.CACHE_RESET, {"baseline": old(*COUNTED), "turn": before(resets=1), "others": FILLERS}),
    (Reason.REPLICA, {"baseline": old(upstream="http://other:8000"), "others": FILLERS}),
    (Reason.HASH_SEED, {
        "server": replace(TIER, lasting_tier=True, hash_algorithm="xxhash"), "baseline": STORED,
        "turn": before(started_at=T + 30, external_hits=0)}),
    (Reason.RESTART, {
        "server": replace(TIER, lasting_tier=True, version="0.32.0"), "baseline": STORED,
        "turn": before(started_at=T + 30, external_hits=0)}),
    (Reason.EVICTED, {"server": TIER, "others": FILLERS, "turn": with_(
        FLAT, samples=[FLAT.samples[0], with_(FLAT.samples[1], load_bytes=9.0)])}),  # the tier was read
    (Reason.EVICTED, {"server": TIER, "turn": with_(FLAT, samples=[
        with_(FLAT.samples[0], store_bytes=5e8), with_(FLAT.samples[1], store_bytes=5e8)]), "baseline": STORED}),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "more"), STRONGER)
def test_a_reason_that_explains_the_others_is_named_alone(reason: Reason, more: dict[str, Any]) -> None:
    found = why(scene(**more))
    assert (found.verdict, found.reason) == (Verdict.ENGINE_LOST_CACHE, reason)


def test_what_was_evicted_before_the_restart_was_not_lost_by_it() -> None:
    """In the old process, or in the new one: the time at which the others were read decides."""
    old_process = [filler(11, 15, 200_000), filler(12, 22, 200_000)]
    found = why(scene(turn=before(started_at=T + 30), others=tuple(old_process)))
    assert (found.verdict, found.reason) == (Verdict.ENGINE_LOST_CACHE, Reason.EVICTED)
    assert found.sentence.endswith("evicted by turns 11–12, before the server was restarted"), found.sentence
    assert not any("restart" in line for line in found.rules_out)
    later = (filler(11, 35, 200_000), filler(12, 45, 200_000))
    assert why(scene(turn=before(started_at=T + 30), others=later)).reason == Reason.RESTART


def test_what_is_ruled_out_is_said() -> None:
    other = turn(20, 70, conversation="c2", parent=2, relation="next", prompt_tokens=9_500, cached_tokens=8_992)
    found = why(scene(others=(COLD[0], other)))
    assert found.rules_out == (
        "a restart: the process start is unchanged since turn 10",
        "a reset of the cache: turn 20 of another conversation hit 95 % after it",
        "eviction: nothing was computed since turn 10",
        "turn 10 still running: it had ended 50 s before",
        "replicas: the same upstream, and it has one engine",
        "a tier that was not read: none is configured",
        "a wrong number: its first token took as long as reading that anew",
        "a changed prompt: 20,015 tokens are the same from the beginning on",
    )
    assert found.candidates == ()


def test_a_pool_with_room_rules_eviction_out_for_full_attention_alone() -> None:
    reads = with_(NEW, samples=[NEW.samples[0], later(10_000)])
    found = why(scene(turn=reads))
    assert "eviction: no more than 10,000 tokens were computed since turn 10, and the pool of 200,000 had room" in (
        found.rules_out
    )
    for layers in (Layers.SLIDING, Layers.HYBRID, None):
        found = why(scene(turn=reads, server=replace(SERVER, layers=layers)))
        assert Reason.EVICTED in found.candidates
    says = "eviction: by the KV events none of its blocks left the device"
    for held, ruled_out in ((20_000, True), (19_984, False)):
        events = KvFacts(complete=True, held=held)
        found = why(scene(turn=reads, server=replace(SERVER, layers=None), events=events))
        assert (says in found.rules_out) is ruled_out, "nobody saw those that were there before"


def test_events_that_do_not_reach_say_so() -> None:
    short = "KV events are known only from a time after turn 10 had ended"
    assert short in why(scene(events=KvFacts(short=short))).evidence
    told = why(scene(events=KvFacts(gone=(Gone(T + 30, "GPU", 512),), short=short)))
    assert told.reason == Reason.EVICTED and short not in told.evidence, "what they do tell is enough"


@pytest.mark.parametrize(
    "more",
    [
        {"turn": with_(NEW, samples=[NEW.samples[0], later(10_000)])},  # after the last look before it was read
        {"turn": with_(NEW, samples=[NEW.samples[0], later(0, running=1)])},  # a prompt that is not counted yet
        {"turn": with_(NEW, samples=NEW.samples[:1])},
        {"baseline": old(OLD.samples[1])},
        {"others": (filler(11, 15, state=TurnState.ABORTED, first_token_at=None),)},  # which no counter holds
    ],
)
def test_what_may_have_been_computed_unseen_rules_no_eviction_out(more: dict[str, Any]) -> None:
    found = why(scene(server=replace(SERVER, layers=Layers.HYBRID), **more))
    assert Reason.EVICTED in found.candidates
    assert not any("eviction" in line for line in found.rules_out)


@pytest.mark.parametrize(
    ("pool", "cached", "named"), [(110_000, 9_984, True), (110_000, 0, False), (121_000, 0, False)]
)
def test_what_the_pool_cannot_hold_beside_the_prefix_is_evicted(pool: int, cached: int, named: bool) -> None:
    """100,000 tokens and these 20,000: of 110,000 no more than 10,000 of the older ones are left."""
    found = why(
        scene(others=(filler(11, 15),), server=replace(SERVER, pool_tokens=pool), turn=with_(NEW, cached_tokens=cached))
    )
    assert (found.reason == Reason.EVICTED) is named
    assert named or Reason.EVICTED in found.candidates
    line = "100,000 tokens were computed since turn 10: the pool of 110,000 could not hold these 20,000 as well"
    assert (line in found.evidence) is named


def test_of_two_at_once_the_one_that_was_taken_in_first_lost_nothing() -> None:
    """Their numbers are those of their first bytes."""
    reads = {"first_token_at": T + 70, "ended_at": T + 80}
    for had, lost in ((0, True), (1_280, False)):
        found = why(scene(baseline=old(**reads, cached_tokens=had), expected=UNREAD))
        assert (found.reason == Reason.STILL_RUNNING) is lost


def test_a_look_after_its_arrival_counts_while_nobody_else_computes() -> None:
    """The look at its arrival is the one after the turn before."""
    stale = with_(OLD.samples[1], at=T + 59.9)
    fresh = sample(60.1, **BETWEEN)
    for running, named in ((1, True), (2, False)):
        looks = [stale, with_(fresh, running=running), NEW.samples[1]]
        found = why(scene(baseline=old(OLD.samples[0], stale), turn=with_(NEW, samples=looks)))
        assert (found.reason == Reason.EVICTED) is named


def test_a_look_after_the_first_token_tells_of_the_process_and_of_resets() -> None:
    stale = with_(COUNTED[1], at=T + 59.9)
    for resets in (0, 1):
        late = with_(NEW, samples=[stale, with_(NEW.samples[1], resets=resets)])
        found = why(scene(baseline=old(COUNTED[0], stale), turn=late))
        assert "a restart: the process start is unchanged since turn 10" in found.rules_out
        assert (found.reason == Reason.CACHE_RESET) is bool(resets)


def test_a_hit_that_a_tier_may_have_given_rules_no_reset_out() -> None:
    other = turn(20, 70, conversation="c2", parent=2, relation="next", prompt_tokens=9_500, cached_tokens=8_992)
    found = why(scene(others=(COLD[0], other), server=TIER))
    assert Reason.CACHE_RESET in found.candidates


# rules that hold whatever was seen

_numbers = st.sampled_from([None, 0, 5, 512, 8_000, 19_984, 20_000, 21_000])
_moments = st.sampled_from([None, T - 30, T + 1, T + 10, T + 30, T + 59.8, T + 61, T + 75])
_counts = st.sampled_from([None, 0.0, 1.0, 400_000.0, 900_000.0])


@st.composite
def some_samples(draw: st.DrawFn) -> list[Sample]:
    found = []
    for at in sorted(draw(st.lists(st.sampled_from([-5.0, 3.0, 10.2, 40.0, 60.0, 80.0]), max_size=3, unique=True))):
        names = ("prompt_tokens", "cached_tokens", "hits", "queries", "generation_tokens", "preempted", "load_bytes")
        more = {name: draw(_counts) for name in names} if draw(st.booleans()) else {}
        more |= {"external_hits": draw(_counts), "store_bytes": draw(_counts)} if draw(st.booleans()) else {}
        more |= {"resets": draw(st.sampled_from([0.0, 0.0, 0.0, 1.0]))} if draw(st.booleans()) else {}
        started = draw(st.sampled_from([None, STARTED, STARTED, STARTED, STARTED, STARTED, T + 30]))
        share = draw(st.sampled_from([None, 0.2, 0.97, 1.0]))
        found.append(sample(at, **more, started_at=started, kv_cache_usage_share=share))
    return found


@st.composite
def some_turn(draw: st.DrawFn, like: Captured) -> Captured:
    return with_(
        like,
        state=draw(st.sampled_from([*TurnState, TurnState.DONE, TurnState.DONE, TurnState.DONE, None])),
        stream=draw(st.sampled_from([True, True, False, None])),
        upstream=draw(st.sampled_from([URL, URL, URL, "http://other:8000"])),
        first_token_at=draw(st.one_of(st.just(like.first_token_at), _moments)),
        ended_at=draw(st.one_of(st.just(like.ended_at), _moments)),
        prompt_tokens=draw(st.one_of(st.just(like.prompt_tokens), _numbers)),
        cached_tokens=draw(_numbers),
        completion_tokens=draw(_numbers),
        queue_s=draw(st.sampled_from([None, None, 0.0, 5.0, 20.0])),
        relation=draw(st.sampled_from(["next", "next", "retry", "branch", "first", None])),
        response_headers=draw(st.sampled_from([[], [("x-served-by", "a")], [("X-Served-By", "b")]])),
        samples=draw(some_samples()),
    )


@st.composite
def anything(draw: st.DrawFn) -> Seen:
    low = draw(st.sampled_from([0, 512, 8_000, 20_000, 20_000, 20_000]))
    high = draw(st.sampled_from([low, low, 20_000, 21_000]))
    law = Expected(
        low, low >= high, max(low, high), low, draw(st.sampled_from([0, low, 20_015, 21_016])), (),
        draw(st.sampled_from([None, 10, 11])), 10, draw(st.sampled_from([None, 10, 11])), 20_015,
    )  # fmt: skip
    gone = st.builds(Gone, _moments.filter(bool), st.sampled_from(["GPU", "CPU"]), st.sampled_from([16, 512, 20_512]))
    facts = st.builds(
        KvFacts, st.booleans(), st.lists(gone, max_size=2).map(tuple),
        st.lists(_moments.filter(bool), max_size=1).map(tuple), st.sampled_from([0, 512, 20_000]), _numbers, _numbers,
        st.sampled_from(["", "the stream broke off"]),
    )  # fmt: skip
    server = Server(
        unit=draw(st.sampled_from([None, 16, 1_072])),
        pool_tokens=draw(st.sampled_from([None, 1_000, 30_000, 200_000])),
        version=draw(st.sampled_from([None, "0.28.0", "0.32.0", "x"])),
        engines=draw(st.sampled_from([None, 1, 2])),
        layers=draw(st.sampled_from([None, *Layers])),
        offload=draw(st.sampled_from([None, True, False])),
        tier_bytes=draw(st.sampled_from([None, 10, 10**9])),
        lasting_tier=draw(st.sampled_from([None, True, False])),
    )
    others = draw(st.lists(some_turn(filler(11, 15)), max_size=2)) + draw(st.lists(st.sampled_from(COLD), max_size=4))
    mostly = draw(some_turn(NEW))
    if draw(st.integers(0, 4)):  # what can lose something: it ended well, and waited for its first token
        mostly = with_(
            NEW, samples=mostly.samples, cached_tokens=mostly.cached_tokens, first_token_at=mostly.first_token_at,
            completion_tokens=None,
        )  # fmt: skip
    return Seen(
        turn=mostly,
        baseline=draw(st.one_of(st.none(), st.just(OLD), some_turn(OLD), some_turn(OLD))),
        others=tuple(with_(one, id=one.id + 20 * i) if one.id == 11 else one for i, one in enumerate(others)),
        expected=draw(st.sampled_from([None, law, law, law])),
        server=server,
        events=draw(st.one_of(st.none(), facts)),
        rate=draw(st.sampled_from([None, 10.0, 1_000.0])),
        exact=draw(st.booleans()),
    )


def _samples(seen: Seen) -> list[Sample]:
    turns = (seen.turn, *([seen.baseline] if seen.baseline else []), *seen.others)
    return [one for each in turns for one in each.samples]


def _around(seen: Seen) -> list[Captured]:
    return [*([seen.baseline] if seen.baseline else []), *seen.others]


def _restarted(seen: Seen) -> bool:
    kept = sorted(_samples(seen), key=lambda one: one.at)
    starts = {one.started_at for one in kept if one.started_at is not None}
    names = ("prompt_tokens", "cached_tokens", "queries", "hits", "generation_tokens", "finished")
    fell = any(
        getattr(b, name) < getattr(a, name)
        for i, a in enumerate(kept)
        for b in kept[i:]
        for name in names
        if getattr(a, name) is not None and getattr(b, name) is not None
    )
    return len(starts) > 1 or fell


def _squeezed(seen: Seen) -> bool:
    pool, kept = seen.server.pool_tokens, _samples(seen)
    preempted = [one.preempted for one in kept if one.preempted is not None]
    shares = [one.kv_cache_usage_share or 0.0 for one in kept]
    new = sum(one.new_tokens or 0 for one in seen.others)
    grew = [one.prompt_tokens for one in kept if one.prompt_tokens is not None]
    counted = max(grew, default=0) - min(grew, default=0) + 1_000_000
    return bool(
        (seen.events and any(one.tier == "GPU" for one in seen.events.gone))
        or (pool is not None and max(new, counted) >= pool)
        or (preempted and max(preempted) > min(preempted))
        or (shares and max(shares) > 0.9)
    )


EVIDENCE: dict[Reason, Callable[[Seen], bool]] = {
    Reason.RESTART: _restarted,
    Reason.HASH_SEED: lambda seen: bool(seen.server.lasting_tier) and _restarted(seen),
    Reason.CACHE_RESET: lambda seen: bool(
        max((one.resets or 0 for one in _samples(seen)), default=0)
        or (seen.events and seen.events.cleared_at)
        or len({one.conversation for one in seen.others if not one.cached_tokens}) >= 2
    ),
    Reason.EVICTED: _squeezed,
    Reason.STILL_RUNNING: lambda seen: any(
        one.ended_at is None or one.ended_at > seen.arrived - 0.5 for one in _around(seen)
    ),
    Reason.PREVIOUS_ABORTED: lambda seen: any(
        one.state in (TurnState.ABORTED, TurnState.FAILED, TurnState.CUT) and one.first_token_at is None
        for one in _around(seen)
    ),
    Reason.REPLICA: lambda seen: any(
        one.upstream != seen.turn.upstream or one.response_headers != seen.turn.response_headers
        for one in _around(seen)
    ),
    Reason.OFFLOAD_NOT_LOADED: lambda seen: (
        seen.server.offload is True and _squeezed(seen) and len(seen.turn.samples) > 1
    ),
    Reason.STUCK_CACHE: lambda seen: seen.cached == 0 and len(seen.others) >= 2,
    Reason.METRIC_WRONG: lambda seen: (
        seen.rate is not None
        and seen.ttft is not None
        and seen.ttft * 4 < ((seen.turn.prompt_tokens or 0) - (seen.cached or 0)) / seen.rate
    ),
}
"""For each reason something that must have been seen, told in another way than the rules do."""


@given(seen=anything())
def test_an_engine_is_never_blamed_without_a_loss_and_evidence(seen: Seen) -> None:
    found = why(seen)
    assert found.cached_tokens == seen.cached
    assert found.sentence and "\n" not in found.sentence
    if found.verdict is Verdict.ENGINE_LOST_CACHE:
        assert found.cached_tokens is not None and found.expected_cached_tokens is not None
        assert found.cached_tokens < found.expected_cached_tokens
        assert seen.expected is not None and found.expected_cached_tokens <= seen.expected.at_most
        assert isinstance(found.reason, Reason) and found.evidence
        assert EVIDENCE[found.reason](seen), found.reason
    if seen.cached is None:
        assert found.verdict is not Verdict.ENGINE_LOST_CACHE and not found.candidates
    assert found.verdict is Verdict.UNKNOWN or not found.candidates


@given(seen=anything())
def test_what_has_what_was_expected_is_never_a_loss(seen: Seen) -> None:
    if seen.expected is None or not seen.turn.prompt_tokens or seen.turn.prompt_tokens < seen.expected.at_most:
        return
    had = replace(seen, turn=with_(seen.turn, cached_tokens=seen.expected.at_most))
    found = why(had)
    assert found.verdict is not Verdict.ENGINE_LOST_CACHE and not found.candidates


def test_a_restart_explains_all_and_no_count_goes_on_beyond_it() -> None:
    """What ran before it, and what ran after it, is no reason beside it."""
    busy = before(started_at=T + 30, kv_cache_usage_share=0.96, preempted=3)
    found = why(scene(turn=busy, others=FILLERS))
    assert found.reason == Reason.RESTART
    assert found.evidence == (
        "0 of 20,000 tokens came from the cache that should have",
        "the server's process began 30 s before, after turn 10 had ended",
    )
    assert not any("eviction" in line or "reset" in line for line in found.rules_out)


def test_a_turn_itself_leaves_its_prefix_room() -> None:
    """A look after it came: it is the request that runs."""
    for at, named in ((59.9, True), (60.5, False)):
        look = sample(at, computed=1_008, cached=19_008, generated=300, kv_cache_usage_share=0.96)
        found = why(scene(turn=with_(NEW, samples=[look, NEW.samples[1]])))
        assert any("there was no room left" in line for line in found.evidence) is named
    idle = sample(59.9, computed=1_008, cached=19_008, generated=300, kv_cache_usage_share=0.96, running=0)
    assert not any("no room" in line for line in why(scene(turn=with_(NEW, samples=[idle, NEW.samples[1]]))).evidence)
