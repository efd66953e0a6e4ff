"""Plain shell scripts, read as a shell reads them: bash itself is the oracle. Logic is refused with its line."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.profiles.importers import script
from kvtop.profiles.importers.draft import Draft, Imported, Refused
from kvtop.profiles.launch import Secret, launch

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="no bash to compare with")


def read(text: str, file: Path | None = None) -> Imported:
    draft = Draft()
    script.read(draft, text, file)
    return draft.made()


def words_of(text: str) -> list[str]:
    """What stands behind `vllm serve`, unsorted."""
    found: list[list[str]] = []

    class Seen(Draft):
        def serve(self, words: Sequence[str]) -> None:
            self.refuse_unknown(words)
            found.append([str(word) for word in words])

    script.read(Seen(), text)
    return found[0]


def by_bash(text: str, check: bool = True) -> list[str]:
    assert BASH
    told = "vllm() { shift; for word; do printf '%s\\0' \"$word\"; done; }\n"
    env = {"PATH": os.environ["PATH"], "HOME": str(Path.home())}
    done = subprocess.run([BASH, "-c", told + text], capture_output=True, text=True, check=check, env=env)
    return done.stdout.split("\0")[:-1]


@needs_bash
@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --a 'b  c' \"d e\" f\\ g",
        "vllm serve \\\n  m \\\n  --a 1 # a comment\n",
        "vllm serve m#a '#b' c'd'\"e\"f",
        '# vllm serve no\n\nA=1\nB="$A 2"\nvllm serve $A $B "$B" ${B} \'$B\' \\$B "\\$B"',
        'A=\nvllm serve $A x "$A" ${A:-d} ${A-d} ${B:-d e} "${B:-d e}" ${B:=9} $B',
        'A=(1 \'2 3\' "4")\nA+=(5)\nvllm serve "${A[@]}" ${A[@]} "${A[*]}" x"${A[@]}"y $A',
        'A=()\nvllm serve "${A[@]}" end',
        "A=--x\nA+=' 1'\nvllm serve $A",
        'J=\'{"a": {"b": [1, 2]}}\'\nvllm serve --j "$J" --k "{\\"c\\": \\"$J\\"}"',
        "A=1; B=2 && vllm serve $A$B",
        "A=0\nA=1 B=$A\nvllm serve $A$B",
        "A=0\nexport A=1 B=$A\nvllm serve $A$B",
        "A=0\nA=1 B=$A true\nvllm serve $A",
        'export A=1 B=\'2 3\'; unset A\nvllm serve "${A:-gone}" "$B"',
        'vllm serve ~ ~/x a~ "~" ${HOME}',
        'vllm serve "a\nb" \'c\nd\' "e\\\nf" g\\\nh',
        "vllm serve '' \"\" a''b",
        'A=\'x y\'\nB=${A:+set}\nC=${D:+set}\nvllm serve $B "$C" "${D:-"$A"}" ${D:-$A}',
        'vllm serve \'it\'\\\'\'s\' "say \\"x\\"" "\\\\" "\\a" \\\\',
        'vllm serve "$" $ "a$" 5$ "100%"',
        'A=\'*\'\nvllm serve --x="$A" a=b c="d e"',
        'N=5\nvllm serve "{\\"n\\": $N}" \'{"n": \'$N\'}\'',
        "if_x=1\nfor_=2\nvllm serve $if_x$for_",
        "A=1\nA=2\nvllm serve $A\n",
        "A='1  2'\nexport B=$A C=~/x\nvllm serve \"$B\" $C",
        "A=1\nAy=2\nvllm serve x$A\\\ny \"$A\\\ny\" $A\\\n.y 'a\\\nb'",
        "vllm serve {} {a} a{b}c '{1,2}' \"*\"",
        "set -euo pipefail\nshopt -s nullglob\n: start; vllm serve m 2>&1",
    ],
)
def test_words_are_those_of_bash(text: str) -> None:
    assert words_of(text) == by_bash(text)


PIECES = st.sampled_from(
    [
        "a",
        "B",
        " ",
        "  ",
        "'",
        '"',
        "\\",
        "$A",
        "${A}",
        "${B:-x y}",
        '"$A"',
        "=",
        "{",
        "}",
        "#",
        "\t",
        "\\\n",
        "-",
        ",",
        ":",
    ]
)


@needs_bash
@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES, max_size=10).map("".join))
def test_any_words_are_those_of_bash_or_refused(text: str) -> None:
    whole = f"A='1 2'\nvllm serve x {text}\n"
    try:
        mine = words_of(whole)
    except Refused:
        return
    assert mine == by_bash(whole, check=False)  # a line of its own may be no command


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("A=1\nif true; then\nvllm serve m\nfi", "line 2: `if`: the script has logic"),
        ("for i in 1 2; do vllm serve; done", "line 1: `for`: the script has logic"),
        ("while true; do vllm serve; done", "line 1: `while`: the script has logic"),
        ("[ -f x ] && vllm serve", "line 1: `[`: the script has logic"),
        ("\n\n[[ -n $A ]] || exit 1\nvllm serve", "line 3: `[[`: the script has logic"),
        ("run() { vllm serve; }\nrun", "line 1: a function or a subshell is logic of the script"),
        ("(vllm serve)", "line 1: a function or a subshell is logic of the script"),
        ("{ vllm serve; }", "line 1: `{`: the script has logic"),
        ("vllm serve $(nvidia-smi -L)", "line 1: what $(nvidia-smi…) prints is known only when it runs"),
        ("vllm serve `date`", "line 1: what $(date) prints is known only when it runs"),
        ("vllm serve $((I++))", "line 1: $((…)): it sets a variable"),
        ("vllm serve ${A%.x}", "line 1: ${A…} is computed by the shell"),
        ("vllm serve ${#A}", "line 1: ${#A} is computed by the shell"),
        ("A=1\nvllm serve $MODEL", "line 2: $MODEL is not set there"),
        ("vllm serve /x/$MODEL", "line 1: $MODEL is not set there"),
        ("vllm serve $1", "line 1: $1 is known only when it runs"),
        ("vllm serve /models/*", "line 1: `/models/*` is filled in by the shell"),
        ('vllm serve m --j {"a":1,"b":2}', "line 1: `{a:1,b:2}` is filled in by the shell"),
        ("vllm serve 'm", "line 1: a quote ' has no end"),
        ('A=1\nvllm serve "m', 'line 2: a quote " has no end'),
        ("vllm serve ${A", "line 1: a ${ has no end"),
        ("vllm serve m\nvllm serve n", "line 2: a second command that starts vLLM: a profile is one server"),
        ("vllm serve m | grep x", "line 1: a pipe behind vLLM: the script has logic"),
        ("cat x | vllm serve m", "line 1: a pipe behind `cat`: the script has logic"),
        ("ls || rm x\nvllm serve", "line 1: `||`: the script has logic"),
        ("cat <<EOF\nx\nEOF\nvllm serve", "line 1: text for a command's input is logic of the script"),
        ("eval vllm serve", "line 1: `eval`: the script has logic"),
        ("source /nowhere/env.sh\nvllm serve", "line 1: /nowhere/env.sh, which it sources, cannot be read"),
        ("echo hello", "no command of it starts vLLM"),
        ("", "no command of it starts vLLM"),
    ],
)
def test_logic_is_refused_with_its_line(text: str, what: str) -> None:
    with pytest.raises(Refused) as refused:
        read(text)
    assert refused.value.what == what and refused.value.fix


@given(st.text(max_size=120))
def test_whatever_stands_there_the_reason_is_one_line(text: str) -> None:
    try:
        read(f"{text}\nvllm serve m")
    except Refused as error:
        assert error.what.isprintable()


def test_what_is_done_around_the_server() -> None:
    made = read(
        "trap cleanup EXIT\nmkdir -p /kv\nOMP=1 mount /kv > /dev/null 2>&1\nlmcache server --port 1 &\n"
        "sleep 5\nvllm serve m > out.log 2>&1\numount /kv\n"
    )
    start = made.profile.start
    assert start.before == [["mkdir", "-p", "/kv"], "OMP=1 mount /kv > /dev/null 2>&1", ["sleep", "5"]]
    assert start.after_stop == [["umount", "/kv"]]
    (sidecar,) = made.profile.sidecar
    assert (sidecar.name, sidecar.command) == ("lmcache", ["lmcache", "server", "--port", "1"])
    assert made.notes == (
        "line 1: `trap cleanup EXIT` was left out",
        "line 4: `lmcache server --port 1` runs beside vLLM, as a sidecar",
        "line 5: `sleep 5` came behind the start of lmcache: kvtop runs it before that; ready_url in [[sidecar]] waits "
        "for one",
        "its output went to out.log: kvtop keeps a log of its own ([log] file)",
    )


def test_what_follows_a_container_in_the_background_runs_beside_it() -> None:
    made = read("docker run -it -d --name n vllm/x --model m\ndocker logs -f n\nsleep 9\n")
    assert made.profile.start.after_stop == []
    assert made.notes[-2:] == (
        "line 2: `docker logs -f n` was left out: it runs beside vLLM",
        "line 3: `sleep 9` was left out: it runs beside vLLM",
    )
    assert read("docker run --rm vllm/x --model m\nrm x\n").profile.start.after_stop == [["rm", "x"]]


def test_only_what_is_exported_reaches_the_server() -> None:
    made = read("A=1\nexport B=2 C\nC=3\nset -a\nD=4\nset +a\nE=5\nunset B\nF=6 vllm serve m")
    assert made.profile.env.set == {"C": "3", "D": "4", "F": "6"}
    assert made.profile.env.unset == ["B"]


def test_secrets_are_read_where_they_are() -> None:
    made = read(
        'export VLLM_API_KEY=$(cat ~/.key) HF_TOKEN=$HF_TOKEN\nOTHER="$(< /run/other)"\n'
        'export OTHER\nvllm serve m --hf-token "$MINE"'
    )
    run = launch("p", made.profile)
    assert run.secrets == {
        "VLLM_API_KEY": Secret("file", f"{Path.home()}/.key"),
        "OTHER": Secret("file", "/run/other"),
        "HF_TOKEN": Secret("env", "MINE"),
    }


def test_the_folder_of_the_script_and_its_environment(tmp_path: Path) -> None:
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / ".env").write_text("A=1\nKIND_X='two words'\n")
    file = tmp_path / "scripts/start.sh"
    made = read(
        'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"\ncd "$HERE"\nset -a\nsource .env\nset +a\n'
        '. venv/bin/activate\npython -m vllm.entrypoints.openai.api_server --model "$HERE/m" "$@"',
        file,
    )
    profile = made.profile
    assert profile.venv.cwd == str(tmp_path)
    assert profile.venv.command[0] == f"{tmp_path}/venv/bin/python"
    assert profile.serve.args == ["--model", f"{tmp_path}/m"]
    assert profile.env.set == {"A": "1", "KIND_X": "two words", "VIRTUAL_ENV": f"{tmp_path}/venv"}
    assert profile.venv.wrap == ["env", "-S", f"PATH={tmp_path}/venv/bin:${{PATH}}"]
    assert made.notes == ("the script hands its own arguments on ($@): none were taken",)


@pytest.mark.parametrize(
    "text",
    [
        "A=xxxxxxxx\n" + "A=$A$A\n" * 60 + "vllm serve $A",
        "A=xxxxxxxx\n" + "A+=$A\n" * 60 + "vllm serve $A",
        "A=(x x x x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 60 + 'vllm serve "${A[@]}"',
        "A=(x x x x)\n" + 'A+=("${A[@]}")\n' * 60 + 'vllm serve "${A[@]}"',
    ],
)
def test_a_value_that_doubles_and_doubles_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="a value that is too long for a command line"):
        read(text)


def test_a_key_given_twice() -> None:
    """The flag counts for vLLM; where it is read from a file that stays."""
    typed = "--api-key, as VLLM_API_KEY: its value was not copied."
    apart = "--api-key and VLLM_API_KEY have different values: vLLM takes that of --api-key"
    made = read("vllm serve m --api-key sk-madeup-madeup")
    assert made.profile.env.from_env == {"VLLM_API_KEY": "VLLM_API_KEY"}
    assert made.notes[0].startswith(typed)

    made = read("export VLLM_API_KEY=$(cat /run/key)\nvllm serve m --api-key sk-madeup-madeup")
    assert (made.profile.env.from_file, made.profile.env.from_env) == ({"VLLM_API_KEY": "/run/key"}, {})
    assert made.notes == (apart, "--api-key: its value was not copied; VLLM_API_KEY is read from /run/key")

    made = read("export VLLM_API_KEY=sk-madeup-other\nvllm serve m --api-key $(cat /run/key)")
    assert (made.profile.env.from_file, made.profile.env.from_env) == ({"VLLM_API_KEY": "/run/key"}, {})
    assert apart in made.notes

    made = read('export VLLM_API_KEY=$(cat /run/key)\nvllm serve m --api-key "$VLLM_API_KEY"')
    assert made.profile.env.from_file == {"VLLM_API_KEY": "/run/key"} and made.notes == ()


@needs_bash
@pytest.mark.parametrize(
    "text", ["A=0\nA=1 B=$A C=$((A+1))", "A=0\nB=x\nA=1 B+=$A C=$B", "export A=0\nA=1 B=$A C=${A}2"]
)
def test_what_is_assigned_in_front_of_a_command_has_what_stands_before_it(text: str) -> None:
    assert BASH
    told = "vllm() { echo $A $B $C; }\n"
    by_it = subprocess.run(
        [BASH, "-c", f"{told}{text} vllm serve m"], capture_output=True, text=True, check=True
    ).stdout
    env = read(f"{text} vllm serve m").profile.env.set
    assert [env["A"], env["B"], env["C"]] == by_it.split()


def test_a_secret_in_an_array_is_one() -> None:
    made = read("API_KEY=(sk-12345678901)\nvllm serve m --foo $API_KEY --served-model-name x")
    assert "12345678901" not in str(made)
