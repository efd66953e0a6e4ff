"""Modules of others that the command line names: a spec of the offload tier, a connector, a worker's extension."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvtop.errors import keyless
from kvtop.profiles.check.seen import Facts, Lacks, Saying, Says
from kvtop.profiles.flags import Flags

_CONFIGS = ("kv-transfer-config", "ec-transfer-config")
_CLASSES = ("worker-cls", "worker-extension-cls", "scheduler-cls", "middleware", "logits-processors")
"""Flags whose value is a class or function by its module: pkg.mod.Name, or pkg.mod:Name."""
_OWN: dict[str, tuple[str, frozenset[str | None]]] = {
    "spec_module_path": ("spec_name", frozenset((None, "CPUOffloadingSpec", "TieringOffloadingSpec"))),
    "cache_policy_module_path": ("eviction_policy", frozenset((None, "lru", "arc"))),
    "module_path": ("type", frozenset(("fs", "obj", "p2p", "kvcr", "example"))),
    "kv_connector_module_path": ("", frozenset()),
    "ec_connector_module_path": ("", frozenset()),
}
"""Key -> the key beside it, and the names with which vLLM (0.32) takes a part of its own and imports nothing."""


def plugin_missing(facts: Facts) -> Saying:
    """A module of others that the command line names (`spec_module_path`, `--worker-extension-cls`) is not where the
    Python that runs vLLM looks, with the environment that the server gets: it ends with ModuleNotFoundError."""
    for flag, module in dict.fromkeys(named(facts.flags)):
        shown = keyless(module, 80)
        if module not in facts.plugins:
            yield Lacks(f"whether its Python finds the module {shown}")
        elif not facts.plugins[module]:
            package = keyless(module.partition(".")[0], 80)
            fix = f'PYTHONPATH = "…" in [env.set]: the folder that holds {package}, or install it'
            yield Says("error", flag, f"vLLM's Python finds no module {shown}", fix)


def named(flags: Flags) -> Iterator[tuple[str, str]]:
    """(flag, module) of each module that is not vLLM's own."""
    for flag in _CONFIGS:
        for module in _of_json(flags.json(flag)):
            yield f"--{flag}", module
    for flag in _CLASSES:
        for value in flags.values(flag):
            module, colon, _ = value.partition(":")
            module = module if colon else value.rpartition(".")[0]
            if module:
                yield f"--{flag}", module


def _of_json(value: object) -> Iterator[str]:
    ways: list[object] = [value]
    while ways:
        here = ways.pop()
        if isinstance(here, list):
            ways += reversed(here)
        elif isinstance(here, dict):
            ways += reversed(list(here.values()))
            yield from _of_table(here)


def _of_table(table: Mapping[Any, Any]) -> Iterator[str]:
    for key, (beside, own) in _OWN.items():
        module, name = table.get(key), table.get(beside)
        if isinstance(module, str) and module and not (isinstance(name, str | None) and name in own):
            yield module
