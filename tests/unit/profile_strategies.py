"""Profiles made by hypothesis, as a file could hold them."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from kvtop.profiles.profile import Profile
from kvtop.profiles.spelling import plain

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
FILLED = TEXTS.filter(bool)
WORDS = st.lists(TEXTS, max_size=6)
VARIABLES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
FLAGS = st.from_regex(r"[a-z][a-z0-9]{0,6}(-[a-z0-9]{1,5}){0,2}", fullmatch=True)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
TABLES = st.dictionaries(TEXTS, JSON, max_size=4)
COMMANDS = st.lists(st.one_of(WORDS, TEXTS), max_size=3)
PATHS = TEXTS.map(lambda text: f"/{text}")


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Any that a file may hold, without `extends` and without what only a base can have."""
    names = draw(st.lists(VARIABLES, max_size=8, unique=True))
    parts: list[list[str]] = [[], [], [], []]
    for name in names:
        parts[draw(st.integers(0, 3))].append(name)
    raw = {
        "about": draw(TEXTS),
        "runner": draw(st.sampled_from(["venv", "docker", "compose", "systemd", "attach"])),
        "gpus": draw(WORDS),
        "serve": {
            "model": draw(TEXTS),
            "names": draw(WORDS),
            "host": draw(TEXTS),
            "port": draw(st.none() | st.integers(1, 65535)),
            "config": draw(TEXTS),
            "args": draw(WORDS),
            "json": draw(st.dictionaries(FLAGS.map(plain), TABLES, max_size=3)),
        },
        "env": {
            "set": {name: draw(TEXTS) for name in parts[0]},
            "unset": parts[1],
            "from_file": {name: draw(PATHS) for name in parts[2]},
            "from_env": {name: draw(VARIABLES) for name in parts[3]},
        },
        "venv": {"command": draw(WORDS), "wrap": draw(WORDS), "cwd": draw(TEXTS)},
        "docker": {"image": draw(TEXTS), "options": draw(WORDS), "entrypoint": draw(WORDS), "env_files": draw(WORDS)},
        "compose": {"service": draw(TEXTS), "variables": draw(st.dictionaries(VARIABLES, TEXTS, max_size=2))},
        "systemd": {"unit": draw(TEXTS), "user": draw(st.booleans())},
        "attach": {"url": draw(TEXTS)},
        "sidecar": [
            {"name": name, "command": draw(st.one_of(WORDS, TEXTS))} for name in draw(st.lists(TEXTS, max_size=2))
        ],
        "start": {"before": draw(COMMANDS), "after_stop": draw(COMMANDS), "timeout_s": draw(st.floats(0.1, 86400))},
        "log": {"max_bytes": draw(st.integers(10_000, 10**9))},
    }
    return msgspec.convert(raw, Profile)
