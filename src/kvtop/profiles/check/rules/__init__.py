"""The rules of `kvtop profile check`: each is a function whose name is its id. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Callable

from kvtop.profiles.check.rules import command, memory, modules, needed, occupied, offload, scheduling, service, values
from kvtop.profiles.check.seen import Facts, Saying

Rule = Callable[[Facts], Saying]

RULES: tuple[Rule, ...] = (
    needed.program_missing,
    needed.secret_missing,
    needed.relative_path,
    needed.not_in_its_file,
    modules.plugin_missing,
    command.unknown_flag,
    values.value_refused,
    command.removed_flag,
    command.json_flag_invalid,
    command.config_equals_form,
    command.yaml_false_dropped,
    command.drop_without_effect,
    offload.two_offload_interfaces,
    offload.units_suspicious,
    memory.shm_too_small,
    memory.shm_stale_files,
    memory.memory_too_small,
    memory.container_memory_limit,
    offload.tier_smaller_than_gpu_cache,
    offload.block_size_not_multiple,
    offload.both_block_size_and_chunks,
    offload.connector_unknown,
    offload.kv_role_missing,
    offload.expandable_segments,
    offload.prefix_caching_off,
    scheduling.hybrid_batch_budget,
    scheduling.long_prefill_threshold_misaligned,
    occupied.vram_held,
    occupied.gpu_overlap,
    occupied.port_taken,
    occupied.port_not_published,
    occupied.health_answered_by_other,
    service.exposed_without_key,
    service.no_prompt_tokens_details,
    service.no_include_usage,
    service.no_kv_cache_metrics,
    service.polls_fill_log,
    service.dev_mode_on,
    offload.hash_seed_unset,
    service.model_path_missing,
    scheduling.speculator_costs_one_unit,
)
"""In the order of docs/profiles-checks.md."""
