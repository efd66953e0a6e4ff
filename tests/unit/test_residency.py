"""Which blocks of a prompt lay in which tier, and when, as KV events tell it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_event_talk import CLEARED, batch, payload, positional, removed, stored
from kvtop.triage.certainty import Missing
from kvtop.triage.kv_events import decode
from kvtop.triage.residency import Clearing, Leading, Removal, Residency

BLOCK = 16
CPU_AND_GPU = ("GPU", "CPU")


def ids(blocks: int, first: int = 0, more: int = 3) -> list[int]:
    return list(range(first, first + blocks * BLOCK + more))


def chain(blocks: int, first: int = 1, tokens: Sequence[int] | None = None, **more: Any) -> Any:
    """So many blocks from the beginning of a prompt; their hashes are counted from `first`."""
    hashes = list(range(first, first + blocks))
    return stored(hashes, (tokens or ids(blocks, more=0))[: blocks * BLOCK], **more)


class Engine:
    """Numbers and times for batches: one a second."""

    def __init__(self, **limits: int) -> None:
        self.index = Residency(**limits)
        self.seq = -1
        self.at = 100.0

    def step(self, *events: Any, lost: int = 0) -> float:
        self.seq += 1 + lost
        self.at += 1
        assert self.index.feed(batch(self.seq, self.at, *events))
        return self.at

    def leading(self, prompt: Sequence[int], tiers: Sequence[str] = ("GPU",), at: float | None = None) -> Leading:
        return self.index.leading(self.index.prefix(prompt), tiers, at)


def test_what_a_real_server_had_cached_follows_from_its_events(captures: Callable[[str], Path]) -> None:
    """19 requests with eviction and a host tier: what their usage said, token for token."""
    folder = captures("kv-events-0.32.0")
    rows = json.loads((folder / "requests.json").read_text())
    told = [json.loads(line) for line in (folder / "kv-events.jsonl").read_text().splitlines()]
    index = Residency()
    for row in rows:
        while told and told[0]["recv"] < row["t_start"]:
            one = told.pop(0)
            index.feed(decode(one["seq"], payload(one["ts"], *one["events"])))
        prefix = index.prefix(row["tokens"])
        most = (len(row["tokens"]) - 1) // 128 * 128
        device, all = index.leading(prefix), index.leading(prefix, CPU_AND_GPU)
        assert (device.known, all.known) == (index.batches > 0, index.batches > 0)
        assert min(all.tokens, most) == row["cached"], row["step"]
        assert min(device.tokens, most) == row["by_source"].get("device", 0), row["step"]
    returned = next(row for row in rows if row["step"] == "08-A-return")
    before = next(row for row in rows if row["step"] == "03-A-append3")
    prefix = index.prefix(returned["tokens"])
    gone = index.removals(prefix, before["t_end"], returned["t_start"])
    assert {(one.tier, one.cleared) for one in gone} == {("GPU", False)}
    assert sorted(one.end_tokens for one in gone) == list(range(128, 2049, 128))
    assert index.leading(prefix, at=before["t_end"] + 0.05) == Leading(2048, True)
    assert index.leading(prefix, at=returned["t_start"]) == Leading(0, True)
    assert index.leading(prefix, ("CPU",), at=returned["t_start"]) == Leading(2048, True)
    assert index.missing(before["t_start"], returned["t_end"]) is None


@pytest.mark.parametrize("form", [lambda event: event, positional], ids=["map", "array"])
def test_a_block_is_there_until_it_is_removed(form: Callable[[Any], Any]) -> None:
    engine = Engine()
    began = engine.step(form(chain(3)))
    engine.step(form(chain(4, first=50, tokens=ids(4, first=900))))
    gone = engine.step(form(removed([3])), form(removed([2])))
    prompt = ids(4)
    assert engine.leading(prompt) == Leading(BLOCK, True)
    assert engine.leading(prompt, at=began) == Leading(3 * BLOCK, True)
    assert engine.leading(prompt, at=gone - 0.5) == Leading(3 * BLOCK, True)
    prefix = engine.index.prefix(prompt)
    assert engine.index.removals(prefix, began, gone) == (
        Removal(gone, "GPU", 3 * BLOCK, False),
        Removal(gone, "GPU", 2 * BLOCK, False),
    )
    assert engine.index.removals(prefix, began, gone - 0.5) == ()
    engine.step(form(stored([2, 3], ids(3)[BLOCK : 3 * BLOCK], parent=1)))
    assert engine.leading(prompt) == Leading(3 * BLOCK, True)
    assert engine.leading(prompt, at=gone) == Leading(BLOCK, True)


def test_a_prompt_that_differs_ends_at_its_difference() -> None:
    engine = Engine()
    engine.step(chain(4))
    prompt = ids(4)
    prompt[2 * BLOCK + 5] = 77_777
    assert engine.leading(prompt) == Leading(2 * BLOCK, True)
    assert engine.leading([5, *ids(4)]) == Leading(0, True)
    assert engine.leading([]) == Leading(0, True)


def test_of_a_block_that_lay_there_twice_one_copy_is_left() -> None:
    """An identical prompt of whole blocks computes its last block anew."""
    engine = Engine()
    engine.step(chain(2))
    engine.step(stored([2], ids(2)[BLOCK : 2 * BLOCK], parent=1))
    first = engine.step(removed([2]))
    assert engine.leading(ids(2)) == Leading(2 * BLOCK, True)
    prefix = engine.index.prefix(ids(2))
    assert engine.index.removals(prefix, 0, first) == ()
    second = engine.step(removed([2]))
    assert engine.leading(ids(2)) == Leading(BLOCK, True)
    assert [one.at for one in engine.index.removals(prefix, 0, second)] == [second]


def test_hits_that_are_told_as_stored_are_no_copies() -> None:
    engine = Engine()
    engine.step(chain(3))
    engine.step(chain(3))
    engine.step(removed([3]))
    assert engine.leading(ids(3)) == Leading(2 * BLOCK, True)


def test_a_gap_makes_what_was_known_uncertain() -> None:
    engine = Engine()
    began = engine.step(chain(3))
    engine.step(chain(1, first=20, tokens=ids(1, first=500)))
    assert engine.index.missing(began) is None
    after = engine.step(chain(1, first=30, tokens=ids(1, first=700)), lost=2)
    assert engine.index.lost == 2
    assert engine.index.missing(after - 0.5) is not None, "what was lost may be of any time between the two"
    assert engine.index.missing(began, after) is Missing.LOST
    assert engine.index.missing(after) is None
    assert engine.leading(ids(3)) == Leading(0, False)
    assert engine.leading(ids(3), at=began + 0.5) == Leading(3 * BLOCK, True)
    assert engine.leading(ids(1, first=700)) == Leading(BLOCK, True), "what was told since then is certain"
    assert engine.leading(ids(1, first=999)) == Leading(0, False), "it may have been stored in between"


def test_after_a_reset_it_is_the_tiers_that_are_not_known_whole() -> None:
    engine = Engine()
    began = engine.step(chain(3))
    engine.step(CLEARED)
    assert engine.index.missing(began) is Missing.TIERS
    assert engine.index.missing(began - 50) is Missing.BEFORE
    engine.index.suspended(engine.at + 1)
    assert engine.index.missing(began, engine.at) is Missing.TIERS
    assert engine.index.missing(began) is Missing.BROKEN_OFF


def test_a_removal_is_certain_whatever_was_missed() -> None:
    engine = Engine()
    engine.step(chain(3))
    gone = engine.step(removed([1]), lost=5)
    assert engine.leading(ids(3)) == Leading(0, True)
    assert [one.at for one in engine.index.removals(engine.index.prefix(ids(3)), 0, gone)] == [gone]


def test_after_a_gap_a_block_that_is_named_again_is_known() -> None:
    engine = Engine()
    engine.step(chain(3))
    engine.step(lost=1)
    engine.step(chain(3))
    assert engine.leading(ids(3)) == Leading(3 * BLOCK, True)
    engine.step(removed([3]))
    assert engine.leading(ids(3)) == Leading(2 * BLOCK, True)


def test_a_reset_empties_the_device_and_says_nothing_of_a_tier() -> None:
    engine = Engine()
    engine.step(chain(3), stored([1, 2, 3], medium="CPU"))
    assert engine.leading(ids(3), ("CPU",)) == Leading(3 * BLOCK, True)
    engine.step(lost=1)
    at = engine.step(CLEARED)
    assert engine.leading(ids(3)) == Leading(0, True)
    assert engine.leading(ids(3), ("CPU",)) == Leading(0, False)
    assert engine.index.clearings(at - 1, at) == (Clearing(at, False),)
    assert engine.index.clearings(at + 1, at + 2) == ()


def test_a_reset_is_told_with_the_blocks_that_it_took() -> None:
    engine = Engine()
    began = engine.step(chain(2))
    at = engine.step(CLEARED)
    prefix = engine.index.prefix(ids(2))
    assert {(one.end_tokens, one.cleared) for one in engine.index.removals(prefix, began, at)} == {
        (16, True),
        (32, True),
    }
    assert engine.leading(ids(2), at=began) == Leading(2 * BLOCK, True)


def test_an_engine_that_begins_anew_has_nothing() -> None:
    engine = Engine()
    began = engine.step(chain(3), stored([1], medium="CPU"), stored([1], medium="STORAGE"))
    engine.step(chain(1, first=40, tokens=ids(1, first=300)))
    engine.seq = -1
    at = engine.step(chain(1, first=60, tokens=ids(1, first=600)))
    assert engine.leading(ids(3), CPU_AND_GPU) == Leading(0, True)
    assert engine.index.clearings(began, at) == (Clearing(at, True),)
    assert engine.leading(ids(3), at=began) == Leading(0, False)


def test_a_batch_that_came_already_is_not_taken_twice() -> None:
    index = Residency()
    first = batch(0, 1.0, chain(2))
    second = batch(1, 2.0, removed([2]))
    assert index.feed(first)
    assert index.feed(second)
    assert not index.feed(first)
    assert not index.feed(second)
    assert index.leading(index.prefix(ids(2))) == Leading(BLOCK, True)


def test_who_comes_late_knows_what_is_told_from_then_on() -> None:
    index = Residency()
    index.feed(batch(50, 1.0, chain(1)))
    index.feed(batch(51, 2.0, stored([8], ids(1, more=0), parent=777)))
    prefix = index.prefix(ids(2))
    assert index.leading(prefix) == Leading(BLOCK, False)
    index.feed(batch(52, 3.0, removed([1])))
    assert index.leading(index.prefix(ids(2))) == Leading(0, True)


def test_a_salt_is_another_prompt() -> None:
    engine = Engine()
    engine.step(chain(2, extra_keys=[["s1"], None]))
    index = engine.index
    assert index.leading(index.prefix(ids(2), salt="s1")) == Leading(2 * BLOCK, True)
    assert index.leading(index.prefix(ids(2))) == Leading(0, True)
    assert index.leading(index.prefix(ids(2), salt="s2")) == Leading(0, True)
    engine.step(positional(chain(1, first=9), 6))
    assert index.leading(index.prefix(ids(2), salt="s1")) == Leading(0, False), "0.18 and older tell no salt"


def test_an_adapter_is_another_prompt() -> None:
    engine = Engine()
    engine.step(chain(2, lora_id=1, lora_name="mine", extra_keys=[["mine"], ["mine"]]))
    index = engine.index
    assert index.leading(index.prefix(ids(2), adapter="mine")) == Leading(2 * BLOCK, True)
    assert index.leading(index.prefix(ids(2))) == Leading(0, True)
    assert index.leading(index.prefix(ids(2), adapter="other")) == Leading(0, False)


def test_a_picture_ends_what_token_ids_can_tell() -> None:
    engine = Engine()
    engine.step(chain(3, extra_keys=[None, [["picture", 0]], None]))
    assert engine.leading(ids(3)) == Leading(BLOCK, True)


def test_a_tier_goes_on_where_the_device_ends() -> None:
    engine = Engine()
    engine.step(chain(4), stored([1], medium="CPU"), stored([2], medium="CPU"), stored([3], medium="CPU"))
    engine.step(removed([4]), removed([3]), removed([2]))
    assert engine.leading(ids(4)) == Leading(BLOCK, True)
    assert engine.leading(ids(4), ("CPU",)) == Leading(3 * BLOCK, True)
    gone = engine.step(removed([2], "CPU"))
    assert engine.leading(ids(4), CPU_AND_GPU) == Leading(BLOCK, True)
    (one,) = engine.index.removals(engine.index.prefix(ids(4)), gone, gone)
    assert (one.tier, one.end_tokens) == ("CPU", 2 * BLOCK)


def test_a_tier_that_keeps_several_blocks_as_one_names_the_last() -> None:
    engine = Engine()
    engine.step(chain(5), stored([2], medium="CPU"), stored([4], medium="CPU"))
    assert engine.leading(ids(5), ("CPU",)) == Leading(4 * BLOCK, True)
    engine.step(removed([2], "CPU"))
    assert engine.leading(ids(5), ("CPU",)) == Leading(0, True)


def test_a_disk_may_hold_what_was_never_told() -> None:
    engine = Engine()
    engine.step(chain(2), stored([1], medium="STORAGE", ownership="fs"))
    assert engine.leading(ids(2), ("STORAGE",)) == Leading(BLOCK, False)
    engine.step(removed([1], "STORAGE", ownership="fs"))
    assert engine.leading(ids(2), ("STORAGE",)) == Leading(0, True)


def test_a_hybrid_begins_where_it_has_a_state() -> None:
    """The states that are kept are fewer than the blocks that their event spans."""
    engine = Engine()
    attention = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    mamba = {"group_idx": 1, "kv_cache_spec_kind": "mamba", "block_size": BLOCK}
    engine.step(stored([3], ids(5)[: 5 * BLOCK], **mamba), chain(5, **attention))
    assert engine.leading(ids(5)) == Leading(3 * BLOCK, True)
    engine.step(stored([5], ids(5)[: 5 * BLOCK], **mamba), stored([], ids(1, more=0), **mamba))
    assert engine.leading(ids(5)) == Leading(5 * BLOCK, True)
    engine.step(removed([5], group_idx=1))
    assert engine.leading(ids(5)) == Leading(3 * BLOCK, True)
    engine.step(removed([3], group_idx=0))
    assert engine.leading(ids(5)) == Leading(0, True)


def test_a_sliding_window_needs_its_last_blocks() -> None:
    engine = Engine()
    window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 33}
    engine.step(chain(6, group_idx=0, kv_cache_spec_kind="full_attention"))
    engine.step(stored([3, 4, 6], ids(6)[: 6 * BLOCK], block_size=BLOCK, **window))
    assert engine.leading(ids(6)) == Leading(4 * BLOCK, True), "(33 - 1) / 16 = 2 blocks before the point"
    engine.step(removed([3], group_idx=1))
    assert engine.leading(ids(6)) == Leading(0, True)


def test_a_match_unit_below_the_block_lets_an_end_lie_inside_it() -> None:
    engine = Engine()
    engine.step(chain(2))
    engine.step(stored([90], ids(2)[:8], parent=None))
    engine.step(stored([91], ids(3)[2 * BLOCK : 2 * BLOCK + 8], parent=2))
    assert engine.leading(ids(3)) == Leading(2 * BLOCK + 8, True)


def test_memory_is_bounded_and_what_is_forgotten_is_not_claimed() -> None:
    engine = Engine(max_blocks=40, max_changes=60)
    for n in range(200):
        engine.step(chain(4, first=1000 * n, tokens=ids(4, first=10_000 * n, more=0)))
    index = engine.index
    assert index.blocks <= 40
    assert engine.leading(ids(4, first=0)) == Leading(0, False)
    assert engine.leading(ids(4, first=10_000 * 199)).tokens == 4 * BLOCK
    assert engine.leading(ids(4), at=101.5) == Leading(0, False)
    assert index.missing(101.5) is not None
    assert len(index._chains) <= 100
    assert len(index._mentions) <= 60


def test_a_block_that_is_gone_for_long_is_forgotten() -> None:
    engine = Engine(max_changes=50)
    for n in range(200):
        engine.step(chain(2, first=1000 * n, tokens=ids(2, first=10_000 * n, more=0)))
        engine.step(removed([1000 * n + 1, 1000 * n]))
    assert engine.index.blocks <= 50
    assert len(engine.index._chains) <= 50
    assert engine.leading(ids(2, first=10_000)) == Leading(0, True), "nothing was lost: it is not there"


@pytest.mark.fuzz
@given(
    st.lists(
        st.tuples(st.sampled_from(["GPU", "CPU"]), st.booleans(), st.integers(1, 6), st.integers(0, 3)), max_size=60
    )
)
def test_it_knows_what_a_plain_set_knows(steps: list[tuple[str, bool, int, int]]) -> None:
    """Prompts that share one block, stored and removed at random in two tiers: now, and at every moment since."""
    engine = Engine()
    common = ids(1, more=0)
    prompts = [common + ids(5, first=1000 * n + 500, more=0) for n in range(4)]
    names = [[1, *(100 * n + 100 + block for block in range(1, 6))] for n in range(4)]
    # learn all of them, then begin with nothing
    engine.step(*(stored(names[n], prompts[n]) for n in range(4)))
    engine.step(CLEARED)
    here: dict[str, dict[int, int]] = {"GPU": {}, "CPU": {}}
    seen = []
    for tier, store, block, n in steps:
        name = names[n][block - 1]
        count = here[tier].get(name, 0)
        if store:
            size = {"block_size": BLOCK}
            tokens = prompts[n][(block - 1) * BLOCK : block * BLOCK] if tier == "GPU" else []
            parent = names[n][block - 2] if block > 1 else None
            at = engine.step(stored([name], tokens, parent=parent, medium=tier, **(size if tokens else {})))
            here[tier][name] = count + 1
        elif count:
            at = engine.step(removed([name], tier))
            here[tier][name] = count - 1
        else:
            continue
        leading = {}
        for m in range(4):
            blocks = [here["GPU"].get(one, 0) > 0 for one in names[m]]
            leading[m] = [*blocks, False].index(False) * BLOCK
        seen.append((at, leading))
    for at, leading in seen:
        for m in range(4):
            assert engine.leading(prompts[m], at=at) == Leading(leading[m], True)
    if seen:
        for m in range(4):
            assert engine.leading(prompts[m]) == Leading(seen[-1][1][m], True)
