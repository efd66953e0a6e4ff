"""Every state of a server, told apart against real sockets."""

from __future__ import annotations

import asyncio
import gzip
import random
import shutil
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest
from loopback import METRICS, Exchange, routes, serving, vllm

from fixed_clock import FixedClock
from kvtop.readings import Scrape, ServerFacts, SourceDown, State
from kvtop.sources.vllm import HEALTH_S, VllmSource

SECRET = "sk-geheim-123"


async def scrape(url: str, **options: object) -> Scrape | SourceDown:
    source = VllmSource(url, **options)  # type: ignore[arg-type]
    try:
        return await source.scrape()
    finally:
        await source.aclose()


async def down(url: str, **options: object) -> SourceDown:
    answer = await scrape(url, **options)
    assert isinstance(answer, SourceDown), answer
    assert "\n" not in answer.cause
    assert answer.cause
    return answer


async def test_up() -> None:
    async with serving(vllm()) as box:
        answer = await scrape(box.url, clock=FixedClock(9.0))
        assert isinstance(answer, Scrape)
        assert (answer.at, answer.has_vllm, answer.truncated) == (9.0, True, False)
        key = ("vllm:prompt_tokens_total", (("engine", "0"), ("model_name", "tiny")))
        assert answer.values[key] == 100.0


async def test_one_connection_serves_many_scrapes() -> None:
    async with serving(vllm()) as box:
        source = VllmSource(box.url)
        for _ in range(5):
            assert isinstance(await source.scrape(), Scrape)
        await source.aclose()
        assert box.paths.count("/metrics") == 5
        assert box.connections == 2  # one for /metrics, one for /health


async def test_a_connection_closed_while_idle_is_no_failure() -> None:
    async def once(exchange: Exchange) -> None:
        await vllm()(exchange)
        exchange.close()

    async with serving(once) as box:
        source = VllmSource(box.url)
        for _ in range(3):
            assert isinstance(await source.scrape(), Scrape)
        await source.aclose()


async def test_chunked_and_until_close() -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.path == "/health":
            await exchange.raw(b"HTTP/1.0 200 OK\r\n\r\n")
            exchange.close()
            return
        half = len(METRICS) // 2
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in (METRICS[:half], METRICS[half:]))
        await exchange.raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")

    async with serving(handle) as box:
        assert isinstance(await scrape(box.url), Scrape)


async def test_refused() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answer = await down(f"127.0.0.1:{port}")
    assert answer.state is State.REFUSED
    assert answer.cause == f"nothing listens on 127.0.0.1:{port}"


async def test_hangs() -> None:
    async with serving(Exchange.forever) as box:
        answer = await down(box.url, timeout_s=0.2)
        assert answer.state is State.TIMEOUT
        assert answer.cause == "takes the connection, but gives no answer within 0.2 s"


async def test_a_dripping_server_meets_the_total_timeout() -> None:
    async def drip(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        while not exchange.writer.is_closing():
            await exchange.raw(b"#")
            await asyncio.sleep(0.02)

    async with serving(drip) as box:
        began = time.monotonic()
        answer = await down(box.url, timeout_s=0.3)
        assert time.monotonic() - began < 1.5
        assert answer.state is State.TIMEOUT
        assert "not complete after 0.3 s" in answer.cause


async def test_a_dripping_head_meets_it_too() -> None:
    async def drip(exchange: Exchange) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1000:
            await exchange.raw(bytes([byte]))
            await asyncio.sleep(0.02)

    async with serving(drip) as box:
        assert (await down(box.url, timeout_s=0.3)).state is State.TIMEOUT


async def test_no_connection_within_the_timeout() -> None:
    # A full backlog: the kernel drops the handshake.
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        answer = await down(f"127.0.0.1:{port}", timeout_s=0.3)
        for filler in fillers:
            filler.close()
    assert answer.state is State.TIMEOUT
    assert answer.cause == "no connection within 0.3 s"


async def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    answer = await down("http://no-such-box.invalid:8000")
    assert answer.state is State.DNS_ERROR
    assert "no-such-box.invalid" in answer.cause


async def test_a_name_server_that_hangs_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(5) and [])
    answer = await down("http://slow-dns.invalid:8000", timeout_s=0.2)
    released.set()
    assert (answer.state, answer.cause) == (State.TIMEOUT, "no connection within 0.2 s")


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [
        (401, State.UNAUTHORIZED, "wants an API key"),
        (403, State.UNAUTHORIZED, "wants an API key"),
        (503, State.DEAD_ENGINE, "503"),
        (404, State.HTTP_ERROR, "404"),
        (500, State.HTTP_ERROR, "500"),
        (429, State.HTTP_ERROR, "429"),
    ],
)
async def test_a_status(status: int, state: State, words: str) -> None:
    async with serving(vllm(metrics=status)) as box:
        answer = await down(box.url)
        assert (answer.state, answer.http_status) == (state, status)
        assert words in answer.cause


