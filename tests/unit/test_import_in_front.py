"""What a script assigns in front of a command: to whom it goes, and how long it stays."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kvtop.profiles.importers import script
from kvtop.profiles.importers.draft import Draft, Imported, Refused


def read(text: str, file: Path | None = None) -> Imported:
    draft = Draft()
    script.read(draft, text, file)
    return draft.made()


def out_of_bash(text: str, folder: Path) -> str:
    bash = shutil.which("bash")
    assert bash is not None
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run([bash, "-c", text], capture_output=True, text=True, check=True, env=env, cwd=folder)
    return done.stdout.strip()


@pytest.mark.parametrize(
    "text",
    [
        "X=7 export X",
        "X=7 export X Y=1",
        "X=7 export Y=1",
        "X=3; X=7 export Y=1",
        "X=3; X=7 export Y=$X; X=$Y",
        "A=${X:=7} true",
        "X=1 A=${X:=7} true",
        "A=${X:=7} X=3 true",
        "A=1 X=$A true",
        "X=5; X=6 X=7 true",
        "X=5 source f; X=$R",
        "X=2; X=5 . f; X=$R$X",
        "X=5 source f",
        "X=2; X=5 . f",
    ],
)
def test_it_stays_for_as_long_as_in_bash(text: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("export R=${X:-none}\n")
    here = text.replace(". f", ". ./f").replace("source f", "source ./f")
    expected = out_of_bash(f"{here}\necho ${{X:-none}}", tmp_path)
    made = read(f"{text}\nvllm serve m --served-model-name ${{X:-none}}", tmp_path / "a.sh")
    assert made.profile.serve.names == [expected]


def test_path_in_front_of_a_command_keeps_what_it_was_before() -> None:
    made = read("PATH=/opt/x:$PATH prepare a\nPATH=/y:$PATH:/z B=1 proxy &\nvllm serve m")
    assert made.profile.start.before == ["PATH=/opt/x:${PATH} prepare a"]
    assert made.profile.sidecar[0].command == ["env", "-S", "PATH=/y:${PATH}:/z", "B=1", "proxy"]


def test_a_command_beside_the_server_keeps_its_variables() -> None:
    made = read("CUDA_VISIBLE_DEVICES=1 A='b c' proxy --port 1 > /tmp/p.log 2>&1 &\nvllm serve m")
    assert made.profile.sidecar[0].command == ["env", "CUDA_VISIBLE_DEVICES=1", "A=b c", "proxy", "--port", "1"]
    assert "its output went to /tmp/p.log: kvtop keeps a log of each sidecar" in made.notes


def test_output_to_nowhere_is_no_log_that_is_missed() -> None:
    made = read("proxy > /dev/null 2>&1 &\nvllm serve m")
    assert made.profile.sidecar[0].command == ["proxy"]
    assert made.notes == ("line 1: `proxy` runs beside vLLM, as a sidecar",)


@pytest.mark.parametrize(
    "text",
    ['bash -c "FOO=1 vllm serve m"', "exec sh -c 'FOO=1 exec vllm serve m'", "export FOO=1; bash -lc 'vllm serve m'"],
)
def test_a_text_for_a_shell_in_it_is_read_as_well(text: str) -> None:
    made = read(text)
    assert made.profile.serve.model == "m" and made.profile.env.set == {"FOO": "1"}


def test_a_shell_that_starts_no_server_is_a_command_as_any() -> None:
    made = read("bash -c 'echo vllm serve m'\nvllm serve n")
    assert made.profile.start.before == [["bash", "-c", "echo vllm serve m"]]
    assert made.profile.serve.model == "n"


@pytest.mark.parametrize(
    "text",
    [
        "export LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH",
        "LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH; export LD_LIBRARY_PATH",
        "export LD_LIBRARY_PATH=/x:${LD_LIBRARY_PATH:-}",
        'export LD_LIBRARY_PATH="/x${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"',
        "export LD_LIBRARY_PATH=/x; LD_LIBRARY_PATH+=:$LD_LIBRARY_PATH; unset LD_LIBRARY_PATH; "
        "export LD_LIBRARY_PATH=/x:",
    ],
)
def test_other_lists_of_folders_keep_what_they_were_before_too(text: str) -> None:
    made = read(f"{text}\nvllm serve m").profile
    if "unset" in text:
        assert made.env.set == {"LD_LIBRARY_PATH": "/x:"} and made.venv.wrap == []
    else:
        assert made.venv.wrap == ["env", "-S", "LD_LIBRARY_PATH=/x:${LD_LIBRARY_PATH}"] and made.env.set == {}


def test_several_lists_each_have_their_words() -> None:
    text = "export PATH=/a:$PATH PYTHONPATH=$PYTHONPATH:/b\nprep\nLD_LIBRARY_PATH=/c:$LD_LIBRARY_PATH side &\n"
    made = read(f"{text}PYTHONPATH=/d:$PYTHONPATH vllm serve m").profile
    lists = ["env", "-S", "PATH=/a:${PATH}", "env", "-S", "PYTHONPATH=${PYTHONPATH}:/b"]
    assert made.start.before == [[*lists, "prep"]]
    assert made.sidecar[0].command == [*lists, "env", "-S", "LD_LIBRARY_PATH=/c:${LD_LIBRARY_PATH}", "side"]
    assert made.venv.wrap == [*lists[:5], "PYTHONPATH=/d:${PYTHONPATH}:/b"]


def test_a_list_that_is_not_known_stands_in_no_other_value() -> None:
    with pytest.raises(Refused, match=r"\$LD_LIBRARY_PATH is not set there"):
        read("export LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH\nvllm serve m --x $LD_LIBRARY_PATH")
