"""Which cards a vLLM takes. A container's counts those that it is given anew, CUDA_VISIBLE_DEVICES takes of them, and
--device-ids of what that left (vLLM 0.32)."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CARDS = re.compile(r"(?:\d{1,3}|(?:GPU|MIG)-[\w/-]+)(?:,(?:\d{1,3}|(?:GPU|MIG)-[\w/-]+))*")


def named(text: str) -> list[str]:
    """Cards as a list of indices or UUIDs names them; none for another text."""
    text = text.replace(" ", "")
    return text.split(",") if _CARDS.fullmatch(text) else []


def seen(given: Sequence[str], visible: str) -> list[str]:
    """The cards of this machine. `given`: to the container, all or none told; `visible`: CUDA_VISIBLE_DEVICES in it."""
    known = sorted(given, key=int) if all(map(str.isdecimal, given)) else given
    return _chosen(known, named(visible)) if named(visible) else list(given)


def taken(runner: str, gpus: Sequence[str], visible: str, ids: str) -> list[str]:
    """The cards of this machine that a profile names, all or none where it names none. `visible`:
    CUDA_VISIBLE_DEVICES of its vLLM; `ids`: its --device-ids."""
    if runner == "docker" and not named(visible):
        return seen(gpus, ids) or list(gpus)
    if runner == "docker":
        left = seen(gpus, visible)
    elif runner == "venv":  # where a profile sets both, its gpus set nothing
        left = named(visible) or list(gpus)
    else:
        left = list(gpus) or named(visible)
    return _chosen(left, named(ids)) or left


def _chosen(of: Sequence[str], cards: Sequence[str]) -> list[str]:
    """What names cards by their place in another list; what is beyond it is none."""
    if not of or list(of) == ["all"]:
        return list(cards)
    return [of[int(one)] if one.isdecimal() else one for one in cards if not one.isdecimal() or int(one) < len(of)]
