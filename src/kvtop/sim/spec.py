"""What the embedded box is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What the box is made of. Rates are those of one request alone."""

    model: str = "sim"
    max_model_len: int = 131_072
    block_tokens: int = 128
    blocks: int = 1_760
    match_unit_tokens: int | None = None
    """What hits are a multiple of, where that is more than a block."""
    bytes_per_token: int = 81_920
    """KV bytes of a token, on all cards together."""
    prefill_tokens_per_s: float = 1_240.0
    decode_step_s: float = 0.026
    decode_extra_s: float = 0.002
    """What each further decoding request adds to a step."""
    max_running: int = 16
    """--max-num-seqs."""
    max_batched_tokens: int = 4_096
    long_prefill_tokens: int = 1_024
    """--long-prefill-token-threshold: the longest chunk of one request."""
    tier_bytes: int | None = None
    """The CPU tier (`cpu_bytes_to_use`); None: no connector."""
    pcie_bytes_per_s: float = 11e9
    frontend_s: float = 0.02
    """Tokenising and the way to the engine and back: in the time to first token, in no phase."""
    weights_bytes: int = 26_300_000_000
    cards: int = 2

    @property
    def block_bytes(self) -> int:
        return self.block_tokens * self.bytes_per_token

    def cache_config(self) -> dict[str, str]:
        """The labels of `cache_config_info`, as 0.32.0 writes them."""
        tokens = self.blocks * self.block_tokens
        return {
            "_block_size_resolved": "True",
            "block_size": str(self.block_tokens),
            "cache_dtype": "fp8",
            "cache_hit_alignment_tokens": "None",
            "effective_attention_block_size": str(self.block_tokens),
            "enable_mamba_shared_prefix_checkpoint": "False",
            "enable_prefix_caching": "True",
            "gpu_memory_utilization": "0.92",
            "hash_block_size": "None",
            "is_attention_free": "False",
            "kv_cache_dtype_skip_layers": "[]",
            "kv_cache_layout": "None",
            "kv_cache_max_concurrency": repr(tokens / self.max_model_len),
            "kv_cache_memory_bytes": "None",
            "kv_cache_size_tokens": str(tokens),
            "kv_offloading_backend": "native",
            "kv_offloading_size": f"{self.tier_bytes / 2**30}" if self.tier_bytes else "None",
            "kv_sharing_fast_prefill": "False",
            "mamba_block_size": "None",
            "mamba_cache_dtype": "auto",
            "mamba_cache_mode": "none",
            "mamba_page_size_padded": "None",
            "mamba_ssm_cache_dtype": "auto",
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(self.blocks),
            "num_gpu_blocks_override": "None",
            "prefix_cache_retention_interval": "0",
            "prefix_caching_hash_algo": "sha256",
            "prefix_match_unit": str(self.match_unit_tokens) if self.match_unit_tokens else "None",
            "replayssm_buffer_len": "16",
            "skip_page_size_padded": "None",
            "sliding_window": "None",
            "swa_bounded_replay": "True",
            "use_kda_recoverssm": "False",
            "use_replayssm": "False",
            "user_specified_block_size": "True",
        }
