"""What `kvtop tap` takes and refuses: addresses, upstreams, ways that lead back."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.control import plan as tap_plan
from kvtop.capture.control.running import Mapped, Running
from kvtop.cli.main import main
from kvtop.errors import UsageError
from kvtop.sources.url import listen_address


def tap(*maps: tuple[str, str], name: str = "other") -> Running:
    return Running(
        name=name, pid=1, birth="x/1", since="2026-01-01T00:00:00Z", mappings=[Mapped(*m) for m in maps], drain_s=1.0
    )


def checked(*maps: str, running: tuple[Running, ...] = (), allow_remote: bool = False) -> list[tap_plan.Leg]:
    return tap_plan.checked([tap_plan.from_map(text) for text in maps], running, allow_remote=allow_remote)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("8001", ("127.0.0.1", 8001)),
        (":8001", ("127.0.0.1", 8001)),
        ("127.0.0.1:8001", ("127.0.0.1", 8001)),
        (" localhost:8001 ", ("localhost", 8001)),
        ("[::1]:8001", ("::1", 8001)),
        ("0.0.0.0:8001", ("0.0.0.0", 8001)),
        ("[::]:1", ("::", 1)),
        ("http://127.0.0.1:8001/", ("127.0.0.1", 8001)),
        ("a-box.lan:65535", ("a-box.lan", 65535)),
    ],
)
def test_addresses_to_listen_on(text: str, place: tuple[str, int]) -> None:
    assert listen_address(text) == place


@pytest.mark.parametrize(
    "text",
    ["", ":", "0", "65536", "127.0.0.1", "127.0.0.1:", "::1", "::1:8001", "https://127.0.0.1:8001", "a b:8001", "८००१",
     "u:p@127.0.0.1:8001", "127.0.0.1:8001/v1", "unix:/run/x", "-1", "host:8001:8002", "\x1b[2J:8001", "8001\n8002"],
)  # fmt: skip
def test_no_addresses_to_listen_on(text: str) -> None:
    with pytest.raises(UsageError) as error:
        listen_address(text)
    assert str(error.value).isprintable()


PORTS = st.integers(1, 65535)
HOSTS = st.sampled_from(["127.0.0.1", "127.1.2.3", "[::1]", "localhost", "0.0.0.0", "[::]", "box", "box-1.lan"])


@given(HOSTS, PORTS)
def test_an_address_is_read_as_it_is_written(host: str, port: int) -> None:
    read = listen_address(f"{host}:{port}")
    assert read == (host.strip("[]"), port)
    leg = tap_plan.from_map(f"{host}:{port}=http://127.0.0.1:8000")
    assert leg.listen == f"{host}:{port}"
    again = tap_plan.from_map(leg.as_map)
    assert (again.listen, again.upstream) == (leg.listen, leg.upstream)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_in_a_line(text: str) -> None:
    for read in (listen_address, tap_plan.from_map, lambda given: tap_plan.leg("8001", given)):
        try:
            read(text)
        except UsageError as error:
            assert all(line.isprintable() for line in str(error).splitlines())
            assert len(str(error).splitlines()) <= 2


@pytest.mark.parametrize(
    ("upstream", "url"),
    [
        ("8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("localhost:8000", "http://localhost:8000"),
        ("http://[::1]:8000/v1/chat/completions", "http://[::1]:8000"),
        ("http://0.0.0.0:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1", "http://127.0.0.1:80"),
    ],
)
def test_upstreams(upstream: str, url: str) -> None:
    assert tap_plan.leg("8001", upstream).upstream.url == url


@pytest.mark.parametrize(
    ("upstream", "words"),
    [
        ("https://127.0.0.1:8000", "plain HTTP"),
        ("http://u:geheim@127.0.0.1:8000", "no user and password"),
        ("http://127.0.0.1:8000/gateway", "adds no path"),
        ("http://127.0.0.1:8000?key=geheim", "do not belong here"),
        ("ftp://127.0.0.1:8000", "not http or https"),
        ("", "nothing there"),
    ],
)
def test_refused_upstreams(upstream: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        tap_plan.leg("8001", upstream)
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize("text", ["", "=", "8001", "8001=", "=8000", "8001 8000"])
def test_maps_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="is not LISTEN=UPSTREAM"):
        tap_plan.from_map(text)


def test_addresses_are_looked_up() -> None:
    [leg] = checked("localhost:8001=http://localhost:8000")
    assert leg.listen == "127.0.0.1:8001"
    assert leg.upstream.url == "http://localhost:8000"


def test_a_name_is_not_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap_plan, "_addresses", lambda host, port: ["127.0.0.2"])
    assert checked("1=http://mybox:8000")[0].connect_host == "127.0.0.2"
    assert checked("1=http://mybox:8000", allow_remote=True)[0].connect_host == "mybox"
    assert checked("1=http://localhost:8000")[0].connect_host == "localhost"


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0:8001=http://127.0.0.1:8000", "[::]:8001=http://127.0.0.1:8000", "192.0.2.1:8001=http://127.0.0.1:8000",
     "8001=http://192.0.2.1:8000", "8001=http://[2001:db8::1]:8000", "8001=http://[::ffff:192.0.2.1]:8000"],
)  # fmt: skip
def test_other_machines_need_a_word(text: str) -> None:
    with pytest.raises(UsageError, match="loopback") as error:
        checked(text)
    assert "--allow-remote" in str(error.value)
    assert len(checked(text, allow_remote=True)) == 1


def test_a_name_with_one_address_elsewhere_is_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap_plan, "_addresses", lambda host, port: ["127.0.0.1", "192.0.2.1"])
    with pytest.raises(UsageError, match="loopback"):
        checked("8001=http://twofold:8000")


def test_a_name_that_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def unknown(host: str, *rest: object, **more: object) -> object:
        if host == "no-such-host":
            raise socket.gaierror(-2, "Name or service not known")
        return real(host, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UsageError, match="the host no-such-host is not known here"):
        checked("8001=http://no-such-host:8000")
    other = tap(("127.0.0.1:8000", "http://no-such-host:9000"))
    assert checked("8001=8000", running=(other,)), "that another tap's server has no name now is not this one's fault"


OWN = ["127.0.0.1", "127.0.1.1", "localhost", "0.0.0.0", "[::1]", "[::]"]


@pytest.mark.parametrize("upstream", OWN)
@pytest.mark.parametrize("listen", ["127.0.0.1", "localhost", "0.0.0.0", "[::]", "127.0.0.2"])
def test_its_own_upstream(listen: str, upstream: str) -> None:
    with pytest.raises(UsageError, match="its own upstream") as error:
        checked(f"{listen}:8001=http://{upstream}:8001", allow_remote=True)
    assert "--listen" in str(error.value)


def test_its_own_upstream_by_an_address_of_another_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap_plan, "_is_local", lambda address: address in ("127.0.0.1", "192.0.2.7"))
    with pytest.raises(UsageError, match="its own upstream"):
        checked("127.0.0.1:8001=http://192.0.2.7:8001", allow_remote=True)
    assert checked("127.0.0.1:8001=http://192.0.2.8:8001", allow_remote=True)


@pytest.mark.parametrize(
    ("maps", "running"),
    [
        (("1=127.0.0.1:2", "2=127.0.0.1:1"), ()),
        (("1=127.0.0.1:2", "2=127.0.0.1:3", "3=localhost:1"), ()),
        (("1=127.0.0.1:2",), (tap(("127.0.0.1:2", "http://127.0.0.1:1")),)),
        (("1=127.0.0.1:2",), (tap(("127.0.0.1:2", "http://127.0.0.1:3")), tap(("[::1]:3", "http://localhost:1")))),
        (("1=127.0.0.1:2", "3=127.0.0.1:1"), (tap(("127.0.0.1:2", "http://127.0.0.1:3")),)),
    ],
)
def test_ways_that_lead_back(maps: tuple[str, ...], running: tuple[Running, ...]) -> None:
    with pytest.raises(UsageError, match="leads back to itself"):
        checked(*maps, running=running)


@pytest.mark.parametrize(
    ("maps", "running"),
    [
        (("1=127.0.0.1:2", "2=127.0.0.1:3"), ()),  # a tap in front of a tap
        (("1=127.0.0.1:3", "2=127.0.0.1:3"), ()),
        (("1=127.0.0.1:2",), (tap(("127.0.0.1:3", "http://127.0.0.1:1")),)),
        # a circle that others made already is not this one's
        (("1=127.0.0.1:2",), (tap(("127.0.0.1:2", "http://127.0.0.1:3"), ("127.0.0.1:3", "http://127.0.0.1:2")),)),
    ],
)
def test_ways_that_do_not(maps: tuple[str, ...], running: tuple[Running, ...]) -> None:
    assert len(checked(*maps, running=running)) == len(maps)


def test_two_maps_on_one_port() -> None:
    with pytest.raises(UsageError, match=r"two maps listen on 127\.0\.0\.1:1"):
        checked("1=127.0.0.1:2", "localhost:1=127.0.0.1:3")


@pytest.mark.parametrize(
    "argv",
    [["--map", "1=2", "--listen", "3"], ["--json"], ["--status", "--stop"], ["--detach", "--status"], ["--up", "8000"],
     ["--status", "--upstream", "8000"], ["--stop", "--map", "1=2"], ["--drain", "0", "--status"], ["x"],
     ["--upstream", "8000", "--name", ""], ["--upstream", "8000", "--name", "a b"],
     ["--upstream", "8000", "--store", ""],
     ["--upstream", "8000", "--name", "all"], ["--upstream", "8000", "--store", "x", "--no-record"],
     ["--upstream", "8001"], ["--upstream", "https://127.0.0.1:8000"], ["--listen", "\x1b[2J", "--upstream", "8000"]],
)  # fmt: skip
def test_wrong_use(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tap", *argv]) == 2
    out = capsys.readouterr()
    assert out.out == "" and 1 <= len(out.err.splitlines()) <= 2
    assert out.err.startswith("kvtop: ") and "\x1b" not in out.err


@pytest.mark.parametrize(
    ("found", "code", "words"),
    [
        ([], 1, "no vLLM server found on this box"),
        (["http://127.0.0.1:8000", "http://127.0.0.1:9000"], 2, "2 vLLM servers are here: http://127.0.0.1:8000, http"),
    ],
)
def test_without_an_upstream_there_must_be_one_server(
    found: list[str], code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tap_plan, "servers_here", lambda: found)
    assert main(["tap"]) == code
    assert words in capsys.readouterr().err


def test_without_an_upstream_the_one_server_is_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvtop.cli import tap as command

    monkeypatch.setattr(tap_plan, "servers_here", lambda: ["http://127.0.0.1:8765"])
    [leg] = command.legs(command.parser().parse_args([]))
    assert leg.as_map == "127.0.0.1:8001=http://127.0.0.1:8765"
