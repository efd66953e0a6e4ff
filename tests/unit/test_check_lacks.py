"""A rule of `kvtop profile check` that lacks its facts is silent, and says what it lacks."""

from __future__ import annotations

import pytest
from check_box import GIB, facts, listener, offloading, profile, tier_file

from kvtop.profiles.check.report import judged, name_of
from kvtop.profiles.check.rules import RULES
from kvtop.profiles.check.seen import Container, Facts, Installed, Lacks, LastStart
from kvtop.profiles.vocabulary import Vocabulary

COMPOSE = profile(runner="compose")
HYBRID = LastStart(400_000, 528, 40 * GIB, hybrid=True)
BY_NAME = {name_of(rule): rule for rule in RULES}


@pytest.mark.parametrize(
    ("rule", "box", "what"),
    [
        ("unknown_flag", facts(installed=None), "the help of the vLLM that is to run"),
        ("shm_too_small", facts("m --kv-offloading-size 8", shm_free_bytes=None), "the size of /dev/shm"),
        ("shm_too_small", facts("m --kv-offloading-size 8", like=COMPOSE, container=Container(readable=False)),
         "the container's shm_size: its compose file cannot be read"),
        ("shm_stale_files", facts(offload_files=None), "the files in /dev/shm"),
        ("memory_too_small", facts("m --kv-offloading-size 8", memory_available_bytes=None),
         "the memory that is available"),
        ("container_memory_limit", facts("m --kv-offloading-size 8", like=COMPOSE),
         "the container's limits: its compose file cannot be read"),
        ("tier_smaller_than_gpu_cache", facts("m --kv-offloading-size 8", last=None),
         "the KV cache size of this profile's last start"),
        ("block_size_not_multiple", facts(offloading(block_size=24), last=None),
         "the block size: no --block-size, and no last start of this profile"),
        ("hybrid_batch_budget", facts(last=None),
         "whether the model is hybrid: no last start of this profile, no --mamba-cache-mode"),
        ("hybrid_batch_budget", facts("m --mamba-cache-mode align", last=None),
         "the block size: no --block-size, and no last start of this profile"),
        ("hybrid_batch_budget", facts(last=HYBRID, cards=None),
         "the cards, which decide the default of --max-num-batched-tokens"),
        ("long_prefill_threshold_misaligned", facts("m --long-prefill-token-threshold 9", last=None),
         "whether the model is hybrid: no last start of this profile, no --mamba-cache-mode"),
        ("vram_held", facts(cards=None), "the cards of this machine"),
        ("gpu_overlap", facts(servers=None), "the servers of this machine"),
        ("port_taken", facts(listeners=None), "who listens on which port"),
        ("health_answered_by_other", facts(health_asked=False), "an answer of the health URL"),
        ("exposed_without_key", facts("", like=COMPOSE), "the command line: [serve] of this profile is empty"),
        ("no_kv_cache_metrics", facts("", like=COMPOSE), "the command line: [serve] of this profile is empty"),
        ("model_path_missing", facts("/models/qwen"), "the file system on which /models/qwen is"),
    ],
)  # fmt: skip
def test_a_rule_that_lacks_its_facts_says_so(rule: str, box: Facts, what: str) -> None:
    assert list(BY_NAME[rule](box)) == [Lacks(what)]


def test_a_switch_that_this_vllm_does_not_have_is_not_asked_for() -> None:
    old = Installed("vllm", "0.10.0", Vocabulary([("one", ("--port",))]))
    assert not [one for one in judged(facts(installed=old)).findings if one.rule.startswith("no_")]


def test_a_server_that_others_start_is_not_judged() -> None:
    attach = profile(runner="attach", attach={"url": "http://127.0.0.1:8000"})
    box = facts("", like=attach, listeners={8000: listener()}, offload_files=(tier_file(1, stale=True),))
    assert (judged(box).findings, judged(box).silent) == ((), ())
