"""vLLM's command line as vLLM reads it."""

from __future__ import annotations

import argparse
import shlex
from functools import cache
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvtop.profiles.config_file import config_text, file_words
from kvtop.profiles.flags import Flags, number
from kvtop.profiles.vocabulary import Vocabulary, vllm_0_32


def read(line: str, yaml: str | None = None) -> Flags:
    return Flags.read(shlex.split(line), yaml=yaml)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("m --max-model-len 4096", "max-model-len", "4096"),
        ("m --max_model_len 4096", "--max-model-len", "4096"),
        ("m --max-model-len=4096", "max_model_len", "4096"),
        ("m --max-model-l 4096", "max-model-len", "4096"),
        ("m --kv-cache-memory 1", "kv-cache-memory-bytes", "1"),
        ("m -tp 2", "tensor-parallel-size", "2"),
        ("m -tp=2", "tensor-parallel-size", "2"),
        ("m -tp 2 --tensor-parallel-size 4", "tensor-parallel-size", "4"),
        ("m -O3", "optimization-level", "3"),
        ("m -O=2", "optimization-level", "2"),
        ("m -O 1", "optimization-level", "1"),
        ("m --host ''", "host", ""),
        ("m --seed -1", "seed", "-1"),
        ("m --port", "port", None),
        ("m", "port", None),
        ("m --enable-prefix-caching", "enable-prefix-caching", None),
    ],
)
def test_value(line: str, name: str, value: str | None) -> None:
    assert read(line).value(name) == value


@pytest.mark.parametrize(
    ("line", "on"),
    [
        ("m", None),
        ("m --enable-prefix-caching", True),
        ("m --no-enable-prefix-caching", False),
        ("m --no_enable_prefix_caching", False),
        ("m --no-enable-prefix-caching --enable-prefix-caching", True),
        ("m --enable-prefix-caching --no-enable-prefix-caching", False),
        ("m --no-enable-prefix-cach", False),
    ],
)
def test_switch(line: str, on: bool | None) -> None:
    assert read(line).on("enable-prefix-caching") is on


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("Qwen/Qwen3-8B --port 1", "Qwen/Qwen3-8B"),
        ("--model Qwen/Qwen3-8B --port 1", "Qwen/Qwen3-8B"),
        ("--port 1 --model=x", "x"),
        ("--port 1 x", "x"),
        ("--port 1", None),
        ("--enable-prefix-caching x", "x"),
        ("--api-key k x", None),
        ("", None),
        ("--model", None),
    ],
)
def test_model(line: str, model: str | None) -> None:
    assert read(line).model == model


def test_several_values_and_what_ends_them() -> None:
    flags = read("m --served-model-name a b --port 8001 -- c")
    assert flags.values("served-model-name") == ("a", "b")
    assert flags.number("port") == 8001
    assert flags.stray == ("c",)


def test_json_of_a_word() -> None:
    flags = read("""m --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'""")
    assert flags.json("kv-transfer-config") == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    assert read("m --kv-transfer-config {a").json("kv-transfer-config") is None
    assert read("m --kv-transfer-config []").json("kv-transfer-config") is None


def test_dotted_json_replaces_the_json_word_whole() -> None:
    """vLLM puts it behind everything else, so argparse takes it for the last of that flag."""
    flags = read(
        """m --kv-transfer-config.kv_connector NixlConnector --kv-transfer-config '{"kv_role": "kv_both"}' """
        "--kv_transfer_config.kv_connector_extra_config.cpu_bytes_to_use 64g --kv-transfer-config.x+ a,b"
    )
    assert flags.json("kv-transfer-config") == {
        "kv_connector": "NixlConnector",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 64_000_000_000},
        "x": ["a", "b"],
    }


def test_a_dot_in_a_value_makes_no_dotted_flag() -> None:
    assert read("m --gpu-memory-utilization=0.9 --host 127.0.0.1").number("gpu-memory-utilization") == 0.9


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("m --kv-offload-size 4", "unknown"),
        ("m --kv-offloading-s 4", ""),
        ("m --kv-offloading 4", "ambiguous"),
        ("m --port", "no_value"),
        ("m --enable-prefix-caching=true", "extra_value"),
        ("m --kv-offloading-size 4", ""),
        ("m -tq 4", "unknown"),
    ],
)
def test_what_argparse_would_refuse(line: str, problem: str) -> None:
    assert [one.problem for one in read(line).given] == [problem]


