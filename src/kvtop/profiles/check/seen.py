"""What the rules are told: frozen values. None is 'not known here', never 'none'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvtop.profiles.flags import Flags
from kvtop.profiles.launch import Launch, has_own_network, in_container, own_port
from kvtop.profiles.profile import Profile
from kvtop.profiles.vocabulary import Vocabulary
from kvtop.readings import OffloadFile

NO_LINE = "the command line: [serve] of this profile is empty"
"""What `Lacks` says where the runner's own file holds it."""
NO_HELP = "the help of the vLLM that is to run"
NO_ENV = "the environment: it stands in a file of its own, and not in [env]"
Level = Literal["error", "warning", "note"]
Version = tuple[int, int]
"""Of vLLM: (0, 32)."""


@dataclass(frozen=True, slots=True)
class Says:
    """What a rule found. One line each; no secret, no value of a user at length."""

    level: Level
    """error: it cannot start, or surely breaks. warning: likely not what is wanted. note: good to know."""
    flag: str
    """Flag, variable or file that it is about; empty: about none."""
    says: str
    fix: str
    """What to paste or do; empty where nothing is to be done."""


@dataclass(frozen=True, slots=True)
class Lacks:
    """The rule cannot tell, for want of this: 'the last start of this profile'."""

    what: str


Saying = Iterator[Says | Lacks]
"""What a rule answers: findings, nothing, or what it lacks."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The vLLM that the profile's command runs."""

    program: str
    version: str | None
    known: Vocabulary | None
    """Its own flags; None: its help could not be read."""


@dataclass(frozen=True, slots=True)
class LastStart:
    """What the last good start of this profile told: its record, else its log."""

    kv_cache_tokens: int | None = None
    """`GPU KV cache size: N tokens` of the log."""
    block_tokens: int | None = None
    """Of one KV block, after hybrid models are unified."""
    kv_cache_bytes: int | None = None
    """Of all ranks: `Available KV cache memory: G GiB`, times their number."""
    hybrid: bool | None = None
    """Mamba and attention: `Setting attention block size to N tokens`, or `Padding mamba page size`."""

    @property
    def bytes_per_token(self) -> float | None:
        """Over all ranks, on average."""
        if not self.kv_cache_bytes or not self.kv_cache_tokens:
            return None
        return self.kv_cache_bytes / self.kv_cache_tokens


@dataclass(frozen=True, slots=True)
class Holder:
    """A process with memory on a card."""

    pid: int
    name: str | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Card:
    index: int
    uuid: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """A vLLM server that runs on this machine."""

    pid: int
    pids: frozenset[int]
    """It, its engine cores and workers."""
    profile: str = ""
    """Whose it is; empty: of none that is known."""
    port: int | None = None
    """Where it listens, or will, on this machine; None: it is not known (a container)."""

    @property
    def name(self) -> str:
        return self.profile or f"process {self.pid}"


@dataclass(frozen=True, slots=True)
class Listener:
    """Who listens on a port."""

    pid: int | None = None
    words: str = "a process of another user"
    """process 123 (python3), a kvtop tap (process 5)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Who answers at the health URL now."""

    url: str
    model: str | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """What a container is given."""

    shm_bytes: int | None = None
    """Its own /dev/shm; None with `host_ipc`, and where it is not told, or cannot be read."""
    host_ipc: bool = False
    """It uses the host's /dev/shm."""
    memory_bytes: int | None = None
    """Its limit; None: none, or it cannot be read."""
    readable: bool = True
    """False: its compose file cannot be read, so all of this is unknown."""


@dataclass(frozen=True, slots=True)
class OwnFile:
    """What the runner's own file says now, a compose file or a unit: that is run, whatever the profile expects."""

    text: str | None = None
    """All of it that decides what runs; None: it cannot be read, or the command line stands elsewhere."""
    command: str = ""
    """The part of it in which the command line stands."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables whose value it tells."""
    env_whole: bool = False
    """Whether a variable that `text` does not mention is not set."""
    options: tuple[str, ...] | None = None
    """Of the container, as words of `docker run`; None: not told."""
    gpus: tuple[str, ...] = ()
    """The cards that it names; empty: not told."""


