"""A rule of `kvtop profile check` that lacks its facts is silent, and says what it lacks."""

from __future__ import annotations

import pytest
from check_box import GIB, card, facts, listener, offloading, profile, server, tier_file

from kvtop.profiles.check.report import judged, name_of
from kvtop.profiles.check.rules import RULES
from kvtop.profiles.check.seen import Container, Facts, Installed, Lacks, LastStart, OwnFile, Says
from kvtop.profiles.launch import launch
from kvtop.profiles.profile import Profile
from kvtop.profiles.vocabulary import Vocabulary

COMPOSE = profile(runner="compose")
IN_FILE = profile(runner="compose", compose={"files": ["/srv/c.yml"], "service": "v"})
HYBRID = LastStart(400_000, 528, 40 * GIB, hybrid=True)
BY_NAME = {name_of(rule): rule for rule in RULES}


@pytest.mark.parametrize(
    ("rule", "box", "what"),
    [
        ("unknown_flag", facts(installed=None), "the help of the vLLM that is to run"),
        ("value_refused", facts("m --port x", installed=None), "the help of the vLLM that is to run"),
        ("shm_too_small", facts("m --kv-offloading-size 8", shm_free_bytes=None), "the size of /dev/shm"),
        ("shm_too_small", facts("m --kv-offloading-size 8", like=COMPOSE, container=Container(readable=False)),
         "the size of the container's /dev/shm"),
        ("shm_stale_files", facts(offload_files=None), "the files in /dev/shm"),
        ("memory_too_small", facts("m --kv-offloading-size 8", memory_available_bytes=None),
         "the memory that is available"),
        ("container_memory_limit", facts("m --kv-offloading-size 8", like=COMPOSE),
         "the container's limits: its compose file cannot be read"),
        ("tier_smaller_than_gpu_cache", facts("m --kv-offloading-size 8", last=None),
         "the KV cache size of this profile's last start"),
        ("tier_smaller_than_gpu_cache", facts("m --kv-offloading-size 8", last=LastStart(400_000, 16)),
         "what a token takes in the KV cache: the last start of this profile did not tell its size in bytes"),
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
        ("exposed_without_key", facts(like=profile(runner="docker", docker={"options": ["-p", "$BIND:1:8000"]})),
         "where it is published: -p holds a variable"),
        ("not_in_its_file", facts("m --port 1", like=IN_FILE), "all that /srv/c.yml runs"),
        ("not_in_its_file", facts("m --port 1", like=IN_FILE, own=OwnFile("--port $PORT", "--port $PORT")),
         "all that /srv/c.yml runs"),
        ("port_not_published", facts(like=COMPOSE), "what the container publishes"),
        ("port_not_published", facts(like=COMPOSE, own=OwnFile(options=("-p=$PORT:8000",))),
         "what the container publishes"),
        ("port_not_published", facts(like=profile(runner="docker", docker={"options": ["--network=container:a"]})),
         "what the container publishes"),
        ("port_not_published", facts("m --config /in/image.yaml", like=profile(runner="docker",
                                     docker={"options": ["-p", "8001:8001"]})), "the port of vLLM in its container"),
        ("model_path_missing", facts("/models/qwen"), "the file system on which /models/qwen is"),
    ],
)  # fmt: skip
def test_a_rule_that_lacks_its_facts_says_so(rule: str, box: Facts, what: str) -> None:
    assert list(BY_NAME[rule](box)) == [Lacks(what)]


def test_a_switch_that_this_vllm_does_not_have_is_not_asked_for() -> None:
    old = Installed("vllm", "0.10.0", Vocabulary([("one", ("--port",), ())]))
    assert not [one for one in judged(facts(installed=old)).findings if one.rule.startswith("no_")]


def test_a_server_that_others_start_is_not_judged() -> None:
    attach = profile(runner="attach", attach={"url": "http://127.0.0.1:8000"})
    box = facts("", like=attach, listeners={8000: listener()}, offload_files=(tier_file(1, stale=True),))
    assert (judged(box).findings, judged(box).silent) == ((), ())


LMCACHE = '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'
NO_LINE = Lacks("the command line: [serve] of this profile is empty")
NO_ENV = Lacks("the environment: it stands in a file of its own, and not in [env]")


def said(rule: str, box: Facts) -> list[Says | Lacks]:
    return list(BY_NAME[rule](box))


