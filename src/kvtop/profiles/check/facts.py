"""Looking: what this machine, the installed vLLM and the last start tell of a profile. All of it may take seconds, and
blocks: a screen calls it in a thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec

from kvtop.errors import UsageError, printable
from kvtop.profiles import config_file, folder, match
from kvtop.profiles.check import containers, last, nearby, needs, own_file, plugins
from kvtop.profiles.check.edits import lost_variables
from kvtop.profiles.check.installed import installed, version_of
from kvtop.profiles.check.rules import modules
from kvtop.profiles.check.rules.service import MODELS, local_paths
from kvtop.profiles.check.seen import Answer, Card, Container, Facts, Holder, LastStart, Listener, OwnFile, Server
from kvtop.profiles.check.sizes import ranks
from kvtop.profiles.check.wraps import is_found_alike
from kvtop.profiles.flags import Flags
from kvtop.profiles.launch import Launch, environment, is_elsewhere, launch, secrets_of, venv_command, whole_path
from kvtop.profiles.profile import Profile
from kvtop.profiles.running import asking, logs, ready, record
from kvtop.profiles.running.order import missing_secrets
from kvtop.profiles.running.record import Start
from kvtop.profiles.secret import masked_value, masked_words
from kvtop.readings import HostReading
from kvtop.sources.host import HostSource
from kvtop.sources.limits import memory_limit
from kvtop.sources.listeners import holder, is_tap, listening
from kvtop.sources.masking import MASK
from kvtop.sources.nvml import NvmlSource
from kvtop.sources.url import authority, discreet, parse

_MOST_BYTES = 1 << 50
_OTHERS = "a process of another user"


class Entry(Protocol):
    """What `profiles.folder.find` answers."""

    @property
    def name(self) -> str: ...
    @property
    def idle(self) -> tuple[str, ...]: ...
    def usable(self) -> Profile: ...


def gather(
    entry: Entry,
    *,
    replacing: frozenset[int] | None = None,
    ask_vllm: bool = True,
    tell: Callable[[str], None] | None = None,
) -> Facts:
    """Everything that a rule may ask, of a profile here and now.

    `replacing`: processes of the server that is stopped first. Without `ask_vllm` vLLM is not run for its help, and its
    flags are those that were kept from an earlier look; `tell` is called with its program before it is run, which may
    take a minute. Raises UsageError where the profile cannot be used.
    """
    profile = entry.usable()
    run = launch(entry.name, profile)
    here, env = None, {}
    if profile.runner == "venv":
        env = {name: value for name, value in {**os.environ, **run.set}.items() if name not in run.unset}
        if is_found_alike(profile.venv.wrap, venv_command(profile)[0]):
            here = installed(venv_command(profile), run.cwd, env, ask=ask_vllm, asking=tell)
    host, runs = HostSource().read(), _launches()
    missing = missing_secrets(run, os.environ)
    own = own_file.read(profile, run, missing)
    facts = Facts(
        name=entry.name,
        profile=msgspec.structs.replace(profile, gpus=[*own.gpus]) if own is not None and own.gpus else profile,
        told_gpus=tuple(profile.gpus),
        flags=Flags.read(
            masked_words(run.serve), yaml=_yaml(run, profile), known=here.known if here is not None else None
        ),
        launch=run,
        idle=entry.idle,
        own=own,
        env=_env(profile, missing, own),
        absent=needs.absent(profile, run),
        secrets_missing=missing,
        installed=here,
        version=version_of(here.version) if here is not None else containers.version_of(_image(profile)),
        shm_total_bytes=host.shm_total_bytes,
        shm_free_bytes=_shm_free(host),
        offload_files=None if host.shm_total_bytes is None else host.offload_files,
        memory_total_bytes=host.memory_total_bytes,
        memory_available_bytes=host.memory_available_bytes,
        memory_limit_bytes=memory_limit(),
        cards=_cards(),
        servers=_servers(host, runs),
        other_ports=frozenset(other.port for name, other in runs.items() if name != entry.name),
        replacing=replacing,
    )
    if is_elsewhere(profile):
        facts = _but_this_machine(facts)
    facts = replace(facts, listeners=_listeners(facts.port or run.port))
    asked, answer = _health(facts, run)
    places = _places(facts, run)
    return replace(
        facts,
        health_asked=asked,
        health=answer,
        container=_container(facts),
        near=_near(facts, places),
        paths={path: _is_there(place) for path, place in places.items()},
        above={path: str(folder) for path, place in places.items() if (folder := _above(place)) is not None},
        last=_last(facts),
        plugins=_plugins(facts, run, env),
    )


def _but_this_machine(facts: Facts) -> Facts:
    return replace(
        facts,
        shm_total_bytes=None,
        shm_free_bytes=None,
        offload_files=None,
        memory_total_bytes=None,
        memory_available_bytes=None,
        memory_limit_bytes=None,
        cards=None,
        servers=None,
    )


def _plugins(facts: Facts, run: Launch, env: Mapping[str, str]) -> dict[str, bool]:
    named = [module for _, module in modules.named(facts.flags)]
    if not named or facts.installed is None:
        return {}
    if any("PYTHON" in word for word in facts.profile.venv.wrap):  # env PYTHONPATH=/plugins, systemd-run --setenv=
        return {}
    return plugins.found(named, facts.installed.program, venv_command(facts.profile), run.cwd, env)


def _yaml(run: Launch, profile: Profile) -> str | None:
    """The text of the file of --config, where it is on this machine."""
    name = Flags.read(run.serve).config
    if name is None or profile.runner not in ("venv", "systemd"):
        return None
    return config_file.config_text(name, Path(run.cwd) if run.cwd else None)


def _env(profile: Profile, missing: Mapping[str, str], own: OwnFile | None) -> dict[str, str]:
    """What vLLM's environment will hold, less what no rule asks for; secrets that can be read are there, but not their
    values. What the profile sets, and the runner's own file does not take, is not there."""
    env: dict[str, str] = {}
    if profile.runner == "venv":
        env = {name: value for name, value in os.environ.items() if own_file.ASKED.fullmatch(name)}
        env = {name: value for name, value in env.items() if name not in profile.env.unset}
    env |= environment(profile)
    env = {name: value for name, value in env.items() if name not in missing}
    if profile.runner != "systemd":  # which hands nothing of systemctl's environment on
        env |= dict.fromkeys((name for name in secrets_of(profile) if name not in missing), MASK)
    if own is not None:
        lost = {*lost_variables(profile, own)}
        env = {name: value for name, value in env.items() if name not in lost} | dict(own.env)
    return {name: str(masked_value(name, value)) for name, value in env.items()}


