"""What a connection tells of each request and its answer, and of how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

from kvtop.capture.recorder.framing import AnswerHead, RequestHead


class End(Enum):
    """How an exchange ended."""

    WHOLE = auto()
    CLIENT = auto()
    """The client left before the answer was whole."""
    SERVER = auto()
    """The upstream closed or reset before the answer was whole."""
    TAP = auto()
    """The connection was ended by the tap."""
    UNKNOWN = auto()
    """Frames are missing: nobody saw the end."""


class Exchange(Protocol):
    """One request and its answer, told as it happens."""

    method: str
    """Empty until the request's head is there."""

    def asked(self, head: RequestHead) -> None: ...

    def request_body(self, data: bytes, at_ns: int) -> None: ...

    def request_ends(self, at_ns: int) -> None: ...

    def answer_begins(self, at_ns: int) -> None:
        """First byte of an answer; of an interim one too, after which it comes again."""

    def answered(self, head: AnswerHead) -> None:
        """Not for interim answers."""

    def answer_body(self, data: bytes, at_ns: int) -> None: ...

    def answer_bodies(self, data: bytes, ends: Sequence[int], times: Sequence[int]) -> None:
        """Several pieces at once: where each ends in these bytes, and when it came."""

    @property
    def patient(self) -> bool:
        """What comes next of the answer's body may be told late, all but its end."""
        ...

    def truncated(self) -> None:
        """Bytes are missing, or are not HTTP: no more will be told but the end."""

    def ends(self, how: End, at_ns: int) -> None:
        """Once, and nothing after it."""
