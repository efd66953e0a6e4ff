"""config.toml: every setting, its meaning and its default.

A broken file never stops kvtop: `load` returns the defaults and one line that says file, key and what was expected.
"""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kvtop import paths

_MAX_KEY_BYTES = 64_000
"""Of an api_key_file; what follows is not read."""


class _Part(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A table of the file; an unknown key is an error that names it."""


class Server(_Part, frozen=True):
    """One `[[server]]`: an endpoint to watch when no URL is given."""

    url: str
    name: str = ""
    """Shown instead of host:port."""
    api_key_env: str = ""
    """Name of the environment variable that holds the API key."""
    api_key_file: str = ""
    """File whose first line is the API key."""

    def api_key(self) -> str | None:
        """The key, read anew at each call and never kept in the configuration."""
        if self.api_key_env:
            return os.environ.get(self.api_key_env) or None
        if self.api_key_file:
            # a pipe or a device is not opened for good: it could hold up the screen, or never end
            try:
                name = Path(self.api_key_file).expanduser()
                with open(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
                    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                        return None
                    return file.read(_MAX_KEY_BYTES).decode("utf-8").strip().splitlines()[0]
            except (OSError, RuntimeError, ValueError, IndexError):  # RuntimeError: ~ without a home
                return None
        return None


class Poll(_Part, frozen=True):
    """Seconds between two reads of each source, and how long one may take."""

    metrics_s: float = 1.0
    metrics_busy_s: float = 0.2
    """While a request is in flight: fast enough to tell single requests apart."""
    metrics_idle_s: float = 2.0
    """When nothing has run for a while."""
    metrics_timeout_s: float = 2.0
    metrics_max_bytes: int = 16_000_000
    """A larger answer is refused: no vLLM writes one."""
    facts_s: float = 30.0
    """/version, /v1/models and /health."""
    gpu_s: float = 1.0
    pcie_s: float = 5.0
    """NVML's PCIe counters block for about 20 ms a card: sampled seldom."""
    host_s: float = 2.0
    discovery_s: float = 2.0


class Thresholds(_Part, frozen=True):
    """When a number is worth a look."""

    share_good: float = 0.85
    share_poor: float = 0.60
    slow_ttft_s: float = 10.0
    """A turn with no known prefill rate is slow from here on."""
    slow_factor: float = 3.0
    slow_extra_s: float = 3.0
    kv_pool_full: float = 0.95


class Settings(_Part, frozen=True):
    """The whole file."""

    theme: str = "kvtop-dark"
    window: str = "5m"
    """One of 10s, 1m, 5m, 1h, start."""
    hide: list[str] = msgspec.field(default_factory=list)
    """Panels hidden at start: cache, offload, queue, ttft, gpu, turns."""
    export_dir: str = ""
    """Where `e` writes; the current folder when empty."""
    server: list[Server] = msgspec.field(default_factory=list)
    poll: Poll = Poll()
    thresholds: Thresholds = Thresholds()
    keys: dict[str, str] = msgspec.field(default_factory=dict)
    """Action name to key, for instance `window = "ctrl+w"`."""


@dataclass(frozen=True)
class Loaded:
    """Settings and what was wrong with the file they came from."""

    settings: Settings
    path: Path
    problems: tuple[str, ...] = field(default=())


def load(path: Path | None = None) -> Loaded:
    """Read config.toml, or the defaults where there is none or it is broken."""
    file = path or paths.config_dir() / "config.toml"
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Loaded(Settings(), file)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return Loaded(Settings(), file, (f"{file}: {error}; the defaults are used",))
    try:
        return Loaded(msgspec.convert(raw, Settings), file)
    except msgspec.ValidationError as error:
        return Loaded(Settings(), file, (f"{file}: {error}; the defaults are used",))
