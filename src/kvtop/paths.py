"""Where kvtop's own files are. Folders are made 0700 on first write, never on reading."""

from __future__ import annotations

import os
from pathlib import Path


def _base(kind: str, variable: str, default: str) -> Path:
    home = os.environ.get("KVTOP_HOME")
    if home:
        return Path(home).expanduser() / kind
    root = os.environ.get(variable)
    return (Path(root) if root else Path.home() / default) / "kvtop"


def config_dir() -> Path:
    """config.toml, profiles/, themes/."""
    return _base("config", "XDG_CONFIG_HOME", ".config")


def data_dir() -> Path:
    """Captured turns and exports."""
    return _base("data", "XDG_DATA_HOME", ".local/share")


def state_dir() -> Path:
    """Logs and run-time state."""
    return _base("state", "XDG_STATE_HOME", ".local/state")


def builtin_themes() -> Path:
    """The shipped theme files: inside an installed package, or at the root of a checkout."""
    package = Path(__file__).parent
    installed = package / "themes"
    return installed if installed.is_dir() else package.parents[1] / "themes"


def make_private(folder: Path) -> Path:
    """The folder, made with mode 0700 where it did not exist."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read (0600), in a folder that only its owner can enter."""
    make_private(path.parent)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as out:
        out.write(text)
