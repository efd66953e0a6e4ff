"""What stands behind a flag: a value that vLLM's argparse would refuse."""

from __future__ import annotations

import difflib
import re
from typing import Literal

from kvtop.errors import keyless
from kvtop.profiles.check.rules.command import REMOVED, which
from kvtop.profiles.check.seen import NO_HELP, Facts, Lacks, Saying, Says
from kvtop.profiles.flags import Given, number
from kvtop.sources.masking import MASK

_Number = Literal["whole", "any", "suffixed"]
_NUMBERS: dict[str, _Number] = {
    "api-server-count": "whole",
    "block-size": "whole",
    "cpu-offload-gb": "any",
    "data-parallel-size": "whole",
    "data-parallel-size-local": "whole",
    "gpu-memory-utilization": "any",
    "kv-cache-memory-bytes": "suffixed",
    "kv-offloading-size": "any",
    "long-prefill-token-threshold": "whole",
    "max-model-len": "suffixed",
    "max-num-batched-tokens": "suffixed",
    "max-num-seqs": "whole",
    "pipeline-parallel-size": "whole",
    "port": "whole",
    "seed": "whole",
    "tensor-parallel-size": "whole",
}
"""Flags that take numbers alone in every vLLM from 0.9 to 0.33, which its help does not tell."""
_NOTHING = ("", "None")
"""vLLM's words for no value, of flags that may have none."""
_MOST = 8
"""Choices that are named."""
_IN_GIB = ("cpu-offload-gb", "kv-offloading-size")
_SIZED = re.compile(r"(\d+)\s*([KMGT])(?:i?B|i)?", re.IGNORECASE)
"""As people write sizes: 8Gi, 8 GB."""


def value_refused(facts: Facts) -> Saying:
    """A value outside of the choices that `vllm serve --help=all` lists, or a word where a number is wanted: argparse
    ends with exit code 2 (vLLM 0.32)."""
    known = facts.installed.known if facts.installed is not None else None
    if facts.installed is None or known is None:
        yield Lacks(NO_HELP)
        return
    for one in facts.flags.given:
        if one.kind != "one" or one.problem or not one.values:
            continue
        value, spec = one.values[0], known.spec(f"--{one.name}")
        if value in _NOTHING or MASK in value or any(gone.value == value for gone in REMOVED.get(one.name, ())):
            continue
        if spec is not None and spec.choices and not _is_among(value, spec.choices):
            yield _not_among(one, spec.choices, which(facts.installed))
        elif (kind := _NUMBERS.get(one.name)) is not None and not is_number(value, kind):
            yield _no_number(one, kind)


def _is_among(value: str, choices: tuple[str, ...]) -> bool:
    """Some flags take their choices in any case, with - for _, or as numbers: then what looks otherwise may be one."""
    return _same(value) in {_same(choice) for choice in choices}


def _same(word: str) -> str:
    try:
        return str(int(word))
    except ValueError:
        return word.casefold().replace("-", "_")


def _not_among(one: Given, choices: tuple[str, ...], vllm: str) -> Says:
    flag = keyless(one.typed, 60)
    value = keyless(one.values[0], 40)
    near = difflib.get_close_matches(one.values[0], choices, n=1, cutoff=0.6)
    more = ", …" if len(choices) > _MOST else ""
    says = f"{flag} takes no '{value}' in {vllm}"
    named = ", ".join(choices[:_MOST])
    return Says("error", flag, says, f"{flag} {near[0]}" if near else f"one of {named}{more}")


def is_number(value: str, kind: _Number) -> bool:
    """Whether argparse takes it for one."""
    if kind == "suffixed" and (value.strip().casefold() == "auto" or isinstance(number(value), int)):
        return True
    try:
        float(value) if kind == "any" else int(value)
    except ValueError:
        return False
    return True


def _no_number(one: Given, kind: _Number) -> Says:
    flag, value = keyless(one.typed, 60), one.values[0]
    says = f"{flag} '{keyless(value, 40)}' is no {'' if kind == 'any' else 'whole '}number: vLLM refuses it"
    size = _SIZED.fullmatch(value.strip())
    if kind == "suffixed":
        shown = f"{size[1]}{size[2].upper()}" if size else "N"
        return Says("error", flag, says, f"{flag} {shown}; k, m, g are thousands, K, M, G 1024s")
    is_gib = size is not None and size[2] in "gG" and one.name in _IN_GIB
    return Says("error", flag, says, f"{flag} {size[1] if size is not None and is_gib else 'N'}")
