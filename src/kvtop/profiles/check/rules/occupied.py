"""Rules of what others hold: memory of the cards, the cards, the port, the health URL."""

from __future__ import annotations

from kvtop.errors import keyless
from kvtop.model.words import gib, listed
from kvtop.profiles.check import sizes
from kvtop.profiles.check.edits import file_of, there
from kvtop.profiles.check.obstacles import is_at, shared
from kvtop.profiles.check.seen import NO_LINE, Card, Facts, Holder, Lacks, Saying, Says, Server
from kvtop.profiles.docker_options import pairs, published_anywhere, published_at
from kvtop.profiles.launch import inner_port

_INSIDE = ("127.0.0.1", "localhost", "::1")
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
        return Says("error", flag, f"{says}; who holds the rest is not told", _smaller(facts, card, free + freed))
    who = ", ".join(_holder(one) for one in sorted(others, key=lambda one: -(one.bytes or 0))[:2])
    more = f" and {len(others) - 2} more" if len(others) > 2 else ""
    return Says("error", flag, f"{says}: held by {who}{more}", f"stop it, or {_smaller(facts, card, free + freed)}")


def _holder(one: Holder) -> str:
    held = f", {gib(one.bytes)}" if one.bytes is not None else ""
    return f"{one.name or 'a process'} (process {one.pid}{held})"


def _smaller(facts: Facts, card: Card, free: int) -> str:
    share = int(100 * free / card.total_bytes) / 100 if card.total_bytes else 0
    return (
        there(facts, f"--gpu-memory-utilization {share:g}") if share >= 0.1 else f"use {_others(facts, 'another card')}"
    )


def _others(facts: Facts, cards: str) -> str:
    return there(facts, cards) if file_of(facts) else f"{cards} (gpus)"


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
            yield Says("error", "gpus", says, _instead(facts, server))


def _no_cards(facts: Facts) -> str:
    return "the cards of this machine" if facts.cards is None else NO_LINE


def _fits(facts: Facts, card: Card) -> bool:
    asked = sizes.asked_bytes(facts, card)
    return asked is not None and card.free_bytes is not None and card.free_bytes >= asked


def _instead(facts: Facts, server: Server) -> str:
    return f"kvtop profile switch stops {server.name} first; or choose {_others(facts, 'other cards')}"


def port_taken(facts: Facts) -> Saying:
    """Somebody listens on the port, or is about to: vLLM would load for minutes, and then fail."""
    if facts.port is None:
        yield Lacks("the port of this machine at which it will listen: nothing here tells it")
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
        says = f"port {facts.port}: {server.name} is there, and starts or ends"
    else:
        return
    if facts.goes(pid) or (server is not None and facts.goes(server.pid)):
        yield Says("note", "--port", says, _STOPS)
    else:
        yield Says("error", "-p" if facts.networked else "--port", says, _other_port(facts))


def _other_port(facts: Facts) -> str:
    free, inner = _free_port(facts), inner_port(facts.flags)
    fix = f"--port {free}"
    if facts.networked:
        given = (value for flag, value in pairs(facts.options) if published_at([f"{flag}={value}"], inner) is not None)
        address = next(given, "").rpartition(":")[0].rpartition(":")[0]
        fix = f"{keyless(address, 60)}{':' if address else ''}{free}:{inner}"
        fix = f"{fix} under ports" if facts.profile.runner == "compose" else f"-p {fix}"
    return f"{there(facts, fix)}{'; or' if file_of(facts) else ', or'} stop what is there"


def _free_port(facts: Facts) -> int:
    taken = {*(facts.listeners or ()), *facts.other_ports}
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
    asked = {facts.health.port, facts.launch.port if facts.launch is not None else facts.port} - {None}
    if facts.replacing and any(facts.goes(one.pid) and one.port in asked for one in facts.servers or ()):
        yield Says("note", "health_url", says, _STOPS)
    else:
        other = "another health_url" if facts.profile.start.health_url else "another port"
        yield Says("warning", "health_url", says, f"{other}, or stop what answers there")


def port_not_published(facts: Facts) -> Saying:
    """What a container does not publish nobody reaches: the start would wait for an answer until its time is over."""
    if not facts.networked or facts.profile.start.health_url:
        return
    inner, host = inner_port(facts.flags), facts.flags.value("host") or ""
    asked = facts.launch.port if facts.launch is not None else None
    if facts.port is not None and host in _INSIDE:
        says = f"it listens on {host} inside of its container, where no port of this machine leads"
        yield Says("error", "--host", says, there(facts, "--host 0.0.0.0"))
    elif facts.port is not None:
        if asked not in (None, facts.port):
            says = f"{file_of(facts)} publishes it at port {facts.port}, this profile asks port {asked}"
            yield Says("error", "-p", says, "import it again")
    elif (lack := _publishing_unknown(facts)) is not None:
        yield Lacks(lack)
    else:
        at = f"{_outer(facts) or f'127.0.0.1:{inner}'}:{inner}"
        fix = f"{at} under ports" if facts.profile.runner == "compose" else f"-p {at} in [docker] options"
        yield Says("error", "-p", _leads_nowhere(facts, inner), there(facts, fix))


def _outer(facts: Facts) -> str:
    """The address and port of this machine that the container publishes another port of its own at; clients have it.
    Empty for none, or several."""
    given = [value for flag, value in pairs(facts.options) if flag in ("-p", "--publish")]
    outer = given[0].rpartition(":")[0] if len(given) == 1 else ""
    return keyless(outer, 60) if outer.rpartition(":")[2].isdecimal() else ""


def _leads_nowhere(facts: Facts, inner: int) -> str:
    flags = {flag for flag, _ in pairs(facts.options)}
    open_by = "-P" if flags & {"-P", "--publish-all"} else ""
    ports = "ports" if facts.profile.runner == "compose" else "-p"
    if (value := published_anywhere(facts.options, inner)) is not None:
        open_by = f"{ports} {keyless(value, 40)}"
    if open_by:
        return f"{open_by} publishes its port {inner} at one that nobody knows before the start"
    another = f": {ports} names another one" if flags & {"-p", "--publish"} else ""
    return f"no port of this machine leads to its port {inner}{another}"


def _publishing_unknown(facts: Facts) -> str | None:
    """What is lacked to say that its port is not published; None: nothing."""
    if facts.profile.runner != "docker" and (facts.own is None or facts.own.options is None):
        return "what the container publishes"
    rows = list(pairs(facts.options))
    ports = [value for flag, value in rows if flag in ("-p", "--publish")]
    network = [value for flag, value in rows if flag in ("--network", "--net")]
    if any("$" in one for one in ports) or any("$" in one or ":" in one for one in network) or "--pod" in dict(rows):
        return "what the container publishes"
    told = facts.flags.value("port") is not None or (facts.line_known and facts.flags.config is None)
    return None if told or not ports else "the port of vLLM in its container"
