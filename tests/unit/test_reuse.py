"""The expected reuse beside a prefix cache that is simulated block by block, and what is told where facts miss."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.model.box import Config
from kvtop.triage.engine import Engine, Layers, engine_of
from kvtop.triage.ids import common, count, pack, unpack
from kvtop.triage.kinds import Because
from kvtop.triage.reuse import Earlier, Expected, History

Ids = tuple[int, ...]


class Cache:
    """A prefix cache as a server keeps it: blocks and states found by all tokens up to their end, nothing ever lost."""

    def __init__(self, engine: Engine, budget: int) -> None:
        self.engine, self.budget = engine, budget
        self.blocks: set[Ids] = set()
        self.window: set[Ids] = set()
        self.states: set[Ids] = set()

    @property
    def block(self) -> int:
        assert self.engine.block
        return self.engine.block

    def serve(self, prompt: Ids, reply: Ids) -> int:
        """Tokens from the cache."""
        attention = self._attention(prompt)
        if self.engine.layers is Layers.FULL:
            got = attention
        elif self.engine.layers is Layers.SLIDING:
            got = self._window(prompt, attention)
        else:
            got = max((k for k in range(attention + 1) if prompt[:k] in self.states), default=0)
        self._compute(prompt, reply, got, attention)
        return got

    def _attention(self, prompt: Ids) -> int:
        got = 0
        while got + self.block < len(prompt) and prompt[: got + self.block] in self.blocks:
            got += self.block
        unit = self.engine.unit
        if unit and self.engine.layers is Layers.HYBRID:  # part of the next block, where another prompt ended
            for end in range(got + unit, min(got + self.block, len(prompt)), unit):
                if any(other[:end] == prompt[:end] for other in self.blocks):
                    got = max(got, end)
        return max(0, got - (self.engine.drop or 0) * self.block)

    def _window(self, prompt: Ids, attention: int) -> int:
        assert self.engine.window
        need, run = -(-(self.engine.window - 1) // self.block), 0
        for i in range(attention // self.block - 1, -1, -1):
            run = run + 1 if prompt[: (i + 1) * self.block] in self.window else 0
            if run >= need:
                return (i + run) * self.block
        return run * self.block

    def _compute(self, prompt: Ids, reply: Ids, got: int, attention: int) -> None:
        engine, block = self.engine, self.block
        chain = prompt + reply[:-1]
        for end in range(block, len(chain) + 1, block):
            self.blocks.add(chain[:end])
        if engine.unit:
            self.blocks.add(chain)
        size = len(prompt)
        last = (size if engine.before_0_29 else size - 1) // block * block
        kept = {last}
        junction = attention // block * block
        if junction > got and not engine.before_0_29:
            kept.add(junction)
        if engine.unit:
            kept.add((size - 1) // engine.unit * engine.unit)
        step = block if engine.retention is None or engine.before_0_29 else engine.retention
        if engine.layers is Layers.SLIDING:
            self._keep_windows(chain, got, kept, step)
            return
        if step:
            kept |= {end for end in self._chunks(size, got, kept) if end % step == 0}
            kept |= {end for end in range(size, len(chain) + 1) if end % step == 0}
        self.states |= {chain[:end] for end in kept if got < end <= len(chain)}

    def _chunks(self, size: int, got: int, stops: set[int]) -> set[int]:
        ends, at = set(), got
        while at < size:
            end = min(size, at + self.budget)
            if end < size:
                end = max(at + 1, end // self.block * self.block)
            end = min([end, *(stop for stop in stops if at < stop < end)])
            ends.add(end)
            at = end
        return ends

    def _keep_windows(self, chain: Ids, got: int, kept: set[int], step: int) -> None:
        assert self.engine.window
        need, block = -(-(self.engine.window - 1) // self.block), self.block
        if step:
            kept |= set(range(0, len(chain) + 1, step))
        for i in range(got // block, len(chain) // block):
            if any(i < end // block <= i + need for end in kept):
                self.window.add(chain[: (i + 1) * block])


Request = tuple[Ids, Ids]
tokens = st.integers(0, 2)


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    """Prompts that share beginnings, carry replies, part from each other and come back."""
    chains: list[Ids] = [()]
    found: list[Request] = []
    for _ in range(draw(st.integers(1, 9))):
        base = draw(st.sampled_from(chains))
        head = base[: draw(st.integers(0, len(base)))] if draw(st.booleans()) else base
        prompt = head + tuple(draw(st.lists(tokens, min_size=0 if head else 1, max_size=14)))
        reply = tuple(draw(st.lists(tokens, min_size=1, max_size=9)))
        chains += [prompt, prompt + reply]
        found.append((prompt, reply))
    return found


KNOWN = [
    Engine(block=3),
    Engine(block=2, drop=1),
    Engine(block=3, layers=Layers.HYBRID),
    Engine(block=4, layers=Layers.HYBRID, unit=2),
    Engine(block=2, layers=Layers.SLIDING, window=5),
    Engine(block=2, layers=Layers.SLIDING, window=5, retention=8),
    Engine(block=3, layers=Layers.SLIDING, window=2),
    Engine(block=2, layers=Layers.SLIDING, window=50, retention=None),
]
"""Engines of which every fact is known, and enough to say exactly what is reused."""
RANGE = [
    Engine(block=2, layers=Layers.HYBRID, retention=None),
    Engine(block=2, layers=Layers.HYBRID, retention=4),
    Engine(block=2, layers=Layers.HYBRID, retention=None, before_0_29=True),
]
"""Of these it depends on where the chunks of a prefill end."""


@pytest.mark.parametrize("engine", KNOWN, ids=str)
@given(asked=requests(), told=st.booleans())
def test_it_is_what_a_cache_gives(engine: Engine, asked: list[Request], told: bool) -> None:
    cache, history = Cache(engine, 1000), History(engine)
    for i, (prompt, reply) in enumerate(asked):
        ids = pack(prompt)
        one = history.expect(ids)
        got = cache.serve(prompt, reply)
        assert one is not None
        assert (one.tokens, one.exact, one.at_most) == (got, True, got)
        assert (one.from_ is None) == (got == 0)
        history.add(Earlier(i, ids, pack(reply), cached=got if told else None))


@pytest.mark.parametrize("engine", [*KNOWN, *RANGE], ids=str)
@given(asked=requests(), data=st.data(), budget=st.sampled_from([2, 5, 8, 1000]))
def test_what_is_not_known_makes_a_range(
    engine: Engine, asked: list[Request], data: st.DataObject, budget: int
) -> None:
    """Replies, their lengths, what was cached, the kind of layers, the window, the speculator: any may be missing."""
    cache = Cache(engine, budget)
    less = engine
    if engine.layers is not Layers.HYBRID and not engine.drop and data.draw(st.booleans()):
        less = replace(engine, layers=None, window=None)
    if data.draw(st.booleans()) and engine.layers is Layers.FULL:
        less = replace(less, drop=None)
    history = History(less)
    for i, (prompt, reply) in enumerate(asked):
        ids = pack(prompt)
        one = history.expect(ids)
        got = cache.serve(prompt, reply)
        assert one is not None
        assert one.tokens <= got <= one.at_most
        assert one.exact == (one.tokens == one.at_most)
        known = data.draw(st.integers(0, 2))
        history.add(
            Earlier(
                i,
                ids,
                pack(reply) if known == 2 else None,
                len(reply) if known == 1 else None,
                got if data.draw(st.booleans()) else None,
            )
        )


def expect(engine: Engine, before: Sequence[Earlier], prompt: Sequence[int]) -> Expected:
    history = History(engine)
    for one in before:
        history.add(one)
    found = history.expect(pack(prompt))
    assert found is not None
    return found


def ids(first: int, last: int) -> list[int]:
    return list(range(first, last))


A = Earlier(1, pack(ids(0, 1000)), pack(ids(1000, 1200)))
FULL = Engine(block=100)


@pytest.mark.parametrize(
    ("prompt", "tokens", "because"),
    [
        (ids(0, 1300), 1100, ()),  # the last token of a reply has no KV: 1199 are kept
        (ids(0, 1200), 1100, ()),
        (ids(0, 1000), 900, ()),  # the last token is always read
        (ids(0, 50) + ids(5000, 6000), 0, (Because.BELOW_MATCH_UNIT,)),
        (ids(0, 1050) + ids(5000, 6000), 1000, (Because.RETOKENISED_REPLY,)),
        (ids(0, 1110) + ids(5000, 6000), 1100, ()),
        (ids(0, 900) + ids(5000, 6000), 900, ()),
        (ids(5000, 6000), 0, ()),
        ([], 0, ()),
    ],
)
def test_full_attention(prompt: list[int], tokens: int, because: tuple[Because, ...]) -> None:
    found = expect(FULL, [A], prompt)
    assert (found.tokens, found.exact, found.because) == (tokens, True, because)
    assert found.plain == tokens


def test_a_speculator_costs_a_block() -> None:
    found = expect(replace(FULL, drop=1), [A], ids(0, 1300))
    assert (found.tokens, found.exact, found.plain, found.because) == (1000, True, 1100, (Because.SPECULATION,))
    found = expect(replace(FULL, drop=None), [A], ids(0, 1300))
    assert (found.tokens, found.exact, found.at_most) == (1000, False, 1100)


def test_hashes_that_cover_the_token_after_the_block() -> None:
    engine = replace(FULL, lookahead=1)
    assert expect(engine, [A], ids(0, 600) + ids(5000, 6000)).tokens == 500
    assert expect(engine, [A], ids(0, 601) + ids(5000, 6000)).tokens == 600


@pytest.mark.parametrize(
    ("reply", "reply_tokens", "low", "most"),
    [
        (pack(ids(1000, 1200)), None, 1100, 1100),
        (None, 200, 1000, 1100),
        (None, None, 1000, 1200),
        (b"", None, 1000, 1000),
    ],
)
def test_a_reply_of_which_nobody_saw_the_ids(
    reply: bytes | None, reply_tokens: int | None, low: int, most: int
) -> None:
    found = expect(FULL, [Earlier(1, A.prompt, reply, reply_tokens)], ids(0, 1300))
    assert (found.tokens, found.at_most) == (low, most)
    parted = expect(FULL, [Earlier(1, A.prompt, reply, reply_tokens)], ids(0, 990) + ids(5000, 5100))
    assert (parted.tokens, parted.exact) == (900, True)


def test_a_prefill_that_did_not_end_promises_nothing() -> None:
    for engine in (FULL, replace(FULL, layers=Layers.HYBRID)):
        found = expect(engine, [replace(A, whole=False)], ids(0, 1300))
        assert (found.tokens, found.exact, found.unread, found.nearest) == (0, False, 1, None)
        assert found.at_most >= 900
        short = Earlier(2, pack(ids(0, 500)), b"")
        found = expect(engine, [short, replace(A, whole=False)], ids(0, 1300))
        assert (found.nearest, found.unread) == (2, 1)
        assert expect(engine, [A, replace(A, key=3, whole=False)], ids(0, 1300)).unread is None


def test_what_an_engine_lost_leaves_no_junction_that_is_sure() -> None:
    """The second prompt got less than it should: where its attention came to is not known, and so where it parted."""
    hybrid = replace(FULL, layers=Layers.HYBRID)
    parts = pack(ids(0, 550) + ids(5000, 5500))
    again = ids(0, 550) + ids(6000, 6500)
    assert expect(hybrid, [A, Earlier(2, parts, b"")], again).tokens == 500
    assert expect(hybrid, [A, Earlier(2, parts, b"", cached=0)], again).tokens == 500
    third = Earlier(3, pack(ids(0, 550) + ids(7000, 7500)), b"", cached=0)
    lost = expect(hybrid, [A, third, replace(third, key=4)], ids(0, 550) + ids(7000, 7500) + [1])
    assert lost.tokens == 1000, "its end is saved whatever it got"
    given = Earlier(2, parts, b"", cached=300)  # of a prompt that nobody saw
    found = expect(hybrid, [A, given], again)
    assert (found.tokens, found.at_most, found.from_) == (300, 500, 2)


def test_a_prompt_that_a_state_cannot_be_gone_on_from_says_why() -> None:
    hybrid = replace(FULL, layers=Layers.HYBRID)
    found = expect(hybrid, [A], ids(0, 550) + ids(5000, 5500))
    assert (found.tokens, found.plain, found.because) == (0, 500, (Because.HYBRID_BOUNDARY,))
    found = expect(hybrid, [A], ids(0, 1300))
    assert (found.tokens, found.plain, found.because) == (900, 1100, (Because.REPLY_NOT_SAVED,))
    unseen = Earlier(1, pack(ids(0, 950)), None, 200)
    found = expect(hybrid, [unseen], ids(0, 1300))
    assert (found.tokens, found.exact, found.because) == (900, True, (Because.REPLY_NOT_SAVED,))


def test_before_0_29_a_prompt_that_ends_on_a_block_is_no_help_to_itself() -> None:
    old = Engine(block=100, layers=Layers.HYBRID, retention=None, before_0_29=True)
    first = Earlier(1, pack(ids(0, 1000)), b"", cached=0)
    assert expect(old, [first], ids(0, 1000)).tokens == 0
    assert expect(old, [first], ids(0, 1001)).tokens == 1000


def test_a_speculator_on_a_hybrid_is_told_as_a_range() -> None:
    engine = Engine(block=100, layers=Layers.HYBRID, drop=1)
    first = Earlier(1, pack(ids(0, 950)), b"", cached=0)
    same = expect(engine, [first], ids(0, 950))
    assert (same.tokens, same.at_most) == (0, 800)
    more = expect(engine, [first], ids(0, 1950))
    assert (more.tokens, more.at_most) == (0, 800)


def test_the_newest_of_equals_is_named() -> None:
    twin = replace(A, key=2)
    found = expect(FULL, [A, twin, Earlier(3, pack(ids(5000, 5100)))], ids(0, 1300))
    assert (found.from_, found.nearest, found.common) == (2, 2, 1199)


def test_without_a_block_nothing_is_expected() -> None:
    history = History(Engine(block=None))
    history.add(A)
    assert history.expect(A.prompt) is None


@pytest.mark.parametrize(
    ("config", "method", "version", "connector", "engine"),
    [
        (Config(16, retention="0", one_kv_group=True, speculator=False), None, None, None, Engine(16)),
        (Config(16, retention="0", speculator=False), None, None, None, Engine(16, None)),
        (Config(16, retention="0", one_kv_group=False, speculator=False), None, None, None, Engine(16, None)),
        (
            Config(528, retention="none", mamba_mode="align", prefix_match_unit_tokens=16, speculator=False),
            None, None, None, Engine(528, Layers.HYBRID, 16, retention=None),
        ),
        (
            Config(528, retention="1056", mamba_mode="align", prefix_match_unit_tokens=528, speculator=False),
            None, None, None, Engine(528, Layers.HYBRID, retention=1056),
        ),
        (
            Config(16, retention="0", sliding_window_tokens=512, speculator=False),
            None, None, None, Engine(16, Layers.SLIDING, window=512),
        ),
        (Config(16, one_kv_group=True, speculator=True), None, None, None,
         Engine(16, retention=None, before_0_29=True, drop=None)),
        (Config(16, retention="0", one_kv_group=True, speculator=True), "ngram", None, None, Engine(16)),
        (Config(16, retention="0", one_kv_group=True, speculator=True), "EAGLE3", "0.32.0", None, Engine(16, drop=1)),
        (Config(16, retention="0", one_kv_group=True, speculator=True), "mtp", "0.33.0", True, Engine(16, drop=1)),
        (Config(16, retention="0", one_kv_group=True, speculator=True), "mtp", "0.33.0", False,
         Engine(16, lookahead=1)),
        (Config(16, retention="0", one_kv_group=True, speculator=True), "mtp", None, None, Engine(16, drop=None)),
        (Config(16, retention="0", one_kv_group=True, speculator=True), "dflash", "0.32", None, Engine(16, drop=None)),
        (Config(16, retention="0", one_kv_group=True, prefix_caching=False, speculator=False), None, None, None,
         Engine(16, caching=False)),
        (Config(), None, None, None, Engine(None, None, retention=None, before_0_29=True, drop=None)),
    ],
)  # fmt: skip
def test_an_engine_from_what_a_server_tells(
    config: Config, method: str | None, version: str | None, connector: bool | None, engine: Engine
) -> None:
    assert engine_of(config, method=method, version=version, connector=connector) == engine


# packed ids


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_ids_come_back(ids: list[int]) -> None:
    packed = pack(ids)
    assert (unpack(packed), count(packed)) == (ids, len(ids))
    assert packed == b"".join(one.to_bytes(4, "little") for one in ids)


@given(st.lists(tokens, max_size=40), st.lists(tokens, max_size=40), st.lists(tokens, max_size=40))
def test_the_common_prefix(head: list[int], a: list[int], b: list[int]) -> None:
    one, other = head + a, head + b
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    for start in (0, len(head), same):
        assert common(pack(one), pack(other), start) == same


def test_the_common_prefix_is_right_at_every_place() -> None:
    long = list(range(5000))
    for at in (0, 1, 2047, 2048, 2049, 4095, 4096, 4998, 4999):
        changed = [*long[:at], 99_999, *long[at + 1 :]]
        assert common(pack(long), pack(changed)) == at
        assert common(pack(long), pack(long[:at])) == at
    assert common(pack(long), pack(long)) == 5000


@pytest.mark.parametrize("bad", [[-1], [2**31], [1.5], ["1"], [None]])
def test_what_is_no_token_id_is_refused(bad: list[object]) -> None:
    with pytest.raises(ValueError, match="token ids"):
        pack(bad)  # type: ignore[arg-type]


def test_bytes_that_are_no_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="3 bytes"):
        unpack(b"abc")


def test_long_prompts() -> None:
    """Thirty-two turns of a conversation of 120,000 tokens."""
    rng = random.Random(1)
    whole = [rng.randrange(150_000) for _ in range(120_000)]
    history = History(Engine(block=16))
    for i in range(32):
        history.add(Earlier(i, pack(whole[: 112_000 + 250 * i]), b""))
    asked = pack([*whole[:-1], 150_000])
    expected = history.expect(asked)
    assert (expected.tokens, expected.from_) == (119_744, 31)
    assert common(asked, pack(whole)) == 119_999
