"""docs/profiles.md names every key with its default, and its examples are profiles."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from kvtop.cli.profile import JOBS
from kvtop.profiles import folder, profile
from kvtop.profiles.importers.pick import FORMATS
from kvtop.profiles.launch import launch

TEXT = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text(encoding="utf-8")
TABLES = {
    "Top level": profile.Profile,
    "`[serve]`": profile.Serve,
    "`[env]`": profile.Env,
    "`[venv]`": profile.Venv,
    "`[docker]`": profile.Docker,
    "`[compose]`": profile.Compose,
    "`[systemd]`": profile.Systemd,
    "`[attach]`": profile.Attach,
    "`[[sidecar]]`": profile.Sidecar,
    "`[start]`": profile.Start,
    "`[log]`": profile.Log,
}
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("heading", TABLES)
def test_every_key_stands_with_its_default(heading: str) -> None:
    section = TEXT.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    written = dict(re.findall(r"^\| `([^`]+)` \| .* \| ([^|]+) \|$", section, re.MULTILINE))
    fields = {field.name: field for field in msgspec.structs.fields(TABLES[heading])}
    parts = {name.strip("`[]") for name in TABLES}
    assert list(written) == [name for name in fields if heading != "Top level" or name not in parts]
    for name, default in written.items():
        field = fields[name]
        if field.required:
            assert default == "needed"
            continue
        real = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        assert default == "not given" if real is None else tomllib.loads(f"x = {default.strip('`')}")["x"] == real, name


def test_every_table_has_a_heading() -> None:
    names = {name.strip("`[]") for name in TABLES} - {"Top level"}
    tables = (field.name for field in msgspec.structs.fields(profile.Profile))
    assert names == set(tables) - {"about", "extends", "runner", "gpus"}


def test_every_job_and_form_is_named() -> None:
    for job in JOBS:
        assert f"profile {job}" in TEXT or f"`{job}" in TEXT, job
    assert f"--format {'|'.join(FORMATS)}" in TEXT


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_is_a_profile(number: int, tmp_path: Path) -> None:
    (tmp_path / "qwen27.toml").write_text(EXAMPLES[0])
    (tmp_path / "example.toml").write_text(EXAMPLES[number])
    entry = folder.find("example", tmp_path)
    assert entry.problem is None
    launch("example", entry.usable())


def test_the_examples_cover_every_runner() -> None:
    runners = {tomllib.loads(example).get("runner", "venv") for example in EXAMPLES}
    assert runners == {"venv", "docker", "compose", "systemd", "attach"}