def _container(facts: Facts) -> Container | None:
    profile = facts.profile
    if not facts.contained:
        return None
    if profile.runner != "compose":
        return containers.of_options(facts.options)
    told = containers.of_options(profile.docker.options)
    service = own_file.service(profile)
    if service is None:
        return told if containers.tells_shm(profile.docker.options) else Container(readable=False)
    found = containers.of_service(service)
    if found.shm_bytes is None and not found.host_ipc and containers.tells_shm(profile.docker.options):
        found = replace(found, shm_bytes=told.shm_bytes, host_ipc=told.host_ipc)
    return found if found.memory_bytes is not None else replace(found, memory_bytes=told.memory_bytes)


def _image(profile: Profile) -> str:
    """With its tag; empty where it is not known."""
    if profile.docker.image or profile.runner != "compose":
        return profile.docker.image
    found = str((own_file.service(profile) or {}).get("image", ""))
    return "" if "$" in found else found


def _shm_free(host: HostReading) -> int | None:
    if host.shm_total_bytes is None or host.shm_used_bytes is None:
        return None
    return host.shm_total_bytes - host.shm_used_bytes


def _cards() -> tuple[Card, ...] | None:
    """The cards; None where no driver tells."""
    source = NvmlSource()
    try:
        reading = source.read(pcie=False)
    finally:
        source.close()
    if not reading.gpus:
        return None
    return tuple(
        Card(
            gpu.index,
            gpu.uuid,
            gpu.memory_total_bytes,
            None
            if gpu.memory_total_bytes is None or gpu.memory_used_bytes is None
            else gpu.memory_total_bytes - gpu.memory_used_bytes,
            tuple(Holder(one.pid, one.name, one.memory_used_bytes) for one in gpu.processes),
        )
        for gpu in reading.gpus
    )


def _listeners(port: int) -> dict[int, Listener] | None:
    found = listening()
    if found is None:
        return None
    out = {each: Listener(pid, f"process {pid}" if pid is not None else _OTHERS) for each, pid in found.items()}
    if port in out:
        out[port] = Listener(found[port], holder(port) or out[port].words)
    return out


def _servers(host: HostReading, runs: Mapping[str, Launch]) -> tuple[Server, ...] | None:
    """The vLLM servers of this machine, each with its engine cores and workers. Whose it is says the record of the one
    that was started, else the command line."""
    if host.processes_seen is None:
        return None
    ours = {
        who.pid: state.name
        for state in record.every()
        for who in (*state.family, *filter(None, (state.server,)))
        if who.lives
    }
    parents = {one.pid: one.parent for one in host.processes}
    found = []
    for server, names in match.servers(host.processes, runs):
        pids = frozenset(pid for pid in parents if server.pid in _ancestors(pid, parents))
        port = server.port if server.port is not None else next(iter(server.ports), None)
        found.append(
            Server(server.pid, pids, ours.get(server.pid, " or ".join(names)), None if server.contained else port)
        )
    return tuple(found)


