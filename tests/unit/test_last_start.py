"""What `profile check` knows of the last good start: by its record, else by its log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kvtop.profiles import folder
from kvtop.profiles.check import facts
from kvtop.profiles.check.seen import LastStart
from kvtop.profiles.running import record
from kvtop.profiles.running.progress import PROCESS, Progress
from kvtop.profiles.running.record import Start

LOG = """\
INFO API server version 0.32.0
INFO non-default args: {'model': 'org/m'}
INFO Setting attention block size to 784 tokens to ensure that attention page size is >= mamba page size.
INFO Available KV cache memory: 2.5 GiB
INFO GPU KV cache size: 10,000 tokens
"""
GIB = 1 << 30


@pytest.fixture
def entry(own_home: Path) -> folder.Entry:
    """Of two cards, whose log was written by a start that no record knows."""
    where = own_home / "config" / "profiles"
    where.mkdir(parents=True)
    log = own_home / "p.log"
    log.write_text(LOG)
    (where / "p.toml").write_text(
        f'[serve]\nmodel = "org/m"\nargs = ["-tp", "2"]\n[venv]\ncommand = ["/none/vllm", "serve"]\n'
        f'[log]\nfile = "{log}"\n'
    )
    return folder.find("p")


def known(entry: folder.Entry) -> LastStart | None:
    return facts.gather(entry, ask_vllm=False).last


def start(tokens: int | None = 20_000, block: int | None = 32, size: int | None = GIB, **more: object) -> Start:
    hybrid, model = more.get("hybrid", False), more.get("model", "org/m")
    assert isinstance(hybrid, bool | None) and isinstance(model, str)
    return Start(time.time(), 60.0, {}, tokens, block, size, hybrid, model)


@pytest.mark.parametrize(
    ("starts", "last"),
    [
        ((), LastStart(10_000, 784, int(2.5 * GIB) * 2, hybrid=True)),
        ((start(tokens=1), start()), LastStart(20_000, 32, 2 * GIB, hybrid=False)),
        # of an older kvtop: what the record lacks is the log's, where that is of the same start
        ((start(10_000, size=None, hybrid=None, model=""),), LastStart(10_000, 32, int(2.5 * GIB) * 2, hybrid=True)),
        ((start(size=None, hybrid=None),), LastStart(20_000, 32, None, hybrid=None)),
        # of another model, or without its KV cache
        ((start(model="org/other"),), LastStart(10_000, 784, int(2.5 * GIB) * 2, hybrid=True)),
        ((start(tokens=None),), LastStart(10_000, 784, int(2.5 * GIB) * 2, hybrid=True)),
    ],
)
def test_the_record_counts_before_the_log(entry: folder.Entry, starts: tuple[Start, ...], last: LastStart) -> None:
    for one in starts:
        record.remember("p", one)
    assert known(entry) == last


def test_neither_record_nor_log(entry: folder.Entry) -> None:
    Path(entry.usable().log.file).unlink()
    assert known(entry) is None


def test_progress_reads_what_is_remembered() -> None:
    seen = Progress()
    seen.begin(PROCESS, 0.0)
    assert (seen.hybrid, seen.kv_cache_rank_bytes, seen.kv_cache_tokens) == (None, None, None)
    seen.feed(LOG.encode(), 1.0)
    assert (seen.hybrid, seen.kv_cache_rank_bytes, seen.kv_cache_tokens) == (True, int(2.5 * GIB), 10_000)
    plain = Progress()
    plain.begin(PROCESS, 0.0)
    plain.feed(b"GPU KV cache size: 16 tokens\n", 1.0)
    assert plain.hybrid is False
