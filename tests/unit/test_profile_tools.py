"""Why another program failed, by what it said."""

from __future__ import annotations

import pytest

from kvtop.profiles.running.tools import Done

NO_COMPOSE = """unknown shorthand flag: 'f' in -f

Usage:  docker [OPTIONS] COMMAND [ARG...]

Run 'docker --help' for more information
"""
PULL = """ vllm Pulling
 vllm Error manifest unknown
Error response from daemon: manifest unknown
"""
PORT = """time="2026-01-01" level=warning msg="the attribute is obsolete: not a mistake"
 Container vllm  Creating
 Container vllm  Created
Error response from daemon: driver failed: port is already allocated
"""


@pytest.mark.parametrize(
    ("out", "err", "why"),
    [
        ("", NO_COMPOSE, "unknown shorthand flag: 'f' in -f"),
        ("", PULL, "vllm Error manifest unknown"),
        ("", PORT, "Error response from daemon: driver failed: port is already allocated"),
        ("no configuration file provided: not found\n", "\n", "no configuration file provided: not found"),
        ("", "it went wrong\nin the end\n", "in the end"),
        ("", "Run 'docker --help' for more information\n", "Run 'docker --help' for more information"),
        ("", "", ""),
    ],
)
def test_the_first_error_is_told(out: str, err: str, why: str) -> None:
    assert Done(1, out, err).why == why
