"""`kvtop snapshot` through its door: documents, lines, exit codes."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from loopback import METRICS, Exchange, Handler, routes, serving, vllm

from kvtop.cli import once, target, words
from kvtop.cli.main import main
from kvtop.model.box import (
    Cached,
    EngineWindow,
    Finished,
    Latencies,
    Latency,
    Quantile,
    Requests,
    Throughput,
    Window,
)
from kvtop.readings import State

SECRET = "sk-geheim-123"


async def run(*argv: str) -> int:
    """The command, in a thread: the test's loop serves meanwhile."""
    return await asyncio.to_thread(main, ["snapshot", *argv])


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    made = json.loads(capsys.readouterr().out)
    assert isinstance(made, dict)
    return made


async def test_two_scrapes_make_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    counted = 100

    async def handle(exchange: Exchange) -> None:
        nonlocal counted
        if exchange.path == "/metrics":
            counted += 50
            await exchange.reply(METRICS.replace(b" 100.0", b" %d" % counted))
        else:
            await vllm()(exchange)

    async with serving(handle) as box:
        assert await run(box.url, "--seconds", "0.2", "--json") == 0
    made = document(capsys)
    assert made["url"] == box.url
    assert (made["state"], made["vllm_version"]) == ("up", "0.32.0")
    assert made["models"] == [{"id": "tiny", "max_model_len": 32768}]
    assert made["cached"]["prompt_tokens"] == 50  # type: ignore[index]
    assert 0.19 <= made["window_s"] < 10
    assert made["host"]["memory_total_bytes"] > 0  # type: ignore[index]
    assert made["gpu_error"] or made["gpus"]


@pytest.mark.parametrize(
    ("handler", "state"),
    [
        (lambda: vllm(metrics=401), "unauthorized"),
        (lambda: vllm(health=503), "dead_engine"),
        (lambda: vllm(metrics=418), "http_error"),
        (lambda: routes({"/metrics": b"<html>"}), "not_vllm"),
        (lambda: vllm(metrics=b"# TYPE http_requests counter\nhttp_requests_total 1\n"), "no_stats"),
    ],
)
async def test_the_document_is_printed_in_every_state(
    capsys: pytest.CaptureFixture[str], handler: Callable[[], Handler], state: str
) -> None:
    async with serving(handler()) as box:
        assert await run(box.url, "--seconds", "0.1", "--json") == 1
    made = document(capsys)
    assert made["state"] == state
    assert made["detail"]
    assert made["age_s"] is None
    assert made["cached"]["prompt_tokens"] is None  # type: ignore[index]


async def test_a_driver_that_hangs_holds_nothing_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(once, "READ_S", 0.1)
    monkeypatch.setattr(once, "_read_gpu", hangs.wait)
    monkeypatch.setattr(once, "_read_host", hangs.wait)
    async with serving(vllm()) as box:
        assert await run(box.url, "--seconds", "0.1", "--json") == 0
        made = document(capsys)
        assert made["gpu_error"] == "the NVIDIA driver has not answered for 0.1 s"
        assert await run(box.url, "--seconds", "0.1") == 0
    assert "/proc has not answered for 0.1 s" in capsys.readouterr().out
    hangs.set()


