"""Which cards a vLLM takes. A container's counts those that it is given anew, CUDA_VISIBLE_DEVICES takes of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CARDS = re.compile(r"(?:\d{1,3}|(?:GPU|MIG)-[\w/-]+)(?:,(?:\d{1,3}|(?:GPU|MIG)-[\w/-]+))*")


def named(text: str) -> list[str]:
    """Cards as a list of indices or UUIDs names them; none for another text."""
    return text.split(",") if _CARDS.fullmatch(text) else []


def seen(given: Sequence[str], visible: str) -> list[str]:
    """The cards of this machine. `given`: to the container, all or none told; `visible`: CUDA_VISIBLE_DEVICES in it."""
    chosen = named(visible)
    if not chosen or not given or list(given) == ["all"]:
        return chosen or list(given)
    known = sorted(given, key=int) if all(map(str.isdecimal, given)) else given
    inner = dict(enumerate(known))
    return [inner[int(one)] if one.isdecimal() else one for one in chosen if not one.isdecimal() or int(one) in inner]
