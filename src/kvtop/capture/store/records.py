"""A turn as a row of the store, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from kvtop.capture.store.packing import Packer
from kvtop.capture.store.schema import Damaged
from kvtop.capture.turn import Captured, Record, Route, Sample, Source, TurnState


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a turn that are read for a list."""

    id: int
    source: Source
    state: TurnState | None
    record: Record
    started_at: float
    conversation: str
    agent: str
    route: Route
    model: str | None
    brief: bytes


class _Detail(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a list of turns does not show."""

    request_headers: list[tuple[str, str]] = []
    response_headers: list[tuple[str, str]] = []
    samples: list[Sample] = []


COLUMNS = ", ".join(_Row.__struct_fields__)
"""What `Records.brief` reads."""
_OWN = tuple(name for name in _Row.__struct_fields__ if name not in ("id", "brief"))
"""Fields of a turn that have a column each."""
_ELSEWHERE = {name: getattr(Captured(), name) for name in ("id", "outline", *_OWN, *_Detail.__struct_fields__)}
"""Fields that the column `brief` is kept without, as they are in a turn of which nothing is known."""
_BRIEF = msgspec.json.Decoder(Captured)
_DETAIL = msgspec.json.Decoder(_Detail)


DAMAGED = "its record on disk is damaged"
"""The error of a turn whose row cannot be read."""


class Records:
    """Packs and unpacks rows."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer

    def columns(self, turn: Captured) -> dict[str, object]:
        """Column -> value, without the id. Not in it: the outline, which is kept like a body."""
        conversation = turn.conversation or f"c{turn.id}"
        try:
            "".join((conversation, turn.agent, turn.model or "")).encode()
            brief = msgspec.json.encode(replace(turn, **_ELSEWHERE))
            detail = msgspec.json.encode(_Detail(*(getattr(turn, name) for name in _Detail.__struct_fields__)))
        except (UnicodeEncodeError, OverflowError):
            return self.columns(writable(turn))
        return {
            **{name: getattr(turn, name) for name in _OWN},
            "conversation": conversation,
            "brief": self._packer.pack(brief),
            "detail": self._packer.pack(detail),
        }

    def brief(self, columns: Sequence[Any]) -> Captured:
        """A turn of `COLUMNS`, for a list. A row that is damaged is a turn that says so."""
        try:
            row = msgspec.convert(columns, _Row)
            made = _BRIEF.decode(self._packer.unpack(row.brief))
        except (Damaged, msgspec.MsgspecError, UnicodeError):
            return Captured(id=columns[0], state=None, record=Record.TRUNCATED, error=DAMAGED)
        return replace(made, id=row.id, **{name: getattr(row, name) for name in _OWN})

    def wrong(self, columns: Sequence[Any]) -> Iterator[str]:
        """What of a row of `COLUMNS` and `detail` cannot be read."""
        if self.brief(columns).error == DAMAGED:
            yield "it cannot be read"
        try:
            _DETAIL.decode(self._packer.unpack(columns[-1]))
        except (Damaged, msgspec.MsgspecError, UnicodeError):
            yield "headers and samples cannot be read"

    def detailed(self, turn: Captured, detail: bytes) -> Captured:
        """The turn with what its column `detail` holds, as far as that can be read."""
        with contextlib.suppress(Damaged, msgspec.MsgspecError, UnicodeError):
            more = _DETAIL.decode(self._packer.unpack(detail))
            return replace(turn, **msgspec.structs.asdict(more))
        return turn


def writable(turn: Captured) -> Captured:
    """Half characters as escapes; integers that 64 bits do not hold as unknown."""

    def mend(value: Any) -> Any:
        if isinstance(value, str):
            return value.encode("utf-8", "backslashreplace").decode()
        if isinstance(value, int):
            return value if -(2**63) <= value < 2**63 else None
        if isinstance(value, dict):
            return {mend(name): mend(one) for name, one in value.items()}
        return [mend(one) for one in value] if isinstance(value, list | tuple) else value

    return msgspec.convert(mend(msgspec.to_builtins(turn)), Captured)