async def test_refused(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(vllm()) as box:
        port = box.port
    assert await run(str(port), "--json") == 1
    assert document(capsys)["state"] == "refused"


async def test_asleep(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(vllm(is_sleeping=b'{"is_sleeping":true}')) as box:
        assert await run(box.url, "--seconds", "0.1", "--json") == 0
    assert document(capsys)["state"] == "sleeping"


async def test_a_server_that_dies_between_the_scrapes(capsys: pytest.CaptureFixture[str]) -> None:
    asked = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal asked
        if exchange.path == "/metrics":
            asked += 1
            if asked > 1:
                exchange.close()
                return
        await vllm()(exchange)

    async with serving(handle) as box:
        assert await run(box.url, "--seconds", "0.1", "--json") == 1
    made = document(capsys)
    assert made["state"] == "http_error"
    assert made["vllm_version"] == "0.32.0"


async def test_the_key_comes_from_the_configuration_of_this_url(
    capsys: pytest.CaptureFixture[str], own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOX_KEY", SECRET)
    async with serving(vllm()) as box, serving(vllm()) as other:
        (own_home / "config").mkdir(parents=True)
        (own_home / "config" / "config.toml").write_text(f'[[server]]\nurl = "{box.url}/v1"\napi_key_env = "BOX_KEY"\n')
        assert await run("--seconds", "0.1", "--json") == 0
        assert await run(other.url, "--seconds", "0.1") == 0
        assert {exchange.headers.get("authorization") for exchange in box.requests} == {f"Bearer {SECRET}"}
        assert {exchange.headers.get("authorization") for exchange in other.requests} == {None}
    out = capsys.readouterr()
    assert SECRET not in out.out + out.err


async def test_a_server_of_the_configuration_that_is_none_is_passed_over(
    capsys: pytest.CaptureFixture[str], own_home: Path
) -> None:
    async with serving(vllm()) as box:
        (own_home / "config").mkdir(parents=True)
        (own_home / "config" / "config.toml").write_text(
            f'[[server]]\nurl = "ftp://x"\n[[server]]\nurl = "{box.url}"\n'
        )
        assert await run("--seconds", "0.1", "--json") == 0
    out = capsys.readouterr()
    assert json.loads(out.out)["url"] == box.url
    assert "[[server]] url: not a server's URL: 'ftp://x'" in out.err


async def test_a_password_in_the_url_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(vllm(metrics=401)) as box:
        for form in ("--json", "--line", "--seconds=0.1"):
            assert await run(f"http://me:{SECRET}@127.0.0.1:{box.port}", form) == 1
    out = capsys.readouterr()
    assert SECRET not in out.out + out.err
    assert "me:" not in out.out


async def test_texts_that_are_swapped_are_asked_about(
    capsys: pytest.CaptureFixture[str], captures: Callable[[str], Path]
) -> None:
    texts = sorted(captures("vllm-0.32.0").glob("*.txt"))
    assert await run("--from", str(texts[1]), "--to", str(texts[0]), "--json") == 0
    made = document(capsys)
    assert made["state"] == "reset"
    assert str(made["detail"]).startswith("counters fell in this window (")
    assert str(made["detail"]).endswith("; are the two texts swapped?")
    assert await run("--from", str(texts[0]), "--to", str(texts[1]), "--json") == 0
    assert "swapped" not in str(document(capsys)["detail"])


async def test_saved_texts(capsys: pytest.CaptureFixture[str], captures: Callable[[str], Path], tmp_path: Path) -> None:
    texts = sorted(captures("vllm-0.32.0").glob("*.txt"))
    packed = tmp_path / "b.txt.gz"
    packed.write_bytes(gzip.compress(texts[2].read_bytes()))
    assert await run("--from", str(texts[1]), "--to", str(packed), "--json") == 0
    made = document(capsys)
    assert (made["url"], made["at"], made["window_s"], made["state"]) == (None, None, None, "up")
    assert made["throughput"]["prompt_tokens_per_s"] is None  # type: ignore[index]
    assert await run("--from", str(texts[1]), "--to", str(packed), "--json", "--seconds", "10") == 0
    timed = document(capsys)
    tokens = timed["cached"]["prompt_tokens"]  # type: ignore[index]
    assert tokens > 0
    assert timed["throughput"]["prompt_tokens_per_s"] == pytest.approx(tokens / 10)  # type: ignore[index]


@pytest.mark.parametrize(
    ("argv", "words_"),
    [
        (["--from", "/no/such.txt", "--to", "/no/such.txt"], "cannot read '/no/such.txt'"),
        (["--from", "a"], "--from and --to go together"),
        (["--from", "a", "--to", "b", "8000"], "cannot both be given"),
        (["--seconds", "nan", "8000"], "more than 0"),
        (["--seconds", "-1", "8000"], "--seconds"),
        (["--json", "--line"], "not allowed with"),
        (["--what"], "unrecognized"),
        (["http://h:99999"], "not a server's URL"),
    ],
)
async def test_wrong_use(capsys: pytest.CaptureFixture[str], argv: list[str], words_: str) -> None:
    assert await run(*argv) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert words_ in out.err
    assert len(out.err.strip().splitlines()) <= 2


async def test_a_broken_gzip(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "a.txt.gz"
    bad.write_bytes(b"\x1f\x8bnonsense")
    assert await run("--from", str(bad), "--to", str(bad)) == 2
    assert "cannot read" in capsys.readouterr().err


async def test_no_server_anywhere(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtop.sources.discovery.USUAL_PORTS", ())
    monkeypatch.setattr("kvtop.sources.processes.role", lambda _: None)
    monkeypatch.setattr("psutil.net_connections", lambda kind: [])
    assert await run("--json") == 1
    out = capsys.readouterr()
    made = json.loads(out.out)
    assert (made["url"], made["state"], made["window_s"]) == (None, "refused", None)
    assert made["detail"].startswith("no vLLM server found on this box (processes: ")
    assert made["at"] and made["host"]["memory_total_bytes"] > 0 and (made["gpu_error"] or made["gpus"])
    assert out.err.startswith("kvtop: no vLLM server found on this box")
    assert await run("--line") == 1
    assert capsys.readouterr().out == "no vLLM server\n"


def test_the_first_server_that_listens_is_taken() -> None:
    from kvtop.config import Settings
    from kvtop.readings import Discovery, Found

    rows = (Found("http://127.0.0.1:1", "process 1, not listening yet", 1), Found("http://127.0.0.1:2", "process 2", 2))
    found = target.discovered(Discovery(rows), Settings())
    assert [one.url for one in found] == ["http://127.0.0.1:2", "http://127.0.0.1:1"]


BUSY = EngineWindow(
    cached=Cached(prompt_tokens=100, cached_tokens=96, share=0.96),
    requests=Requests(running=2, waiting=0, kv_cache_usage_share=0.41, finished=Finished(stop=12)),
    latency=Latencies(ttft=Latency(12, 0.8, Quantile(0.8, 0.75, 1.0))),
    throughput=Throughput(generation_tokens=5),
)


QUIET = EngineWindow(
    cached=Cached(prompt_tokens=0, cached_tokens=0, lifetime_share=0.92),
    requests=Requests(running=2, waiting=0, kv_cache_usage_share=0.41),
    latency=Latencies(ttft=Latency(0)),
)
"""Requests write, and none was read in the window."""


@pytest.mark.parametrize(
    ("window", "line"),
    [
        (Window(State.UP, all=BUSY), "96% cached n=12 · 2 run 0 wait · TTFT ~800ms · KV 41%"),
        (Window(State.RESET, all=BUSY), "restarted · 96% cached · 2 run 0 wait · TTFT ~800ms · KV 41%"),
        (Window(State.UP, all=QUIET), "92% since start · 2 run 0 wait · TTFT – · KV 41%"),
        (Window(State.SLEEPING, all=QUIET), "sleeping · 92% since start · 2 run 0 wait · TTFT – · KV 41%"),
        (Window(State.REFUSED, "words"), "127.0.0.1:8000 · down (refused)"),
        (Window(State.LOADING, "words"), "127.0.0.1:8000 · loading"),
        (Window(State.DEAD_ENGINE), "127.0.0.1:8000 · engine dead"),
        (Window(State.UP), "– since start · – run – wait · TTFT – · KV –"),
    ],
)
def test_the_line(window: Window, line: str) -> None:
    assert words.line(window, "127.0.0.1:8000") == line
    assert len(line) <= words.LINE_CELLS


def test_every_state_has_a_word_and_a_short_line() -> None:
    for state in State:
        text = words.line(Window(state), "a-host-with-a-very-long-name.example.internal.lan:18000")
        assert 0 < len(text) <= words.LINE_CELLS


def test_textual_is_not_loaded(captures: Callable[[str], Path]) -> None:
    texts = sorted(captures("vllm-0.32.0").glob("*.txt"))
    code = (
        "import sys; from kvtop.cli.main import main; "
        f"main(['snapshot', '--from', {str(texts[0])!r}, '--to', {str(texts[1])!r}, '--json']); "
        "heavy = {'textual', 'rich', 'plotext', 'psutil'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
