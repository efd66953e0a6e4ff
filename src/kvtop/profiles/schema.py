"""The format of a profile as JSON Schema, for editors that check and complete TOML."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kvtop.profiles.profile import Profile


def schema() -> dict[str, Any]:
    """Made of the structs that read the file, so that it cannot differ from them."""
    made = msgspec.json.schema(Profile)
    parts = made.pop("$defs")
    for part in parts.values():
        if "description" in part:
            part["description"] = " ".join(part["description"].split("\n\n")[0].split())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvtop profile",
        **parts.pop("Profile"),
        "$defs": parts,
    }


def schema_text() -> str:
    """The same as a file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