@pytest.mark.parametrize("status", [500, 503])
async def test_a_dead_engine_is_seen_by_its_health_although_metrics_answer(status: int) -> None:
    async with serving(vllm(health=status)) as box:
        answer = await down(box.url)
        assert (answer.state, answer.http_status) == (State.DEAD_ENGINE, status)


async def test_frozen_numbers_make_health_be_asked_early_and_a_dead_engine_stays_dead_until_it_is_well() -> None:
    table: dict[str, bytes | int] = {"/metrics": METRICS, "/health": b""}
    clock = FixedClock()

    async with serving(routes(table)) as box:
        source = VllmSource(box.url, clock=clock)
        assert isinstance(await source.scrape(), Scrape)
        table["/health"] = 503
        clock.tick(1.0)
        assert isinstance(await source.scrape(), Scrape)  # not asked yet
        clock.tick(1.5)
        assert HEALTH_S > 2.5
        for _ in range(2):
            answer = await source.scrape()
            assert isinstance(answer, SourceDown)
            assert answer.state is State.DEAD_ENGINE
        table["/health"] = b""
        assert isinstance(await source.scrape(), Scrape)
        await source.aclose()


async def test_a_health_that_hangs_is_no_verdict() -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.path == "/health":
            await exchange.forever()
        await vllm()(exchange)

    async with serving(handle) as box:
        assert isinstance(await scrape(box.url, timeout_s=0.2), Scrape)


async def test_a_web_page_is_not_vllm() -> None:
    page = b"<!doctype html><html>vllm:</html>"
    async with serving(routes({"/metrics": page, "/v1/models": page, "/version": page})) as box:
        answer = await down(box.url)
        assert answer.state is State.NOT_VLLM
        assert "web page" in answer.cause


async def test_another_program_with_metrics_is_not_vllm() -> None:
    table: dict[str, bytes | int] = {
        "/metrics": b"# TYPE http_requests counter\nhttp_requests_total 1\n",
        "/v1/models": b'{"data":[{"id":"x","owned_by":"llamacpp"}]}',
    }
    async with serving(routes(table)) as box:
        assert (await down(box.url)).state is State.NOT_VLLM


async def test_vllm_without_statistics() -> None:
    async with serving(vllm(metrics=b"# TYPE http_requests counter\nhttp_requests_total 1\n")) as box:
        answer = await down(box.url)
        assert answer.state is State.NO_STATS
        assert "--disable-log-stats" in answer.cause


async def test_vllm_without_statistics_whose_models_want_a_key() -> None:
    async with serving(vllm(metrics=b"# TYPE http_requests counter\nhttp_requests_total 1\n", v1_models=401)) as box:
        assert (await down(box.url)).state is State.NO_STATS


async def test_who_it_is_is_not_asked_with_every_scrape() -> None:
    async with serving(routes({"/metrics": b"up 1\n"})) as box:
        source = VllmSource(box.url)
        for _ in range(5):
            assert isinstance(await source.scrape(), SourceDown)
        await source.aclose()
        assert box.paths.count("/v1/models") == 1


@pytest.mark.parametrize("noise", [b"SSH-2.0-OpenSSH_9.6\r\n", b"+PONG\r\n\r\n", bytes(range(256))])
async def test_something_that_is_not_http(noise: bytes) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.raw(noise)
        exchange.close()

    async with serving(handle) as box:
        answer = await down(box.url)
        assert (answer.state, answer.cause) == (State.NOT_VLLM, "answers, but not in HTTP")


