"""A turn as a row of the store, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
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
_BRIEF = msgspec.json.Decoder(Captured)
_DETAIL = msgspec.json.Decoder(_Detail)


class Records:
    """Packs and unpacks rows."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer

    def columns(self, turn: Captured) -> dict[str, object]:
        """Column -> value, without the id. Not in it: the outline, which is kept like a body."""
        conversation = turn.conversation or f"c{turn.id}"
        try:
            "".join((conversation, turn.agent, turn.model or "")).encode()
            brief = msgspec.json.encode(_brief_of(turn))
            detail = msgspec.json.encode(_Detail(turn.request_headers, turn.response_headers, turn.samples))
        except (UnicodeEncodeError, OverflowError):
            return self.columns(writable(turn))
        return {
            "source": turn.source.value,
            "state": turn.state and turn.state.value,
            "record": turn.record.value,
            "started_at": turn.started_at,
            "conversation": conversation,
            "agent": turn.agent,
            "route": turn.route.value,
            "model": turn.model,
            "brief": self._packer.pack(brief),
            "detail": self._packer.pack(detail),
        }

    def brief(self, columns: Sequence[Any]) -> Captured:
        """A turn of `COLUMNS`, for a list. A row that is damaged is a turn that says so."""
        try:
            row = msgspec.convert(columns, _Row)
            made = _BRIEF.decode(self._packer.unpack(row.brief))
        except (Damaged, msgspec.MsgspecError, UnicodeError):
            return Captured(id=columns[0], state=None, record=Record.TRUNCATED, error="its record on disk is damaged")
        return replace(
            made,
            id=row.id,
            source=row.source,
            state=row.state,
            record=row.record,
            started_at=row.started_at,
            conversation=row.conversation,
            agent=row.agent,
            route=row.route,
            model=row.model,
        )

    def detailed(self, turn: Captured, detail: bytes) -> Captured:
        """The turn with what its column `detail` holds, as far as that can be read."""
        with contextlib.suppress(Damaged, msgspec.MsgspecError, UnicodeError):
            more = _DETAIL.decode(self._packer.unpack(detail))
            return replace(
                turn,
                request_headers=more.request_headers,
                response_headers=more.response_headers,
                samples=more.samples,
            )
        return turn


def _brief_of(turn: Captured) -> Captured:
    """Without what has a place of its own."""
    bare = Captured()
    return replace(
        turn,
        id=0,
        source=bare.source,
        state=bare.state,
        record=bare.record,
        started_at=0.0,
        conversation=None,
        agent=bare.agent,
        route=bare.route,
        model=None,
        outline=[],
        request_headers=[],
        response_headers=[],
        samples=[],
    )


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
