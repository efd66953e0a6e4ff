"""The CPU tier that a command line asks for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.sources.tier_size import tier_bytes


def config(size: object, **more: object) -> str:
    return json.dumps(
        {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": size, **more}}
    )


@pytest.mark.parametrize(
    ("gib", "transfer", "size"),
    [
        (None, None, None),
        ("48", None, 48 << 30),
        ("0.5", None, 1 << 29),
        ("none", None, None),
        ("inf", None, None),
        ("-1", None, None),
        (None, config(268435456), 268435456),
        (None, config(0), None),
        (None, config("many"), None),
        (None, config(True), None),
        (None, config(None, connectors=[json.loads(config(5)), json.loads(config(7)), 3]), 12),
        (None, "{", None),
        (None, "[1]", None),
        ("2", config(5), 2 << 30),
    ],
)
def test_sizes(gib: str | None, transfer: str | None, size: int | None) -> None:
    assert tier_bytes(gib, transfer) == size


@given(
    st.text()
    | st.recursive(st.none() | st.floats() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)).map(
        json.dumps
    )
)
def test_no_text_raises(text: str) -> None:
    assert tier_bytes(None, text) is None
    tier_bytes(text, None)