def test_the_file_stands_below_the_command_line() -> None:
    yaml = "port: 9000\nblock_size: 32\nmodel: from-file\nkv-transfer-config:\n  kv_role: kv_both\n"
    flags = read("m --config box.yaml --port 8001", yaml)
    assert (flags.model, flags.number("port"), flags.number("block-size")) == ("m", 8001, 32)
    assert flags.json("kv-transfer-config") == {"kv_role": "kv_both"}
    assert flags.config == "box.yaml"
    found = flags.find("block-size")
    assert found is not None and found.from_file
    assert read("--config box.yaml", yaml).model == "from-file"


def test_a_false_of_the_file_is_dropped() -> None:
    yaml = "enable-prefix-caching: false\nno-async-scheduling: true\nserved-model-name: [a, b]\nlora-modules: []\n"
    flags = read("m --config box.yaml", yaml)
    assert flags.dropped == ("enable-prefix-caching",)
    assert flags.on("enable-prefix-caching") is None
    assert flags.on("async-scheduling") is False
    assert flags.values("served-model-name") == ("a", "b")
    assert flags.find("lora-modules") is None


@pytest.mark.parametrize("line", ["m --config=box.yaml", "m --seed 1 --config=box.yaml"])
def test_other_forms_of_config_read_no_file(line: str) -> None:
    flags = read(line, "port: 9000")
    assert (flags.config, flags.config_ignored, flags.number("port")) == (None, "box.yaml", None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("port: [", "line 1"),
        ("- a", "not a table"),
        ("just words", "not a table"),
        ("&a [*a, *a]", "nested too deeply"),
        ("a: &a [*a]", "nested too deeply"),
        ("a: " + "[" * 60 + "]" * 60, "nested too deeply"),
        ("d: 2026-99-99", "month must be"),
        ("a: &a [1,2,3,4,5,6,7,8,9]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
         "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d,*d]", "too large"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used(text: str, problem: str) -> None:
    words = file_words(text)
    assert words.problem is not None and problem in words.problem
    assert words.words == ()


def test_the_text_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "box.yaml").write_text("port: 1")
    (tmp_path / "odd.yaml").write_bytes(b"\xff")
    assert config_text("box.yaml", tmp_path) == "port: 1"
    assert config_text("odd.yaml", tmp_path) is None
    assert config_text("none.yaml", tmp_path) is None
    assert config_text("a\0b", tmp_path) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("1k", 1000), ("1K", 1024), ("25.6k", 25_600), ("2.5K", None), ("0.9", 0.9), ("1e400", None),
     ("nan", None), ("", None), ("x", None), ("9" * 5000, None), ("4G", 4 << 30)],
)  # fmt: skip
def test_numbers(text: str, value: float | None) -> None:
    assert number(text) == value


WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["--port", "8000", "--port=1", "--kv-transfer-config", '{"a": 1}', "--kv-transfer-config.a", "x.y", "-tp", "--",
         "-O", "-O3", "--model", "--config", "--config=a", "a.yaml", "--no-enable-prefix-caching", "-0.5", "--a.b+"]
    ),
    st.sampled_from(vllm_0_32().long_names()).map(lambda flag: flag[:9]),
)  # fmt: skip


@given(st.lists(WORDS, max_size=12), st.one_of(st.none(), st.text(max_size=60)))
def test_no_command_line_is_too_odd(words: list[str], yaml: str | None) -> None:
    flags = Flags.read(words, yaml=yaml)
    for one in flags.all():
        assert flags.find(one.name) is one
        flags.value(one.name), flags.json(one.name), flags.number(one.name)


