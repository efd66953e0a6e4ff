"""Rules of hybrid models, whose prompts go on by whole blocks, and of speculators."""

from __future__ import annotations

from kvtop.profiles.check import sizes
from kvtop.profiles.check.seen import Facts, Lacks, Saying, Says

_NO_START = "whether the model is hybrid: no last start of this profile, no --mamba-cache-mode"
_NO_BLOCK = "the block size: no --block-size, and no last start of this profile"
_BUDGETS = ((160, 16384), (70, 8192))
"""GiB of the card -> default of --max-num-batched-tokens (vLLM 0.32; not for A100 and GB10); below: 2048."""
_DROPS = ("eagle", "eagle3", "mtp")


def hybrid_batch_budget(facts: Facts) -> Saying:
    """In align mode a chunk ends on a block: with less than a block left in a step a long prefill gets nothing while
    anything decodes (vLLM 0.32)."""
    hybrid, block, budget = _hybrid(facts), sizes.block_tokens(facts), _budget(facts)
    if not hybrid or block is None:
        if facts.line_known and hybrid is not False:
            yield Lacks(_NO_START if hybrid is None else _NO_BLOCK)
    elif budget is None:
        yield Lacks("the cards, which decide the default of --max-num-batched-tokens")
    elif budget < 2 * block:
        says = f"{budget:,} tokens a step, a block has {block:,}: a long prefill starves beside any decode"
        yield Says("warning", "--max-num-batched-tokens", says, f"--max-num-batched-tokens {2 * block}, or more")


def long_prefill_threshold_misaligned(facts: Facts) -> Saying:
    """The threshold caps a chunk, and in align mode the chunk is then cut down to whole blocks (vLLM 0.32)."""
    given = facts.flags.number("long-prefill-token-threshold")
    if given is None or not 0 < given < 1e9:
        return
    hybrid, block = _hybrid(facts), sizes.block_tokens(facts)
    if not hybrid or block is None:
        if hybrid is not False:
            yield Lacks(_NO_START if hybrid is None else _NO_BLOCK)
    elif given % block:
        says = f"{given:g} tokens are no multiple of the block of {block:,}: each chunk is cut down to whole blocks"
        fix = f"--long-prefill-token-threshold {max(1, round(given / block)) * block}"
        yield Says("warning", "--long-prefill-token-threshold", says, fix)


def speculator_costs_one_unit(facts: Facts) -> Saying:
    """EAGLE and MTP drop the last matched block of every hit (vLLM to 0.32); 0.33 only beside a connector."""
    config = facts.flags.json("speculative-config") or {}
    method = config.get("method") if config else facts.flags.value("spec-method")
    if not isinstance(method, str) or not (method in _DROPS or method.endswith("_mtp")):
        return
    if config.get("disable_eagle_block_drop") is True:
        return
    connector = any(sizes.connectors(facts))
    if facts.version is not None and facts.version >= (0, 33) and not connector:
        return
    block = sizes.block_tokens(facts)
    unit = f"one block ({block:,} tokens)" if block else "one block"
    late = " because of the connector" if facts.version is not None and facts.version >= (0, 33) else ""
    yield Says("note", "--speculative-config", f"each hit is {unit} shorter with {method}{late}", _kept(facts))


def _kept(facts: Facts) -> str:
    if facts.version is not None and facts.version < (0, 30):
        return ""
    return '"disable_eagle_block_drop": true in it keeps the block'


def _hybrid(facts: Facts) -> bool | None:
    """Whether chunks end on whole blocks; None: it is not known."""
    if facts.flags.on("enable-prefix-caching") is False:
        return False  # then nothing is saved that a chunk would have to end for
    mode = facts.flags.value("mamba-cache-mode")
    if mode is not None:
        return mode == "align"
    return facts.last.hybrid if facts.last is not None else None


def _budget(facts: Facts) -> int | None:
    """Tokens a step: as given, else vLLM's default for these cards."""
    given = facts.flags.number("max-num-batched-tokens")
    if given is not None and 0 < given < 1e9:
        return int(given)
    totals = [card.total_bytes for card in sizes.cards(facts) or () if card.total_bytes is not None]
    if not totals:
        return None
    budget = next((budget for least, budget in _BUDGETS if min(totals) >= least * sizes.GIB), 2048)
    return 2 * budget if facts.flags.value("performance-mode") == "throughput" else budget
