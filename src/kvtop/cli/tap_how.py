"""`kvtop tap --how [AGENT]`: the lines that point an agent at the tap, with what can be seen here filled in."""

from __future__ import annotations

import asyncio

from kvtop.capture.control import howto, running
from kvtop.capture.control import plan as tap_plan
from kvtop.capture.control.howto import Known
from kvtop.errors import UsageError, printable
from kvtop.readings import Model, SourceDown
from kvtop.sources.url import authority, listen_address, parse
from kvtop.sources.vllm import VllmSource

_WAIT_S = 1.0
_EXAMPLE = "http://127.0.0.1:8000"


def main(name: str, listen: str | None, upstream: str | None) -> int:
    """Print them; without a name the agents. Raises UsageError for an agent that is not known."""
    if not name:
        for agent in howto.AGENTS:
            print(f"{agent.name:<10}  {agent.title}")
        print("\nkvtop tap --how AGENT prints the lines that point it at the tap.")
        return 0
    found = howto.find(name)
    if found is None:
        near = howto.near(name)
        what = f"no lines for an agent '{printable(name, 40)}'" + (f"; did you mean {', '.join(near)}?" if near else "")
        raise UsageError(what, f"known: {', '.join(agent.name for agent in howto.AGENTS)}")
    known, remarks = _seen(listen, upstream)
    text = howto.lines(found, known)
    print(f"# {found.title}")
    for remark in remarks:
        print(f"# {printable(remark, 400)}")
    left = [word for word in ("<MODEL>", "<CONTEXT>", "<OUTPUT>") if word in text]
    if left:
        print(f"# to fill in: {', '.join(left)} (as the server has them: curl -s <its URL>/v1/models)")
    print("# 'local' is any word where the server wants no API key, else that key\n")
    print(text, end="")
    return 0


def _seen(listen: str | None, upstream: str | None) -> tuple[Known, list[str]]:
    """What can be filled in, and where it came from. Raises UsageError for a bad address."""
    taps = running.alive()
    mapped = [mapped for record in taps for mapped in record.mappings]
    if listen is not None:
        place = authority(*listen_address(listen))
        mapped = [one for one in mapped if one.listen == place]
    elif upstream is not None:
        there = parse(upstream).url
        mapped = [one for one in mapped if one.upstream == there]
    if mapped:
        if len(mapped) > 1:  # one that leads somewhere first
            mapped.sort(key=lambda one: not tap_plan.answers(one.upstream))
        first = mapped[0]
        remarks = [f"the tap that runs: {first.line}"]
        remarks += [f"another one, chosen by --listen {other.listen}: {other.line}" for other in mapped[1:]]
        place, server = first.listen, first.upstream
    else:
        place = authority(*listen_address(listen or tap_plan.DEFAULT_LISTEN))
        found = [parse(upstream).url] if upstream is not None else tap_plan.servers_here()
        server = found[0] if len(found) == 1 else ""
        given = f" --listen {place}" if listen else ""
        remarks = [f"no tap runs there yet; start it: kvtop tap{given} --upstream {server or _EXAMPLE} --detach"]
    base = f"http://{_reached(place)}"
    models, why = _models(server) if server else ((), "")
    remarks += [why] if why else []
    remarks += [f"the server's other models: {', '.join(model.id for model in models[1:])}"] if models[1:] else []
    if models and not howto.usable(models[0].id):
        remarks.append(f"the model's name is not safe to paste: {models[0].id}")
    model = models[0] if models else None
    return Known(base, model.id if model else None, model.max_model_len if model else None), remarks


def _reached(place: str) -> str:
    """Where clients of this machine reach what listens there."""
    return parse(place).authority


def _models(server: str) -> tuple[tuple[Model, ...], str]:
    """The models of a server, asked past the tap: nothing is recorded. And why they are not known."""

    async def ask() -> tuple[tuple[Model, ...], str]:
        source = VllmSource(server, timeout_s=_WAIT_S)
        try:
            facts = await source.facts()
        finally:
            await source.aclose()
        if isinstance(facts, SourceDown):
            return (), f"{source.url} does not answer: {facts.cause}"
        return facts.models, "; ".join(facts.problems)

    return asyncio.run(ask())
