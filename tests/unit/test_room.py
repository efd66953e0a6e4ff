"""Whether the pool had room for a prefix, against a prefix cache that hands out its blocks as vLLM does."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from triage_scenes import STARTED, URL, T

from kvtop.capture.turn import Captured, Route, Sample, TurnState
from kvtop.sim.cache import PrefixCache, extend_chain
from kvtop.triage.engine import Layers
from kvtop.triage.engine_side import lost_by
from kvtop.triage.kinds import Reason
from kvtop.triage.reuse import Expected
from kvtop.triage.seen import Seen, Server

UNIT = 16
TALKS = 4


@dataclass
class Box:
    """A server with one request at a time, and what its counters and a tap would tell."""

    blocks: int
    past_tap: frozenset[int] = frozenset()
    """Conversations whose turns nobody captured."""
    cache: PrefixCache = field(init=False)
    turns: list[Captured] = field(default_factory=list)
    prompts: dict[int, list[int]] = field(default_factory=dict)
    left: dict[int, list[int]] = field(default_factory=dict)
    """By conversation what its last turn left, and the turn."""
    last: dict[int, Captured] = field(default_factory=dict)
    now: float = T
    totals: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("prompt_tokens", "cached_tokens", "generation_tokens", "finished"), 0.0)
    )

    def __post_init__(self) -> None:
        self.cache = PrefixCache(self.blocks, UNIT)

    def look(self, at: float) -> Sample:
        return Sample(
            at=at, started_at=STARTED, running=0, waiting=0, kv_cache_usage_share=0.0, preempted=0, **self.totals
        )

    def ask(self, talk: int, prompt: list[int], reply: list[int]) -> tuple[Captured, int] | None:
        """The turn, and what lay in the cache for it; None: it does not fit the pool."""
        hashes = extend_chain([], array("I", prompt), UNIT)
        found = self.cache.match(hashes, len(prompt))
        whole = prompt + reply[:-1]
        if -(-len(whole) // UNIT) > self.blocks:
            return None
        held = self.cache.hold(hashes[:found])
        new = self.cache.allocate(-(-len(whole) // UNIT) - found)
        assert new is not None
        self.now += 1
        before = self.look(self.now)
        chain = extend_chain([], array("I", whole), UNIT)
        blocks = held + new
        self.cache.publish(blocks[found : len(chain)], chain[found:])
        self.cache.release(blocks)
        told = (len(prompt), found * UNIT, len(reply), 1)
        for name, more in zip(self.totals, told, strict=True):
            self.totals[name] += more
        old = self.last.get(talk)
        turn = Captured(
            id=len(self.prompts) + 1, upstream=URL, model="m", route=Route.CHAT, stream=True, state=TurnState.DONE,
            conversation=f"c{talk}", relation="next" if old else "first", parent=old.id if old else None,
            started_at=self.now + 0.1, sent_at=self.now + 0.1, first_token_at=self.now + 1, ended_at=self.now + 2,
            prompt_tokens=len(prompt), cached_tokens=found * UNIT, completion_tokens=len(reply), alone=True,
            samples=[before, self.look(self.now + 2.1)],
        )  # fmt: skip
        self.prompts[turn.id] = prompt
        self.now += 3
        if talk not in self.past_tap:
            self.turns.append(turn)
        self.last[talk], self.left[talk] = turn, whole
        return turn, found * UNIT


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def judged(box: Box, turn: Captured, source: Captured, expected: int, *, with_ids: bool) -> bool | None:
    """What is said of an eviction."""
    ids = [one.id for one in box.turns] if with_ids else []
    shared = {(a, b): common(box.prompts[a], box.prompts[b]) for a in ids for b in ids if a < b}
    seen = Seen(
        turn=turn, baseline=source, others=tuple(one for one in box.turns if one.id != turn.id), shared=shared,
        expected=Expected(expected, True, expected, expected, expected, (), source.id, source.id),
        server=Server(UNIT, box.blocks * UNIT, "0.32.0", 1, Layers.FULL, False),
    )  # fmt: skip
    return next(one.shown for one in lost_by(seen, source) if one.reason is Reason.EVICTED)


def play(
    seed: int, blocks: int, *, head: int, past_tap: frozenset[int], with_ids: bool
) -> list[tuple[bool, bool | None]]:
    """A few conversations in turn: of each that goes on, whether its prefix had left, and what is said of that."""
    dice, box = random.Random(seed), Box(blocks, past_tap)
    begin = [dice.randrange(9) for _ in range(head)]
    out = []
    for _ in range(30):
        talk = dice.randrange(TALKS)
        source, left = box.last.get(talk), box.left.get(talk)
        prompt = (left or begin) + [dice.randrange(1_000) for _ in range(dice.choice((1, 20, 60, 200)))]
        asked = box.ask(talk, prompt, [dice.randrange(1_000) for _ in range(dice.choice((1, 5, 30)))])
        if asked is None or source is None or left is None or talk in past_tap:
            continue
        turn, cached = asked
        expected = min(len(left), len(prompt) - 1) // UNIT * UNIT
        if expected <= head:
            continue  # others share all of it, and may have put it there again
        out.append((cached < expected, judged(box, turn, source, expected, with_ids=with_ids)))
    return out


@settings(derandomize=True, max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    blocks=st.integers(30, 160),
    head=st.sampled_from((0, 40, 300)),
    past_tap=st.sampled_from((frozenset[int](), frozenset({0}), frozenset({0, 1}))),
    with_ids=st.booleans(),
)
def test_what_is_said_of_an_eviction_is_what_happened(
    seed: int, blocks: int, head: int, past_tap: frozenset[int], with_ids: bool
) -> None:
    for gone, said in play(seed, blocks, head=head, past_tap=past_tap, with_ids=with_ids):
        event(f"gone {gone}, said {said}")
        assert said is None or said is gone


def test_most_evictions_are_named_and_most_rooms_are_seen() -> None:
    told = [one for seed in range(60) for one in play(seed, 90, head=40, past_tap=frozenset(), with_ids=True)]
    gone = [said for happened, said in told if happened]
    there = [said for happened, said in told if not happened]
    assert len(gone) > 50 and sum(said is True for said in gone) > len(gone) / 2
    assert sum(said is False for said in there) > len(there) / 4


def two() -> tuple[Box, Captured, Captured]:
    """A pool of 130 blocks of 16 held 1,275 tokens of one conversation; another with 800 goes on in between."""
    box = Box(130)
    for talk, size in ((1, 1_275), (2, 800), (1, 1_355)):
        prompt = (box.left.get(talk) or []) + [talk * 1_000 + i for i in range(size - len(box.left.get(talk) or []))]
        box.ask(talk, prompt, [7, 8, 9])
    source = box.last[2]
    asked = box.ask(2, box.left[2] + [5] * 130, [7, 8, 9])
    assert asked is not None
    return box, asked[0], source


def test_what_another_one_found_in_the_cache_took_room_too() -> None:
    """Few tokens were computed, and yet the tail was the next to go."""
    box, turn, source = two()
    assert turn.cached_tokens is not None and turn.cached_tokens < 800 // 16 * 16
    assert judged(box, turn, source, 800, with_ids=True) is True
    assert judged(box, turn, source, 800, with_ids=False) is None, "what they share is not known"


def test_where_nobody_counts_requests_no_room_is_certain() -> None:
    """Each takes a block that it does not fill, also one that went past the tap."""
    box = Box(400)
    for talk in (1, 2):
        box.ask(talk, [talk * 1_000 + i for i in range(800)], [7, 8, 9])
    source = box.last[1]
    asked = box.ask(1, box.left[1] + [5] * 130, [7, 8, 9])
    assert asked is not None
    assert judged(box, asked[0], source, 800, with_ids=True) is False
    source, turn = (
        replace(one, samples=[replace(look, finished=None) for look in one.samples]) for one in (source, asked[0])
    )
    assert judged(box, turn, source, 800, with_ids=True) is None
