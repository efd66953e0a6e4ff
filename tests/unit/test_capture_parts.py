"""Bodies in pieces: gaps and pieces in turn are the body, whatever the body is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.store import parts
from kvtop.capture.store.parts import CHUNK, MAX_COMMAS, MIN_PIECE, Cut, cut, join, pack_gaps


def put_together(made: Cut) -> bytes:
    return join(made.pieces, pack_gaps(made.gaps))


def long(text: str) -> str:
    return text * (1 + MIN_PIECE // len(text))


def test_a_chat_body_is_cut_at_its_tools_and_messages() -> None:
    tools = [{"type": "function", "function": {"name": long("t"), "parameters": {}}} for _ in range(2)]
    messages = [{"role": "user", "content": long(word)} for word in ("one", "two", "three")]
    body = json.dumps({"model": "m", "messages": messages, "tools": tools}, indent=1).encode()
    made = cut(body)
    assert made is not None and put_together(made) == body
    assert [json.loads(piece.data) for piece in made.pieces] == [*messages, *tools]


@pytest.mark.parametrize(
    "envelope",
    [
        {"input": [{"role": "user", "content": long("x")}, {"type": "reasoning", "summary": long("y")}]},
        {"system": [{"type": "text", "text": long("s")}], "messages": [{"role": "user", "content": long("m")}]},
        [{"kind": "message", "digest": long("0")}, {"kind": "tool", "digest": long("1")}],
    ],
    ids=["responses", "messages", "list"],
)
def test_other_bodies_are_cut_at_their_elements(envelope: Any) -> None:
    made = cut(json.dumps(envelope).encode())
    assert made is not None and len(made.pieces) == 2


@pytest.mark.parametrize("key", ["prompt", "input", "system"])
def test_a_long_text_is_cut_in_chunks_that_a_longer_one_shares(key: str) -> None:
    text = "".join(chr(33 + i % 90) + str(i) for i in range(20 * CHUNK // 5))
    old, new = (cut(json.dumps({"model": "m", key: text[:end]}).encode()) for end in (-CHUNK * 3, None))
    assert old is not None and new is not None
    assert [piece.follows for piece in old.pieces] == [False] + [True] * (len(old.pieces) - 1)
    assert [p.data for p in old.pieces[:-1]] == [p.data for p in new.pieces[: len(old.pieces) - 1]]
    assert all(CHUNK <= len(piece.data) <= 2 * CHUNK for piece in new.pieces)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"null",
        b"12",
        b'"text"',
        b"[]",
        b"[1, 2]",
        b'{"messages": "str"}',
        b'{"messages": [{"role": "user", "content": "short"}]}',
        b'{"messages": [' + b'{"a": "' + b"x" * 99 + b'"}',
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
)
def test_what_has_no_pieces_is_not_cut(body: bytes) -> None:
    assert cut(body) is None


def test_too_many_pieces_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAX_PIECES", 3)
    assert cut(json.dumps({"messages": [long("m")] * 3}).encode()) is not None
    assert cut(json.dumps({"messages": [long("m")] * 4}).encode()) is None


def test_a_body_of_very_many_elements_is_not_cut() -> None:
    text = json.dumps({"messages": [long("m"), *[0] * (MAX_COMMAS + 1)]}, separators=(",", ":")).encode()
    assert cut(text) is None
    assert cut(text.replace(b",0", b"", 10)) is not None


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"c":"' + b"dup" * 30 + b'"}],"messages":[{"c":"' + b"dup" * 30 + b'"}]}',
        b'{"messages":[{"c":"' + b"\xff" * 60 + b'"}],"x":"\xff"}',
        b'{"messages":[' + b", ".join([b'{"c":"' + b"same" * 20 + b'"}'] * 5) + b"]}",
        b'{"tools":[{"n":"' + b"q" * 60 + b'"}],"messages":[{"n":"' + b"q" * 60 + b'"}]}',
        b'{"messages":[' + b"1" * 400 + b", -0.0e9999, " + b"9" * 60 + b"]}",
        b'\xef\xbb\xbf{"messages":[{"c":"' + b"x" * 90 + b'"}]}',
        b' \n\t{"messages" :\r\n[ {"c":"' + b"x" * 90 + b'"} , {"c":"' + b"y" * 90 + b'"}\n] }\n\n',
    ],
)
def test_odd_bodies_come_back(body: bytes) -> None:
    made = cut(body)
    assert made is None or put_together(made) == body


element = st.one_of(
    st.text(min_size=20, max_size=80),
    st.dictionaries(st.text(max_size=5), st.text(max_size=60), max_size=3),
    st.sampled_from([{"role": "user", "content": "the same, long enough to be a piece of its own"}, "x" * 9000]),
    st.integers(),
    st.none(),
)
envelopes = st.dictionaries(
    st.sampled_from(["messages", "tools", "input", "system", "prompt", "model", "stream"]),
    st.one_of(st.lists(element, max_size=6), element),
    max_size=5,
)


@pytest.mark.fuzz
@given(envelopes, st.sampled_from([None, 1]), st.booleans(), st.binary(max_size=3), st.integers(0, 400))
def test_any_body_comes_back(made: dict[str, Any], indent: int | None, ascii_: bool, junk: bytes, at: int) -> None:
    body = json.dumps(made, indent=indent, ensure_ascii=ascii_).encode("utf-8", "surrogatepass")
    for text in (body, body[:at] + junk + body[at:]):
        pieces = cut(text)
        assert pieces is None or put_together(pieces) == text


refs = st.lists(st.integers(0, 5), max_size=30)


@given(refs, refs, refs)
def test_shared_ends_of_references(a: list[int], b: list[int], both: list[int]) -> None:
    left, right = [*both, *a], [*both, *b, *both]
    packed = parts.pack_refs(left), parts.pack_refs(right)
    head = parts.shared_head(*packed)
    tail = parts.shared_tail(*packed, head)
    assert left[:head] == right[:head]
    assert head == min(len(left), len(right)) or left[head] != right[head]
    assert len(both) <= head <= min(len(left), len(right)) - tail
    assert left[len(left) - tail :] == right[len(right) - tail :]
    assert list(parts.unpack_refs(packed[0])) == left


@pytest.mark.parametrize("spoil", ["piece", "gap", "texts", "runs"])
def test_pieces_that_do_not_fit_their_gaps_are_refused(spoil: str) -> None:
    made = cut(json.dumps({"messages": [long("a"), long("b")]}).encode())
    assert made is not None
    layout = pack_gaps(made.gaps)
    pieces = made.pieces[:-1] if spoil == "piece" else made.pieces
    gaps = pack_gaps(made.gaps[1:]) if spoil == "gap" else layout
    gaps = gaps._replace(**{spoil: b"\xc1"}) if spoil in ("texts", "runs") else gaps
    with pytest.raises(ValueError, match="gaps"):
        join(pieces, gaps)
