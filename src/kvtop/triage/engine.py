"""How an engine keeps prefixes: what the law of `kvtop.triage.reuse` needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from kvtop.model.box import Config

DROPS = frozenset({"eagle", "eagle3", "mtp"})
"""Methods of a speculator that costs the last matched block, up to vLLM 0.32."""
KEEPS = frozenset({"ngram", "ngram_gpu", "draft_model", "medusa", "mlp_speculator", "suffix"})
"""Those that cost nothing. Of others (dflash, dspark) it depends on the version."""


class Layers(StrEnum):
    """What keeps the past of a prompt."""

    FULL = "full"
    """Attention to all of it: each block can be gone on from."""
    HYBRID = "hybrid"
    """Recurrent states beside attention (align mode): only where a state was saved."""
    SLIDING = "sliding"
    """A window beside attention: only where the whole window before it is still there."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One server's settings, as far as they are known."""

    block: int | None = None
    """Tokens of a block: the label block_size. None: nothing can be expected."""
    layers: Layers | None = Layers.FULL
    """None: the server does not tell full attention from a sliding window."""
    unit: int | None = None
    """--prefix-match-unit (0.26), which divides the block; None: it is the block."""
    window: int | None = None
    """Tokens of a sliding window; None: not known."""
    retention: int | None = 0
    """--prefix-cache-retention-interval (0.29): 0 keeps the ends of prompts and the places where two parted, N also
    every N tokens, None every block boundary."""
    before_0_29: bool = False
    """It keeps every boundary, and of a prompt that ends on one that one, not the one before."""
    drop: int | None = 0
    """Matched blocks that the speculator costs; None: there is one, and which is not known."""
    lookahead: int = 0
    """Tokens after a block that its hash covers too (0.33, EAGLE without a KV connector)."""
    caching: bool = True
    ends_lower: bool = True
    """With a drop on a model that is not full attention: states are kept a block below a prompt's end, where such a hit
    lands (0.32), not at it (some before: the first repeat then gets nothing)."""

    def variants(self) -> tuple[Engine, ...]:
        """Every engine that this one may be, each with its kind of layers and its drop known."""
        found = [self]
        if self.layers is None and (self.retention is None or self.before_0_29):
            found = [replace(self, layers=Layers.FULL)]  # a window of which every block is kept reuses no less
        elif self.layers is None:
            found = [replace(self, layers=layers) for layers in (Layers.FULL, Layers.SLIDING)]
        if self.drop is None:
            found = [replace(engine, drop=drop) for engine in found for drop in (0, 1)]
        if self.before_0_29 and self.unit:  # below 0.26 it is the size of a hash, and hits land on blocks
            found = [replace(engine, unit=unit) for engine in found for unit in (None, self.unit)]
        return tuple(
            replace(engine, ends_lower=lower)
            for engine in found
            for lower in ((True, False) if engine.drop and engine.layers is not Layers.FULL else (True,))
        )


def engine_of(
    config: Config, *, method: str | None = None, version: str | None = None, connector: bool | None = None
) -> Engine:
    """From what a server's info series tell.

    `method`: of the speculator, from its configuration or log; the metrics only tell that there is one. `version` of
    vLLM and `connector` (a KV connector is configured) tell what EAGLE costs on 0.33.
    """
    retention = config.retention
    drop, lookahead = _speculation(config.speculator, method, version, connector)
    interval = int(retention) if retention is not None and retention.isascii() and retention.isdigit() else None
    block, unit = config.block_tokens, config.prefix_match_unit_tokens
    return Engine(
        block=block,
        layers=_layers(config),
        unit=unit if block and unit and unit < block and block % unit == 0 else None,
        window=config.sliding_window_tokens,
        retention=interval,
        before_0_29=retention is None,
        drop=drop,
        lookahead=lookahead,
        caching=config.prefix_caching is not False,
    )


def _layers(config: Config) -> Layers | None:
    if config.mamba_mode == "align":
        return Layers.HYBRID
    if config.mamba_mode == "all":  # until 0.31: a state at every block
        return Layers.FULL
    if config.sliding_window_tokens is not None:
        return Layers.SLIDING
    return Layers.FULL if config.one_kv_group else None


def _speculation(
    speculator: bool | None, method: str | None, version: str | None, connector: bool | None
) -> tuple[int | None, int]:
    """(drop, lookahead)."""
    known = (method or "").lower()
    if not known:
        return (0 if speculator is False else None), 0
    if known in KEEPS:
        return 0, 0
    if known not in DROPS:
        return None, 0
    if not _from_0_33(version):
        return (None if version is None else 1), 0
    if connector is None:
        return None, 1
    return (1, 0) if connector else (0, 1)


def _from_0_33(version: str | None) -> bool:
    """Whether it is 0.33 or newer; False also where it is not known."""
    major, _, rest = (version or "").partition(".")
    minor = rest.partition(".")[0]
    if not (major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()):
        return False
    return (int(major[:9]), int(minor[:9])) >= (0, 33)
