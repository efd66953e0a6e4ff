"""How large a CPU tier a server's command line asks for: vLLM itself tells it only from 0.33 on, or with one flag."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

GIB = 1 << 30
_DEPTH = 4
_MOST = 1 << 50


def tier_bytes(size_gib: str | None, transfer_config: str | None) -> int | None:
    """Bytes for the whole instance; None where neither value asks for a size, or none that can be read.

    `size_gib`: the value of --kv-offloading-size. `transfer_config`: the JSON of --kv-transfer-config, whose
    `cpu_bytes_to_use` is bytes (0.14.1 or later); of a MultiConnector the sum over its connectors.
    """
    if size_gib is not None:
        try:
            asked = float(size_gib)
        except ValueError:
            return None
        return _sane(asked * GIB) if math.isfinite(asked) else None
    if transfer_config is None:
        return None
    try:
        config = msgspec.json.decode(transfer_config)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return _sane(sum(_sizes(config, _DEPTH)))


def _sizes(config: object, depth: int) -> Sequence[float]:
    if not isinstance(config, dict) or depth == 0:
        return ()
    extra = config.get("kv_connector_extra_config")
    if not isinstance(extra, dict):
        return ()
    own = extra.get("cpu_bytes_to_use")
    connectors = extra.get("connectors")
    inner = [size for one in connectors for size in _sizes(one, depth - 1)] if isinstance(connectors, list) else []
    return [own, *inner] if isinstance(own, int | float) and not isinstance(own, bool) else inner


def _sane(size: float) -> int | None:
    return round(size) if 0 < size < _MOST else None
