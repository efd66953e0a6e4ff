"""The text of single tokens from their names in the vocabulary, as /tokenize tells them (0.9.1)."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from functools import cache

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def texts(names: Sequence[str], whole: str) -> list[str] | None:
    """The text of each token; joined they are `whole`, the text of all of them. A character over several tokens belongs
    to the one that completes it. None where the names do not give that text: another kind of vocabulary."""
    for read in (_byte_level, _pieces):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            out = [decoder.decode(read(name)) for name in names]
        except (KeyError, UnicodeError):
            continue
        if out:
            out[-1] += decoder.decode(b"", final=True)
        if "".join(out) == whole:
            return out
    return None


@cache
def _bytes_of() -> dict[str, int]:
    """Of byte-level BPE: printable bytes stand for themselves, the others for characters from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _byte_level(name: str) -> bytes:
    known = _bytes_of()
    return bytes(known[char] for char in name)


def _pieces(name: str) -> bytes:
    """Of SentencePiece: a space is U+2581, a lone byte <0xNN>."""
    found = _BYTE.match(name)
    return bytes([int(found[1], 16)]) if found else name.replace("\u2581", " ").encode()
