"""Broken and hostile files end in a message, and secrets in odd places are shown by no command."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from check_box import facts
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvtop.cli.main import main
from kvtop.profiles.check import last
from kvtop.profiles.check.report import judged
from kvtop.profiles.check.seen import LastStart
from kvtop.profiles.config_file import file_words
from kvtop.profiles.differences import flag_values
from kvtop.profiles.flags import Flags
from kvtop.profiles.importers import compose, docker, script, unit, words
from kvtop.profiles.importers.draft import Draft, Refused
from kvtop.profiles.secret import shown
from kvtop.profiles.text import to_toml
from kvtop.profiles.vocabulary import vllm_0_32
from kvtop.profiles.yaml_text import NoYaml, loaded
from kvtop.sources.masking import masked, without_secrets

KEY = "SECRETVALUE12345"
JUNK = (
    None,
    "",
    0,
    -1,
    3.5,
    True,
    [],
    {},
    "x",
    ["x"],
    [1],
    [None],
    [[]],
    {"a": 1},
    {"a": None},
    [{"a": [1]}],
    "\0",
    "\ud800",
)
BOX: list[dict[str, Any]] = [{
    "Name": "/x",
    "Config": {
        "Image": "vllm/vllm-openai", "Env": ["VLLM_A=1"], "Labels": {"com.docker.compose.project": "p"},
        "Entrypoint": ["vllm", "serve"], "Cmd": ["m", "--port", "80"], "WorkingDir": "/", "User": "u",
    },
    "HostConfig": {
        "IpcMode": "host", "ShmSize": 5, "Memory": 3, "MemorySwap": 6, "CpusetCpus": "1", "Runtime": "nvidia",
        "NetworkMode": "host", "RestartPolicy": {"Name": "always"}, "Binds": ["/a:/b"], "Privileged": True,
        "Mounts": [{"Type": "bind", "Source": "/a", "Target": "/b", "ReadOnly": True}],
        "PortBindings": {"80/tcp": [{"HostIp": "", "HostPort": "80"}]},
        "Ulimits": [{"Name": "a", "Soft": 1, "Hard": 2}], "CapAdd": ["X"], "SecurityOpt": ["y"],
        "DeviceRequests": [{"DeviceIDs": ["0"], "Count": -1}],
    },
}]  # fmt: skip
FILE: dict[str, Any] = {
    "name": "n",
    "services": {"vllm": {
        "image": "vllm/vllm-openai", "command": ["--model", "m"], "entrypoint": ["vllm", "serve"], "profiles": ["a"],
        "extends": {"service": "b"}, "depends_on": {"b": {"condition": "x"}}, "environment": {"A": "1", "B": None},
        "env_file": [{"path": ".env"}], "ipc": "host", "shm_size": "32g", "volumes": ["/a:/b", {"type": "bind"}],
        "deploy": {"resources": {"limits": {"memory": "3g"}, "reservations": {"devices": [{"device_ids": ["0"]}]}}},
        "ports": ["80:80", {"published": 1, "target": 2}], "healthcheck": {"start_period": "2h"}, "gpus": "all",
    }},
}  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], junk: object) -> Any:
    if not at:
        return junk
    value = deepcopy(value)
    inner = value
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = junk
    return value


def made(read: Callable[[Draft], None]) -> str:
    """The file that is written; empty where it is refused."""
    draft = Draft()
    try:
        read(draft)
        taken = draft.made()
    except Refused:
        return ""
    text = to_toml(taken.profile, taken.notes)
    text.encode()
    assert "\0" not in text
    return text


@pytest.mark.parametrize("at", list(places(BOX)), ids=str)
def test_what_docker_says_may_be_of_any_kind(at: tuple[Any, ...]) -> None:
    for junk in JUNK:
        text = json.dumps(replaced(BOX, at, junk))
        made(lambda draft, text=text: docker.inspect(draft, text))  # type: ignore[misc]
    assert 'image = "vllm/vllm-openai"' in made(lambda draft: docker.inspect(draft, json.dumps(BOX)))


@pytest.mark.parametrize("at", list(places(FILE)), ids=str)
def test_what_a_compose_file_says_may_be_of_any_kind(at: tuple[Any, ...]) -> None:
    for junk in JUNK:
        text = json.dumps(replaced(FILE, at, junk))
        made(lambda draft, text=text: compose.read(draft, text, None))  # type: ignore[misc]
    text = made(lambda draft: compose.read(draft, json.dumps(FILE), None))
    assert '"--model", "m"' in text
    assert '"--mount", "type=bind"' in text


@pytest.mark.parametrize("junk", ["\ud800", "a\0b"])
def test_a_word_that_no_toml_holds_is_refused(junk: str) -> None:
    with pytest.raises(Refused, match="no file of TOML holds it"):
        draft = Draft()
        words.command(draft, ["vllm", "serve", "m", "--x", junk])
        draft.made()


@pytest.mark.parametrize("depth", [39, 200, 400, 985])
def test_deep_json_on_a_command_line_stays_a_word(depth: int) -> None:
    value = '{"a":' * depth + "1" + "}" * depth
    text = made(lambda draft: words.command(draft, ["vllm", "serve", "m", "--hf-overrides", value]))
    assert ("[serve.json.hf-overrides" in text) == (depth < 40)


def test_variables_that_grow_are_refused(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=" + "x" * 90_000)
    service = {"services": {"v": {"image": "vllm", "command": "$A" * 100_000}}}
    with pytest.raises(Refused, match="too long"):
        compose.read(Draft(), json.dumps(service), tmp_path / "compose.yml")
    line = "[Service]\nEnvironment=A=" + "x" * 90_000 + "\nExecStart=/v/vllm serve " + "${A}" * 10_000
    with pytest.raises(Refused, match="too long"):
        unit.read(Draft(), line, None)
    line = "[Service]\nEnvironment='A=" + "x " * 9000 + "'\nExecStart=/v/vllm serve " + "$A " * 1000
    with pytest.raises(Refused, match="too long"):
        unit.read(Draft(), line, None)


def test_what_a_sourced_file_exports_goes_by_its_whole_name(tmp_path: Path) -> None:
    (tmp_path / "vars").write_text("VLLM_A=1\nexport VLLM_AB=2\n")
    (tmp_path / "start.sh").write_text("source vars\nvllm serve m\n")
    from kvtop.profiles.importers.pick import import_file

    profile = import_file(tmp_path / "start.sh")[0].profile
    assert profile.env.set == {"VLLM_AB": "2"}


@pytest.mark.parametrize("value", ["!!bool maybe", "!!int ''", "!!timestamp nope"])
def test_a_tag_that_does_not_fit_is_told(value: str) -> None:
    assert file_words(f"a: {value}").problem == "a value is not of the kind that its !!tag says"


def test_yaml_that_grows_is_too_large() -> None:
    long = "a: &a " + "x" * 50_000 + "\nb: [" + "*a," * 1000 + "]"
    minutes = "a: 1:" + ":".join(["59"] * 4000)
    for text in (long, minutes):
        with pytest.raises(NoYaml, match="too large"):
            loaded(text)
    assert loaded("a: 1:59:59") == {"a": 7199}


@given(st.text(alphabet="{}[]&*a1:!, -\n\"'|>~<=#%@`0.", max_size=60))
@settings(max_examples=200)
def test_any_yaml_is_read_or_refused(text: str) -> None:
    try:
        loaded(text)
    except NoYaml as error:
        assert error.what
    assert file_words(text).problem != ""


@pytest.mark.parametrize("depth", [40, 300, 900, 985, 5000])
def test_a_command_line_may_be_nested_as_deep_as_it_likes(depth: int) -> None:
    lists = "[" * depth + "]" * depth
    tables = '{"a":' * depth + "1" + "}" * depth
    path = "--a." + "b." * depth + "c"
    for word in (lists, tables):
        assert masked(["vllm", "serve", "m", "--x", word])[:4] == ("vllm", "serve", "m", "--x")
        assert flag_values(["m", "--x", word])["--model"] == "m"
        assert flag_values(["m", "--x.y", word])["--model"] == "m"
    assert Flags.read(["m", path, "1", path, "2"]).model == "m"


def test_a_secret_beside_deep_json_is_masked() -> None:
    word = '{"api_key": "' + KEY + '", "a": ' + "[" * 900 + "]" * 900 + "}"
    assert KEY not in without_secrets(["--x", word])[1]


def test_dots_and_dashes_take_no_time() -> None:
    began = time.perf_counter()
    without_secrets([".-" * 20_000])
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (f"token={KEY}", "token=***"),
        (f"Bearer {KEY}", "Bearer ***"),
        ("bearer of good news", "bearer of good news"),
        ("a bearer authentication is wanted", "a bearer authentication is wanted"),
    ],
)
def test_a_secret_that_stands_alone(text: str, seen: str) -> None:
    assert shown(text) == seen


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path))
    folder = tmp_path / "config" / "profiles"
    folder.mkdir(parents=True)
    return folder


def test_the_difference_to_a_file_of_config_shows_no_secret(profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (profiles / "a.toml").write_text('[serve]\nmodel = "m"\n')
    config = profiles / "box.yaml"
    config.write_text(f"api-key: {KEY}\nseed: 7\nhf-overrides: {{token: {{deep: {KEY}}}}}\n")
    (profiles / "b.toml").write_text(f'[serve]\nmodel = "m"\nconfig = "{config}"\n')
    assert main(["profile", "command", "a", "--diff", "b", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["differences"]
    assert {row["name"]: row["new"] for row in rows} == {
        "--api-key": "***",
        "--seed": "7",
        "--hf-overrides.token.deep": "***",
    }


@pytest.mark.parametrize("depth", [41, 200, 330])
@pytest.mark.parametrize("pair", ["{a=|}", "[|]"])
def test_a_json_flag_that_is_too_deep_is_told(
    profiles: Path, capsys: pytest.CaptureFixture[str], pair: str, depth: int
) -> None:
    begin, _, end = pair.partition("|")
    (profiles / "a.toml").write_text(f"[serve.json.hf-overrides]\nx = {begin * depth}1{end * depth}\n")
    for job in (["list"], ["show", "a"], ["show", "a", "--json"], ["command", "a"], ["check", "a"]):
        assert main(["profile", *job]) in (0, 2)
        said = capsys.readouterr()
        assert "nested too deeply" in said.out + said.err


@pytest.mark.parametrize(
    "text",
    [
        '[log]\nfile = "~nobody-at-all/x"\n[serve]\nmodel = "m"\n',
        'runner = "compose"\n[compose]\nfiles = ["~nobody-at-all/x"]\nservice = "s"\n',
        'runner = "docker"\n[docker]\nimage = "i"\nenv_files = ["~nobody-at-all/x"]\n',
    ],
)
def test_the_home_of_nobody_is_no_traceback(profiles: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (profiles / "a.toml").write_text(text)
    assert main(["profile", "check", "a", "--json"]) == 1
    assert "~nobody-at-all" in capsys.readouterr().out
    assert main(["profile", "import", "~nobody-at-all/x.sh"]) == 2
    assert main(["profile", "show", "~nobody-at-all/x.toml"]) == 2


def test_a_compose_file_of_aliases_is_not_written_out(profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    file = profiles / "compose.yml"
    file.write_text("\n".join(["a0: &a0 [x]", *rows, "services:", "  s:", "    shm_size: *a8", "    image: *a8"]))
    (profiles / "a.toml").write_text(f'runner = "compose"\n[compose]\nfiles = ["{file}"]\nservice = "s"\n')
    assert main(["profile", "check", "a", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["profile"] == "a"


def test_a_log_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    assert last.read(tmp_path / "log", 1) is None
    assert last.read(Path("/dev/zero"), 1) is None
    assert last.read(tmp_path, 1) is None


def test_a_log_of_many_starts_that_failed() -> None:
    good = b"non-default args: {'model': 'm'}\nGPU KV cache size: 1,024 tokens\n"
    log = good + b"non-default args: {'model': 'm'}\n" + b"it failed\n" * 20
    began = time.perf_counter()
    assert last.of_log(log + log[len(good) :] * 20_000, 1) == LastStart(1024, None, None, False)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("size", [10**400, 10**4000, 1e300, -1, True, "x"])
def test_sizes_of_any_length_are_judged(size: object) -> None:
    value = json.dumps(
        {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"cpu_bytes_to_use": size, "block_size": size},
        }
    )
    found = judged(facts(f"m --kv-transfer-config '{value}'"))
    assert "units_suspicious" in {one.rule for one in found.findings}


ODD = ["9" * 99 + "T", "9" * 299 + "T", "9" * 5000, "1e308", "-1", "nan", "inf", "0", "0.5", "1e-300", "-0.0", "x", ""]
COUNTS = ["tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "data-parallel-size-local"]
SIZES = ["kv-offloading-size", "kv-cache-memory-bytes", "block-size", "swap-space", "max-num-batched-tokens", "port",
         "cpu-offload-gb", "gpu-memory-utilization", "long-prefill-token-threshold"]  # fmt: skip


@pytest.mark.parametrize("number", ODD)
def test_numbers_of_any_length_are_judged(number: str) -> None:
    for flag in COUNTS + SIZES:
        judged(facts(f"m --{flag} '{number}'"))
    judged(facts("m " + " ".join(f"--{flag} '{number}'" for flag in COUNTS + SIZES)))


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(COUNTS + SIZES, st.sampled_from([*ODD, "1", "2", "16", "4096"])))
)
@example({"tensor-parallel-size": "0.5", "kv-offloading-size": "4"})
@example({"data-parallel-size": "0.5", "kv-offloading-size": "4096"})
def test_odd_numbers_beside_good_ones_are_judged(numbers: dict[str, str]) -> None:
    judged(facts("m " + " ".join(f"--{flag} '{number}'" for flag, number in numbers.items())))


@pytest.mark.parametrize(
    "text",
    [
        "[serve]\nargs = [" + ",".join(f'"--a{i}","x"' for i in range(9000)) + "]\n",
        "[env.set]\n" + "".join(f'V{i} = "x"\n' for i in range(15_000)),
    ],
)
def test_a_profile_of_thousands_of_values_is_told(
    profiles: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (profiles / "a.toml").write_text(text)
    (profiles / "b.toml").write_text('extends = "a"\n' + text)
    began = time.perf_counter()
    assert main(["profile", "list", "--json"]) == 0
    assert time.perf_counter() - began < 10
    rows = json.loads(capsys.readouterr().out)
    assert {row["state"] for row in rows} == {"unreadable"}
    assert all("more than 2000 keys and words" in row["error"] for row in rows)


def test_a_cut_flag_means_all_that_begin_with_it() -> None:
    known = vllm_0_32()
    for word in ("--", "-", "--max-num", "--enable-p", "--zzz", "--no-enable-prefix-caching", "--h", "-t", "--~"):
        slow = () if word in ("--", "-") else tuple(one for one in known.rows().split() if one.startswith(word))
        assert set(known.beginning(word)) == ({word} if word in known else set(slow))
    many = known.beginning("--max-num")
    assert many == tuple(one for one in known.long_names() if one.startswith("--max-num"))


def test_a_secret_in_a_command_that_is_left_out_is_not_written(tmp_path: Path) -> None:
    line = (
        "[Service]\nExecStartPre=/bin/login --password hunter2 --as me\nExecStop=/bin/x TOKEN=hunter2\n"
        "ExecStart=/v/vllm serve m\n"
    )
    text = made(lambda draft: unit.read(draft, line, None))
    assert "hunter2" not in text
    assert "systemd runs ExecStartPre: /bin/login --password *** --as me" in text
    odd = made(lambda draft: unit.read(draft, f"{line}ExecStopPost=/bin/echo it's --token hunter2\n", None))
    assert "systemd runs ExecStopPost, which cannot be told apart into words" in odd and "hunter2" not in odd
    (tmp_path / "start.sh").write_text("kill --token hunter2\ndocker rm --password=hunter2 x\nvllm serve m\n")
    text = made(lambda draft: script.read(draft, (tmp_path / "start.sh").read_text()))
    assert "hunter2" not in text
    assert "`kill --token ***` was left out" in text
