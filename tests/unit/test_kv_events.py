"""What a message of the KV event stream says, in both wire formats, and of whatever else it may hold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_event_talk import CLEARED, PLACES, batch, payload, positional, removed, stored
from kvtop.triage.kv_events import Cleared, Removed, Stored, decode

TOKENS = list(range(100, 132))


def one(event: object) -> object:
    found = batch(3, 5.0, event).events
    return found[0] if found else None


@pytest.mark.parametrize("form", [lambda event: event, positional], ids=["map", "array"])
def test_both_formats_say_the_same(form: object) -> None:
    assert callable(form)
    first = stored([7, 8], TOKENS, group_idx=1, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=512)
    told = batch(9, 12.5, form(first), form(removed([7], "CPU", group_idx=2)), form(CLEARED))
    assert (told.seq, told.at, told.rank, told.unread) == (9, 12.5, 0, 0)
    kept, gone, reset = told.events
    assert isinstance(kept, Stored)
    assert (kept.hashes, kept.parent, list(kept.token_ids), kept.block_tokens) == ((7, 8), None, TOKENS, 16)
    assert (kept.tier, kept.group, kept.kind, kept.window) == ("GPU", 1, "sliding_window", 512)
    assert gone == Removed((7,), "CPU", "", 2)
    assert reset == Cleared()


@pytest.mark.parametrize(
    ("length", "tier", "tells_keys", "group"),
    [(5, "GPU", False, 0), (6, "CPU", False, 0), (7, "CPU", False, 0), (8, "CPU", True, 0), (9, "CPU", True, 3)],
    ids=["0.9", "0.11", "0.16", "0.18.1", "0.20.2"],
)
def test_an_older_array_is_shorter(length: int, tier: str, tells_keys: bool, group: int) -> None:
    event = one(positional(stored([1], TOKENS, medium="CPU", group_idx=3), length))
    assert isinstance(event, Stored)
    assert (event.tier, event.tells_keys, event.group) == (tier, tells_keys, group)


def test_a_newer_array_has_more_at_its_end() -> None:
    event = one([*positional(stored([1], TOKENS)), "something", {"else": 1}])
    assert isinstance(event, Stored)
    assert event.hashes == (1,)


def test_keys_and_types_that_are_not_known_are_ignored() -> None:
    told = batch(
        0, 1.0, stored([1], TOKENS, session_id="s", lookahead_token_ids=[1]), {"type": "BlockMoved"}, ["New", 1]
    )
    assert [type(event) for event in told.events] == [Stored]
    assert told.unread == 0


def test_hashes_are_numbers_or_bytes() -> None:
    assert one(removed([b"\x01" * 32, 5])) == Removed((b"\x01" * 32, 5))
    for wrong in ("text", True, 1.5, None, [1], b""):
        told = batch(0, 1.0, removed([wrong]))  # type: ignore[list-item]
        assert (told.events, told.unread) == ((), 1)


def test_the_rank_stands_in_the_batch_or_is_the_endpoints() -> None:
    assert decode(0, payload(1.0, rank=3), 1).rank == 3
    assert decode(0, payload(1.0), 1).rank == 1


def test_a_salt_and_an_adapter_are_told_apart() -> None:
    event = one(stored([1, 2], TOKENS, lora_name="mine", lora_id=1, extra_keys=[["mine", "s1"], ["mine"]]))
    assert isinstance(event, Stored)
    assert (event.adapter, event.keys) == ("mine", ("salt:s1", None))
    picture = one(stored([1, 2], TOKENS, extra_keys=[None, [["hash", 3]]]))
    assert isinstance(picture, Stored)
    assert picture.keys[0] is None
    assert (picture.keys[1] or "").startswith("other:")


def test_an_adapter_without_a_name_is_unread() -> None:
    told = batch(0, 1.0, positional(stored([1], TOKENS, lora_id=4), 6))
    assert (told.events, told.unread) == ((), 1)


def test_no_token_stands_in_a_repr() -> None:
    event = one(stored([1, 2], [987_654] * 32, extra_keys=[["secret-salt"], None]))
    assert "987654" not in repr(event)
    assert "secret" not in repr(event)


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xa1\xff",
        msgspec.msgpack.encode({"type": "BlockStored"}),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode([1.0, {}]),
        msgspec.msgpack.encode(["now", []]),
        msgspec.msgpack.encode([float("nan"), []]),
        msgspec.msgpack.encode([True, []]),
    ],
)
def test_what_is_no_batch_is_a_value_error(wrong: bytes) -> None:
    with pytest.raises(ValueError):
        decode(0, wrong)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)
kinds = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])
maps = st.builds(lambda kind, rest: rest | {"type": kind}, kinds, st.dictionaries(st.sampled_from(PLACES), anything))
arrays = st.builds(lambda kind, rest: [kind, *rest], kinds, st.lists(anything, max_size=14))


@pytest.mark.fuzz
@given(at=anything, events=st.lists(maps | arrays | anything, max_size=5) | anything, rank=anything)
def test_whatever_a_batch_holds(at: object, events: object, rank: object) -> None:
    raw = msgspec.msgpack.encode([at, events, rank])
    try:
        told = decode(4, raw)
    except ValueError:
        return
    assert isinstance(events, list)
    assert len(told.events) + told.unread <= len(events)


@pytest.mark.fuzz
@given(st.binary(max_size=300))
def test_whatever_bytes(raw: bytes) -> None:
    try:
        decode(0, raw)
    except ValueError:
        return


hashes = st.lists(st.integers(-(2**63), 2**63 - 1) | st.binary(min_size=1, max_size=32), min_size=1, max_size=4)
names = st.none() | st.text(min_size=1, max_size=8)
told = st.builds(
    lambda named, parent, medium, group, kind, window, salt: stored(
        named, list(range(16 * len(named))), parent, medium=medium, group_idx=group, kv_cache_spec_kind=kind,
        kv_cache_spec_sliding_window=window, extra_keys=[[salt]] if salt and parent is None else None,
    ),
    hashes, st.none() | st.integers(0, 2**63), st.sampled_from(["GPU", "CPU", "STORAGE"]), st.integers(0, 9),
    st.sampled_from([None, "full_attention", "sliding_window", "mamba"]), st.none() | st.integers(1, 4096), names,
)  # fmt: skip
gone = st.builds(
    lambda named, medium, group: removed(named, medium, group_idx=group),
    hashes, st.sampled_from(["GPU", "CPU"]), st.integers(0, 9),
)  # fmt: skip


@pytest.mark.fuzz
@given(events=st.lists(told | gone | st.just(CLEARED), max_size=6))
def test_whatever_is_told_both_formats_say_the_same(events: list[dict[str, Any]]) -> None:
    maps, arrays = batch(1, 2.0, *events), batch(1, 2.0, *map(positional, events))
    assert maps == arrays
    assert (len(maps.events), maps.unread) == (len(events), 0)