@pytest.mark.parametrize("runner", ["compose", "systemd"])
def test_a_line_in_a_file_of_its_own_accuses_nobody(runner: str) -> None:
    """Neither its port, nor its cards, nor how much of them it takes are known."""
    held = (card(0, {500: 23.0}), card(1, {500: 23.0}))
    known = {"cards": held, "servers": (server(),), "listeners": {8000: listener()}}
    box = facts("", like=profile(runner=runner), **known)
    assert said("vram_held", box) == said("gpu_overlap", box) == [NO_LINE]
    lacks = "the port of this machine at which it will listen: nothing here tells it"
    assert said("port_taken", box) == [Lacks(lacks)]
    on_one = facts("", like=profile(runner=runner, gpus=["1"]), **known)
    assert said("vram_held", on_one) == [NO_LINE]
    (shared,) = said("gpu_overlap", on_one)
    assert isinstance(shared, Says)
    assert (shared.level, shared.says) == ("warning", "coder runs on GPU 1, which would be shared")
    line = facts("--port 8000", like=profile(runner=runner, docker={"options": ["-p", "8000:8000"]}), **known)
    (taken,) = said("port_taken", line)
    assert isinstance(taken, Says)
    assert taken.level == "error"


def test_a_published_port_of_compose_is_told() -> None:
    like = profile(runner="compose", docker={"options": ["-p", "8020:8000"]})
    box = facts("", like=like, listeners={8000: listener()}, launch=launch("a", profile(**AS_COMPOSE)))
    assert box.port == 8020
    assert said("port_taken", box) == []


AS_COMPOSE = {"runner": "compose", "compose": {"service": "s"}, "docker": {"options": ["-p", "8020:8000"]}}


def test_variables_in_a_file_of_their_own_accuse_nobody() -> None:
    files = profile(runner="docker", docker={"image": "i", "env_files": ["/x"], "options": ["-p", "8000:8000"]})
    line = f"m --kv-transfer-config '{LMCACHE}'"
    assert said("hash_seed_unset", facts(line, like=files)) == [NO_ENV]
    assert said("hash_seed_unset", facts(line, like=profile(runner="systemd"))) == [NO_ENV]
    assert said("exposed_without_key", facts(line, like=files)) == [NO_ENV]
    with_env = profile(runner="systemd", env={"set": {"A": "1"}})
    assert said("hash_seed_unset", facts(line, like=with_env)) == [NO_ENV]
    assert said("exposed_without_key", facts(line, like=with_env, own=OwnFile("A", env_whole=False))) == [NO_ENV]
    whole = facts(line, like=with_env, own=OwnFile("A", env_whole=True))
    assert isinstance(said("hash_seed_unset", whole)[0], Says)
    assert isinstance(said("exposed_without_key", whole)[0], Says)


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("LMCacheMPConnector", profile()),
        ("LMCacheConnectorV1", profile(runner="systemd")),
        ("LMCacheConnectorV1", profile(runner="docker", docker={"image": "i", "env_files": ["/x"]})),
    ],
)
def test_the_chunk_of_lmcache_may_be_told_elsewhere(name: str, like: Profile) -> None:
    line = f"m --kv-transfer-config '{LMCACHE.replace('LMCacheConnectorV1', name)}'"
    assert said("block_size_not_multiple", facts(line, like=like, last=HYBRID)) == [
        Lacks("the size of LMCache's chunk")
    ]


def test_a_hybrid_model_without_prefix_cache_has_no_boundaries() -> None:
    box = facts("m --no-enable-prefix-caching --long-prefill-token-threshold 100", last=HYBRID)
    assert said("hybrid_batch_budget", box) == said("long_prefill_threshold_misaligned", box) == []


@pytest.mark.parametrize("behind", [{"secondary_tiers": [{"type": "fs"}]}, {"kv_offload_backend": "disk"}])
def test_a_small_tier_with_a_larger_one_behind_it(behind: dict[str, object]) -> None:
    assert said("tier_smaller_than_gpu_cache", facts(offloading(1)))
    assert said("tier_smaller_than_gpu_cache", facts(offloading(1, **behind))) == []


def test_a_smaller_block_that_is_asked_for_now() -> None:
    line = f"{offloading(32, block_size=48)} --block-size 16"
    assert said("block_size_not_multiple", facts(line, last=LastStart(400_000, 64, hybrid=False))) == []
    assert said("block_size_not_multiple", facts(line, last=LastStart(400_000, 64, hybrid=True)))
