"""How each runner starts, watches and ends a server: one interface, made from a record."""

from __future__ import annotations

from collections.abc import Callable

from kvtop.profiles.running.record import Record
from kvtop.profiles.running.runners.base import Runner


def runner_of(record: Record, save: Callable[[], None] | None = None) -> Runner:
    """The one that the record names. `save`: of a keeper, writes the record."""
    if record.runner in ("docker", "compose"):
        from kvtop.profiles.running.runners.container import Container

        return Container(record, save)
    if record.runner == "systemd":
        from kvtop.profiles.running.runners.systemd import Systemd

        return Systemd(record, save)
    from kvtop.profiles.running.runners.venv import Venv

    return Venv(record, save)
