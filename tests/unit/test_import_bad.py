"""A record that is wrong in whatever way is one bad record of its file, and a bomb is stopped at the cap."""

from __future__ import annotations

import gzip
import json
import os
import pkgutil
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from test_importers import BODY, entry, flow, payload, tnet

from kvtop.capture.importers import files
from kvtop.capture.importers.exchange import Bad, Exchange, Item, taken
from kvtop.capture.importers.read import Opened
from kvtop.cli.main import main
from kvtop.errors import UsageError

LOG = "INFO 11-01 10:00:00 [logger.py:39] Received request %s: prompt: 'hi', params: x, prompt_token_ids: [%s].\n"
JSON_LOG = "INFO 11-01 10:00:00 [x] Request %s JSON body: %s\n"
HUGE = 10**400
DEEP = "[" * 980 + "]" * 980


def lines(*rows: object) -> bytes:
    return b"".join((row if isinstance(row, str) else json.dumps(row)).encode() + b"\n" for row in rows)


def read(path: Path, data: bytes, format: str) -> list[Item]:
    path.write_bytes(data)
    return list(Opened(path, format).items())


@pytest.mark.parametrize(
    ("format", "data"),
    [
        ("jsonl", lines({"request": BODY, "time": HUGE})),
        ("litellm", lines(payload(startTime=HUGE))),
        ("har", lines({"log": {"entries": [entry(startedDateTime=HUGE)]}})),
        ("mitmproxy", tnet(flow(request={**flow()["request"], "timestamp_start": HUGE}))),
    ],
)
def test_a_time_of_400_digits_is_none(tmp_path: Path, format: str, data: bytes) -> None:
    (item,) = read(tmp_path / "x", data, format)
    assert isinstance(item, Exchange)
    assert item.started_at is None


def test_a_time_of_400_digits_in_an_index_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.request.json").write_bytes(lines(BODY))
    (tmp_path / "a.response.json").write_bytes(b"{}")
    named = {"request_file": "a.request.json", "response_file": "a.response.json", "timestamp": HUGE}
    (tmp_path / "index.jsonl").write_bytes(lines(named))
    (item,) = Opened(tmp_path).items()
    assert isinstance(item, Exchange)
    assert (item.response, item.ended_at) == (b"{}", None)


def test_one_id_of_5000_digits_is_one_bad_record(tmp_path: Path) -> None:
    bad, good = read(tmp_path / "x", (LOG % ("a", "9" * 5_000) + LOG % ("b", "1, 2")).encode(), "vllm-log")
    assert isinstance(bad, Bad)
    assert bad.where == "line 1"
    assert bad.why.startswith("not as vLLM writes it: a number of too many digits")
    assert isinstance(good, Exchange)
    assert good.request == b'{"prompt":[1,2]}'


def test_a_body_that_is_too_deep_is_one_bad_record(tmp_path: Path) -> None:
    deep = json.dumps({"messages": [{"role": "user", "content": "DEEP"}]}).replace('"DEEP"', DEEP)
    log = JSON_LOG % ("a", deep) + JSON_LOG % ("b", json.dumps(BODY))
    deep_one, good = read(tmp_path / "x", log.encode(), "vllm-log")
    assert isinstance(good, Exchange)
    assert deep_one.where == "line 1"  # bad or not: how deep may be read is the interpreter's
    deep_one, good = read(tmp_path / "x", lines(f'{{"request":{deep}}}', {"request": BODY}), "jsonl")
    assert isinstance(good, Exchange)
    assert deep_one.where == "line 1"  # bad or not: how deep may be read is the interpreter's


@pytest.mark.parametrize("at", [1e15, -1e12, 2.0**40])
def test_a_log_whose_file_has_no_date_has_turns_without_one(tmp_path: Path, at: float) -> None:
    from kvtop.capture.importers import vllm_log

    (item,) = vllm_log.read((LOG % ("a", "1")).encode(), at)
    assert isinstance(item, Exchange)


@pytest.mark.parametrize(
    "error", [OverflowError("x"), RecursionError(), MemoryError(), KeyError("k"), ZeroDivisionError()]
)
def test_whatever_goes_wrong_is_told_in_one_line(error: Exception) -> None:
    def make(_: object) -> Item:
        raise error

    bad = taken("line 3", "no request", make, None)
    assert isinstance(bad, Bad)
    assert bad.where == "line 3"
    assert bad.why.startswith("no request: ") and len(bad.why) > len("no request: ") and bad.why.isprintable()