@dataclass(frozen=True, slots=True)
class Absent:
    """Something that a start needs, and that is not there."""

    key: str
    """Of the profile: venv.command."""
    what: str
    """As it stands there, ~ written out: /nowhere/vllm."""
    kind: Literal["program", "folder", "file", "unit", "tool", "daemon"]
    """tool: it is there and does not work; daemon: what it asks does not answer; `what` says so."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a rule may ask."""

    name: str
    profile: Profile
    flags: Flags
    launch: Launch | None = None
    idle: tuple[str, ...] = ()
    """What serve.drop names and no base has."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The environment that vLLM will have, as far as it is known; values of secrets are ***."""
    installed: Installed | None = None
    version: Version | None = None
    """Of the installed vLLM, or of the image's tag."""
    last: LastStart | None = None
    container: Container | None = None
    """Where it runs in one."""
    told_gpus: tuple[str, ...] = ()
    """[gpus] as the profile has them: `profile` has those of its own file, where that names some."""
    own: OwnFile | None = None
    """Of compose and systemd; None: nobody looked."""
    paths: Mapping[str, bool] = field(default_factory=dict)
    """Files and folders that the command line names -> whether they are there. What vLLM sees on another file system is
    left out."""
    above: Mapping[str, str] = field(default_factory=dict)
    """Of those that are not there: the deepest folder above them that is."""
    near: Mapping[str, str] = field(default_factory=dict)
    """Of those that are not there: what is, under nearly the same name."""
    other_ports: frozenset[int] = frozenset()
    """Of the other profiles of the folder: one that is started later would find it taken."""
    absent: tuple[Absent, ...] = ()
    """What the start needs and this machine lacks."""
    plugins: Mapping[str, bool] = field(default_factory=dict)
    """Modules of others that the command line names -> whether vLLM's Python finds them; less those of which that is
    not known."""
    secrets_missing: Mapping[str, str] = field(default_factory=dict)
    """Variable -> why its value cannot be read."""
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    offload_files: tuple[OffloadFile, ...] | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    memory_limit_bytes: int | None = None
    """Of the control group that kvtop is in, and that what it starts is in."""
    cards: tuple[Card, ...] | None = None
    listeners: Mapping[int, Listener] | None = None
    health_asked: bool = False
    health: Answer | None = None
    servers: tuple[Server, ...] | None = None
    replacing: frozenset[int] | None = None
    """Processes of the server that a switch stops first: what they hold is no obstacle."""

    @property
    def line_known(self) -> bool:
        """Whether the command line is known: compose and systemd keep it in their own file."""
        return bool(self.flags.words) or self.profile.runner in ("venv", "docker")

    @property
    def env_known(self) -> bool:
        """Whether a variable that is not in `env` is not set: a file of variables may set it, or that of compose or
        systemd, where not all of it can be read here."""
        if self.profile.runner in ("compose", "systemd"):
            return self.own is not None and self.own.env_whole
        return not self.profile.docker.env_files

    @property
    def contained(self) -> bool:
        """Whether vLLM runs in a container: by docker, compose, or a unit that runs docker."""
        return in_container(self.profile)

    @property
    def options(self) -> Sequence[str]:
        """What its container is run with, as words of `docker run`."""
        return self.profile.docker.options if self.own is None or self.own.options is None else self.own.options

    @property
    def networked(self) -> bool:
        """Whether it runs in a container with a network of its own: what it does not publish nobody reaches."""
        return has_own_network(self.profile, self.options)

    @property
    def port(self) -> int | None:
        """Where the server itself will listen on this machine; None: a file that cannot be read here tells it, or
        nothing publishes it."""
        return own_port(self.profile, self.flags, self.options)

    def goes(self, pid: int | None) -> bool:
        """Whether that process is stopped before this profile starts."""
        return pid is not None and self.replacing is not None and pid in self.replacing
