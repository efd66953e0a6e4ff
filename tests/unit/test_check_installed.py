"""The flags of the installed vLLM: asked once, of vLLM alone, and kept until it changes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil
import pytest

from kvtop import paths
from kvtop.profiles.check import installed as module
from kvtop.profiles.check.installed import installed, version_of

ROWS = "".join(f"  --filler-{n} N\\n" for n in range(60))


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    """A made-up vLLM in an environment of its own, that notes each run."""
    program = tmp_path / "venv" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    (tmp_path / "venv" / "lib" / "python3.12" / "site-packages" / "vllm-0.28.1+cu129.dist-info").mkdir(parents=True)
    write(program, f'printf "  --port PORT\\n{ROWS}"')
    return program


def write(program: Path, script: str) -> None:
    program.write_text(f'#!/bin/sh\necho "$@" "$COLUMNS" >> "$NOTES"\n{script}\n')
    program.chmod(0o755)


def ask(program: Path | str, *, ask: bool = True, words: tuple[str, ...] = ("serve",)) -> module.Installed | None:
    notes = Path(program).parent / "notes"
    return installed([str(program), *words], None, {"NOTES": str(notes), "PATH": "/usr/bin:/bin"}, ask=ask)


def notes(program: Path) -> list[str]:
    file = program.parent / "notes"
    return file.read_text().splitlines() if file.exists() else []


def test_it_is_asked_once(vllm: Path) -> None:
    for _ in range(3):
        found = ask(vllm)
        assert found is not None and found.known is not None
        assert (found.program, found.version) == (str(vllm), "0.28.1")
        assert "--port" in found.known and "--host" not in found.known
    assert notes(vllm) == ["serve --help=all 200"]
    (kept,) = (paths.state_dir() / "vllm-flags").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_new_one_is_asked_again(vllm: Path) -> None:
    ask(vllm)
    os.utime(vllm, ns=(1, 1))
    ask(vllm)
    site = vllm.parent.parent / "lib" / "python3.12" / "site-packages"
    (site / "vllm-0.28.1+cu129.dist-info").rename(site / "vllm-0.29.0.dist-info")
    found = ask(vllm)
    assert found is not None and found.version == "0.29.0"
    assert len(notes(vllm)) == 3


def test_without_asking_only_what_was_kept(vllm: Path) -> None:
    found = ask(vllm, ask=False)
    assert found is not None and found.known is None and notes(vllm) == []
    ask(vllm)
    found = ask(vllm, ask=False)
    assert found is not None and found.known is not None and len(notes(vllm)) == 1


def test_a_failed_help_is_not_asked_again_at_once(vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(vllm, "exit 1")
    for _ in range(2):
        found = ask(vllm)
        assert found is not None and found.known is None
    assert len(notes(vllm)) == 1
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.0)
    ask(vllm)
    assert len(notes(vllm)) == 2


def test_one_that_hangs_is_given_up(vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELP_TIMEOUT_S", 0.3)
    write(vllm, "exec sleep 60")
    found = ask(vllm)
    assert found is not None and found.known is None


def test_one_that_hangs_leaves_no_child(vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELP_TIMEOUT_S", 2.0)
    write(vllm, f'sleep 600 & echo $! > "{vllm.parent}/child"; wait')
    found = ask(vllm)
    assert found is not None and found.known is None
    child = int((vllm.parent / "child").read_text())
    with contextlib.suppress(psutil.NoSuchProcess):
        _, left = psutil.wait_procs([psutil.Process(child)], timeout=5)
        assert all(one.status() == psutil.STATUS_ZOMBIE for one in left)


@pytest.mark.parametrize("words", [("bench",), (), ("--help",)])
def test_another_command_is_never_run(vllm: Path, words: tuple[str, ...]) -> None:
    assert ask(vllm, words=words) is None
    assert notes(vllm) == []


def test_another_program_is_never_run(vllm: Path) -> None:
    other = vllm.with_name("start.sh")
    write(other, "exit 0")
    assert ask(other) is None and ask(vllm.with_name("none") / "vllm") is None
    assert notes(vllm) == []


def test_a_broken_cache_is_asked_anew(vllm: Path) -> None:
    ask(vllm)
    (kept,) = (paths.state_dir() / "vllm-flags").iterdir()
    kept.write_bytes(b"\xff{")
    found = ask(vllm)
    assert found is not None and found.known is not None and len(notes(vllm)) == 2


def test_versions() -> None:
    assert (version_of("0.32.0+cpu"), version_of("0.9"), version_of("x"), version_of(None)) == (
        (0, 32),
        (0, 9),
        None,
        None,
    )