FIRST, SECOND = {"request": BODY, "time": 5}, {"request": BODY, "time": 6}
FILES: list[tuple[str, str, bytes]] = [
    ("jsonl", "kvtop.capture.importers.jsonl.as_json", lines(FIRST, SECOND)),
    ("litellm", "kvtop.capture.importers.litellm.as_json", lines(payload(), payload(startTime=1.7e9))),
    ("har", "kvtop.capture.importers.har._moments", lines({"log": {"entries": [entry(), entry(time=7)]}})),
    ("mitmproxy", "kvtop.capture.importers.mitmproxy._unpacked", tnet(flow()) + tnet(flow(version=20))),
    ("vllm-log", "kvtop.capture.importers.vllm_log.as_json", (LOG % ("a", "1") + LOG % ("b", "2")).encode()),
    ("jsonl", "kvtop.capture.importers.exchange.Maker._key", lines(FIRST, SECOND)),
]


@pytest.mark.parametrize("record", FILES, ids=[inside for _, inside, _ in FILES])
def test_a_fault_at_one_record_keeps_the_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    record: tuple[str, str, bytes],
) -> None:
    format, inside, data = record
    home, _, name = inside.rpartition(".")
    target = pkgutil.resolve_name(home)
    real: Callable[..., Any] = getattr(target, name)
    calls = []

    def once(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise OverflowError("too large")
        return real(*given)

    monkeypatch.setattr(target, name, once)
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path / "home"))
    path = tmp_path / "x"
    path.write_bytes(data)
    code = main(["import", str(path), "--format", format, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["kept"], found["bad"]) == (0, 1, 1)
    (bad,) = found["files"][0]["bad_records"]
    assert bad["where"].endswith(" 1")
    assert bad["why"].endswith(": a number is too large")


def bomb(pack: str, size: int) -> bytes:
    if pack == "gz":
        return gzip.compress(bytes(size), 1)
    return zstandard.ZstdCompressor(level=1).compress(bytes(size))


@pytest.mark.parametrize("pack", ["gz", "zst"])
def test_a_bomb_is_stopped_at_the_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(bomb(pack, 256 << 20))
    monkeypatch.setattr(files, "MAX_BYTES", 1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="holds more than"):
            files.read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 80 << 20


def test_a_packed_file_of_many_pieces_comes_out_whole(tmp_path: Path) -> None:
    path, data = tmp_path / "x", os.urandom(300_000)
    frames = zstandard.ZstdCompressor().compress(data), zstandard.ZstdCompressor().compress(b"end")
    path.write_bytes(b"".join(frames))
    assert files.read(path) == data + b"end"


def _frames(data: bytes) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    out = b""
    for at in range(0, len(data), 50_000):
        out += packer.compress(data[at : at + 50_000]) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return out + packer.flush()


@pytest.mark.parametrize("kind", ["file", "pipe"])
@pytest.mark.parametrize("pack", [gzip.compress, _frames], ids=["gz", "zst"])
@pytest.mark.parametrize("format", ["jsonl", "vllm-log"])
def test_a_packed_file_that_is_cut_is_read_up_to_there(
    tmp_path: Path, format: str, pack: Callable[[bytes], bytes], kind: str
) -> None:
    noise = [os.urandom(400).hex() for _ in range(2_000)]
    is_log = format == "vllm-log"
    rows = [LOG.rstrip("\n") % (row, n) if is_log else {**BODY, "user": row} for n, row in enumerate(noise)]
    path, whole = tmp_path / "x", pack(lines(*rows))
    cut = whole[: len(whole) * 2 // 3]
    if kind == "pipe":
        os.mkfifo(path)
        thread = threading.Thread(target=path.write_bytes, args=(cut,))
        thread.start()
    else:
        path.write_bytes(cut)
    *kept, bad = Opened(path).items()
    assert 1_000 < len(kept) < 1_500 and all(isinstance(item, Exchange) for item in kept)
    assert bad == Bad(f"line {len(kept) + 1}", "the file ends before its packing does")
    if kind == "pipe":
        thread.join()


def test_a_packed_file_without_its_check_sum_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(json.dumps(BODY).encode())[:-4])
    kept, bad = Opened(path).items()
    assert isinstance(kept, Exchange) and bad == Bad("line 2", "the file ends before its packing does")


@pytest.mark.parametrize(
    ("format", "data"),
    [
        ("har", lines({"log": {"entries": [entry()] * 9}})),
        ("mitmproxy", tnet(flow()) * 9),
        ("jsonl", json.dumps([BODY] * 9, indent=1).encode()),
    ],
)
def test_a_packed_document_that_is_cut_is_an_error_in_words(tmp_path: Path, format: str, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(data)[:-9])
    with pytest.raises(UsageError, match=r"cannot read .*: the file ends before its packing does\n  write it"):
        list(Opened(path, format).items())
