"""Which form a file has, and the way to read it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kvtop.files import read_start
from kvtop.profiles.importers import compose, docker, script, unit
from kvtop.profiles.importers.draft import BY_HAND, Draft, Imported, Refused, command_text, read_yaml

FORMATS = ("script", "compose", "systemd", "inspect", "config")
_MAX_BYTES = 256_000
"""As much as a profile may have; what starts a server has some kB."""
_HEAD = 2000
"""Characters in which a NixOS module says that it is one."""
_UNIT = re.compile(r"^\[(Unit|Service|Install)\][ \t\r]*$", re.MULTILINE)
_FOREIGN = re.compile(r"^[ \t]*(apiVersion|kind)[ \t]*:", re.MULTILINE)
_SERVICES = re.compile(r"""^(?:\{\s*)?["']?services["']?[ \t]*:""", re.MULTILINE)
_NIX = re.compile(r"^\s*(?:#.*\n\s*)*\{[^{}]*\b(?:config|pkgs|lib)\b[^{}]*\}\s*:")


def import_file(file: Path, form: str | None = None, service: str = "") -> tuple[Imported, str]:
    """(the profile, its form). Raises Refused; OSError for a file that cannot be read."""
    data, _ = read_start(file, _MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise Refused(f"larger than {_MAX_BYTES // 1000} kB", "name a file that starts vLLM")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("not UTF-8", "name a file that starts vLLM") from None
    file = file.absolute()
    form = form or guessed(text, file.name)
    draft = Draft()
    with draft.telling():
        _read(draft, form, text, file, service)
        return draft.made(), form


def _read(draft: Draft, form: str, text: str, file: Path, service: str) -> None:
    if form == "script":
        script.read(draft, text, file)
    elif form == "compose":
        compose.read(draft, text, file, service)
    elif form == "systemd":
        unit.read(draft, text, file)
    elif form == "inspect":
        docker.inspect(draft, text)
    else:
        _config(draft, text, file)


def guessed(text: str, name: str) -> str:
    """The form of a file, by what stands in it. Raises Refused for one that is written by hand."""
    start = text.lstrip()[:1]
    if name.endswith(".nix") or _NIX.match(text[:_HEAD]):
        raise Refused("a NixOS module: logic decides what it becomes", BY_HAND)
    if start in ("[", "{") and _is_inspect(text):
        return "inspect"
    if _UNIT.search(text):
        return "systemd"
    if text.startswith("#!") or name.endswith((".sh", ".bash")):
        return "script"
    if name.endswith((".yaml", ".yml")):
        if _FOREIGN.search(text) and "containers" in text:
            raise Refused("a Kubernetes manifest", BY_HAND)
        return "compose" if _SERVICES.search(text) else "config"
    return "script"


def _is_inspect(text: str) -> bool:
    import json

    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return False
    row = found[0] if isinstance(found, list) and found else found
    return isinstance(row, dict) and "Config" in row


def _config(draft: Draft, text: str, file: Path) -> None:
    """A YAML file of --config stays where it is: the profile names it."""
    found = read_yaml(text)
    if not isinstance(found, dict) or not found:
        raise Refused("no table of flags: `flag: value`, one a line", "name a file for vllm serve --config")
    if file.suffix not in (".yaml", ".yml"):
        raise Refused("vLLM takes only a file .yaml or .yml for --config", "rename it")
    draft.put("serve", "config", str(file))
    draft.note("the flags stay in that file: vLLM reads it at each start; flags of the profile win over it")
    for key, value in found.items():
        if value is False:
            name = command_text(str(key), 60)
            draft.note(f"{name}: false is dropped by vLLM; write no-{name}: true")
