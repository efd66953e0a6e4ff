"""What servers said of prompts, kept while it is used: the least used goes first. Bounded by bytes.

Several threads may share one.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock


class Memory:
    """Values by a server's URL and a digest of what it was asked."""

    def __init__(self, most_bytes: int = 64_000_000) -> None:
        self._most = most_bytes
        self._values: OrderedDict[tuple[str, bytes], tuple[object, int]] = OrderedDict()
        self.bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, url: str, key: bytes) -> object | None:
        with self._lock:
            found = self._values.get((url, key))
            if found is None:
                return None
            self._values.move_to_end((url, key))
            return found[0]

    def put(self, url: str, key: bytes, value: object, size: int) -> None:
        """Keep a value of `size` bytes; one that is larger than all that may be kept is not."""
        with self._lock:
            self._remove((url, key))
            if size > self._most:
                return
            self._values[(url, key)] = (value, size)
            self.bytes += size
            while self.bytes > self._most:
                self._remove(next(iter(self._values)))

    def drop(self, url: str) -> None:
        """Forget one server."""
        with self._lock:
            for key in [key for key in self._values if key[0] == url]:
                self._remove(key)

    def _remove(self, key: tuple[str, bytes]) -> None:
        if (found := self._values.pop(key, None)) is not None:
            self.bytes -= found[1]
