"""Which prompt each block is the end of, without the prompt: a digest for each block end.

A digest is a polynomial over all tokens before that end, with a base that is drawn once a process. So it does not
depend on how the prompt was cut into blocks, and says nothing to whoever reads it in memory.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate

from kvtop.triage.kv_events import SALT, BlockHash, Stored

_PRIME = (1 << 61) - 1
_BASE = secrets.randbelow(_PRIME - 2) + 2
_SEED = secrets.randbelow(_PRIME - 2) + 2


class Chains:
    """Blocks by the beginning of a prompt that they close."""

    def __init__(self) -> None:
        self._places: dict[BlockHash, tuple[int, int]] = {}
        """(Digest of the prompt up to its end, tokens up to its end)."""
        self._hashes: dict[int, BlockHash] = {}
        """By digest."""

    def learn(self, event: Stored) -> None:
        """Of blocks that follow one which is not known it cannot be told, nor where some are left out; the blocks of
        another group may say where those end."""
        hashes, size = event.hashes, event.block_tokens
        if not size or len(event.token_ids) != len(hashes) * size:
            return
        if event.parent is None:
            first = event.keys[0] if event.keys else None
            salt = first.removeprefix(SALT) if first is not None and first.startswith(SALT) else None
            digest, end = _root(salt, event.adapter), 0
        elif event.parent in self._places:
            digest, end = self._places[event.parent]
        else:
            return
        for at, hash in enumerate(hashes):
            end += size
            if hash in self._places:
                digest = self._places[hash][0]
                continue
            key = event.keys[at] if at < len(event.keys) else None
            if key is not None and not (key.startswith(SALT) and end == size):
                digest = _step(digest, _number(key))
            for token in event.token_ids[at * size : (at + 1) * size]:
                digest = (digest * _BASE + token + 1) % _PRIME
            self._places[hash] = (digest, end)
            self._hashes[digest] = hash

    def __contains__(self, hash: object) -> bool:
        return hash in self._places

    def __len__(self) -> int:
        return len(self._places)

    def end(self, hash: BlockHash) -> int | None:
        """Tokens from the beginning of its prompt to its end."""
        place = self._places.get(hash)
        return None if place is None else place[1]

    def find(
        self, ids: Sequence[int], unit: int, salt: str | None, adapter: str | None
    ) -> Iterator[tuple[int, BlockHash]]:
        """(End, hash) of the blocks of a prompt, in its order. `unit` divides every end."""
        digests = accumulate(ids, _step, initial=_root(salt, adapter))
        for end, digest in enumerate(digests):
            if end and end % unit == 0 and (hash := self._hashes.get(digest)) is not None:
                yield end, hash

    def forget(self, hash: BlockHash) -> None:
        place = self._places.pop(hash, None)
        if place is not None and self._hashes.get(place[0]) == hash:
            del self._hashes[place[0]]


def _step(digest: int, token: int) -> int:
    return (digest * _BASE + token + 1) % _PRIME


def _root(salt: str | None, adapter: str | None) -> int:
    return _step(_step(_SEED, _number(salt or "")), _number(adapter or ""))


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7).digest(), "big")
