"""YAML, read without trusting its size: an alias costs nothing to write and may stand for millions of values."""

from __future__ import annotations

import re
from typing import Any

from kvtop.errors import keyless

_MOST = 2_000_000
"""Characters of all values, each counted where it stands."""
_EACH = 40
"""What a value counts beside its characters."""
_DEEPEST = 40
_MOST_BITS = 4096
"""Of a whole number: 1:59:59:… is one to YAML, of as many digits as one likes, which Python refuses to write out."""

_WORDS_QUOTED = re.compile(r""":?\s*(["'])[\w*&!~+/=.-]{2,}\1""")


class NoYaml(ValueError):
    """Why a text cannot be used, in a few words."""

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.line = line
        """From 1; None where that cannot be told."""


def loaded(text: str, as_typed: bool = False) -> Any:
    """The one document of a text, small enough to be written out; `as_typed`: numbers, dates and words like `on` stay
    the texts that they are in YAML 1.2 and in a command line. Raises NoYaml, and nothing else."""
    import yaml

    try:
        found = yaml.load(text, _loader(as_typed))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        # what it quotes may be a secret: `api-key: *geheim` is an alias to YAML
        what = keyless(_WORDS_QUOTED.sub("", str(getattr(error, "problem", None) or "not YAML")), 100)
        raise NoYaml(what, mark.line + 1 if mark is not None else None) from None
    except RecursionError:
        raise NoYaml("nested too deeply") from None
    except (ValueError, OverflowError) as error:  # a date or a number that is none
        raise NoYaml(keyless(_WORDS_QUOTED.sub("", str(error)), 80) or "not YAML") from None
    except (LookupError, AttributeError, TypeError):  # PyYAML's own words for a `!!bool maybe`
        raise NoYaml("a value is not of the kind that its !!tag says") from None
    if not _is_small(found):
        raise NoYaml("nested too deeply, or too large")
    return found


def _loader(as_typed: bool) -> Any:
    import yaml

    class Bounded(yaml.SafeLoader):
        """PyYAML takes quadratic time for brackets in brackets."""

        def fetch_flow_collection_start(self, token: Any) -> None:
            if self.flow_level > _DEEPEST:
                raise RecursionError
            super().fetch_flow_collection_start(token)

    if not as_typed:
        return Bounded

    class AsTyped(Bounded):
        """Reads true, false and null; PyYAML's own reads 22:22 as a number and `on` as true."""

    AsTyped.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rows if tag.rpartition(":")[2] in ("null", "merge")]
        for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    AsTyped.add_implicit_resolver(
        "tag:yaml.org,2002:bool", re.compile(r"(?:true|false|True|False|TRUE|FALSE)$"), list("tfTF")
    )
    return AsTyped


def _is_small(value: object) -> bool:
    left = _MOST
    todo: list[tuple[object, int]] = [(value, 0)]
    while todo:
        one, depth = todo.pop()
        left -= _EACH + (len(one) if isinstance(one, str | bytes) else 0)
        if left < 0 or depth > _DEEPEST or (isinstance(one, int) and one.bit_length() > _MOST_BITS):
            return False
        if isinstance(one, dict):
            todo += ((inner, depth + 1) for pair in one.items() for inner in pair)
        elif isinstance(one, list | tuple | set):
            todo += ((inner, depth + 1) for inner in one)
    return True
