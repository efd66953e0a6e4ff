"""Bodies that are packed on the way."""

from __future__ import annotations

import gzip
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.api.codings import Unpacker

TEXT = b'{"model": "m", "messages": []}' * 100


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKED = {
    "gzip": gzip.compress(TEXT),
    "x-gzip": gzip.compress(TEXT),
    "deflate": zlib.compress(TEXT),
    "zstd": zstandard.compress(TEXT),
    "identity": TEXT,
}


def unpacked(coding: str, data: bytes, step: int = 7, limit: int = 1 << 20) -> tuple[bytes, Unpacker]:
    unpacker = Unpacker([("Content-Encoding", coding)], limit)
    return b"".join(unpacker.feed(data[at : at + step]) for at in range(0, len(data), step)), unpacker


@pytest.mark.parametrize("coding", PACKED)
def test_what_was_packed_comes_out(coding: str) -> None:
    out, unpacker = unpacked(coding.upper(), PACKED[coding])
    assert (out, unpacker.known, unpacker.broken, unpacker.over) == (TEXT, True, False, False)


def test_deflate_without_its_header() -> None:
    assert unpacked("deflate", raw_deflate(TEXT), 1000)[0] == TEXT


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_a_body_of_several_members_is_all_of_them(coding: str, step: int) -> None:
    out, unpacker = unpacked(coding, PACKED[coding] * 3, step)
    assert (out, unpacker.broken, unpacker.over) == (TEXT * 3, False, False)
    out, unpacker = unpacked(coding, PACKED[coding] * 3, step, limit=len(TEXT) * 2)
    assert (out, unpacker.over) == (TEXT * 2, True)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("step", [7, 100_000])
def test_what_stands_behind_the_last_member_loses_nothing(coding: str, step: int) -> None:
    out, unpacker = unpacked(coding, PACKED[coding] + b"garbage and more of it", step)
    assert (out, unpacker.broken) == (TEXT, True)


def test_padding_behind_a_member_is_nothing() -> None:
    out, unpacker = unpacked("gzip", PACKED["gzip"] + bytes(100))
    assert (out, unpacker.broken) == (TEXT, False)


@pytest.mark.parametrize("coding", ["br", "gzip, br", "compress"])
def test_what_cannot_be_read_stays_as_it_is(coding: str) -> None:
    out, unpacker = unpacked(coding, b"\x8b\x03\x80abc\x03")
    assert (out, unpacker.known) == (b"\x8b\x03\x80abc\x03", False)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
def test_a_bomb_is_cut_at_the_limit(coding: str) -> None:
    bomb = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstandard.compress}[coding](b"\0" * 50_000_000)
    out, unpacker = unpacked(coding, bomb, 1 << 16, limit=1000)
    assert (len(out), unpacker.over) == (1000, True)


def test_a_body_over_the_limit_is_cut() -> None:
    out, unpacker = unpacked("identity", TEXT, limit=10)
    assert (out, unpacker.over) == (TEXT[:10], True)


def test_what_is_not_packed_as_it_says() -> None:
    out, unpacker = unpacked("gzip", b"plain text after all")
    assert (out, unpacker.broken) == (b"", True)


@given(st.sampled_from(["gzip", "deflate", "zstd", "br"]), st.lists(st.binary(max_size=40), max_size=10))
def test_arbitrary_bytes(coding: str, pieces: list[bytes]) -> None:
    unpacker = Unpacker([("content-encoding", coding)], 1000)
    assert sum(len(unpacker.feed(piece)) for piece in pieces) <= 1000
