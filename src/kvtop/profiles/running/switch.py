"""From one server to another: what the old one holds is no obstacle, and is seen to be free before the new starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from kvtop.profiles.running.family import FREE_S
from kvtop.profiles.running.look import Seen
from kvtop.profiles.running.record import Who

_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Freed:
    """What the old server's end left."""

    free: bool
    says: tuple[str, ...] = ()
    """What is held still."""


def leaves(seen: Seen) -> frozenset[int]:
    """The processes of a server that is about to be ended: what they hold is no obstacle."""
    state = seen.record
    return frozenset(who.pid for who in state.family) if state is not None else frozenset()


def freed(family: Sequence[Who]) -> Freed:
    """Wait until no process of the old server lives and none holds memory of a card."""
    from kvtop.sources.nvml import NvmlSource

    cards = NvmlSource()
    pids = {who.pid for who in family}
    until = time.monotonic() + FREE_S
    try:
        while True:
            left = [f"process {who.pid} lives still" for who in family if who.lives]
            reading = cards.read(pcie=False)
            left += [
                f"process {one.pid} still holds memory of GPU {gpu.index}"
                for gpu in reading.gpus
                for one in gpu.processes
                if one.pid in pids
            ]
            if not left or time.monotonic() > until:
                return Freed(not left, tuple(left))
            time.sleep(_LOOK_S)
    finally:
        cards.close()
