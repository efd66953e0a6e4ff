"""A key that was typed where it does not belong is in no output of a profile, and in no record."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvtop.cli.main import main
from kvtop.cli.profile.chosen import choose
from kvtop.errors import keyless
from kvtop.profiles import folder
from kvtop.profiles.running import failure, record
from kvtop.profiles.running.begun import begun
from kvtop.profiles.running.order import Order
from kvtop.profiles.running.tools import Failed, run
from kvtop.profiles.secret import shown
from kvtop.profiles.text import value_text

LETTERS = "abcdefghkmnpqrstuvwxyzABCDEFGHKMNPQRSTUVWXYZ23456789"
BODIES = st.text(LETTERS, min_size=18, max_size=24)
KEYS = BODIES.map(lambda body: f"sk-{body}")
"""Known by their beginning, wherever they stand."""

NAMED: dict[str, Callable[[str], list[str]]] = {
    "behind a flag": lambda key: ["--api-key", key],
    "one of several": lambda key: ["--api_key", "first", key, "--max-num-seqs", "4"],
    "with a sign": lambda key: [f"--api-key={key}"],
    "cut short": lambda key: ["--api-k", key],
    "hf": lambda key: [f"--hf_token={key}"],
    "dotted": lambda key: ["--kv-transfer-config.kv_connector_extra_config.auth_token", key],
    "json": lambda key: ["--kv-transfer-config", json.dumps({"a": {"api_key": key}})],
    "json list": lambda key: [f"--override-x={json.dumps({'api_keys': [key, key]})}"],
    "json with quotes": lambda key: ["--x", json.dumps({"password": f'a"b {key}'})],
    "json that is none": lambda key: ["--x", "{'password': 'a\\'b " + key + "'"],
    "json of a header": lambda key: ["--x", json.dumps({"headers": {"Authorization": f"Bearer {key}"}})],
    "header": lambda key: ["--header", f"X-Api-Key: {key}"],
    "url": lambda key: ["--otlp-traces-endpoint", f"http://user:{key}@host:4317/v1"],
    "url with a slash": lambda key: [f"--otlp-traces-endpoint=http://user:a/{key}@host:4317"],
    "query": lambda key: ["--x", f"https://host/y?a=1&access_token={key}"],
    "variable": lambda key: [f"VLLM_API_KEY={key}"],
    "variable behind a flag": lambda key: [f"--env=HF_TOKEN={key}"],
    "for a shell": lambda key: [f"export OPENAI_API_KEY='a {key}'; vllm serve m"],
}
"""Known by what stands beside them."""
ODD: dict[str, Callable[[str], list[str]]] = {
    "a flag": lambda key: [f"--{key}"],
    "a flag with a value": lambda key: [f"--{key}=1"],
    "a word": lambda key: [key],
    "a value": lambda key: ["--served-model-name", key],
    "a value behind a sign": lambda key: [f"--tokenizer={key}"],
    "json": lambda key: ["--x", json.dumps({"a": [key, {key: 1}]})],
    "dotted": lambda key: [f"--x.{key}", "1"],
}


def masks(draw: st.DrawFn) -> tuple[str, list[str], str]:
    if draw(st.booleans()):
        key = draw(KEYS)
        return key, draw(st.sampled_from(list(ODD.values())))(key), draw(st.sampled_from(["MY_VARIABLE", "ABOUT"]))
    body = draw(BODIES)
    return body, draw(st.sampled_from(list(NAMED.values())))(body), draw(st.sampled_from(["HF_TOKEN", "DB_PASSWD"]))


TYPED = st.composite(masks)()


def profile(words: list[str], variable: str, key: str, runner: str) -> str:
    flags, arguments = value_text(["--max-model-len", "4096", *words]), value_text(words)
    json_value = value_text(
        {"api_key": key, "b": [{"token": key}], key: True} if key.startswith("sk-") else {"token": key}
    )
    return (
        f'runner = "{runner}"\n[serve]\nmodel = "org/m"\nport = 8000\nargs = {flags}\n'
        f"[serve.json]\nadditional-config = {json_value}\n[env.set]\n{variable} = {value_text(key)}\n"
        f'[venv]\ncommand = ["/none/vllm", "serve"]\nwrap = {arguments}\n'
        f'[docker]\nimage = "vllm/vllm-openai:v0.32.0"\noptions = {arguments}\n'
        f'[compose]\nservice = "s"\nvariables = {{{variable} = {value_text(key)}}}\n[systemd]\nunit = "u.service"\n'
        f'[start]\nhealth_url = "http://user:{key}@127.0.0.1:9/health"\nbefore = [{arguments}]\n'
        f'[[sidecar]]\nname = "side"\ncommand = {arguments}\n'
    )


@pytest.fixture(autouse=True)
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines differ, and each look takes time: here there are no servers and no cards."""
    from kvtop.profiles.check import facts
    from kvtop.profiles.running import adopt

    monkeypatch.setattr(adopt, "foreign", lambda launches: [])
    monkeypatch.setattr(facts, "_cards", lambda: None)
    monkeypatch.setattr(facts, "_servers", lambda host, runs: ())


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(TYPED, st.sampled_from(["venv", "docker", "compose", "systemd", "attach"]))
def test_no_command_and_no_record_shows_it(
    own_home: Path, capsys: pytest.CaptureFixture[str], typed: tuple[str, list[str], str], runner: str
) -> None:
    key, words, variable = typed
    where = own_home / "config" / "profiles"
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    text = profile(words, variable, key, runner)
    if runner == "attach":
        text = text.replace("[start]\n", f'[attach]\nurl = "http://user:{key}@127.0.0.1:9"\n[start]\n')
    (where / "p.toml").write_text(text)
    (where / "q.toml").write_text('[serve]\nmodel = "org/m"\n[venv]\ncommand = ["/none/vllm", "serve"]\n')
    (where / "broken.toml").write_text(f"[env.set]\nA = 1\n[serve]\nport = {value_text(key)}\n")
    # A name of letters alone is no key that anybody could tell.
    name = key if keyless(key) != key else "token"
    (where / "wrong.toml").write_text(f'[serve]\n{name} = "{key}"\n')
    for argv in (
        ["list"],
        ["show", "p"],
        ["command", "p"],
        ["check", "p", "--verbose"],
        ["command", "p", "--diff", "q"],
        ["command", "q", "--diff", "p"],
        ["show", "broken"],
        ["show", "wrong"],
        ["show", key],
        ["start", "wrong"],
        ["logs", "p"],
        ["stop", "p"],
    ):
        for more in ([], ["--json"]):
            if more and argv[0] == "logs":
                continue
            said = out(capsys, ["profile", *argv, *more])
            if argv == ["show", key]:  # what was just typed is said back
                continue
            assert key not in said, (argv, more)
    chosen = choose(folder.find("p"))
    assert record.read("p") is None  # else a keeper would be asked for its end: this process
    made = begun(Order("p", chosen.file, chosen.profile, chosen.launch, {}, []), None)
    record.write(made)
    assert key not in record.path_of("p").read_text()
    assert key not in out(capsys, ["profile", "list", "--json"])
    record.path_of("p").unlink()


