"""What a script does to PATH holds for all that it runs: bash is the oracle."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvtop.profiles.importers import script
from kvtop.profiles.importers.draft import Draft, Imported
from kvtop.profiles.importers.words import command
from kvtop.profiles.launch import launch
from kvtop.profiles.shell import line

SAYS = '#!/bin/sh\nprintf "%s|%s|%s" "$PATH" "$VIRTUAL_ENV" "$(command -v helper)"\n'


def read(text: str, file: Path | None = None) -> Imported:
    draft = Draft()
    script.read(draft, text, file)
    return draft.made()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A virtual environment whose programs say what they see."""
    made = tmp_path / "my v"
    (made / "bin").mkdir(parents=True)
    for name in ("vllm", "python", "helper"):
        (made / "bin" / name).write_text(SAYS)
        (made / "bin" / name).chmod(0o755)
    (made / "bin" / "activate").write_text(
        f"export VIRTUAL_ENV='{made}'\nPATH=\"$VIRTUAL_ENV/bin:$PATH\"\nexport PATH\n"
    )
    return made


def says(words: Sequence[str] | str, more: dict[str, str]) -> str:
    env = {"PATH": os.environ["PATH"], **more}
    return subprocess.run(
        words, env=env, shell=isinstance(words, str), stdout=subprocess.PIPE, text=True, check=True
    ).stdout


@pytest.mark.parametrize(
    "text",
    [
        "source '{0}/bin/activate'",
        'export PATH="{0}/bin:$PATH"',
        'PATH="{0}/bin:$PATH"',
        'PATH="{0}/bin":/usr/bin:/bin',
        'export PATH="/nowhere:${{PATH}}:/last"; . "{0}/bin/activate"; PATH+=:/more',
    ],
)
def test_vllm_finds_what_it_found_in_the_script(folder: Path, text: str) -> None:
    text = text.format(folder)
    expected = says(["bash", "-c", f"{text}\nvllm serve m"], {})
    made = read(f"{text}\nvllm serve m")
    run = launch("p", made.profile)
    assert says(run.argv, run.set) == expected and "bin/helper" in expected
    assert made.profile.venv.command == [f"{folder}/bin/vllm", "serve"]
    assert made.notes == ()
    again = Draft()
    command(again, run.argv)
    assert again.made().profile.venv == made.profile.venv
    assert says(line(run).partition("&& ")[2], {}) == expected


def test_a_wrapper_is_found_by_it_too(folder: Path) -> None:
    wrapper = folder / "bin" / "mine"
    wrapper.write_text('#!/bin/sh\nPATH="/own:$PATH" exec "$@"\n')
    wrapper.chmod(0o755)
    text = f'export PATH="{folder}/bin:/first:$PATH"; mine vllm serve m'
    run = launch("p", read(text).profile)
    assert says(run.argv, run.set) == says(["bash", "-c", text], {})
    assert read('export PATH="/b:$PATH"\nuv run vllm serve m').profile.venv.wrap == [
        *("env", "-S", "PATH=/b:${PATH}", "uv", "run")
    ]


def test_so_does_what_runs_around_it(folder: Path) -> None:
    text = (
        f"python before\nmkdir -p /tmp\nsource '{folder}/bin/activate'\nmkdir -p /x\npython 1\n"
        "A=1 python 2 2> /dev/null\n"
        "helper serve &\nvllm serve m\nhelper after\n"
    )
    profile = read(text).profile
    plain, folder_made, later, first, second = profile.start.before
    assert (plain, folder_made, later) == (["python", "before"], ["mkdir", "-p", "/tmp"], ["mkdir", "-p", "/x"])
    more = launch("p", profile).set
    expected = says(["bash", "-c", f"source '{folder}/bin/activate'; python"], {})
    for one in (first, second, profile.sidecar[0].command, profile.start.after_stop[0]):
        assert says(one, more) == expected


def test_the_path_of_this_machine_is_no_container_s(folder: Path) -> None:
    profile = read(f"source '{folder}/bin/activate'\ndocker run vllm/x --model m").profile
    assert profile.venv.wrap == [] and profile.env.set == {}
    words = ["docker", "run", "img", "bash", "-c", "source /opt/v/bin/activate && vllm serve m"]
    draft = Draft()
    command(draft, words)
    profile = draft.made().profile
    assert profile.docker.command == ["env", "-S", "PATH=/opt/v/bin:${PATH}", "/opt/v/bin/vllm", "serve"]
    assert profile.env.set == {"VIRTUAL_ENV": "/opt/v"}


def test_an_environment_that_is_somewhere_is_told() -> None:
    made = read("source venv/bin/activate\nvllm serve m")
    assert made.notes == ("PATH and VIRTUAL_ENV: left out; where that environment is depends on where it is run",)
    assert made.profile.venv.wrap == []


def test_a_file_that_is_sourced_is_read_as_bash_reads_it(folder: Path) -> None:
    file = folder / "env.sh"
    file.write_text(
        f'# ours\nset -a\nBASE=\'{folder}\'\nPATH="$BASE/bin:$PATH"\nVIRTUAL_ENV="$BASE/x y"\nset +a\n'
        "export NOW=$(date)\n"
    )
    text = f"source '{file}'\nvllm serve m"
    made = read(text)
    run = launch("p", made.profile)
    assert says(run.argv, run.set) == says(["bash", "-c", text], {})
    (note,) = made.notes
    assert note.endswith("/env.sh, line 7: what $(date) prints is known only when it runs: left out")


def test_of_a_file_with_logic_what_stands_under_no_condition_is_taken(folder: Path) -> None:
    file = folder / "env.sh"
    file.write_text("if true; then\n  export A=1\nfi\nexport PATH=/x:$PATH\nB=2\n")
    made = read(f"source '{file}'\nvllm serve m")
    assert made.profile.env.set == {} and made.profile.venv.wrap == ["env", "-S", "PATH=/x:${PATH}"]
    (note,) = made.notes
    assert note.endswith("/env.sh: what it does under a condition is left out")


def test_a_file_of_a_container_is_not_looked_for_here(folder: Path) -> None:
    (folder / "env.sh").write_text("export A=1\n")
    text = f"source '{folder}/env.sh' && vllm serve m"
    draft = Draft()
    command(draft, ["docker", "run", "img", "bash", "-c", text])
    made = draft.made()
    assert made.profile.docker.command == ["bash", "-c", text] and made.profile.env.set == {}
    assert any("which it sources, is in the container" in note for note in made.notes)