def odd_answers() -> list[bytes]:
    """Well answers, damaged: cut, a byte changed, a piece doubled."""
    dice = random.Random(20)
    heads = [
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(METRICS),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % len(METRICS),
        b"HTTP/1.1 302 Found\r\nlocation: /metrics\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ]
    answers = []
    for _ in range(150):
        text = bytearray(dice.choice(heads) + METRICS + b"\r\n0\r\n\r\n")
        for _ in range(dice.randrange(3)):
            at = dice.randrange(min(len(text), 90))
            text[at : at + dice.randrange(3)] = bytes([dice.randrange(256)]) * dice.randrange(3)
        answers.append(bytes(text[: dice.randrange(len(text) + 1)] if dice.random() < 0.4 else text))
    return answers


async def test_a_damaged_answer_never_raises() -> None:
    answers = iter(odd_answers())

    async def handle(exchange: Exchange) -> None:
        await exchange.raw(next(answers, b""))
        exchange.close()

    async with serving(handle) as box:
        source = VllmSource(box.url, timeout_s=1.0)
        for _ in range(70):
            answer = await source.scrape()
            assert isinstance(answer, Scrape) or answer.cause.isprintable()
        await source.aclose()


async def test_200_mb_are_not_read() -> None:
    sent = 0

    async def flood(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        line = METRICS * 500
        while sent < 200_000_000:
            await exchange.raw(line)
            sent += len(line)
        exchange.close()

    async with serving(flood) as box:
        answer = await down(box.url, max_bytes=1_000_000)
        assert answer.state is State.TOO_LARGE
        assert "1,000,000 bytes" in answer.cause
    assert sent < 20_000_000


async def test_an_announced_size_is_enough() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 200000000\r\n\r\n")
        await exchange.forever()

    async with serving(handle) as box:
        answer = await down(box.url, timeout_s=5.0)
        assert answer.state is State.TOO_LARGE
        assert "200,000,000" in answer.cause


async def test_a_gzip_bomb() -> None:
    bomb = gzip.compress(bytes(60_000_000))
    assert len(bomb) < 100_000

    async def handle(exchange: Exchange) -> None:
        await exchange.reply(bomb, content_encoding="gzip")

    async with serving(handle) as box:
        answer = await down(box.url, max_bytes=1_000_000, timeout_s=10.0)
        assert answer.state is State.TOO_LARGE


async def test_gzip_that_ends_early_is_no_answer() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.reply(gzip.compress(METRICS)[:-20], content_encoding="gzip")

    async with serving(handle) as box:
        answer = await down(box.url)
        assert answer.state is State.HTTP_ERROR
        assert "broke off" in answer.cause


async def test_a_text_that_ends_before_any_series_accuses_no_flag() -> None:
    async with serving(vllm(metrics=b"# TYPE http_requests counter\nhttp_requests_total 1\n# HELP vl")) as box:
        answer = await down(box.url)
        assert answer.state is State.HTTP_ERROR
        assert "broke off before any vllm: series" in answer.cause


async def test_gzip_that_was_not_asked_for_is_read_all_the_same() -> None:
    async def handle(exchange: Exchange) -> None:
        assert exchange.headers["accept-encoding"] == "identity"
        await exchange.reply(gzip.compress(METRICS), content_encoding="gzip")

    async with serving(handle) as box:
        assert isinstance(await scrape(box.url), Scrape)


@pytest.mark.parametrize(("coding", "words"), [("br", "'br'"), ("gzip", "sends something else")])
async def test_a_coding_that_cannot_be_read(coding: str, words: str) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.reply(METRICS, content_encoding=coding)

    async with serving(handle) as box:
        answer = await down(box.url)
        assert answer.state is State.HTTP_ERROR
        assert words in answer.cause


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "closes the connection without an answer"),
        (b"HTTP/1.1 200", "in the middle of its answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\nvllm:", "in the middle of its answer, after 5 bytes"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\nvllm", "in the middle of its answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: nonsense\r\n\r\n", "breaks the rules of HTTP"),
    ],
)
async def test_an_answer_that_breaks_off(sent: bytes, words: str) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.raw(sent)
        exchange.close()

    async with serving(handle) as box:
        answer = await down(box.url)
        assert answer.state is State.HTTP_ERROR
        assert words in answer.cause


async def test_a_redirect_within_the_server_is_followed() -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.path == "/metrics":
            await exchange.reply(status=307, location="/metrics/")
        elif exchange.path == "/metrics/":
            await exchange.reply(METRICS)
        else:
            await exchange.reply()

    async with serving(handle) as box:
        assert isinstance(await scrape(box.url), Scrape)


