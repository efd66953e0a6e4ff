"""What check's findings mean for a start."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvtop.cli.profile import checking
from kvtop.errors import KvtopError, UsageError
from kvtop.profiles import check
from kvtop.profiles.check.report import Finding
from kvtop.profiles.folder import Entry
from kvtop.profiles.profile import Profile
from kvtop.profiles.running import record

ENTRY = Entry("x", Path("/x.toml"), Profile())


def found(monkeypatch: pytest.MonkeyPatch, *rows: tuple[str, str]) -> list[dict[str, object]]:
    findings = tuple(Finding(level, rule, "", f"{rule} says", f"mend {rule}") for level, rule in rows)  # type: ignore[arg-type]
    asked: list[dict[str, object]] = []

    def report(entry: Entry, **more: object) -> check.Report:
        asked.append(more)
        return check.Report("x", findings, (), None, (), (), {})  # type: ignore[arg-type]

    monkeypatch.setattr(check, "report", report)
    return asked


def test_nothing_in_the_way(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = found(monkeypatch, ("note", "dev_mode_on"))
    assert checking.allowed(ENTRY, force=False, yes=False, replacing=frozenset((7,)))
    assert asked[0]["replacing"] == frozenset((7,))
    assert capsys.readouterr().err == "· 1 note, told by kvtop profile check x\n"


def test_notes_are_told_before_the_first_good_start_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(monkeypatch, ("note", "dev_mode_on"), ("warning", "units_" + "long " * 30))
    record.remember("x", record.Start(1.0, 2.0, {}))
    assert checking.allowed(ENTRY, force=False, yes=True)
    told = capsys.readouterr().err
    assert "dev_mode_on" not in told and "units_long" in told
    assert max(len(line) for line in told.split("  fix:")[0].splitlines()) <= 80


def test_an_error_refuses_and_force_overrides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, ("error", "shm_too_small"), ("warning", "units_suspicious"))
    with pytest.raises(KvtopError) as told:
        checking.allowed(ENTRY, force=False, yes=True)
    assert str(told.value).startswith("x would not work: shm_too_small\n") and "--force" in told.value.fix
    assert checking.allowed(ENTRY, force=True, yes=False)


@pytest.mark.parametrize("rule", ["port_taken", "gpu_overlap"])
def test_force_does_not_override_everything(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    found(monkeypatch, ("error", rule), ("error", "shm_too_small"))
    with pytest.raises(KvtopError, match=rf"would not work: {rule}\n"):
        checking.allowed(ENTRY, force=True, yes=True)


@pytest.mark.parametrize(
    ("typed", "answer"), [("y\n", True), ("yes\n", True), ("\n", False), ("n\n", False), ("", False)]
)
def test_a_warning_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, answer: bool
) -> None:
    found(monkeypatch, ("warning", "units_suspicious"))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: typed))
    assert checking.allowed(ENTRY, force=False, yes=False) is answer
    assert capsys.readouterr().err.endswith("1 warning: start x all the same? [y/N] ")
    assert checking.allowed(ENTRY, force=False, yes=True)


def test_a_warning_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, ("warning", "a"), ("warning", "b"))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    with pytest.raises(UsageError) as told:
        checking.allowed(ENTRY, force=False, yes=False)
    assert str(told.value) == "2 warnings: start x all the same? There is no terminal to ask at\n  --yes says yes"
