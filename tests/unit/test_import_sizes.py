"""A source as large as one may be is read or refused in a time that its reader waits for."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from kvtop.profiles.importers.draft import Refused
from kvtop.profiles.importers.pick import import_file

SIZE = 250_000
FLAGS = "".join(f"--f{number} {number} " for number in range(SIZE // 16))
SOURCES = {
    "words.sh": ("vllm serve m " + "a " * (SIZE // 2 - 20), "more than 2000 words"),
    "flags.sh": ("vllm serve m " + FLAGS, "more than 2000 words"),
    "others.sh": ("x " + "a " * (SIZE // 2 - 20), "more than 2000 words"),
    "added.sh": ("A_TOKEN=1\n" + "A_TOKEN+=xxxxxxxxxx\n" * (SIZE // 21) + "vllm serve m", "too long"),
    "computed.sh": (
        "".join(f"K{number}_KEY={10_000_000 + number}\n" for number in range(SIZE // 40))
        + "B=99999999\n"
        + f"A=$(({'B+' * 490}B))\n" * (SIZE // 2_000)
        + "vllm serve m $((1/0))",
        "divides by zero",
    ),
    "linked.sh": ("true && " * (SIZE // 8 - 2) + "vllm", "no command of it starts vLLM"),
    "commands.sh": ("foo b\n" * (SIZE // 7) + "vllm serve m", "more than 300 commands"),
    "services.yml": ("services:\n" + "".join(f" s{i}: {{image: x}}\n" for i in range(SIZE // 24)), "services may run"),
    "brackets.yml": ("services: " + "[" * (SIZE // 2), "nested too deeply"),
    "a.service": ("[Service]\nExecStart=/usr/bin/vllm serve m " + FLAGS, "too long"),
    "a.json": (
        json.dumps([{"Config": {"Image": "v", "Cmd": ["--model", "m"] * (SIZE // 20)}, "HostConfig": {}}]),
        "more than 2000 words",
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_large_source_takes_no_time(name: str, tmp_path: Path) -> None:
    text, why = SOURCES[name]
    (tmp_path / name).write_text(text)
    began = time.process_time()
    with pytest.raises(Refused, match=why):
        import_file(tmp_path / name)
    assert time.process_time() - began < 20
