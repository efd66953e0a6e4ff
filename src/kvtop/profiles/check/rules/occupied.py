"""Rules of what others hold: memory of the cards, the cards, the port, the health URL."""

from __future__ import annotations

from kvtop.model.words import gib, listed
from kvtop.profiles.check import sizes
from kvtop.profiles.check.obstacles import is_at, shared
from kvtop.profiles.check.seen import NO_LINE, Card, Facts, Holder, Lacks, Saying, Says, Server

_STOPS = "nothing: the switch stops it first"


def vram_held(facts: Facts) -> Saying:
    """vLLM starts only where --gpu-memory-utilization of a card is free (`request_memory`); a card that others hold is
    the usual reason."""
    cards = sizes.cards(facts)
    if cards is None:
        yield Lacks(_no_cards(facts))
        return
    for card in cards:
        asked, free = sizes.asked_bytes(facts, card), card.free_bytes
        if not facts.line_known:
            yield Lacks(NO_LINE)
        elif asked is None or free is None:
            yield Lacks(f"the memory of GPU {card.index}")
        elif free < asked:
            yield _held(facts, card, asked, free)


def _held(facts: Facts, card: Card, asked: int, free: int) -> Says:
    share = sizes.utilization(facts)
    flag = "--gpu-memory-utilization"
    freed = sizes.freed_bytes(facts, card)
    says = f"GPU {card.index}: {gib(free + freed)} of {gib(card.total_bytes)} free, {share:g} asks for {gib(asked)}"
    if free + freed >= asked:
        says = f"GPU {card.index}: {gib(free)} of {gib(card.total_bytes)} free, {gib(free + freed)} after the stop"
        return Says("note", flag, says, _STOPS)
    others = [holder for holder in card.holders if not facts.goes(holder.pid)]
    if not others:
        return Says("error", flag, f"{says}; who holds the rest is not told", _smaller(card, free + freed))
    who = ", ".join(_holder(one) for one in sorted(others, key=lambda one: -(one.bytes or 0))[:2])
    more = f" and {len(others) - 2} more" if len(others) > 2 else ""
    return Says("error", flag, f"{says}: held by {who}{more}", f"stop it, or {_smaller(card, free + freed)}")


def _holder(one: Holder) -> str:
    held = f", {gib(one.bytes)}" if one.bytes is not None else ""
    return f"{one.name or 'a process'} (process {one.pid}{held})"


def _smaller(card: Card, free: int) -> str:
    share = int(100 * free / card.total_bytes) / 100 if card.total_bytes else 0
    return f"--gpu-memory-utilization {share:g}" if share >= 0.1 else "use another card (gpus)"


def gpu_overlap(facts: Facts) -> Saying:
    """Another server runs on a card of this profile. An error where the memory that is left does not do."""
    cards = sizes.cards(facts)
    if cards is None or facts.servers is None:
        yield Lacks(_no_cards(facts) if cards is None else "the servers of this machine")
        return
    for server in facts.servers:
        both = shared(server, cards)
        if not both:
            continue
        says = f"{server.name} runs on GPU {listed([str(card.index) for card in both])}"
        if facts.goes(server.pid):
            yield Says("note", "gpus", says, _STOPS)
        elif not facts.line_known or all(_fits(facts, card) for card in both):
            yield Says("warning", "gpus", f"{says}, which would be shared", "choose other cards, unless that is meant")
        else:
            yield Says("error", "gpus", says, _instead(server))


def _no_cards(facts: Facts) -> str:
    return "the cards of this machine" if facts.cards is None else NO_LINE


def _fits(facts: Facts, card: Card) -> bool:
    asked = sizes.asked_bytes(facts, card)
    return asked is not None and card.free_bytes is not None and card.free_bytes >= asked


def _instead(server: Server) -> str:
    return f"kvtop profile switch stops {server.name} first; or choose other cards (gpus)"


def port_taken(facts: Facts) -> Saying:
    """Somebody listens on the port, or is about to: vLLM would load for minutes, and then fail."""
    if facts.port is None:
        yield Lacks("the port: another file tells it, and neither [serve] port nor [start] health_url does")
        return
    if facts.listeners is None:
        yield Lacks("who listens on which port")
        return
    found = facts.listeners.get(facts.port)
    pid = found.pid if found is not None else None
    server = next((one for one in facts.servers or () if is_at(one, facts.port, pid)), None)
    if found is not None:
        who = f"{server.name} ({found.words})" if server is not None and server.profile else found.words
        says = f"port {facts.port}: {who} listens there"
    elif server is not None:
        says = f"port {facts.port}: {server.name} starts, and will listen there"
    else:
        return
    if facts.goes(pid) or (server is not None and facts.goes(server.pid)):
        yield Says("note", "--port", says, _STOPS)
    else:
        yield Says("error", "--port", says, f"--port {_free_port(facts)}, or stop what is there")


def _free_port(facts: Facts) -> int:
    taken = facts.listeners or {}
    start = max(1024, min((facts.port or 8000) + 1, 65_000))
    return next((port for port in range(start, 65_536) if port not in taken), start)


def health_answered_by_other(facts: Facts) -> Saying:
    """The health URL answers before the start: readiness would be seen in another server."""
    if not facts.health_asked:
        yield Lacks("an answer of the health URL")
        return
    if facts.health is None:
        return
    serves = f", serving {facts.health.model}" if facts.health.model else ""
    says = f"{facts.health.url} answers already{serves}"
    port = facts.launch.port if facts.launch is not None else facts.port
    if facts.replacing and any(facts.goes(one.pid) and one.port == port for one in facts.servers or ()):
        yield Says("note", "health_url", says, _STOPS)
    else:
        yield Says("warning", "health_url", says, "another port, or stop what answers there")
