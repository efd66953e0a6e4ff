"""What a stand-in recorder wrote down, connection by connection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kvtop.capture.tap.wire import Frame, Frames, Kind, Lost, Opened, frame_of


@dataclass
class Story:
    """One connection, as one recorder heard of it."""

    kinds: list[Kind] = field(default_factory=list)
    """In order, the same kind in a row once."""
    opened: Opened | None = None
    client: bytes = b""
    server: bytes = b""
    lost: Lost = Lost()
    times: list[int] = field(default_factory=list)


def lives(path: Path) -> list[dict[int, Story]]:
    """One table for each recorder that there was, in order."""
    files = sorted(path.parent.glob(path.name + ".*"), key=lambda file: int(file.suffix[1:]))
    return [stories(map(frame_of, Frames().feed(file.read_bytes()))) for file in files]


def stories(frames: Iterable[Frame]) -> dict[int, Story]:
    table: dict[int, Story] = defaultdict(Story)
    for conn, kind, at_ns, data in frames:
        story = table[conn]
        story.times.append(at_ns)
        if kind not in story.kinds[-1:]:
            story.kinds.append(kind)
        if kind in (Kind.OPEN, Kind.REFUSED):
            story.opened = msgspec.json.decode(data, type=Opened)
        elif kind is Kind.CLIENT:
            story.client += data
        elif kind is Kind.SERVER:
            story.server += data
        elif kind is Kind.GAP:
            lost = msgspec.json.decode(data, type=Lost)
            story.lost = Lost(
                client_bytes=story.lost.client_bytes + lost.client_bytes,
                server_bytes=story.lost.server_bytes + lost.server_bytes,
            )
    return dict(table)
