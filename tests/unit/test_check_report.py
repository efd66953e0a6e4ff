"""The report of `kvtop profile check`: what refuses a start, the JSON of the contract, and hostile facts."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from typing import Any

from check_box import GIB, card, facts, listener, profile, server
from hypothesis import given
from hypothesis import strategies as st

from kvtop.profiles.check.containers import (
    of_options,
    of_service,
    on_loopback,
    outside,
    published,
    size_bytes,
    version_of,
)
from kvtop.profiles.check.last import of_log
from kvtop.profiles.check.report import judged, report
from kvtop.profiles.check.rules import RULES
from kvtop.profiles.check.seen import (
    Answer,
    Card,
    Container,
    Facts,
    Holder,
    Installed,
    Lacks,
    LastStart,
    Listener,
    OwnFile,
    Says,
    Server,
)
from kvtop.profiles.docker_options import host_network
from kvtop.profiles.flags import Flags
from kvtop.profiles.launch import Launch, Secret
from kvtop.profiles.vocabulary import vllm_0_32
from kvtop.readings import OffloadFile

LINE = "m --kv-offloading-size 70 -tp 2"


def test_errors_come_first_and_refuse() -> None:
    busy = facts(LINE, listeners={8000: listener()}, servers=(server(),), cards=(card(0, {501: 20}), card(1)))
    told = judged(busy)
    levels = [one.level for one in told.findings]
    assert levels == sorted(levels, key=["error", "warning", "note"].index)
    assert not told.ok
    assert [one.rule for one in told.refuses()] == ["shm_too_small", "vram_held", "gpu_overlap", "port_taken"]
    assert [one.rule for one in told.refuses(force=True)] == ["gpu_overlap", "port_taken"]
    assert "exposed_without_key" in [one.rule for one in told.asks()]


def test_what_is_stopped_first_does_not_refuse() -> None:
    busy = facts("m", listeners={8000: listener()}, servers=(server(),), cards=(card(0, {501: 20}), card(1)))
    told = report(_Entry(), facts=busy, replacing={500, 501})
    assert told.refuses() == ()
    assert {one.rule for one in told.of("note")} >= {"vram_held", "gpu_overlap", "port_taken"}


class _Entry:
    name = "x"
    idle = ()

    def usable(self) -> Any:
        raise AssertionError("facts were given")


def test_the_document_is_the_contract() -> None:
    run = Launch(
        argv=("vllm", "serve", "m", "--api-key", "geheim"),
        serve=("m",),
        set={"HF_TOKEN": "geheim", "NCCL_DEBUG": "INFO"},
        secrets={"VLLM_API_KEY": Secret("file", "/run/key")},
    )
    told = judged(facts(LINE, launch=run))
    document = json.loads(json.dumps(told.document(), allow_nan=False))
    assert (document["profile"], document["ok"]) == ("qwen27", False)
    assert document["findings"][0] == {
        "level": "error",
        "rule": "shm_too_small",
        "flag": "--kv-offloading-size",
        "says": "tier 70.0 GiB, /dev/shm has 63.0 GiB free of 64.0 GiB",
        "fix": "--kv-offloading-size 61, or mount -o remount,size=72G /dev/shm",
    }
    assert document["memory"] == {
        "cpu_tier_bytes": 70 * GIB,
        "shm_free_bytes": 63 * GIB,
        "memory_available_bytes": 104 * GIB,
        "gpu_free_bytes": [24 * GIB, 24 * GIB],
    }
    size = {"flag": "--kv-offloading-size", "total_bytes": 70 * GIB, "per_gpu_bytes": 35 * GIB, "about_tokens": 700_000}
    assert document["sizes"] == [size]
    assert document["command"] == ["vllm", "serve", "m", "--api-key", "***"]
    assert document["env"] == {"HF_TOKEN": "***", "NCCL_DEBUG": "INFO", "VLLM_API_KEY": "***"}
    assert "geheim" not in json.dumps(document)


def test_what_is_not_known_is_null() -> None:
    bare = Facts("x", profile(), Flags.read(["m"]))
    document = judged(bare).document()
    assert set(document["memory"].values()) == {None}
    assert document["sizes"] == []
    assert {one["rule"] for one in document["lacks"]} >= {"unknown_flag", "vram_held", "port_taken", "shm_stale_files"}


LOG = b"""\
(APIServer pid=1) INFO 11-30 12:00:00 [utils.py:1] non-default args: {'model_tag': 'Qwen'}
(EngineCore pid=2) INFO Setting attention block size to 528 tokens to ensure that attention page size is >= mamba page.
(EngineCore pid=2) INFO Starting to load model Qwen
(Worker_TP0 pid=3) INFO Available KV cache memory: 10.50 GiB
(Worker_TP1 pid=4) INFO Available KV cache memory: 10.50 GiB
(EngineCore pid=2) INFO GPU KV cache size: 412,368 tokens
"""


def test_the_log_of_the_last_start() -> None:
    told = LastStart(412_368, 528, 21 * GIB, hybrid=True)
    assert of_log(LOG, 2) == told
    failed = b"INFO non-default args: {}\nINFO Starting to load model Other\nERROR out of memory\n"
    assert of_log(LOG + failed, 2) == told
    assert of_log(failed, 2) is None
    assert of_log(LOG, 2, "Qwen") == told
    assert of_log(LOG, 2, "Other") is None
    other = LOG.replace(b"'Qwen'", b"'Other'").replace(b"412,368", b"1,024")
    assert of_log(LOG + other, 2, "Qwen") == told
    plain = b"INFO vLLM API server version 0.9\nINFO Starting to load model x\nINFO GPU KV cache size: 1,024 tokens\n"
    assert of_log(LOG + plain, 2) == LastStart(1024, None, None, hybrid=False)
    fits = plain + b"INFO Padding mamba page size by 105.71% to ensure that\nINFO kv lcm block sizes 288\n"
    assert of_log(LOG + fits, 2) == LastStart(1024, 288, None, hybrid=True)


def test_what_a_container_is_given() -> None:
    assert of_options([]) == Container(64 << 20)
    assert of_options(["--ipc=host", "-m", "70g"]) == Container(None, True, 70 * GIB)
    assert of_options(["--shm-size", "32gb", "--memory=1024m"]) == Container(32 * GIB, False, GIB)
    assert of_options(["--shm-size"]) == Container(None)
    assert of_options(["--ipc=container:x"]) == Container(None)
    assert of_options(["-v", "/dev/shm:/dev/shm"]) == Container(None, True)
    assert of_options(["-v", "/dev:/dev:rw"]) == Container(None, True)
    assert of_options(["--mount", "type=bind,source=/dev/shm,target=/dev/shm"]) == Container(None, True)
    assert of_options(["--mount=type=tmpfs,destination=/dev/shm,tmpfs-size=8g"]) == Container(None)
    assert of_options(["-v", "big:/dev/shm"]) == of_options(["-v", "/mnt/x:/dev/shm"]) == Container(None)
    assert of_options(["--tmpfs", "/dev/shm:rw,size=8g"]) == Container(8 * GIB)
    assert of_options(["--tmpfs", "/dev/shm"]) == Container(None)
    assert of_options(["--tmpfs", "/tmp", "-v", "/data:/data"]) == Container(64 << 20)
    assert of_options(["-v", "/dev/shm:/data"]) == Container(64 << 20)
    assert of_service({"ipc": "${IPC:-host}"}) == of_service({"ipc": "service:x"}) == Container(None)
    assert of_service({"extends": {"service": "b"}}) == Container(None)
    assert of_service({"extends": {"service": "b"}, "shm_size": "8g"}) == Container(8 * GIB)
    assert of_service({"tmpfs": "/dev/shm:size=8g"}) == of_service({"tmpfs": ["/dev/shm:size=8g"]})
    assert of_service({"tmpfs": "/dev/shm:size=8g"}) == Container(8 * GIB)
    bind = {"type": "bind", "source": "/dev/shm", "target": "/dev/shm"}
    assert of_service({"volumes": [bind]}) == of_service({"volumes": ["/dev/shm:/dev/shm"]}) == Container(None, True)
    assert of_service({"ipc": "host", "mem_limit": "70g"}) == Container(None, True, 70 * GIB)
    assert of_service({"shm_size": "${SHM:-32gb}"}) == Container(None)
    deploy = {"resources": {"limits": {"memory": "8G"}}}
    assert of_service({"shm_size": 1073741824, "deploy": deploy}) == Container(GIB, False, 8 * GIB)
    assert (size_bytes("1.5g"), size_bytes("b"), size_bytes("64"), size_bytes("9" * 400)) == (
        3 * GIB // 2,
        None,
        64,
        None,
    )


def test_what_opens_a_port_and_what_is_mounted() -> None:
    assert [published(one) for one in (["-p", "80:8000"], ["-p80:8000"], ["-p=80:8000"], ["--publish=80"], ["-P"])] == [
        "80:8000", "80:8000", "80:8000", "80", "all"]  # fmt: skip
    assert published(["-p", "127.0.0.1:80:8000", "-v", "/p:/p"]) is None
    assert [on_loopback(one) for one in ("80:8000", "8000", "0.0.0.0:80:8000")] == [
        "127.0.0.1:80:8000", "127.0.0.1:8000:8000", "127.0.0.1:80:8000"]  # fmt: skip
    assert host_network(["--network", "host"]) and host_network(["--net=host"]) and not host_network(["--name", "host"])
    mounts = ["-v", "/srv/models:/models:ro", "-v/big:/models/big", "--mount", "type=bind,source=/h,target=/c"]
    assert [outside(mounts, one) for one in ("/models/a", "/models/big/b", "/c", "/modelsx", "/other")] == [
        "/srv/models/a", "/big/b", "/h", None, None]  # fmt: skip
    assert outside(["-v", "named:/models"], "/models/a") is None


def test_the_version_of_an_image() -> None:
    assert version_of("vllm/vllm-openai:v0.8.5") == (0, 8)
    assert version_of("vllm/vllm-openai:v0.32.0-x86_64@sha256:0123") == (0, 32)
    assert version_of("vllm/vllm-openai:latest") is None
    assert version_of("vllm/vllm-openai@sha256:0123") is None
    assert version_of("example.org:5.5/other:1.2") is None


TEXT = st.one_of(st.text(max_size=20), st.sampled_from(["\x1b[31m", "[red]", "a\nb", "", "\u202e"]))
NUMBER = st.one_of(st.integers(-(2**40), 2**80), st.sampled_from([0, 1, GIB, 64 * GIB]))
SOME = st.one_of(st.none(), NUMBER)
PID = st.integers(0, 5)


def tier(extra: str) -> str:
    return f'{{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {extra}}}'


VALUE = st.one_of(
    st.integers(-5, 2**70).map(str),
    st.floats().map(str),
    TEXT,
    st.sampled_from(
        ["{}", '{"kv_connector": 1}', '{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": []}',
         tier('{"connectors": [{"kv_connector": "LMCacheX"}, 1]}'), tier('{"cpu_bytes_to_use": 1e300}'),
         tier('{"cpu_bytes_to_use": NaN, "block_size": 7}'), tier('{"cpu_bytes_to_use": 64, "blocks_per_chunk": -1}'),
         '{"method": "eagle"}', '{"method": ["eagle"], "model": "/x"}', "[" * 5000, "{'a': 1}", "~/x", "/x"]
    ),
)  # fmt: skip
WORD = st.one_of(TEXT, VALUE, st.sampled_from(vllm_0_32().long_names()))
PAIR = st.tuples(
    st.sampled_from(
        ["--kv-transfer-config", "--kv-offloading-size", "--kv-cache-memory-bytes", "--speculative-config", "-tp",
         "--block-size", "--max-num-batched-tokens", "--long-prefill-token-threshold", "--port", "--host", "--dp",
         "--gpu-memory-utilization", "--device-ids", "--cpu-offload-gb", "--mamba-cache-mode", "--config",
         "--swap-space"]
    ),
    VALUE,
).map(list)  # fmt: skip
WORDS = st.lists(st.one_of(WORD.map(lambda word: [word]), PAIR), max_size=8).map(lambda many: list(chain(*many)))
CARDS = st.lists(
    st.builds(
        Card,
        st.integers(0, 9),
        st.one_of(st.none(), TEXT),
        SOME,
        SOME,
        st.lists(st.builds(Holder, PID, st.one_of(st.none(), TEXT), SOME), max_size=3).map(tuple),
    ),
    max_size=3,
).map(tuple)
PROFILE = st.builds(
    lambda runner, gpus, words: profile(
        runner=runner, gpus=gpus, venv={"command": words, "wrap": words}, docker={"options": words}
    ),
    st.sampled_from(["venv", "docker", "compose", "systemd", "attach"]),
    st.lists(TEXT, max_size=2),
    st.lists(st.one_of(TEXT, st.sampled_from(["-p", "--network", "host", "-pMemoryMax=%", "-m"])), max_size=3),
)
LAST = st.builds(LastStart, SOME, SOME, SOME, st.one_of(st.none(), st.booleans()))
SERVER = st.builds(Server, PID, st.frozensets(PID, max_size=3), TEXT, st.one_of(st.none(), st.just(8000)))
OWN = st.builds(
    OwnFile,
    st.one_of(st.none(), TEXT),
    TEXT,
    env_whole=st.booleans(),
    options=st.one_of(
        st.none(), st.lists(st.one_of(TEXT, st.sampled_from(["-p=1:8000", "-P"])), max_size=3).map(tuple)
    ),
    gpus=st.lists(TEXT, max_size=2).map(tuple),
)
FACTS = st.builds(
    Facts,
    TEXT,
    PROFILE,
    st.builds(lambda words, yaml: Flags.read(words, yaml=yaml), WORDS, st.one_of(st.none(), TEXT)),
    env=st.dictionaries(
        st.sampled_from(["PYTHONHASHSEED", "LMCACHE_CHUNK_SIZE", "CUDA_VISIBLE_DEVICES", "VLLM_SERVER_DEV_MODE"]), VALUE
    ),
    installed=st.one_of(st.none(), st.builds(Installed, TEXT, TEXT, st.sampled_from([None, vllm_0_32()]))),
    version=st.one_of(st.none(), st.tuples(st.just(0), st.integers(8, 40))),
    last=st.one_of(st.none(), LAST),
    container=st.one_of(st.none(), st.builds(Container, SOME, st.booleans(), SOME, st.booleans())),
    own=st.one_of(st.none(), OWN),
    told_gpus=st.lists(TEXT, max_size=2).map(tuple),
    paths=st.one_of(st.just({}), st.just({"/x": False})),
    shm_total_bytes=SOME,
    shm_free_bytes=SOME,
    offload_files=st.one_of(
        st.none(),
        st.lists(
            st.builds(OffloadFile, TEXT, NUMBER, st.lists(PID, max_size=2).map(tuple), st.booleans()), max_size=2
        ).map(tuple),
    ),
    memory_total_bytes=SOME,
    memory_available_bytes=SOME,
    memory_limit_bytes=SOME,
    cards=st.one_of(st.none(), CARDS),
    listeners=st.one_of(
        st.none(),
        st.dictionaries(st.integers(7999, 8002), st.builds(Listener, st.one_of(st.none(), PID), TEXT), max_size=3),
    ),
    health_asked=st.booleans(),
    health=st.one_of(st.none(), st.builds(Answer, TEXT, st.one_of(st.none(), TEXT))),
    servers=st.one_of(st.none(), st.lists(SERVER, max_size=2).map(tuple)),
    replacing=st.one_of(st.none(), st.frozensets(PID, max_size=3)),
)


@given(FACTS)
def test_no_rule_falls_over_any_facts(box: Facts) -> None:
    for rule in RULES:
        for said in rule(box):
            assert isinstance(said, Lacks) or (isinstance(said, Says) and said.says)
    told = judged(box)
    json.dumps(told.document(), allow_nan=False)
    for one in told.findings:
        assert all(text.isprintable() for text in (one.says, one.fix, one.flag))
    assert all(one.lacks.isprintable() for one in told.silent)


SECRET = "sk-geheim0123456789abcdef"


@given(
    st.lists(
        st.sampled_from(
            [["--api-key", SECRET], [f"--api-key={SECRET}"], [f"--hf-token={SECRET}"], [f"--{SECRET}"], [SECRET],
             ["--port", SECRET], [f"--kv-transfer-config=$KEY{SECRET}"], ["--config=" + SECRET], ["/x/" + SECRET],
             ["--kv-transfer-config", '{"api_key": "' + SECRET + '"'], ["--tokenizer", "/" + SECRET],
             ["--host", SECRET]]
        ),
        max_size=4,
    ).map(lambda many: list(chain(*many)))
)  # fmt: skip
def test_no_secret_gets_into_a_report(words: list[str]) -> None:
    run = Launch(argv=("vllm", "serve", *words), serve=tuple(words), set={"A_KEY": SECRET})
    like = profile(docker={"options": ["-p", SECRET]})
    box = Facts("x", like, Flags.read(words), run, installed=Installed("v", "0.32.0", vllm_0_32()), version=(0, 32))
    own = OwnFile("--port 1 --host 2 --tokenizer 3", "--port 1 --host 2 --tokenizer 3", env_whole=True)
    file = profile(runner="compose", compose={"files": ["/srv/" + SECRET]}, env={"set": {"A": SECRET, "HOST": SECRET}})
    for one in (box, replace(box, profile=file, own=own)):
        told = judged(one).document()
        assert SECRET not in json.dumps([told["findings"], told["lacks"], told["env"]])