def _ancestors(pid: int, parents: Mapping[int, int | None]) -> set[int]:
    """The process, and those of vLLM above it."""
    found: set[int] = set()
    at: int | None = pid
    while at is not None and at in parents and at not in found:
        found.add(at)
        at = parents[at]
    return found


def _launches() -> dict[str, Launch]:
    try:
        return match.launches(folder.read_all())
    except (UsageError, OSError):
        return {}


def _health(facts: Facts, run: Launch) -> tuple[bool, Answer | None]:
    """(whether it was asked, who answers). Where nobody listens nobody is asked; nor is a tap: it would record it."""
    given = facts.profile.start.health_url
    url = given or f"http://{authority(run.host, run.port)}/health"
    listens = facts.listeners.get(run.port) if facts.listeners is not None else None
    if facts.profile.runner == "attach":
        return False, None
    if not given and facts.listeners is not None:
        if listens is None:
            return True, None
        if is_tap(run.port, listens.pid):
            return False, None
    try:
        if asking.get(url)[0] != 200:
            return True, None
        place = parse(url)
    except (OSError, ValueError, UsageError):
        return True, None
    names = ready.served(place.host, place.port)
    return True, Answer(discreet(url), printable(names[0], 60) if names else None, place.port)


def _places(facts: Facts, run: Launch) -> dict[str, Path]:
    """Where the paths of the command line are; less those that vLLM sees on another file system."""
    found: dict[str, Path] = {}
    if is_elsewhere(facts.profile):
        return found
    # what rules are told may look like a secret and be masked: a folder hf_… for instance
    plain = replace(facts, flags=Flags.read(run.serve, yaml=_yaml(run, facts.profile)))
    for (_, path), (_, real) in zip(local_paths(facts), local_paths(plain), strict=False):
        place = containers.outside(facts.options, real) if facts.contained else real
        if place is not None:
            found[path] = Path(run.cwd or ".", whole_path(place))
    return found


def _above(place: Path) -> Path | None:
    return None if _is_there(place) else next(filter(_is_there, place.parents), None)


def _near(facts: Facts, places: Mapping[str, Path]) -> dict[str, str]:
    missing = [(flag, path) for flag, path in local_paths(facts) if path in places and not _is_there(places[path])]
    found = {path: nearby.near(places[path], model=flag in MODELS) for flag, path in missing}
    return {path: str(place) for path, place in found.items() if place is not None}


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _last(facts: Facts) -> LastStart | None:
    """By the record of the last good start, and what it lacks by the log: that of the runner venv, the others keep
    their own."""
    good = next(reversed(record.starts(facts.name)), None)
    known = _recorded(good, ranks(facts)) if good is not None and _is_same(good, facts) else None
    if facts.profile.runner == "venv" and (known is None or known.kv_cache_bytes is None or known.hybrid is None):
        given = facts.profile.log.file
        log = Path(whole_path(given)) if given else logs.default(facts.name)
        known = _filled(known, last.read(log, ranks(facts), facts.flags.model))
    asked = facts.flags.number("kv-cache-memory-bytes")
    if known is None or known.kv_cache_bytes is not None or asked is None or not 0 < asked < _MOST_BYTES:
        return known
    return replace(known, kv_cache_bytes=int(asked) * ranks(facts))  # then the log does not tell what is available


def _is_same(good: Start, facts: Facts) -> bool:
    """A start of the model that is asked for now, that came to be known."""
    return good.kv_cache_tokens is not None and good.model in ("", facts.flags.model or "")


def _recorded(good: Start, gpus: int) -> LastStart:
    size = good.kv_cache_rank_bytes
    return LastStart(good.kv_cache_tokens, good.block_tokens, None if size is None else size * gpus, good.hybrid)


def _filled(known: LastStart | None, log: LastStart | None) -> LastStart | None:
    """What the log of that same start tells beside it: another's bytes do not belong to its tokens."""
    if known is None or log is None or log.kv_cache_tokens != known.kv_cache_tokens:
        return known or log
    return LastStart(
        known.kv_cache_tokens,
        known.block_tokens or log.block_tokens,
        known.kv_cache_bytes or log.kv_cache_bytes,
        log.hybrid if known.hybrid is None else known.hybrid,
    )
