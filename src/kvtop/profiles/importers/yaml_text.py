"""YAML, read without trusting its size: an alias costs nothing to write and may stand for millions of values."""

from __future__ import annotations

import re
from typing import Any

from kvtop.errors import keyless
from kvtop.profiles.importers.draft import Refused

_MOST_VALUES = 50_000
_DEEPEST = 40


def read_yaml(text: str, as_typed: bool = False) -> Any:
    """The one document of a text; `as_typed`: numbers, dates and words like `on` stay the texts that they are in
    YAML 1.2 and in a command line. Raises Refused."""
    import yaml

    try:
        found = yaml.load(text, _as_typed() if as_typed else yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = keyless(str(getattr(error, "problem", None) or "not YAML"), 100)
        raise Refused(what, "mend the file", mark.line + 1 if mark is not None else None) from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise Refused(f"not YAML: {keyless(str(error), 80)}", "mend the file") from None
    if _count(found, 0) > _MOST_VALUES:
        raise Refused("nested too deeply, or too large", "make it smaller")
    return found


def _as_typed() -> Any:
    import yaml

    class AsTyped(yaml.SafeLoader):
        """Reads true, false and null; PyYAML's own reads 22:22 as a number and `on` as true."""

    AsTyped.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rows if tag.rpartition(":")[2] in ("null", "merge")]
        for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    AsTyped.add_implicit_resolver(
        "tag:yaml.org,2002:bool", re.compile(r"(?:true|false|True|False|TRUE|FALSE)$"), list("tfTF")
    )
    return AsTyped


def _count(value: object, depth: int) -> int:
    """How many values it holds; more than the most where that is clear."""
    if depth > _DEEPEST:
        return _MOST_VALUES + 1
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    total = 1
    for one in inside:
        total += _count(one, depth + 1)
        if total > _MOST_VALUES:
            break
    return total
