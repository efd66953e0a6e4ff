"""What a keeper is told: the profile, what to run, and the environment it is run in. It goes through a pipe, since
command lines and environments may hold secrets; nothing of it is written to disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from kvtop.config import read_key_file
from kvtop.errors import KvtopError, printable
from kvtop.profiles.launch import Launch, Secret
from kvtop.profiles.profile import Profile
from kvtop.profiles.running.record import Setup
from kvtop.profiles.running.tools import Failed
from kvtop.sources.masking import MASK

_SECRET_LENGTH = 8
"""Shorter ones stand in words, too."""
_MOST_TOLD = 700


class Order(msgspec.Struct, frozen=True):
    """One start."""

    name: str
    file: str
    profile: Profile
    launch: Launch
    base: dict[str, str]
    """The environment of the command that starts it."""
    names: list[str] = []
    """What the server will call its model, any of them."""
    setup: Setup = Setup()
    lock_fd: int = -1
    """The lock, inherited."""
    former: str = ""
    """See `Record.former`."""


class Told:
    """The secrets that a server is given: whatever it or a command around it says is told without them."""

    def __init__(self, launch: Launch | None = None, env: Mapping[str, str] | None = None) -> None:
        """`env`: what it gets, see `environment`."""
        values = [(env or {}).get(name, "") for name in launch.secrets] if launch is not None else []
        long = [value for value in values if len(value) >= _SECRET_LENGTH]
        shown = [printable(value, 10 * len(value)) for value in long]
        self._secrets = list(dict.fromkeys([*long, *shown]))

    def cleaned(self, log: bytes) -> bytes:
        """A log without them, before a line of it is cut."""
        for value in self._secrets:
            log = log.replace(os.fsencode(value), MASK.encode())
        return log

    def masked(self, text: str) -> str:
        """The text without them, nor the beginning of one where it was cut; then cut."""
        for value in self._secrets:
            text = text.replace(value, MASK)
        kept = text.removesuffix("…")
        for value in self._secrets:
            ends = (n for n in range(len(value) - 1, _SECRET_LENGTH - 1, -1) if kept.endswith(value[:n]))
            if (n := next(ends, 0)) > 0:
                text = f"{kept[:-n]}{MASK}"
                break
        return printable(text, _MOST_TOLD)


def packed(order: Order) -> bytes:
    """For the pipe. Names and values of the environment may be any bytes.

    Raises KvtopError where the command line holds what is no text.
    """
    base = {_carried(name): _carried(value) for name, value in order.base.items()}
    try:
        return msgspec.json.encode(msgspec.structs.replace(order, base=base))
    except UnicodeEncodeError:
        name = printable(order.name, 80)
        raise KvtopError(f"{name} cannot be started: its command line holds what is no text") from None


def unpacked(text: bytes) -> Order:
    """What `packed` made."""
    order = msgspec.json.decode(text, type=Order)
    base = {_brought(name): _brought(value) for name, value in order.base.items()}
    return msgspec.structs.replace(order, base=base)


def _carried(text: str) -> str:
    return os.fsencode(text).decode("latin-1")


def _brought(text: str) -> str:
    return os.fsdecode(text.encode("latin-1"))


def environment(launch: Launch, base: Mapping[str, str]) -> dict[str, str]:
    """Exactly what the server gets: the base without what is unset, with what is set, secrets read now.

    Raises Failed, which names a secret's place and never holds its value.
    """
    env = {name: value for name, value in base.items() if name not in launch.unset}
    env |= launch.set
    for name, secret in launch.secrets.items():
        env[name] = _value(name, secret, base)
    return env


def missing_secrets(launch: Launch, base: Mapping[str, str]) -> dict[str, str]:
    """Variable -> why a start would fail for want of its value."""
    found = {}
    for name, secret in launch.secrets.items():
        try:
            _value(name, secret, base)
        except Failed as why:
            found[name] = str(why)
    return found


def _value(name: str, secret: Secret, base: Mapping[str, str]) -> str:
    if secret.kind == "env":
        value = base.get(secret.where, "")
        if not value:
            raise Failed(f"{name} is to come from the variable {secret.where}, which is not set; set it")
        return value
    try:
        found, _ = read_key_file(secret.where)
    except (OSError, ValueError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "no text, or no name of a file"
        raise Failed(f"{name} is to come from {secret.where}: {why}") from None
    if not found:
        raise Failed(f"{name} is to come from {secret.where}, which is empty")
    return found