def out(capsys: pytest.CaptureFixture[str], argv: list[str]) -> str:
    main(argv)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return said.out + said.err


@settings(max_examples=100)
@given(TYPED)
@example(("P" * 18, ["--api-key", "P" * 18], ""))
def test_no_message_and_no_line_of_a_log_shows_it(typed: tuple[str, list[str], str]) -> None:
    key, words, _ = typed
    line = " ".join(words)
    assert key not in shown(f"INFO 11-30 it was run as {line}", 10_000)
    assert key not in failure.root_cause(f"vllm serve: error: unrecognized arguments: {line}\n".encode())


@pytest.mark.parametrize("name", NAMED)
def test_a_command_that_takes_too_long_is_named_without_it(name: str) -> None:
    with pytest.raises(Failed) as told:
        run(f"sleep 9 # {' '.join(NAMED[name]('geheimgeheim'))}", timeout_s=0.0)
    assert "did not end" in str(told.value) and "geheimgeheim" not in str(told.value)


def test_what_vllm_logs_of_its_keys_is_masked() -> None:
    """The line with which each server begins."""
    line = "INFO 11-30 [utils.py:233] non-default args: {'model_tag': 'm', 'api_key': ['geheim', 'geheim2'], 'port': 1}"
    assert shown(line, 400) == (
        "INFO 11-30 [utils.py:233] non-default args: {'model_tag': 'm', 'api_key': [\"***\"], 'port': 1}"
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("HF_TOKEN=geheim", "HF_TOKEN=***"),
        ("--hf-token=geheim", "--hf-token=***"),
        ("uploads as pypi-AgEIcHlwaS5vcmcCJDM", "uploads as ***"),
        ("GPG_PASSPHRASE=geheim", "GPG_PASSPHRASE=***"),
        ("Namespace(model='m', api_key=['geheim', 'geheim2'], port=1)", "Namespace(model='m', api_key=*** port=1)"),
        ("Namespace(max_num_batched_token=[1, 2])", "Namespace(max_num_batched_token=[1, 2])"),
        (
            "Command '['vllm', 'serve', 'm', '--api-key', 'geheim', 'geheim2', '--port', '1']' failed",
            "Command '['vllm', 'serve', 'm', '--api-key', '***', '--port', '1']' failed",
        ),
    ],
)
def test_keys_are_masked_as_python_prints_them_and_alone_in_a_line(line: str, told: str) -> None:
    assert shown(line, 400) == told


@pytest.mark.parametrize(
    "piece",
    [
        "://",
        "://a:",
        "'",
        "api_key=",
        "api_key=[",
        "'--token', ",
        '"api_key":',
        "sk-",
        "_key",
        "{",
        "authorization: ",
        "--token",
        "a b ",
    ],
)
def test_a_long_line_takes_no_time(piece: str) -> None:
    """Whoever may write into a log decides what stands in it."""
    began = time.process_time()
    shown(piece * (60_000 // len(piece)), 10**6)
    assert time.process_time() - began < 2


def test_the_whole_record_is_what_is_looked_at() -> None:
    """Every text of it; one that is new is to be masked too."""
    texts = {field.name for field in msgspec.structs.fields(record.Record) if field.type in (str, list[str])}
    assert texts == {
        *("name", "file", "runner", "argv", "model", "names", "host", "state", "why", "container", "unit"),
        *("program", "service", "log", "notes", "health_url", "log_file", "former", "doing", "sidecar_log"),
    } - {"state"}
