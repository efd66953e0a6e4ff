"""A command line becomes a profile that runs the same; secrets do not come along."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from profile_strategies import TABLES, TEXTS

from kvtop.profiles.differences import flag_values
from kvtop.profiles.importers.draft import Draft, Imported, Refused
from kvtop.profiles.importers.words import command
from kvtop.profiles.launch import READY_TIMEOUT, launch
from kvtop.profiles.secret import holds_secret
from kvtop.profiles.text import to_toml
from kvtop.profiles.vocabulary import vllm_0_32
from kvtop.sources.processes import ASKS


def imported(*words: str) -> Imported:
    draft = Draft()
    command(draft, words)
    return draft.made()


LONG = vllm_0_32().long_names()
NAMES = st.sampled_from([name[2:] for name in LONG if name not in ASKS])
"""Of a real vLLM: one that argparse does not know is no flag to it where a blank stands in its word."""
KNOWN = st.sampled_from(["port", "host", "served-model-name", "served_model_name", "config", "kv_transfer_config"])
VALUES = TEXTS | st.integers(-5, 99999).map(str) | TABLES.map(json.dumps) | st.just('{"a": null}')


@st.composite
def flags(draw: st.DrawFn) -> list[str]:
    name = draw(NAMES | NAMES.map(lambda text: text.replace("-", "_")) | KNOWN | st.just("kv-transfer-config.kv_role"))
    values = draw(st.lists(VALUES, max_size=3))
    if values and draw(st.booleans()):
        return [f"--{name}={values[0]}", *values[1:]]
    return [f"--{name}", *values]


@given(st.lists(TEXTS, max_size=2), st.lists(flags(), max_size=6))
@example(["m", "stray"], [["--port", "1"]])
@example(["m"], [["--port", "1"], ["--port=2"]])
@example([], [["--kv_transfer_config", '{"a": 1}'], ["--kv-transfer-config", '{"b": 1}']])
def test_any_words_run_the_same(front: list[str], rest: list[list[str]]) -> None:
    words = [*front, *(word for group in rest for word in group)]
    assume(not holds_secret(words))
    made = imported("vllm", "serve", *words)
    to_toml(made.profile, made.notes)
    run = launch("p", made.profile)
    assert run.argv == ("vllm", "serve", *run.serve)
    assert flag_values(run.serve) == flag_values(words)


def test_short_and_cut_flags_are_the_flag_that_they_mean() -> None:
    serve = imported("vllm", "serve", "m", "--served-model", "a", "-cc", '{"mode": 3}', "--hos", "h").profile.serve
    assert (serve.names, serve.host, serve.json) == (["a"], "h", {"compilation-config": {"mode": 3}})
    assert flag_values(["m", "-tp", "2"]) == flag_values(["--tensor_parallel_size=2", "--model", "m"])


@pytest.mark.parametrize(
    ("words", "argv", "env", "unset"),
    [
        ("vllm serve m", "vllm serve m", {}, ()),
        ("A=1 vllm serve m", "vllm serve m", {"A": "1"}, ()),
        ("env -u B A=1 --unset=C vllm serve m", "vllm serve m", {"A": "1"}, ("B", "C")),
        ("exec nohup numactl -N 0 env A=1 vllm serve m", "numactl -N 0 vllm serve m", {"A": "1"}, ()),
        ("sudo /v/bin/vllm serve m", "/v/bin/vllm serve m", {}, ()),
        ("sudo -E /v/bin/vllm serve m", "/v/bin/vllm serve m", {}, ()),
        ("/usr/bin/sudo -Hu llm --preserve-env=A -- B=2 vllm serve m", "vllm serve m", {"B": "2"}, ()),
        ("sudo -ullm -g vllm --user x -n vllm serve m", "vllm serve m", {}, ()),
        ("exec -a name vllm serve m", "vllm serve m", {}, ()),
        ("setsid -w time -p -o /t nohup vllm serve m", "vllm serve m", {}, ()),
        ("uv run --with x vllm serve m", "uv run --with x vllm serve m", {}, ()),
        (
            "python3 -m vllm.entrypoints.openai.api_server --model m",
            "python3 -m vllm.entrypoints.openai.api_server --model m",
            {},
            (),
        ),
        ("/v/bin/python /v/bin/vllm serve m", "/v/bin/python /v/bin/vllm serve m", {}, ()),
        ("A=1 env -u A vllm serve", "vllm serve", {}, ("A",)),
    ],
)
def test_what_stands_in_front(words: str, argv: str, env: dict[str, str], unset: tuple[str, ...]) -> None:
    run = launch("p", imported(*words.split()).profile)
    assert run.argv == tuple(argv.split())
    assert {name: value for name, value in run.set.items() if name != READY_TIMEOUT} == env
    assert run.unset == unset


def test_who_else_it_ran_as_is_told() -> None:
    assert imported("sudo", "-u", "llm", "-E", "vllm", "serve", "m").notes == (
        "sudo -u llm -E: left out; kvtop runs it as you",
    )


@pytest.mark.parametrize(("front", "told"), [("--user --unit=x", True), ("--user --scope", False)])
def test_a_server_that_systemd_run_hands_away_is_told(front: str, told: bool) -> None:
    made = imported("systemd-run", *front.split(), "vllm", "serve", "m")
    assert any("put --scope into [venv] wrap" in note for note in made.notes) == told


def test_a_shell_s_text_is_read() -> None:
    run = launch("p", imported("bash", "-lc", "A=1 exec vllm serve 'my model' --x \"$HOME\"").profile)
    assert run.set["A"] == "1" and run.argv[:3] == ("vllm", "serve", "my model")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "there is no command"),
        (["ls", "-l"], "there is no `vllm serve` in this command line"),
        (["vllm", "serve", "m", "--help"], "with --help this command line starts no server"),
        (["vllm", "bench", "serve"], "there is no `vllm serve` in this command line"),
        (["env", "-i", "vllm", "serve"], "env -i empties the environment: a profile cannot"),
        (["docker", "ps"], "`docker ps` starts no container"),
        (["docker", "run", "-d"], "docker run names no image"),
        (["docker", "run", "--name"], "nothing stands behind --name"),
    ],
)
def test_what_is_no_server_is_refused(words: Sequence[str], what: str) -> None:
    with pytest.raises(Refused) as refused:
        imported(*words)
    assert refused.value.what == what and refused.value.fix


KEY = "sk-madeup-madeup-madeup"


@pytest.mark.parametrize(
    ("words", "what"), [(["vllm", "serve", KEY, "--x"], "the model"), (["vllm", "serve", "--model", KEY], "--model")]
)
def test_a_server_is_not_made_without_its_model(words: list[str], what: str) -> None:
    with pytest.raises(Refused, match=f"{what} would hold a secret"):
        imported(*words)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["vllm", "serve", "m", "--api-key", KEY], {"VLLM_API_KEY"}),
        (["vllm", "serve", "m", f"--api_key={KEY}", "--x"], {"VLLM_API_KEY"}),
        (["vllm", "serve", "m", "--hf-token", "hf_madeupmadeupmadeup", "--x"], {"HF_TOKEN"}),
        (["VLLM_API_KEY=madeup", "vllm", "serve", "m"], {"VLLM_API_KEY"}),
        (["X=hf_madeupmadeupmadeup1", "vllm", "serve", "m"], {"X"}),
        (["vllm", "serve", "m", "--ssl-password", "madeup"], set()),
        (["vllm", "serve", "m", "--x", '{"a": {"api_key": "madeup"}}'], set()),
        (["vllm", "serve", "m", "--otlp", "http://u:madeup@h/"], set()),
        (["vllm", "serve", "m", "stray", f"--api-key={KEY}"], {"VLLM_API_KEY"}),
        (["docker", "run", "-e", "HF_TOKEN=madeup", "--label", "t=sk-madeup-madeup-madeup", "img", "m"], {"HF_TOKEN"}),
        (["docker", "run", "-e", f"A={KEY}", "img", "m", "--api-key", KEY], {"A", "VLLM_API_KEY"}),
    ],
)
def test_secrets_are_named_and_not_copied(words: list[str], names: set[str]) -> None:
    made = imported(*words)
    text = to_toml(made.profile, made.notes)
    assert "madeup" not in text
    assert made.profile.env.from_env == {name: name for name in names}
    assert made.notes


def test_the_words_of_docker_run() -> None:
    words = "podman run -dit --rm --name n --init -v /a:/b --gpus 2 -w /x --env-file /e -e A=1 -e B --shm-size=8g"
    profile = imported(*words.split(), "-p8:9", "img", "vllm", "serve", "m", "--port", "9").profile
    docker = profile.docker
    assert (docker.program, docker.name, docker.image, docker.env_files) == ("podman", "n", "img", ["/e"])
    assert docker.options == ["--init", "-v", "/a:/b", "--gpus", "2", "-w", "/x", "--shm-size=8g", "-p8:9"]
    assert docker.command == ["vllm", "serve"]
    assert (profile.env.set, profile.env.from_env) == ({"A": "1"}, {"B": "B"})
    assert launch("p", profile).port == 8


@pytest.mark.parametrize(
    ("given", "gpus"),
    [('"device=0,1"', ["0", "1"]), ("device=GPU-1a2b", ["GPU-1a2b"]), ("all", ["all"]), ("'\"device=3\"'", ["3"])],
)
def test_cards_of_docker(given: str, gpus: list[str]) -> None:
    assert imported("docker", "run", "--gpus", given, "img", "m").profile.gpus == gpus


def test_the_entrypoint_of_a_container() -> None:
    front = ["docker", "run", "--entrypoint"]
    python = imported(*front, "python3", "img", "-m", "vllm.entrypoints.openai.api_server", "--model", "m").profile
    assert python.docker.entrypoint == ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    assert python.serve.args == ["--model", "m"]
    simple = imported(*front, "bash", "img", "-c", "exec vllm serve m --x 1").profile
    assert (simple.docker.entrypoint, simple.serve.model) == (["vllm", "serve"], "m")
    text = "for i in 1; do vllm serve m; done"
    kept = imported(*front, "bash", "img", "-c", text)
    assert kept.profile.docker.entrypoint == ["bash", "-c", text]
    assert launch("p", kept.profile).argv[-4:] == ("bash", "img", "-c", text)
    assert any("`for`: the script has logic" in note for note in kept.notes)
