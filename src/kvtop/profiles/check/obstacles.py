"""What another server holds of a port and of cards: for the rules, and for a switch that would stop it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvtop.model.words import listed
from kvtop.profiles.check import sizes
from kvtop.profiles.check.seen import Card, Facts, Server

FREED = "nothing: the "
"""How the fix of a note begins that tells what a stop gives back."""


def shared(server: Server, cards: Sequence[Card]) -> list[Card]:
    """Those of the cards that it has memory on."""
    return [card for card in cards if any(holder.pid in server.pids for holder in card.holders)]


def in_the_way(facts: Facts) -> Iterator[tuple[Server, str]]:
    """The servers that hold this profile's port or are on one of its cards, and in words what they hold: `port 8000
    and GPU 0`. For a switch, which stops no other one."""
    listener = (facts.listeners or {}).get(facts.port or 0)
    for server in facts.servers or ():
        holds = []
        if facts.port is not None and is_at(server, facts.port, listener.pid if listener is not None else None):
            holds.append(f"port {facts.port}")
        holds += [f"GPU {card.index}" for card in shared(server, sizes.cards(facts) or ())]
        if holds:
            yield server, listed(holds)


def is_at(server: Server, port: int, pid: int | None) -> bool:
    """Whether it is the one that listens: by its process where that is known, else by the port of its command line."""
    return pid in server.pids if pid is not None else server.port == port