@cache
def oracle() -> argparse.ArgumentParser:
    """Python's own argparse with the flags of 0.32 whose way of being given it can tell."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    parser.add_argument("model_tag", nargs="?")
    for line in vllm_0_32().rows().splitlines():
        kind, *spellings = line.split()
        nargs = {"maybe": "?", "many": "+", "any": "*"}.get(kind)
        dest = next(one for one in [*spellings, ""] if one.startswith("--") or one == spellings[-1]).lstrip("-")
        if kind == "switch":
            for one in spellings:
                action = "store_false" if one == f"--no-{dest}" else "store_true"
                parser.add_argument(one, dest=dest, action=action, default=None)
        else:
            parser.add_argument(*spellings, dest=dest, nargs=nargs)
    return parser


VALUES = st.sampled_from(["1", "x", "-1", "a b", '{"a": [1]}', "/m/x.y", "-x y", "", "k=v"])


def one_flag(draw: st.DrawFn) -> list[str]:
    line = draw(st.sampled_from(vllm_0_32().rows().splitlines()))
    kind, *spellings = line.split()
    word = draw(st.sampled_from(spellings))
    if word.startswith("--") and draw(st.booleans()):
        word = word[: draw(st.integers(min(6, len(word)), len(word)))]
    if word.startswith("--") and draw(st.booleans()):
        word = "--" + word[2:].replace("-", "_")
    if kind == "switch":
        return [word]
    value = draw(VALUES)
    if draw(st.booleans()) and word.startswith("--"):
        return [f"{word}={value}"]
    return [word, value, *draw(st.lists(VALUES, max_size=2 if kind == "many" else 0))]


FLAG = st.composite(one_flag)()


@given(st.lists(FLAG, max_size=6))
def test_argparse_says_the_same(flags: list[list[str]]) -> None:
    words = ["the/model", *(word for flag in flags for word in flag)]
    assume(not any(word.partition("=")[0] == "--model" for word in words))  # moved before argparse sees it
    ours = Flags.read(words)
    dashes = [
        "--" + word[2:].partition("=")[0].replace("_", "-") + "".join(word.partition("=")[1:])
        if word.startswith("--")
        else word
        for word in words
    ]
    try:
        theirs, left = oracle().parse_known_args(dashes)
    except (argparse.ArgumentError, SystemExit):
        assert any(one.problem for one in ours.given)
        return
    if left:
        assert ours.stray or any(one.problem == "unknown" for one in ours.given)
        return
    assert not any(one.problem for one in ours.given)
    for name, value in vars(theirs).items():
        if name == "model_tag":
            assert ours.model == (theirs.model or value)
        elif isinstance(value, bool):
            assert ours.on(name) is value
        elif isinstance(value, list):
            assert list(ours.values(name)) == value
        elif name not in ("model", "config"):  # read before argparse sees them
            assert ours.value(name) == value


HELP = """\
usage: vllm serve [model_tag] [options]

positional arguments:
  model_tag             The model tag to serve (default: None)

options:
  --api-server-count API_SERVER_COUNT, -asc API_SERVER_COUNT
                        How many. --not-a-flag in a description
  --enable-log-requests, --no-enable-log-requests
                        Logging.
  --model-impl ['auto', 'terratorch', 'transformers', 'vllm']
                        Which
  --hf-token [HF_TOKEN]
                        Token.
  --api-key API_KEY [API_KEY ...]
                        Keys
  --collect-detailed-traces {all,model,worker,None} [{all,model,worker,None} ...]
                        x
  --anything [THING ...]
  --kv-events-config KV_EVENTS_CONFIG
                        Should either be a valid JSON
                        string or JSON keys passed individually.
  -q, --quantization QUANTIZATION
                        Python 3.13 writes it so
  -h, --help            show this help message and exit
"""


def test_a_help_text() -> None:
    filler = "".join(f"  --filler-{n} N  a flag\n" for n in range(50))
    known = Vocabulary.from_help(HELP + filler)
    assert known is not None
    kinds = {one: (spec.name, spec.kind, spec.on) for one in known.long_names() if (spec := known.spec(one))}
    assert {one: found for one, found in kinds.items() if "filler" not in one} == {
        "--api-server-count": ("api-server-count", "one", True),
        "--enable-log-requests": ("enable-log-requests", "switch", True),
        "--no-enable-log-requests": ("enable-log-requests", "switch", False),
        "--model-impl": ("model-impl", "one", True),
        "--hf-token": ("hf-token", "maybe", True),
        "--api-key": ("api-key", "many", True),
        "--collect-detailed-traces": ("collect-detailed-traces", "many", True),
        "--anything": ("anything", "any", True),
        "--kv-events-config": ("kv-events-config", "json", True),
        "--quantization": ("quantization", "one", True),
        "--help": ("help", "switch", True),
    }
    assert "-asc" in known and "-q" in known
    again = Vocabulary.from_rows(known.rows())
    assert (again.rows(), len(again)) == (known.rows(), len(known))


@pytest.mark.parametrize("text", ["", "usage: vllm", HELP, "Traceback (most recent call last):\n  -x\n"])
def test_what_is_no_help_text(text: str) -> None:
    assert Vocabulary.from_help(text) is None


def test_the_flags_that_come_with_kvtop() -> None:
    known = vllm_0_32()
    assert len(known) == 430
    for flag in ("--kv-transfer-config", "--max-num-batched-tokens", "--no-enable-prefix-caching", "-tp"):
        assert flag in known
    assert "--max-num-partial-prefills" not in known
