"""Is it ready, and is it the one that was started?"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from kvtop.profiles.running import asking, ready

Serve = Callable[..., int]


def answer(status: str, body: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


def models(*names: str) -> bytes:
    return answer("200 OK", json.dumps({"data": [{"id": name} for name in names]}).encode())


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that answers each path with the bytes that it is given for it; this process listens."""
    made: list[socket.socket] = []

    def start(**routes: bytes) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        made.append(listener)

        def run() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    asked = client.recv(65536)
                    if not asked:  # only a look whether anybody listens
                        continue
                    path = asked.split(b" ")[1].decode().strip("/").replace("/", "_")
                    client.sendall(routes.get(path, answer("404 Not Found")))

        threading.Thread(target=run, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for one in made:
        one.shutdown(socket.SHUT_RDWR)
        one.close()


ME = {os.getpid()}


def ask(port: int, names: tuple[str, ...] = ("tiny",), pids: set[int] | None = ME, url: str = "") -> ready.Answer:
    return ready.ask("127.0.0.1", port, health_url=url, names=names, pids=pids)


def test_ready(serve: Serve) -> None:
    port = serve(health=answer("200 OK"), v1_models=models("tiny"))
    assert ask(port) == ready.Answer(True)
    assert ask(port, ("other", "tiny")) == ready.Answer(True)
    assert ask(port, ()) == ready.Answer(True)
    assert ask(port, pids=None) == ready.Answer(True)


def test_another_process_on_the_port(serve: Serve) -> None:
    port = serve(health=answer("200 OK"), v1_models=models("tiny"))
    said = ask(port, pids={1})
    assert not said.ready and said.other
    assert said.why.startswith(f"port {port} is held by process {os.getpid()} (")
    assert said.why.endswith("), not by this server")


def test_another_model(serve: Serve) -> None:
    port = serve(health=answer("200 OK"), v1_models=models("llama\x1b", "x"))
    assert ask(port, pids=None) == ready.Answer(
        False, f"port {port} serves llama\\x1b, x, not tiny: another server", True
    )


def test_models_that_want_a_key_say_nothing(serve: Serve) -> None:
    assert ask(serve(health=answer("200 OK"), v1_models=answer("401 Unauthorized", b'{"error":1}'))).ready


@pytest.mark.parametrize("status", ["503 Service Unavailable", "404 Not Found", "302 Found"])
def test_a_health_that_is_none(serve: Serve, status: str) -> None:
    port = serve(health=answer(status), v1_models=models("tiny"))
    assert ask(port) == ready.Answer(False, f"http://127.0.0.1:{port}/health answers {status[:3]}")


def test_a_health_url_of_its_own(serve: Serve) -> None:
    port = serve(ping=answer("200 OK"), v1_models=models("tiny"))
    assert ask(port, url=f"http://127.0.0.1:{port}/ping").ready


def test_nothing_listens_yet() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # as vLLM does long before it listens
        port = bound.getsockname()[1]
        assert ask(port) == ready.Answer(False)
        assert ask(port, pids=None) == ready.Answer(False)


@pytest.mark.parametrize("text", [b"", b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 abc\r\n\r\n"])
def test_what_is_no_http(serve: Serve, text: bytes) -> None:
    port = serve(health=text)
    said = ask(port)
    assert not said.ready and said.why.startswith(f"http://127.0.0.1:{port}/health does not answer: no HTTP answer")
    with pytest.raises(ValueError, match="no HTTP answer"):
        asking.get(f"http://127.0.0.1:{port}/health")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data":[{"id":3}]}', b"\xff"])
def test_names_that_cannot_be_read(serve: Serve, body: bytes) -> None:
    assert ready.served("127.0.0.1", serve(v1_models=answer("200 OK", body))) == []


def test_the_size_of_a_block(serve: Serve) -> None:
    text = b'# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{a="1",block_size="32",engine="0"} 1.0\n'
    assert ready.block_tokens("127.0.0.1", serve(metrics=answer("200 OK", text))) == 32
    assert ready.block_tokens("127.0.0.1", serve(metrics=answer("200 OK", b'x{block_size="32"} 1\n'))) is None
    assert ready.block_tokens("127.0.0.1", serve()) is None


def test_a_listener_that_cannot_be_told(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens in another network namespace, or has gone while all listeners were read."""
    port = serve(health=answer("200 OK"), v1_models=models("tiny"))
    monkeypatch.setattr(ready, "listening", lambda: {port + 1: 7})
    assert ask(port) == ready.Answer(True)


def test_no_name_of_a_host_is_nobody() -> None:
    assert not asking.listens("a" * 64 + ".example", 80)
    assert not asking.listens("two..dots", 80)


def test_an_answer_that_trickles_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle() -> None:
            client, _ = listener.accept()
            with client:
                client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
                while not over.wait(0.02):
                    try:
                        client.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            with pytest.raises(TimeoutError, match=r"did not end within 0\.2 s"):
                asking.get(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics", 0.2)
        finally:
            over.set()
            thread.join()