async def test_a_redirect_elsewhere_is_not_followed() -> None:
    async with serving(vllm()) as other:

        async def handle(exchange: Exchange) -> None:
            await exchange.reply(status=302, location=f"{other.url}/metrics")

        async with serving(handle) as box:
            answer = await down(box.url, key=lambda: SECRET)
        assert (answer.state, answer.http_status) == (State.HTTP_ERROR, 302)
        assert other.url in answer.cause
        assert other.requests == []


@pytest.mark.parametrize("location", ["/metrics", "http://[", "", "javascript:alert(1)", "/a b", "http://\x1b[31m/"])
async def test_redirects_that_lead_nowhere(location: str) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.reply(status=301, location=location)

    async with serving(handle) as box:
        answer = await down(box.url)
        assert answer.state is State.HTTP_ERROR
        assert answer.cause.isprintable()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "30", "-subj", "/CN=box"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def server_context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


async def test_a_self_signed_certificate(certificate: tuple[Path, Path]) -> None:
    async with serving(vllm(), tls=server_context(certificate)) as box:
        answer = await down(f"https://127.0.0.1:{box.port}")
        assert answer.state is State.TLS_ERROR
        assert "certificate" in answer.cause


async def test_a_certificate_that_the_user_trusts(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    async with serving(vllm(), tls=server_context(certificate)) as box:
        assert isinstance(await scrape(f"https://127.0.0.1:{box.port}"), Scrape)


async def test_https_to_a_plain_port() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        answer = await down(f"https://127.0.0.1:{port}")
    assert answer.state is State.TLS_ERROR
    assert f"try http://127.0.0.1:{port}" in answer.cause


async def test_http_to_a_tls_port(certificate: tuple[Path, Path]) -> None:
    async with serving(vllm(), tls=server_context(certificate)) as box:
        answer = await down(f"http://127.0.0.1:{box.port}")
        assert answer.state in (State.TLS_ERROR, State.HTTP_ERROR)
        assert "https" in answer.cause


async def test_the_key_is_in_the_header_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(vllm(metrics=401)) as box:
        source = VllmSource(box.url, key=lambda: SECRET)
        answers = [await source.scrape(), await source.facts()]
        await source.aclose()
        assert {exchange.headers["authorization"] for exchange in box.requests} == {f"Bearer {SECRET}"}
        assert all(SECRET not in exchange.path for exchange in box.requests)
    assert isinstance(answers[0], SourceDown)
    assert answers[0].cause == "HTTP 401: the configured API key is refused"
    assert SECRET not in repr(answers) + repr(source) + repr(vars(source)) + caplog.text


async def test_a_key_that_no_header_can_carry() -> None:
    async with serving(vllm()) as box:
        answer = await down(box.url, key=lambda: "a\r\nx: y")
        assert answer.state is State.UNAUTHORIZED
        assert box.requests == []


async def test_user_and_password_are_used_and_never_shown() -> None:
    async with serving(vllm(metrics=401)) as box:
        source = VllmSource(f"http://user:{SECRET}@127.0.0.1:{box.port}/metrics")
        answer = await source.scrape()
        await source.aclose()
        assert source.url == box.url
        assert box.requests[0].headers["authorization"].startswith("Basic ")
    assert SECRET not in repr(answer) + repr(source) + repr(vars(source))


async def test_a_proxy_in_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(vllm()) as box, serving(routes({})) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        assert isinstance(await scrape(box.url), Scrape)
        assert proxy.requests == []


async def test_a_server_behind_a_gateway() -> None:
    table: dict[str, bytes | int] = {"/gw/metrics": METRICS, "/gw/health": b""}
    async with serving(routes(table)) as box:
        assert isinstance(await scrape(f"{box.url}/gw/v1/"), Scrape)


async def test_facts() -> None:
    async with serving(vllm(is_sleeping=b'{"is_sleeping":true}')) as box:
        source = VllmSource(box.url)
        facts = await source.facts()
        await source.aclose()
    assert isinstance(facts, ServerFacts)
    assert (facts.version, facts.sleeping, facts.problems) == ("0.32.0", True, ())
    assert [(m.id, m.max_model_len, m.owned_by) for m in facts.models] == [("tiny", 32768, "vllm")]


async def test_facts_without_dev_mode_ask_for_sleep_once() -> None:
    async with serving(vllm()) as box:
        source = VllmSource(box.url)
        for _ in range(3):
            facts = await source.facts()
            assert isinstance(facts, ServerFacts)
            assert facts.sleeping is None
        await source.aclose()
        assert box.paths.count("/is_sleeping") == 1


async def test_a_model_that_is_told_wrongly_costs_no_other() -> None:
    rows = [
        '{"id": null}',
        '{"id": "a", "max_model_len": 1e400, "owned_by": 5}',
        "7",
        "[]",
        '{"id": "b", "max_model_len": "many", "owned_by": "vllm"}',
        '{"id": "c", "max_model_len": 4096}',
        "{}",
    ]
    async with serving(vllm(v1_models=f'{{"data":[{",".join(rows)}]}}'.encode())) as box:
        source = VllmSource(box.url)
        facts = await source.facts()
        await source.aclose()
    assert not isinstance(facts, SourceDown)
    assert [(model.id, model.max_model_len) for model in facts.models] == [("a", None), ("b", None), ("c", 4096)]
    assert facts.problems == ()


async def test_facts_of_a_server_that_hides_its_models() -> None:
    async with serving(vllm(v1_models=401)) as box:
        source = VllmSource(box.url)
        facts = await source.facts()
        await source.aclose()
    assert isinstance(facts, ServerFacts)
    assert facts.models == ()
    assert facts.version == "0.32.0"
    assert "wants an API key" in facts.problems[0]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data":7}', b'{"data":[{}]}', b"[" * 100_000, b"\xff", b"<html>"])
async def test_facts_that_make_no_sense_are_unknown(body: bytes) -> None:
    async with serving(vllm(v1_models=body, version=body, is_sleeping=body)) as box:
        source = VllmSource(box.url)
        facts = await source.facts()
        await source.aclose()
    assert isinstance(facts, ServerFacts)
    assert (facts.version, facts.models, facts.sleeping) == (None, (), None)
    assert "/v1/models: not what vLLM answers" in facts.problems


async def test_facts_of_a_hostile_server_are_printable() -> None:
    async with serving(
        vllm(version=b'{"version":"\\u001b[31m"}', v1_models=b'{"data":[{"id":"\\u001b]0;x\\u0007"}]}')
    ) as box:
        source = VllmSource(box.url)
        facts = await source.facts()
        await source.aclose()
    assert isinstance(facts, ServerFacts)
    assert facts.version is not None and facts.version.isprintable()
    assert facts.models[0].id.isprintable()


async def test_facts_of_a_hanging_server_take_one_timeout() -> None:
    async with serving(Exchange.forever) as box:
        source = VllmSource(box.url, timeout_s=0.2)
        began = time.monotonic()
        facts = await source.facts()
        await source.aclose()
        assert time.monotonic() - began < 1.0
    assert isinstance(facts, SourceDown)
    assert facts.state is State.TIMEOUT


async def test_a_huge_text_that_kvtop_cannot_read_in_time_is_no_fault_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvtop.sources.vllm.READ_S", 0.05)
    let_go, reads = threading.Event(), 0

    def slow(self: object, text: str, at: float | None = None) -> Scrape:
        nonlocal reads
        reads += 1
        let_go.wait(30)
        return Scrape({}, {}, at)

    monkeypatch.setattr("kvtop.sources.exposition.Reader.read", slow)
    text = METRICS + b"# HELP x " + b"y" * 1_200_000 + b"\n"
    async with serving(vllm(metrics=text)) as box:
        source = VllmSource(box.url)
        for _ in range(3):
            answer = await source.scrape()
            assert isinstance(answer, SourceDown)
            assert answer.state is State.TOO_LARGE
            assert answer.cause == "/metrics of 1 MB takes kvtop itself over 0.05 s to read"
        assert reads == 1  # the first one still goes on: no second one beside it
        let_go.set()
        await source.aclose()


async def test_a_key_that_the_server_gives_back_is_not_told() -> None:
    async def echo(exchange: Exchange) -> None:
        said = exchange.headers.get("authorization", "").removeprefix("Bearer ")
        answers = {
            "/version": f'{{"version": "{said}"}}'.encode(),
            "/v1/models": f'{{"data": [{{"id": "m-{said}", "owned_by": "{said}"}}]}}'.encode(),
        }
        body = METRICS if exchange.path == "/metrics" else answers.get(exchange.path, b"")
        await exchange.reply(body)

    async with serving(echo) as box:
        source = VllmSource(box.url, key=lambda: SECRET)
        facts = await source.facts()
        assert isinstance(facts, ServerFacts)
        assert facts.version == "***"
        assert [model.id for model in facts.models] == ["m-***"]
        assert SECRET not in repr(facts)
        await source.aclose()
