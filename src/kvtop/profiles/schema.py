"""The format of a profile as JSON Schema, for editors that check and complete TOML."""

from __future__ import annotations

import ast
import inspect
import json
from itertools import pairwise
from typing import Any

import msgspec

from kvtop.profiles import profile
from kvtop.profiles.profile import Profile


def schema() -> dict[str, Any]:
    """Made of the structs that read the file, so that it cannot differ from them."""
    made = msgspec.json.schema(Profile)
    parts = made.pop("$defs")
    meanings = _meanings()
    for name, part in parts.items():
        part["description"] = _one_line(part["description"])
        for key, value in part["properties"].items():
            if meaning := meanings.get((name, key)):
                value["description"] = meaning
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **parts.pop("Profile"),
        "title": "kvtop profile",
        "$defs": parts,
    }


def _meanings() -> dict[tuple[str, str], str]:
    """(class, field) -> the text below it in the source: what the field means."""
    found = {}
    for part in ast.parse(inspect.getsource(profile)).body:
        if isinstance(part, ast.ClassDef):
            for field, below in pairwise(part.body):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(below, ast.Expr)
                ):
                    found[part.name, field.target.id] = _one_line(str(ast.literal_eval(below.value)))
    return found


def _one_line(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())


def schema_text() -> str:
    """The same as a file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
