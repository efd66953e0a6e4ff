"""A script that is imported runs what bash runs of it: the same words, the same variables, in the same folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.profiles.importers import script
from kvtop.profiles.importers.draft import Draft, Imported, Refused
from kvtop.profiles.launch import launch

SAYS = """#!{python}
import json, os, sys
env = {{name: value for name, value in os.environ.items() if name in {names}}}
print(json.dumps([sys.argv[1:], env, os.getcwd()]))
"""
NAMES = ["A", "B", "C", "D", "X", "SPEC"]


def read(text: str, file: Path) -> Imported:
    draft = Draft()
    script.read(draft, text, file)
    return draft.made()


def run_by_bash(text: str, folder: Path) -> tuple[list[str], dict[str, str], str]:
    bash = shutil.which("bash")
    assert bash is not None
    programs = folder / "programs"
    programs.mkdir()
    vllm = programs / "vllm"
    vllm.write_text(SAYS.format(python=sys.executable, names=NAMES))
    vllm.chmod(0o700)
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(Path.home())}
    file = folder / "a.sh"
    file.write_text(text)
    argv = [bash, str(file), "of", "its own"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env, cwd=folder)
    told = [line for line in done.stdout.splitlines() if line.startswith("[[")]
    words, variables, cwd = json.loads(told[0])
    return words, variables, cwd


@pytest.mark.parametrize(
    "text",
    [
        'cd /tmp; vllm serve m --x $PWD "$(pwd)"',
        "cd /; cd tmp && vllm serve m --x $PWD",
        'vllm serve m --x "$0"',
        'ARGS="--a 1"; ARGS+=(--b 2); vllm serve m "${ARGS[@]}"',
        'ARGS=(--a 1); ARGS+=(--b "2 3"); vllm serve m "${ARGS[@]}"',
        'ARGS=(--a); ARGS+=b; vllm serve m "${ARGS[@]}"',
        'vllm serve m --chat ${T:-"my model"}',
        """vllm serve m --x ${SPEC:-'a "b c" d'}""",
        """SPEC=${SPEC:-'{"a": 1}'}; export SPEC; vllm serve m""",
        'A=1; vllm serve m ${A:+"--b $A"} ${A:+--c "$A d"}',
        "vllm serve m --x ${A:-b\\ c} --y ${B:-d e}",
        'ARGS=(--a "x y"); vllm serve m ${ARGS[@]+"${ARGS[@]}"}',
        'vllm serve m ${ARGS[@]+"${ARGS[@]}"}',
        'ARGS=(--a "x y"); vllm serve m "${ARGS[@]:-x}"',
        "vllm serve m --x ${ARGS[@]:-y}",
        "A=1 || A=2; export A; vllm serve m",
        "true && A=2 || A=3; export A; vllm serve m",
        "set -ea; A=1; vllm serve m",
        "set -a; : ${X:=5}; set +a; B=2; vllm serve m",
        'set -- --port 9000 "a b"; vllm serve m "$@" --x $1',
        'export "A=1" B="2 3"; vllm serve m',
        "A=a:~/b; export A B=~/c:~/d; vllm serve m --x ~/e:~/f",
        'vllm serve m --x "${H:-~/x}" --y ${H:-~/x}',
        "export $(cat v | xargs); vllm serve m",
        "export $(grep -v '^#' v | xargs); vllm serve m",
        "source logic; vllm serve m",
        "source plain; vllm serve m",
        "source linked; export B=2; vllm serve m",
        "source tests; export C=2; vllm serve m",
        "source functions; vllm serve m",
        "cd /tmp && ./lite & vllm serve m",
        "A=1 && export A && true &\nvllm serve m --x ${A:-none}",
        "export A=0; export A=1 B=2 && sleep 0 & vllm serve m",
        "set -a && true & B=1; vllm serve m",
        "cd /tmp && vllm serve m & wait",
        "cd /tmp && export A=1 && nohup vllm serve m & wait",
        "cd /tmp\nvllm serve ./m &\ncd /\nwait",
        "cd /tmp\nvllm serve m\ncd ..",
        "vllm serve m 2>&1 | tee log\nexport B=1\ncd /tmp && ls > /dev/null",
        "true || x\\ncd /tmp && cd / && ./lite & vllm serve m",
        "cd / || x\\ncd /tmp && vllm serve m --x $PWD",
        "vllm serve m & R=$!; trap 'true $R' EXIT; wait $R; pkill -P $R",
        "vllm serve m --x $(id -u):`id -g`",
        "source nofile 2>/dev/null || true; vllm serve m",
        "mkdir -p x || exit 1; vllm serve m",
        'echo "starting at $(date) on $(hostname)"; vllm serve m',
        "LOG=x_$(date +%F).log; vllm serve m",
        "vllm serve m &\nPID=$!\necho $PID\nwait $PID",
        'D=$( cd "$( dirname "${BASH_SOURCE[0]}" )" && pwd ); vllm serve m --x $D',
        "A=1 bash -c 'B=2 exec vllm serve m --x $A'",
        "A=x; unset A; export A=${A-y}; vllm serve m",
        "A=1 export B=2; vllm serve m --x ${A:-none}",
    ],
)
def test_the_same_is_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "logic").write_text("export A=1\nif false; then export B=1; fi\nexport C=3\n")
    (tmp_path / "plain").write_text("export A=1 B='2 3'; C=4 # not exported\nexport D=\"a\"b\n")
    (tmp_path / "linked").write_text("export A=1 || true\ntrue && export X=1 || export X=2\n")
    (tmp_path / "tests").write_text("[ -f /nofile ] && export A=1\n[ -f /nofile ] || echo none\nexport B=1\n")
    (tmp_path / "functions").write_text("function foo {\nexport A=1\n}\nexport B=2 C=3\n")
    (tmp_path / "v").write_text("# A=0\nA=1\nB=2\n")
    words, variables, cwd = run_by_bash(text, tmp_path)
    made = read(text, tmp_path / "a.sh").profile
    run = launch("p", made)
    at = run.argv.index("serve")
    assert list(run.argv[at:]) == words
    assert {name: value for name, value in run.set.items() if name in NAMES} == variables
    assert Path(made.venv.cwd or tmp_path) == Path(cwd)


@pytest.mark.parametrize(
    "text",
    [
        "echo pw | docker login -u a --password-stdin\nvllm serve m",
        "pushd /tmp\nvllm serve m",
        "read X < f\nvllm serve m --x $X",
        "A[0]=1\nvllm serve m",
        "export A=$(date)\nvllm serve m",
        "LOG=$(date)\nvllm serve m --x $LOG",
        "A=1\nA+=$(date)\nvllm serve m --x $A",
        "let A=1\nvllm serve m",
    ],
)
def test_what_only_a_run_could_tell_is_refused_where_it_matters(text: str, tmp_path: Path) -> None:
    with pytest.raises(Refused):
        read(text, tmp_path / "a.sh")


def test_what_is_written_into_a_file_is_written(tmp_path: Path) -> None:
    text = (
        "echo '{{ x }}' > t.jinja\nprintf 'port: 1\\n' >> c.yaml\necho $! > pid\nvllm serve m --chat-template t.jinja"
    )
    made = read(text, tmp_path / "a.sh")
    assert made.profile.start.before == ["echo '{{ x }}' > t.jinja", "printf 'port: 1\\n' >> c.yaml"]
    assert made.notes == ("line 3: `echo …` was left out: $! is known only when it runs",)


def test_logic_beside_a_server_in_the_background_is_left_out(tmp_path: Path) -> None:
    made = read("vllm serve m &\nuntil curl x; do\n  sleep 1\ndone\nwarm up", tmp_path / "a.sh")
    assert made.profile.start.after_stop == []
    assert made.notes == (
        "line 2: `until`: the script has logic: it and what stands behind it runs beside vLLM, and was left out",
    )


def test_each_command_runs_in_its_own_folder(tmp_path: Path) -> None:
    made = read(
        "./prep.sh\nmkdir -p logs && cd logs\nrm -f x\ncd /srv && vllm serve m\nclean a 'b c'", tmp_path / "a.sh"
    ).profile
    assert made.venv.cwd == "/srv"
    assert made.start.before == [
        f"cd {tmp_path} && ./prep.sh",
        f"cd {tmp_path} && mkdir -p logs",
        f"cd {tmp_path}/logs && rm -f x",
    ]
    assert made.start.after_stop == [["clean", "a", "b c"]]


def test_a_sidecar_runs_in_its_own_folder_and_by_a_shell_where_it_needs_one(tmp_path: Path) -> None:
    text = "cd /opt\nproxy -v &\nfeed < in *.txt > out &\nside $(date) &\ncd /srv\nlast &\nvllm serve m"
    with pytest.raises(Refused, match=r"line 4: what \$\(date\) prints"):
        read(text, tmp_path / "a.sh")
    made = read(text.replace("side $(date) &\n", ""), tmp_path / "a.sh").profile
    assert [one.command for one in made.sidecar] == [
        "cd /opt && exec proxy -v",
        "cd /opt && feed *.txt < in > out",
        ["last"],
    ]


def test_only_the_program_is_looked_for_in_the_environment(tmp_path: Path) -> None:
    venv = tmp_path / "venv" / "bin"
    venv.mkdir(parents=True)
    for name in ("vllm", "ray", "pythonic"):
        (venv / name).touch()
    words = "--served-model-name vllm --tool-call-parser pythonic --distributed-executor-backend ray"
    made = read(f"source {venv}/activate\nray start ray &\nvllm serve m {words}", tmp_path / "a.sh").profile
    assert made.venv.command == [f"{venv}/vllm", "serve"] and made.serve.names == ["vllm"]
    assert made.serve.args == words.split()[2:]
    assert made.sidecar[0].command[-3:] == [f"{venv}/ray", "start", "ray"]


def test_what_a_container_runs_is_not_looked_for_in_the_environment(tmp_path: Path) -> None:
    venv = tmp_path / "venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "vllm").touch()
    made = read(f"source {venv}/activate\ndocker run --name vllm img vllm serve m", tmp_path / "a.sh").profile
    assert made.docker.name == "vllm" and made.docker.command == ["vllm", "serve"]


def test_the_name_of_a_log_that_only_a_run_could_tell_is_none(tmp_path: Path) -> None:
    made = read("LOG=x_$(date +%F).log\nvllm serve m > $LOG 2>&1", tmp_path / "a.sh")
    assert made.notes == ("its output went to a file: kvtop keeps a log of its own ([log] file)",)


def test_of_the_flags_only_the_one_with_a_secret_goes(tmp_path: Path) -> None:
    made = read("API_KEY=geheim-and-long\nvllm serve m --x geheim-and-long --seed 3", tmp_path / "a.sh")
    assert made.profile.serve.args == ["--seed", "3"]
    assert made.notes == ("--x holds a secret: left out",)


def test_of_a_file_with_functions_nothing_is_taken_that_is_not_sure(tmp_path: Path) -> None:
    (tmp_path / "e").write_text("export MODEL=a PORT=3\nfoo() {\n  export A=1\n}\n")
    made = read("source ./e\nvllm serve m", tmp_path / "a.sh")
    assert made.profile.env.set == {}
    assert made.notes == ("./e: has logic: what it sets is not known, and left out",)


def test_what_only_bash_reads_is_run_by_bash(tmp_path: Path) -> None:
    made = read("mkdir -p /data/{hf,vllm}\nprep &> log\necho -e 'a\\tb' > f\nls *.txt\nvllm serve m", tmp_path / "a.sh")
    assert made.profile.start.before == [
        ["bash", "-c", "mkdir -p /data/{hf,vllm}"],
        ["bash", "-c", "prep &> log"],
        ["bash", "-c", "echo -e 'a\\tb' > f"],
        "ls *.txt",
    ]


def test_what_goes_beside_the_script_has_a_folder_of_its_own(tmp_path: Path) -> None:
    made = read("cd /opt && ./lite &\nvllm serve m", tmp_path / "a.sh").profile
    assert made.sidecar[0].command == "cd /opt && exec ./lite" and made.venv.cwd == str(tmp_path)


def test_relative_paths_are_those_of_the_script(tmp_path: Path) -> None:
    made = read("vllm serve ./m", tmp_path / "a.sh")
    assert made.profile.venv.cwd == str(tmp_path)
    assert made.notes == ("its relative paths are taken to be in the folder of the script ([venv] cwd)",)
    for text in ("cd $PWD; prep; vllm serve m", 'cd "$(dirname "$0")"; vllm serve m'):
        made = read(text, tmp_path / "a.sh")
        assert made.profile.venv.cwd == str(tmp_path) and made.notes == ()
    assert read("vllm serve org/m", tmp_path / "a.sh").profile.venv.cwd == ""


def test_sidecars_are_called_by_their_programs(tmp_path: Path) -> None:
    made = read("nohup one -x &\nnohup setsid /y/one &\nA=1 nice -n5 two &\nvllm serve m", tmp_path / "a.sh").profile
    assert [one.name for one in made.sidecar] == ["one", "one-2", "two"]


def test_letters_of_docker_without_a_value_stand_in_front_of_one_that_has_it() -> None:
    draft = Draft()
    script.read(draft, "docker run -dp 8000:8000 -itv /x:/y -de A=1 vllm/vllm-openai --model m")
    made = draft.made().profile
    assert made.docker.image == "vllm/vllm-openai" and made.env.set == {"A": "1"}
    assert made.docker.options == ["-p", "8000:8000", "-v", "/x:/y"]


@pytest.mark.parametrize("sourced", [True, False])
def test_an_environment_of_conda_is_named(sourced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "miniconda3"
    (root / "envs" / "v" / "bin").mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    text = f"source {root}/etc/profile.d/conda.sh\n" if sourced else ""
    made = read(f"{text}conda activate v\nvllm serve m", tmp_path / "a.sh")
    assert made.profile.venv.command == [f"{root}/envs/v/bin/vllm", "serve"] and made.notes == ()
    made = read(f"source {root}/bin/activate v\nvllm serve m", tmp_path / "a.sh")
    assert made.profile.venv.command == [f"{root}/envs/v/bin/vllm", "serve"]
    made = read(f"{text}source activate v\nvllm serve m", tmp_path / "a.sh")
    assert made.profile.venv.command == [f"{root}/envs/v/bin/vllm", "serve"]
    for other in ("conda activate other", "source activate other"):
        made = read(f"{text}{other}\nvllm serve m", tmp_path / "a.sh")
        (note,) = made.notes
        assert note.startswith(f"line {1 + sourced}: `{other}` ") and note.endswith(
            "was left out: [venv] command names the vllm of another environment than kvtop's"
        )


def test_conda_run_is_a_wrap(tmp_path: Path) -> None:
    made = read("conda run -n v --no-capture-output vllm serve m", tmp_path / "a.sh").profile
    assert made.venv.wrap == ["conda", "run", "-n", "v", "--no-capture-output"]


PIECES = [
    "A=1",
    "B=$A",
    "export",
    "C=${A:-x}",
    "vllm",
    "serve",
    "m",
    "&&",
    "||",
    ";",
    "&",
    "|",
    "\n",
    "cd",
    "/tmp",
    "-",
    "..",
    '"$@"',
    "${L[@]}",
    "L=(a",
    "b)",
    "L+=(c)",
    "$!",
    "$(pwd)",
    "`x`",
    "echo",
    ">",
    "f",
    "<",
    "2>&1",
    "set",
    "-a",
    "--",
    "shift",
    "source",
    "activate",
    "./e",
    "unset",
    "read",
    "X",
    "bash",
    "-c",
    "'vllm",
    "PATH=/x:$PATH",
    "LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/y",
    "conda",
    "v",
    "exec",
    "nohup",
    "API_KEY=abc",
    "$API_KEY",
    "${API_KEY:=zzz}",
    "docker",
    "run",
    "-dp",
    "1:1",
    "-e",
    "vllm/vllm-openai",
    "trap",
    "$((1+A))",
    "if",
    "fi",
    "true",
    ":",
    "*",
    "{a,b}",
    "~/x",
    '"',
    "'",
    "\\",
    "$'",
    "#",
    '$"',
    "return",
    "function",
    "foo()",
    "{",
    "}",
]


@given(st.lists(st.sampled_from(PIECES), max_size=25), st.sampled_from(["", "\nvllm serve m"]))
def test_no_script_is_more_than_refused(pieces: list[str], end: str) -> None:
    draft = Draft()
    with suppress(Refused):
        script.read(draft, " ".join(pieces) + end, Path("/nowhere/a.sh"))
        draft.made()
