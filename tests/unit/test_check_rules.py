"""Every rule of `kvtop profile check`, where it fires and where it does not."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import pytest
from check_box import GIB, card, facts, listener, offloading, profile, server, tier_file, transfer

from kvtop.profiles.check.report import name_of
from kvtop.profiles.check.rules import RULES, command, memory, occupied, offload, scheduling, service
from kvtop.profiles.check.seen import Answer, Container, Facts, LastStart, Says

DOCKER = profile(runner="docker", docker={"image": "vllm/vllm-openai:v0.32.0"})
COMPOSE = profile(runner="compose")
GONE = frozenset({500, 501})
HYBRID = LastStart(400_000, 528, 40 * GIB, hybrid=True)


class Case(NamedTuple):
    rule: str
    facts: Facts
    found: list[tuple[str, str, str, str]]
    """(level, flag, says, fix)"""


def fires(rule: str, box: Facts, *said: str) -> Case:
    level, flag, says, fix = said
    return Case(rule, box, [(level, flag, says, fix)])


def silent(rule: str, box: Facts) -> Case:
    return Case(rule, box, [])


T, S, U = "--kv-transfer-config", "--kv-offloading-size", "--gpu-memory-utilization"
STOPS = "nothing: the switch stops it first"
BACK = "nothing: the server that is stopped gives it back"
NO_TABLE = "as a table [serve.json.…] nothing needs quotes"

CASES = [
    # command line
    fires("unknown_flag", facts("m --kv-offload-size 4"), "error", "--kv-offload-size",
          "vLLM 0.32.0 has no flag --kv-offload-size", "--kv-offloading-size"),
    fires("unknown_flag", facts("m --quux-quux-quux 4"), "error", "--quux-quux-quux",
          "vLLM 0.32.0 has no flag --quux-quux-quux", "take it out"),
    fires("unknown_flag", facts("m --kv-offloading 4"), "error", "--kv-offloading",
          "--kv-offloading may mean --kv-offloading-backend, --kv-offloading-size: vLLM refuses it",
          "write --kv-offloading-backend out"),
    fires("unknown_flag", facts("m --enable-prefix-caching=true"), "error", "--enable-prefix-caching",
          "--enable-prefix-caching is a switch and takes no value",
          "--enable-prefix-caching alone, or --no-enable-prefix-caching"),
    fires("unknown_flag", facts("m --port"), "error", "--port", "nothing stands behind --port", "--port VALUE"),
    fires("unknown_flag", facts("m --port 1 x"), "error", "", "'x' belongs to no flag: vLLM refuses it",
          "take it out, or quote what it is part of"),
    silent("unknown_flag", facts("m --max_model_len 4 --max-model-l 4 -tp 2 --kv-transfer-config.kv_role kv_both")),
    silent("unknown_flag", facts("m --kv-offload-size 4", installed=None)),
    silent("unknown_flag", facts("m --max-num-partial-prefills 4")),
    fires("removed_flag", facts("m --max-num-partial-prefills 2"), "error", "--max-num-partial-prefills",
          "--max-num-partial-prefills is gone since vLLM 0.27, and 0.32 is to run",
          "leave it out: vLLM never used it"),
    fires("removed_flag", facts("m --max_long_partial_prefills 2", version=None, installed=None), "warning",
          "--max_long_partial_prefills",
          "--max_long_partial_prefills is gone since vLLM 0.27; the version here is not known",
          "--long-prefill-token-threshold N limits the chunk of one request"),
    fires("removed_flag", facts("m --mamba-cache-mode all"), "error", "--mamba-cache-mode",
          "--mamba-cache-mode all is gone since vLLM 0.32, and 0.32 is to run", "leave it out: align is the default"),
    fires("removed_flag", facts(transfer(kv_connector="P2pNcclConnector", kv_role="kv_producer")), "error", T,
          "P2pNcclConnector is gone since vLLM 0.24, and 0.32 is to run", "NixlConnector"),
    silent("removed_flag", facts("m --max-num-partial-prefills 2", version=(0, 26), installed=None)),
    silent("removed_flag", facts("m --mamba-cache-mode align")),
    fires("json_flag_invalid", facts("m --kv-transfer-config \"'{}'\""), "error", T,
          f"{T}: the quotes around the JSON became part of it", f"take the outer quotes away; {NO_TABLE}"),
    fires("json_flag_invalid", facts("""m --kv-transfer-config '{{"a": 1}}'"""), "error", T,
          f"{T}: doubled braces, left over from a template", "write { and } once"),
    fires("json_flag_invalid", facts(r"""m --kv-transfer-config '{\"a\": 1}'"""), "error", T,
          f"{T}: backslashes before the quotes", f"take the backslashes away; {NO_TABLE}"),
    fires("json_flag_invalid", facts("m --kv-transfer-config {kv_role:kv_both}"), "error", T,
          f"{T}: its quotes are gone, a shell took them", NO_TABLE),
    fires("json_flag_invalid", facts('''m --kv-transfer-config "{'a': 1}"'''), "error", T,
          f"{T}: single quotes inside", f"JSON wants double quotes; {NO_TABLE}"),
    fires("json_flag_invalid", facts("m --kv-transfer-config '$KV_CONFIG'"), "error", T,
          f"{T}: a $ that nothing replaced", f"write the value; {NO_TABLE}"),
    fires("json_flag_invalid", facts("""m --kv-transfer-config '{"a": 1'"""), "error", T,
          f"{T}: not JSON, at character 8", NO_TABLE),
    fires("json_flag_invalid", facts("m --kv-transfer-config '[1]'"), "error", T,
          f"{T}: JSON, but no object {{…}}", 'write {"key": value}'),
    fires("json_flag_invalid", facts(r"""m --kv-transfer-config '"{\"a\": 1}"'"""), "error", T,
          f"{T}: a JSON object inside a JSON text", "take the outer quotes and the backslashes away"),
    fires("json_flag_invalid", facts("""m --speculative-config '{"model": "$DRAFT"}'"""), "warning",
          "--speculative-config", "$DRAFT in --speculative-config stays as it stands: no shell reads it",
          "write its value, or set it in [env]"),
    fires("json_flag_invalid", facts("""m --speculative-config '{"model": "$DRAFT"}'""", like=COMPOSE), "warning",
          "--speculative-config", "compose replaces $DRAFT in --speculative-config",
          "$$DRAFT where it is meant as it stands"),
    silent("json_flag_invalid", facts("""m --kv-transfer-config '{"a": 1}' -cc.mode 3 --host '{'""")),
    fires("config_equals_form", facts("m --config=box.yaml"), "error", "--config",
          "vLLM does not read the file behind --config=: it would start with its defaults",
          "--config box.yaml, as two words"),
    silent("config_equals_form", facts("m --config box.yaml")),
    fires("yaml_false_dropped", facts("m --config b.yaml", yaml="enable-prefix-caching: false"), "warning",
          "--enable-prefix-caching", "'enable-prefix-caching: false' in the file is left out",
          "no-enable-prefix-caching: true"),
    fires("yaml_false_dropped", facts("m --config b.yaml", yaml="a: ["), "error", "--config",
          "the file of --config cannot be read: line 1: expected the node content, but found '<stream end>'",
          "mend the file"),
    silent("yaml_false_dropped", facts("m --config b.yaml", yaml="enable-prefix-caching: true")),
    silent("yaml_false_dropped", facts("m --config b.yaml", yaml="enable-prefix-caching: false", like=profile(
        venv={"command": ["python3", "-m", "vllm.entrypoints.openai.api_server"]}))),
    # the tier
    fires("two_offload_interfaces", facts(offloading() + " --kv-offloading-size 32"), "warning", S,
          f"it replaces the connector of {T}", f"one of the two; {T} tells more"),
    silent("two_offload_interfaces", facts(offloading())),
    silent("two_offload_interfaces", facts(transfer(kv_connector_extra_config={"eviction_policy": "arc"}) +
                                           " --kv-offloading-size 32")),
    fires("units_suspicious", facts("m --kv-offloading-size 34359738368"), "error", S,
          "34,359,738,368 are GiB here, for all GPUs together", f"{S} 32"),
    fires("units_suspicious", facts("m --kv-offloading-size 0"), "error", S, "0 GiB is no tier",
          f"{S} 32, or take it out"),
    fires("units_suspicious", facts(transfer(kv_connector="OffloadingConnector", kv_role="kv_both",
                                             kv_connector_extra_config={"cpu_bytes_to_use": 64})), "warning", T,
          "64 are bytes, for all GPUs together: 64 bytes", "cpu_bytes_to_use 68719476736 for 64 GiB"),
    fires("units_suspicious", facts(offloading(1_000_000)), "error", T,
          "cpu_bytes_to_use is bytes: this is 1,000,000 GiB", "write bytes: GiB times 1073741824"),
    fires("units_suspicious", facts(transfer(kv_connector="OffloadingConnector", kv_role="kv_both")), "error", T,
          "cpu_bytes_to_use is missing", "cpu_bytes_to_use 34359738368 (32 GiB)"),
    fires("units_suspicious", facts(offloading(cpu_bytes_to_use="8g")), "error", T,
          "cpu_bytes_to_use is no number", "cpu_bytes_to_use 34359738368 (32 GiB)"),
    fires("units_suspicious", facts("m --kv-cache-memory-bytes 20"), "warning", "--kv-cache-memory-bytes",
          "20 are bytes of each GPU: 20 bytes", "--kv-cache-memory-bytes 21474836480 for 20 GiB"),
    fires("units_suspicious", facts("m -tp 2 --kv-cache-memory 42949672960"), "error", "--kv-cache-memory-bytes",
          "40.0 GiB of each GPU, which has 24.0 GiB", "it is bytes of one GPU: divide by their number"),
    fires("units_suspicious", facts("m --cpu-offload-gb 8"), "note", "--cpu-offload-gb",
          "--cpu-offload-gb moves weights, not KV", "--kv-offloading-size GIB makes a tier for the KV cache"),
    silent("units_suspicious", facts("m -tp 2 --kv-offloading-size 48 --kv-cache-memory-bytes 15G")),
    fires("shm_too_small", facts("m --kv-offloading-size 64"), "error", S,
          "tier 64.0 GiB, /dev/shm has 63.0 GiB free of 64.0 GiB",
          f"{S} 61, or mount -o remount,size=66G /dev/shm"),
    fires("shm_too_small", facts(offloading(64), offload_files=(tier_file(8, stale=True),)), "error", T,
          "tier 64.0 GiB, /dev/shm has 63.0 GiB free of 64.0 GiB",
          "remove the left-over files: they hold 8.0 GiB"),
    fires("shm_too_small", facts("m --kv-offloading-size 48", shm_free_bytes=10 * GIB, replacing=GONE,
                                 offload_files=(tier_file(40, 500, 501),)), "note", S,
          "tier 48.0 GiB, /dev/shm has 10.0 GiB free, 50.0 GiB after the stop", BACK),
    fires("shm_too_small", facts("m --kv-offloading-size 8", like=DOCKER, container=Container(64 << 20)), "error",
          "--shm-size", "tier 8.0 GiB, the container's /dev/shm has 64 MiB",
          "--shm-size=9g or --ipc=host in [docker] options"),
    fires("shm_too_small", facts("m --kv-offloading-size 8", like=COMPOSE, container=Container(4 * GIB)), "error",
          "--shm-size", "tier 8.0 GiB, the container's /dev/shm has 4.0 GiB",
          "shm_size: 9gb or ipc: host in the compose file"),
    fires("shm_too_small", facts("m --kv-offloading-size 64", like=DOCKER, container=Container(host_ipc=True)), "error",
          S, "tier 64.0 GiB, /dev/shm has 63.0 GiB free of 64.0 GiB", f"{S} 61, or mount -o remount,size=66G /dev/shm"),
    silent("shm_too_small", facts("m --kv-offloading-size 48")),
    silent("shm_too_small", facts("m --kv-offloading-size 64", version=(0, 19))),
    silent("shm_too_small", facts("m --kv-offloading-size 64", env={"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"})),
    silent("shm_too_small", facts("m --kv-offloading-size 64 --kv-offloading-backend lmcache")),
    silent("shm_too_small", facts("m --kv-offloading-size 8", like=DOCKER, container=Container(16 * GIB))),
    fires("shm_stale_files", facts(offload_files=(tier_file(48, stale=True),)), "warning", "/dev/shm",
          "a left-over file holds 48.0 GiB: nobody maps it", "rm /dev/shm/vllm_offload_a.mmap"),
    silent("shm_stale_files", facts(offload_files=(tier_file(48, 500),))),
    fires("memory_too_small", facts("m --kv-offloading-size 60", memory_available_bytes=50 * GIB), "error", S,
          "tier 60.0 GiB, this machine has 50.0 GiB available", f"{S} 21"),
    fires("memory_too_small", facts("m --kv-offloading-size 60", memory_available_bytes=30 * GIB, replacing=GONE,
                                    offload_files=(tier_file(40, 501),)), "note", S,
          "tier 60.0 GiB, 30.0 GiB available, 70.0 GiB after the stop", BACK),
    silent("memory_too_small", facts("m --kv-offloading-size 60")),
    fires("container_memory_limit", facts("m --kv-offloading-size 48", like=DOCKER,
                                          container=Container(host_ipc=True, memory_bytes=70 * GIB)), "warning",
          "--memory", "tier 48.0 GiB and about 28 GiB for vLLM, the limit is 70.0 GiB",
          f"a limit of 76 GiB, or {S} 42"),
    fires("container_memory_limit", facts("m --kv-offloading-size 48", memory_limit_bytes=40 * GIB), "error",
          "MemoryMax", "tier 48.0 GiB and about 28 GiB for vLLM, the limit is 40.0 GiB",
          f"a limit of 76 GiB, or {S} 12"),
    fires("container_memory_limit", facts("m --kv-offloading-size 100", like=profile(
        venv={"wrap": ["systemd-run", "--user", "--scope", "-p", "MemoryMax=90%"]})), "warning",
          "MemoryMax", "tier 100.0 GiB and about 28 GiB for vLLM, the limit is 115.2 GiB",
          f"a limit of 128 GiB, or {S} 87"),
    silent("container_memory_limit", facts("m --kv-offloading-size 48", like=DOCKER,
                                           container=Container(host_ipc=True, memory_bytes=80 * GIB))),
    silent("container_memory_limit", facts("m --kv-offloading-size 48")),
    fires("tier_smaller_than_gpu_cache", facts("m --kv-offloading-size 32"), "warning", S,
          "the tier holds about 320,000 tokens, the GPU itself 400,000", f"{S} 80, twice the GPU's, or no tier"),
    silent("tier_smaller_than_gpu_cache", facts("m --kv-offloading-size 48")),
    fires("block_size_not_multiple", facts(offloading(48, block_size=24)), "error", T,
          "block_size 24 is no multiple of the GPU's block of 16 tokens", "block_size 32"),
    fires("block_size_not_multiple", facts(transfer(kv_connector="LMCacheConnectorV1", kv_role="kv_both"),
                                           last=HYBRID), "error", "LMCACHE_CHUNK_SIZE",
          "LMCACHE_CHUNK_SIZE 256 is no multiple of the GPU's block of 528 tokens", "LMCACHE_CHUNK_SIZE=528"),
    silent("block_size_not_multiple", facts(offloading(48, block_size=256))),
    silent("block_size_not_multiple", facts(offloading(48, block_size=256) + " --block-size 32", last=None)),
    fires("both_block_size_and_chunks", facts(offloading(48, block_size=256, blocks_per_chunk=4)), "error", T,
          "both block_size and blocks_per_chunk are set", "take block_size out"),
    silent("both_block_size_and_chunks", facts(offloading(48, blocks_per_chunk=4))),
    fires("kv_role_missing", facts(transfer(kv_connector="NixlConnector")), "error", T,
          "a kv_connector needs a kv_role", 'kv_role = "kv_both"'),
    silent("kv_role_missing", facts(offloading())),
    fires("expandable_segments", facts("m --kv-offloading-size 8",
                                       env={"PYTORCH_CUDA_ALLOC_CONF": "a:1,expandable_segments:True"}), "error",
          "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True and OffloadingConnector do not start together",
          'unset = ["PYTORCH_CUDA_ALLOC_CONF"] in [env]'),
    silent("expandable_segments", facts(env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})),
    silent("expandable_segments", facts("m --kv-offloading-size 8 --enable-sleep-mode",
                                        env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})),
    fires("prefix_caching_off", facts("m --no-enable-prefix-caching"), "warning", "--no-enable-prefix-caching",
          "every prompt will be computed from its first token", "take it out, unless that is what you measure"),
    fires("prefix_caching_off", facts(offloading() + " --no-enable-prefix-caching"), "error",
          "--no-enable-prefix-caching", "the offload tier needs the prefix cache, which is turned off",
          "take --no-enable-prefix-caching out"),
    fires("prefix_caching_off", facts(transfer(kv_connector="NixlConnector", kv_role="kv_both") +
                                      " --no-enable-prefix-caching"), "warning", "--no-enable-prefix-caching",
          "every prompt will be computed from its first token", "take it out, unless that is what you measure"),
    silent("prefix_caching_off", facts("m --enable-prefix-caching")),
    fires("hash_seed_unset", facts(transfer(kv_connector="LMCacheConnectorV1", kv_role="kv_both")), "warning",
          "PYTHONHASHSEED", "without it each process of LMCache names the same tokens otherwise",
          'set = { PYTHONHASHSEED = "0" } in [env]'),
    silent("hash_seed_unset", facts(transfer(kv_connector="LMCacheConnectorV1", kv_role="kv_both"),
                                    env={"PYTHONHASHSEED": "0"})),
    silent("hash_seed_unset", facts(offloading())),
    # scheduling
    fires("hybrid_batch_budget", facts("m --max-num-batched-tokens 1024", last=HYBRID), "warning",
          "--max-num-batched-tokens",
          "1,024 tokens a step, a block has 528: a long prefill starves beside any decode",
          "--max-num-batched-tokens 1056, or more"),
    fires("hybrid_batch_budget", facts("m", last=LastStart(1, 2048, 1, hybrid=True)), "warning",
          "--max-num-batched-tokens",
          "2,048 tokens a step, a block has 2,048: a long prefill starves beside any decode",
          "--max-num-batched-tokens 4096, or more"),
    silent("hybrid_batch_budget", facts("m", last=HYBRID)),
    silent("hybrid_batch_budget", facts("m --max-num-batched-tokens 16")),
    fires("long_prefill_threshold_misaligned", facts("m --long-prefill-token-threshold 1000", last=HYBRID), "warning",
          "--long-prefill-token-threshold",
          "1000 tokens are no multiple of the block of 528: each chunk is cut down to whole blocks",
          "--long-prefill-token-threshold 1056"),
    silent("long_prefill_threshold_misaligned", facts("m --long-prefill-token-threshold 1056", last=HYBRID)),
    silent("long_prefill_threshold_misaligned", facts("m --long-prefill-token-threshold 1000")),
    fires("speculator_costs_one_unit", facts("""m --speculative-config '{"method": "eagle3"}'"""), "note",
          "--speculative-config", "each hit is one block (16 tokens) shorter with eagle3",
          '"disable_eagle_block_drop": true in it keeps the block'),
    fires("speculator_costs_one_unit", facts("""m --speculative-config.method qwen3_next_mtp --kv-offloading-size 48""",
                                             version=(0, 33)), "note",
          "--speculative-config",
          "each hit is one block (16 tokens) shorter with qwen3_next_mtp because of the connector",
          '"disable_eagle_block_drop": true in it keeps the block'),
    fires("speculator_costs_one_unit", facts("m --spec-method mtp", last=None, version=(0, 20)), "note",
          "--speculative-config", "each hit is one block shorter with mtp", ""),
    silent("speculator_costs_one_unit", facts("""m --speculative-config '{"method": "eagle3"}'""", version=(0, 33))),
    silent("speculator_costs_one_unit", facts("""m --speculative-config '{"method": "ngram"}'""")),
    silent("speculator_costs_one_unit", facts(
        """m --speculative-config '{"method": "eagle", "disable_eagle_block_drop": true}'""")),
    # what others hold
    fires("vram_held", facts(cards=(card(0, {77: 17.9}), card(1))), "error", U,
          "GPU 0: 6.1 GiB of 24.0 GiB free, 0.92 asks for 22.1 GiB: held by python3 (process 77, 17.9 GiB)",
          "stop it, or --gpu-memory-utilization 0.25"),
    fires("vram_held", facts("m --gpu-memory-utilization 0.9", cards=(card(0, {500: 17.9}),), replacing=GONE),
          "note", U,
          "GPU 0: 6.1 GiB of 24.0 GiB free, 24.0 GiB after the stop", STOPS),
    fires("vram_held", facts(cards=(card(0, {500: None}),), replacing=GONE), "note", U,
          "GPU 0: 4.0 GiB of 24.0 GiB free, 24.0 GiB after the stop", STOPS),
    silent("vram_held", facts(cards=(card(0), card(1, {77: 17.9})))),
    silent("vram_held", facts("m", like=profile(gpus=["1", "0"]), cards=(card(0, {77: 17.9}), card(1)))),
    silent("vram_held", facts("m --gpu-memory-utilization 0.2", cards=(card(0, {77: 17.9}), card(1)))),
    silent("vram_held", facts("m", like=profile(gpus=["GPU-111"]), cards=(card(0, {77: 17.9}), card(1)))),
    fires("gpu_overlap", facts("m -tp 2", cards=(card(0, {501: 20}), card(1, {501: 20})), servers=(server(),)), "error",
          "gpus", "coder runs on GPU 0 and 1",
          "kvtop profile switch stops coder first; or choose other cards (gpus)"),
    fires("gpu_overlap", facts("m", like=profile(gpus=["all"]), cards=(card(0, {501: 20}), card(1)),
                               servers=(server(),)), "error", "gpus", "coder runs on GPU 0",
          "kvtop profile switch stops coder first; or choose other cards (gpus)"),
    fires("gpu_overlap", facts("m --gpu-memory-utilization 0.4", cards=(card(0, {501: 10}),), servers=(server(),)),
          "warning", "gpus", "coder runs on GPU 0, which would be shared",
          "choose other cards, unless that is meant"),
    fires("gpu_overlap", facts(cards=(card(0, {501: 20}),), servers=(server(profile=""),), replacing=GONE), "note",
          "gpus", "process 500 runs on GPU 0", STOPS),
    silent("gpu_overlap", facts(like=profile(gpus=["1"]), cards=(card(0, {501: 20}), card(1)), servers=(server(),))),
    fires("port_taken", facts(listeners={8000: listener()}, servers=(server(),)), "error", "--port",
          "port 8000: coder (process 500 (python3)) listens there", "--port 8001, or stop what is there"),
    fires("port_taken", facts("m --port 8001", listeners={8001: listener(None), 8002: listener()}), "error", "--port",
          "port 8001: a process of another user listens there", "--port 8003, or stop what is there"),
    fires("port_taken", facts(listeners={8000: listener()}, servers=(server(),), replacing=GONE), "note", "--port",
          "port 8000: coder (process 500 (python3)) listens there", STOPS),
    fires("port_taken", facts(servers=(server(),)), "error", "--port",
          "port 8000: coder starts, and will listen there", "--port 8001, or stop what is there"),
    silent("port_taken", facts("m --port 8001", listeners={8000: listener()})),
    silent("port_taken", facts("m --port 8001", servers=(server(),))),
    fires("health_answered_by_other", facts(health=Answer("http://127.0.0.1:8000/health", "Qwen3-8B")), "warning",
          "health_url", "http://127.0.0.1:8000/health answers already, serving Qwen3-8B",
          "another port, or stop what answers there"),
    fires("health_answered_by_other", facts(health=Answer("http://127.0.0.1:8000/health"), servers=(server(),),
                                            replacing=GONE), "note",
          "health_url", "http://127.0.0.1:8000/health answers already", STOPS),
    silent("health_answered_by_other", facts()),
    # what it offers
    fires("exposed_without_key", facts("m"), "warning", "--host", "it is reached on every interface, without a key",
          "--host 127.0.0.1, or VLLM_API_KEY from a file"),
    fires("exposed_without_key", facts("m --host 10.0.0.7"), "warning", "--host",
          "it is reached at 10.0.0.7, without a key", "--host 127.0.0.1, or VLLM_API_KEY from a file"),
    fires("exposed_without_key", facts("m", like=profile(runner="docker", docker={"options": ["-p", "8001:8000"]})),
          "warning", "-p", "it is reached from the network (-p 8001:8000), without a key",
          "-p 127.0.0.1:8001:8000, or VLLM_API_KEY from a file"),
    fires("exposed_without_key", facts("m", like=profile(runner="systemd",
                                                         docker={"image": "vllm", "options": ["-P"]})),
          "warning", "-p", "it is reached from the network (-p all), without a key",
          "-p 127.0.0.1:8000:8000, or VLLM_API_KEY from a file"),
    silent("exposed_without_key", facts("m --host 127.0.0.1")),
    silent("exposed_without_key", facts("m --api-key k")),
    silent("exposed_without_key", facts("m", env={"VLLM_API_KEY": "***"})),
    silent("exposed_without_key", facts("m", like=profile(runner="docker",
                                                          docker={"options": ["-p=127.0.0.1:8000:8000"]}))),
    fires("dev_mode_on", facts("m", env={"VLLM_SERVER_DEV_MODE": "1"}), "warning", "VLLM_SERVER_DEV_MODE",
          "whoever reaches the port may reset the cache, or put the server to sleep",
          "take it out, or --host 127.0.0.1"),
    fires("dev_mode_on", facts("m --host localhost", env={"VLLM_SERVER_DEV_MODE": "1"}), "note", "VLLM_SERVER_DEV_MODE",
          "whoever reaches the port may reset the cache, or put the server to sleep",
          "take it out, or --host 127.0.0.1"),
    silent("dev_mode_on", facts("m", env={"VLLM_SERVER_DEV_MODE": "0"})),
    fires("no_prompt_tokens_details", facts("m"), "note", "--enable-prompt-tokens-details",
          "without it no answer tells how many tokens were cached", "add --enable-prompt-tokens-details"),
    silent("no_prompt_tokens_details", facts("m --enable-prompt-tokens-details")),
    fires("no_include_usage", facts("m"), "note", "--enable-force-include-usage",
          "without it a stream tells its tokens only where the client asks", "add --enable-force-include-usage"),
    silent("no_include_usage", facts("m --enable-force-include-usage")),
    fires("no_kv_cache_metrics", facts("m"), "note", "--kv-cache-metrics",
          "without it nothing shows that blocks were evicted", "add --kv-cache-metrics"),
    silent("no_kv_cache_metrics", facts("m --kv-cache-metrics")),
    silent("no_kv_cache_metrics", facts("m", version=(0, 11))),
    fires("model_path_missing", facts("/models/qwen", paths={"/models/qwen": False}), "error", "--model",
          "/models/qwen is not there", "ls /models"),
    fires("model_path_missing", facts("/models/qwen", like=DOCKER, paths={"/models/qwen": False}), "error", "--model",
          "/models/qwen is not there", "mount what holds it: -v in the container's options"),
    fires("model_path_missing", facts("m --tokenizer ~/tok"), "error", "--tokenizer",
          "no shell reads ~/tok: ~ stays as it stands", "write the whole path"),
    silent("model_path_missing", facts("/models/qwen", paths={"/models/qwen": True})),
    silent("model_path_missing", facts("Qwen/Qwen3-8B")),
]  # fmt: skip

BY_NAME = {name_of(rule): rule for rule in RULES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule(case: Case) -> None:
    said = [one for one in BY_NAME[case.rule](case.facts) if isinstance(one, Says)]
    assert [(one.level, one.flag, one.says, one.fix) for one in said] == case.found


def test_every_rule_fires_somewhere_and_is_silent_somewhere() -> None:
    modules = (command, memory, occupied, offload, scheduling, service)
    written = {
        name
        for module in modules
        for name, one in vars(module).items()
        if inspect.isgeneratorfunction(one)
        and not name.startswith("_")
        and list(inspect.signature(one).parameters) == ["facts"]
    }
    assert written == set(BY_NAME) and len(RULES) == len(BY_NAME) == 31
    assert {case.rule for case in CASES if case.found} == set(BY_NAME)
    assert {case.rule for case in CASES if not case.found} == set(BY_NAME)
