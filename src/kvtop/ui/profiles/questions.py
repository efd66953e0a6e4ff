"""What is asked before a server is ended or started: every wording, longest first. What is ended keeps its process and
its requests in each of them; the names of rules, and long names of profiles, go first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvtop.live.profile_asks import InTheWay
from kvtop.live.profile_view import Foreign
from kvtop.profiles.check.report import Report
from kvtop.profiles.standing import Standing
from kvtop.ui.draw import clip, safe
from kvtop.ui.numbers import exact
from kvtop.ui.profiles.words import failed_unchanged

_WHOSE = {
    "foreign": ", which kvtop did not start",
    "starting": ", which is starting",
    "stopping": ", which is being stopped",
}
_NAME_CELLS = (24, 16, 10)
"""Of a name of a profile, until the question fits."""


def stop(row: Standing, requests: int | None) -> list[str]:
    whose = _WHOSE.get(row.state, "")
    runs = " and run its after_stop" if row.unkept and row.record is not None and row.record.after_stop else ""
    return [
        *(f"stop {_server(row, requests, n)}{whose}{runs}" for n in _NAME_CELLS[:1]),
        *(f"stop {_server(row, requests, n, short=True)}{tail}{runs}" for n in _NAME_CELLS for tail in (whose, "")),
    ]


def left(row: Standing) -> list[str]:
    """Of one that has ended, and not to the end."""
    parts = [f"end {row.left} process{'es' * (row.left > 1)} of {{}}"] if row.left else []
    parts += ["run the after_stop of {}" if not row.left else "run its after_stop"] if row.owed else []
    return [" and ".join(parts).format(_name(row.name, n)) for n in _NAME_CELLS]


def restart(row: Standing, requests: int | None, report: Report) -> list[str]:
    def text(n: int) -> str:
        return f"restart {_server(row, requests, n, short=True)}"

    first = f"stop {_server(row, requests, _NAME_CELLS[0])} and start it again"
    return _warned(first, text, report)


def switch(old: Standing, requests: int | None, new: Standing, report: Report) -> list[str]:
    def text(n: int) -> str:
        return f"stop {_server(old, requests, n, short=True)}, start {_name(new.name, n)}"

    first = f"stop {_server(old, requests, _NAME_CELLS[0])} and start {_name(new.name, _NAME_CELLS[0])}"
    return _warned(first, text, report, new)


def clear(one: InTheWay, requests: int | None, new: Standing, report: Report) -> list[str]:
    """A server that kvtop did not start stands in the way."""
    server, holds = one.server, safe(one.holds)
    n = _requests(requests)

    def text(cells: int) -> str:
        return f"stop process {server.pid} ({n}; not kvtop's), start {_name(new.name, cells)}"

    whose = f", with the flags of {safe(server.profile)}" if server.profile else ""
    first = (
        f"{server.words}{whose}, which kvtop did not start, holds {holds} ({n}): "
        f"stop it and start {_name(new.name, _NAME_CELLS[0])}"
    )
    second = f"process {server.pid} ({n}), not kvtop's, holds {holds}: stop it, start {_name(new.name, _NAME_CELLS[0])}"
    return [*_warned(first, text, report, new)[:1], *_warned(second, text, report, new)]


def beside(others: Sequence[Foreign], new: Standing, report: Report) -> list[str]:
    """Servers that kvtop did not start run, and none is in the way."""
    many = others[0].words if len(others) == 1 else f"{len(others)} servers that kvtop did not start"
    left = f"process {others[0].pid}" if len(others) == 1 else f"{len(others)} servers"

    def text(n: int) -> str:
        return f"start {_name(new.name, n)} beside {left}"

    name = _name(new.name, _NAME_CELLS[0])
    which = "which is not in its way and is left alone" if len(others) == 1 else "none in its way, all left alone"
    return _warned(f"start {name} beside {many}, {which}", text, report, new)


def start(new: Standing, report: Report) -> list[str]:
    """Wanted where there are warnings."""
    return _warned(f"start {_name(new.name, _NAME_CELLS[0])}", lambda n: f"start {_name(new.name, n)}", report, new)


def _warned(first: str, shorter: Callable[[int], str], report: Report, new: Standing | None = None) -> list[str]:
    """`new`: what is started, last in each wording."""
    asks = report.asks()
    many = f"{len(asks)} warning{'' if len(asks) == 1 else 's'}"
    names = ", ".join(dict.fromkeys(one.rule for one in asks))
    tails = [f" in spite of {many} ({names})", f" in spite of {many}", f", {many}"] if asks else [""]
    texts = [first, *(shorter(n) for n in _NAME_CELLS)]
    failed = ", whose last start failed" if new is not None and failed_unchanged(new) else ""
    more = [f"{failed},{tail}" if tail.startswith(" ") else f"{failed}{tail}" for tail in tails] if failed else []
    return [f"{text}{tail}" for ends in (more, tails) for text in texts for tail in ends]


def _server(row: Standing, requests: int | None, cells: int, *, short: bool = False) -> str:
    count = "" if row.state in ("starting", "stopping") else _requests(requests, short=short)
    who = "" if row.pid is None or row.stranger else f"pid {row.pid}"
    known = ", ".join(part for part in (who, count) if part)
    name = _name(row.name, cells)
    if row.stranger:
        name = f"process {row.pid}"
        if row.known.port is not None and not short:
            name = f"{name} on port {row.known.port}"
    return f"{name} ({known})" if known else name


def _requests(n: int | None, *, short: bool = True) -> str:
    if n is None:
        return "requests not known"
    return f"{exact(n)} request{'' if n == 1 else 's'}{'' if short else ' running'}"


def _name(name: str, cells: int) -> str:
    return clip(safe(name), cells)
