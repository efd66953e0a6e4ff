"""The documents name every setting, action and variable, with the default that the program has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from kvtop import config
from kvtop.ui.keys import ACTIONS, Action, key_display
from kvtop.ui.themes import ANSI_VARIABLES, VARIABLES

DOCS = Path(__file__).parents[2] / "docs"
PARTS = {
    "Top level": config.Settings,
    "`[[server]]`": config.Server,
    "`[poll]`": config.Poll,
    "`[thresholds]`": config.Thresholds,
    "`[capture]`": config.Capture,
}
TABLES = {"server", "poll", "thresholds", "capture", "keys"}


def section(text: str, heading: str) -> str:
    return text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> dict[str, list[str]]:
    """First cell, without its back quotes -> the other cells."""
    found = re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in found}


@pytest.mark.parametrize("heading", PARTS)
def test_every_setting_stands_with_its_default(heading: str) -> None:
    written = rows(section((DOCS / "config.md").read_text(), heading))
    part = PARTS[heading]
    settings = {f.name: f for f in msgspec.structs.fields(part) if f.name not in TABLES}
    assert list(written) == list(settings)
    for name, field in settings.items():
        default = written[name][-1].strip("`")
        if field.required:
            assert default == "needed"
        else:
            real = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            assert tomllib.loads(f"x = {default}")["x"] == real, name


def test_every_table_has_a_heading() -> None:
    text = (DOCS / "config.md").read_text()
    assert {f.name for f in msgspec.structs.fields(config.Settings)} >= TABLES
    for table in TABLES:
        assert re.search(rf"^## `\[\[?{table}\]?\]`$", text, re.MULTILINE), table


@pytest.mark.parametrize("action", ACTIONS, ids=lambda a: a.id)
def test_every_action_stands_with_its_keys(action: Action) -> None:
    keys, where, does = rows((DOCS / "keys.md").read_text())[action.id]
    assert keys == " ".join(f"`{key_display(k)}`" for k in action.keys)
    assert does == action.help
    assert where


def test_no_action_stands_that_is_none() -> None:
    assert set(rows((DOCS / "keys.md").read_text())) == {a.id for a in ACTIONS}


def test_every_variable_stands_with_its_meaning() -> None:
    written = rows((DOCS / "themes.md").read_text())
    for name, meaning in {**VARIABLES, **ANSI_VARIABLES}.items():
        assert written[name] == [meaning]
