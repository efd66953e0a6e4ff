"""Where kvtop's own files are. Folders are made 0700 on first write, never on reading."""

from __future__ import annotations

import os
from pathlib import Path

from kvtop.errors import UsageError, printable

_WHOLE = "set it to a whole path: KVTOP_HOME=/a/folder"


def _base(kind: str, variable: str, default: str) -> Path:
    """Raises UsageError where the environment names no folder that could be meant."""
    home = os.environ.get("KVTOP_HOME")
    if home:
        try:
            folder = Path(home).expanduser()
        except RuntimeError:
            raise UsageError(f"KVTOP_HOME: there is no home folder for '{printable(home, 40)}'", _WHOLE) from None
        if not folder.is_absolute():
            raise UsageError(f"KVTOP_HOME is '{printable(home, 80)}': a relative path", _WHOLE)
        return folder / kind
    root = os.environ.get(variable)
    if root and Path(root).is_absolute():  # the XDG specification: a relative one counts as unset
        return Path(root) / "kvtop"
    try:
        folder = Path.home()
    except RuntimeError:
        folder = Path()
    if not folder.is_absolute():
        raise UsageError("no home folder: HOME is not set to one", "set HOME, or KVTOP_HOME=/a/folder")
    return folder / default / "kvtop"


def config_dir() -> Path:
    """config.toml, profiles/, themes/."""
    return _base("config", "XDG_CONFIG_HOME", ".config")


def data_dir() -> Path:
    """turns.db, replays.jsonl."""
    return _base("data", "XDG_DATA_HOME", ".local/share")


def turns_file() -> Path:
    """The store of captured turns, unless a tap is told another."""
    return data_dir() / "turns.db"


def replays_file() -> Path:
    """What replays asked of servers."""
    return data_dir() / "replays.jsonl"


def state_dir() -> Path:
    """Logs and run-time state."""
    return _base("state", "XDG_STATE_HOME", ".local/state")


def builtin_themes() -> Path:
    """The shipped theme files: inside an installed package, or at the root of a checkout."""
    package = Path(__file__).parent
    installed = package / "themes"
    return installed if installed.is_dir() else package.parents[1] / "themes"


def from_home(text: str) -> Path:
    """A path as it was typed, one from ~ as a whole one; where there is no such home as it stands."""
    return Path(os.path.expanduser(text))  # noqa: PTH111  Path's own raises RuntimeError there


def child_environment() -> dict[str, str]:
    """Of a process of kvtop's own, `python -P -m kvtop…`: one that is run from a checkout is found from its folder."""
    env = dict(os.environ)
    root = Path(__file__).parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), env.get("PYTHONPATH"))))
    return env


def with_tilde(path: Path | str) -> str:
    """With ~ for the home folder, for a person to read."""
    home = os.path.expanduser("~").rstrip(os.sep)  # noqa: PTH111  Path.home raises where there is none
    text = str(path)
    return f"~{text.removeprefix(home)}" if text == home or text.startswith(home + os.sep) else text


def make_private(folder: Path) -> Path:
    """The folder, and those above it: made with mode 0700 where they did not exist. Raises OSError."""
    if not folder.exists():
        make_private(folder.parent)  # mkdir itself would give the folders above the usual mode
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
