"""docs/profiles-checks.md tells of every rule, and of no other."""

from __future__ import annotations

import re
from pathlib import Path

from kvtop.profiles.check.report import NOT_FORCED, name_of
from kvtop.profiles.check.rules import RULES

DOCS = Path(__file__).parents[2] / "docs" / "profiles-checks.md"


def rows() -> dict[str, list[str]]:
    found = {}
    for line in DOCS.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if match := re.fullmatch(r"`(\w+)`", cells[0]):
            assert match[1] not in found, f"{match[1]} stands twice"
            found[match[1]] = cells
    return found


def test_each_rule_has_its_row() -> None:
    told = rows()
    assert set(told) == {name_of(rule) for rule in RULES}
    for name, cells in told.items():
        assert len(cells) == 5 and all(cells), name
        assert re.match(r"(error|warning|note)\b", cells[1]), name


def test_each_rule_says_what_it_is() -> None:
    assert [name_of(rule) for rule in RULES if not rule.__doc__] == []


def test_what_force_does_not_override_is_told() -> None:
    text = DOCS.read_text("utf-8")
    assert f"but not `{NOT_FORCED[0]}` and `{NOT_FORCED[1]}`" in text
