"""How each runner starts, watches and ends a server: one interface, made from a record."""

from __future__ import annotations

from kvtop.profiles.running.record import Record
from kvtop.profiles.running.runners.base import Runner


def runner_of(record: Record) -> Runner:
    """The one that the record names."""
    if record.runner in ("docker", "compose"):
        from kvtop.profiles.running.runners.container import Container

        return Container(record)
    if record.runner == "systemd":
        from kvtop.profiles.running.runners.systemd import Systemd

        return Systemd(record)
    from kvtop.profiles.running.runners.venv import Venv

    return Venv(record)
