"""The record of a start that begins, made of its order."""

from __future__ import annotations

import os
import time
from pathlib import Path

from kvtop import paths
from kvtop.profiles.launch import asked
from kvtop.profiles.running import logs
from kvtop.profiles.running.order import Order
from kvtop.profiles.running.record import Record, Who
from kvtop.profiles.secret import masked_words, shown


def begun(order: Order, last: Record | None) -> Record:
    """The record of a start that begins. The container and the sidecars of the last one are known, to be removed."""
    profile, launch = order.profile, order.launch
    at = time.time()
    return Record(
        name=order.name,
        file=order.file,
        runner=profile.runner,
        argv=masked_words(launch.argv),
        model=shown(asked(launch.serve, launch.cwd).model or "", 1000),
        names=order.names,
        host=launch.host,
        port=launch.port,
        setup=order.setup,
        former=order.former,
        after_stop=len(profile.start.after_stop),
        started_at=at,
        health_url=_keyless(profile.start.health_url),
        timeout_s=profile.start.timeout_s,
        stop_wait_s=profile.start.stop_wait_s,
        keeper=Who.of(os.getpid()),
        container=last.container if last is not None and last.runner == profile.runner else "",
        sidecars=last.sidecars if last is not None else [],
        unit=profile.systemd.unit,
        user_unit=profile.systemd.user,
        program=_program(order),
        service=profile.compose.service,
        log=str(_log_file(order)) if profile.runner == "venv" else "",
        secrets=bool(launch.secrets),
    )


def _keyless(url: str) -> str:
    """Nothing for one that holds a secret: /health is asked by those who have only the record."""
    return url if shown(url, len(url) + 1) == url else ""


def _log_file(order: Order) -> Path:
    given = order.profile.log.file
    return paths.from_home(given).absolute() if given else logs.default(order.name)


def _program(order: Order) -> list[str]:
    """What asks the runner's own tool, as far as its options are the same for every question."""
    argv = list(order.launch.argv)
    if order.profile.runner == "compose" and "up" in argv:
        return argv[: argv.index("up")]
    return argv[:1] if order.profile.runner == "docker" else []
