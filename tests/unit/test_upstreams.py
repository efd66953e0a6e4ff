"""Which server is asked about a turn, with which key, and whether it has something to do: through the real Watch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from live_fakes import Bench
from msgspec.structs import replace as changed

from kvtop.capture.control.running import Mapped, Running
from kvtop.capture.store.store import Store
from kvtop.capture.turn import Captured, Route, TurnState
from kvtop.config import Server
from kvtop.live.upstreams import Upstreams
from kvtop.live.watch import Watch
from kvtop.readings import HostReading, VllmProcess
from kvtop.sources.kv_places import KvPlaces
from kvtop.triage.kv_facts import Unheard

URL = "http://127.0.0.1:8000"


def of(watch: Watch) -> Upstreams:
    found = watch._verdicts._upstreams
    assert isinstance(found, Upstreams)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "turns.db", write=True) as made:
        yield made


def begun(store: Store, at: float) -> int:
    turn = Captured(upstream=URL, route=Route.CHAT, stream=True, model="m", started_at=at, sent_at=at)
    return store.begin(turn, b"{}")


async def test_the_watched_one_with_its_key_and_what_was_read_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOX_KEY", "sk-geheim")
    bench = Bench(servers=[Server(url="http://user:pw@localhost:8000", api_key_env="BOX_KEY")])
    async with bench.running() as time:
        assert of(bench.watch).place(URL) is not None
        await time.go(3)
        place = of(bench.watch).place(URL)
        assert place is not None and place.key() == "sk-geheim"
        assert place.url == "http://user:pw@localhost:8000"
        assert place.latest is not None and place.latest[1].version == "0.32.0" and place.source is None
        assert place.started_at == bench.server(place.url).box.started
        bench.server(place.url).down()
        await time.go(5)
        assert of(bench.watch).place(URL) is None, "it does not answer: nothing is sent there"


async def test_the_process_of_this_machine_that_serves_it() -> None:
    served = VllmProcess(7, "api", port=8000, ports=(8000,), tier_bytes=48 << 30)
    bench = Bench(URL)
    bench.host.reading = lambda: HostReading(processes=(served,))
    async with bench.running() as time:
        await time.go(5)
        place = of(bench.watch).place(URL)
        assert place is not None and place.process() == served
        other = of(bench.watch).place("http://127.0.0.1:8005")
        assert other is not None and other.process() is None


async def test_one_that_is_not_watched_is_asked_only_on_this_machine() -> None:
    bench = Bench(URL, servers=[Server(url="http://127.0.0.1:8005", name="b", api_key_env="")])
    async with bench.running() as time:
        await time.go(3)
        place = of(bench.watch).place("http://127.0.0.1:8005")
        assert place is not None and place.latest is None and place.source is not None
        place.source()
        assert bench.made[-1][0] == "http://127.0.0.1:8005"
        assert of(bench.watch).place("http://10.0.0.7:8000") is None
        assert of(bench.watch).place("https://api.example.com/v1") is None
        assert of(bench.watch).place("") is None
        assert of(bench.watch).place("no url at all\x1b[") is None


async def test_its_kv_events_are_read_where_config_says() -> None:
    watched = Server(url="http://user:pw@localhost:8000", kv_events="tcp://127.0.0.1:5557")
    other = Server(url="http://127.0.0.1:8005", kv_events="tcp://127.0.0.1:5558")
    bench = Bench(servers=[watched, other])
    async with bench.running() as time:
        await time.go(3)
        for url in (URL, other.url, "http://127.0.0.1:8009"):
            place = of(bench.watch).place(url)
            assert place is not None and place.events is not None
            assert await place.events() is None
    assert [(url, server and server.kv_events) for url, server in bench.kv_asked] == [
        (watched.url, "tcp://127.0.0.1:5557"),
        (other.url, "tcp://127.0.0.1:5558"),
        ("http://127.0.0.1:8009", None),
    ]


async def test_kv_events_that_are_followed_come_before_what_the_server_still_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(URL)
    followed = Unheard("as the test says")
    monkeypatch.setattr(bench.watch._kv, "told", lambda url: followed if url == URL else None)
    async with bench.running() as time:
        await time.go(3)
        place = of(bench.watch).place("http://localhost:8000/")
        assert place is not None and place.events is not None
        assert await place.events() is followed
    assert bench.kv_asked == []


async def test_where_a_server_publishes_is_looked_for_at_its_first_answer_and_when_it_began_anew() -> None:
    looks: queue.Queue[tuple[str, str, Sequence[str]]] = queue.Queue()

    async def find(url: str, configured: Server | None, command: Sequence[str]) -> KvPlaces:
        looks.put((url, configured.kv_events if configured is not None else "", command))
        return KvPlaces()

    given = Server(url="http://user:pw@localhost:8000", kv_events="tcp://127.0.0.1:5557")
    serves = VllmProcess(5, "api", ("vllm", "serve", "m"), ports=(8000,))
    bench = Bench(servers=[given], kv_places=find)
    bench.server(given.url).down()
    async with bench.running() as time:
        await time.go(5)
        assert looks.empty()
        bench.server(given.url).back()
        await time.go(10)
        assert looks.get(timeout=10) == (given.url, given.kv_events, ())
        await time.go(10)
        assert looks.empty(), "nothing has changed"
        bench.host.reading = lambda: HostReading(processes=(serves,))
        await time.go(10)
        assert looks.get(timeout=10) == (given.url, given.kv_events, serves.command)
        bench.server(given.url).box.started += 500
        await time.go(10)
        assert looks.get(timeout=10) == (given.url, given.kv_events, serves.command)
    assert not [one for one in threading.enumerate() if one.name == "kvtop-kv-events"]


async def test_a_watched_one_of_another_machine_is_asked_and_through_no_tap() -> None:
    far = "http://10.0.0.7:8000"
    bench = Bench(far)
    bench.taps = [
        Running(
            name="t",
            pid=1,
            birth="x",
            since="2026-11-29T12:00:00Z",
            drain_s=30.0,
            store="/turns.db",
            mappings=[Mapped("127.0.0.1:8001", far)],
            log="/log",
        )
    ]
    async with bench.running() as time:
        await time.go(3)
        direct, behind = of(bench.watch).place(far), of(bench.watch).place("http://127.0.0.1:8001")
        assert direct is not None and behind is not None
        assert direct.url == behind.url == far


async def test_busy_while_the_server_says_so_or_a_turn_of_the_last_minute_is_in_flight(store: Store) -> None:
    bench = Bench(URL)
    bench.captures = lambda: Store.open(store.path)
    async with bench.running() as time:
        await time.go(3)
        assert not of(bench.watch).busy(URL)
        bench.server(URL).box.running = 1
        await time.go(3)
        assert of(bench.watch).busy("http://localhost:8000/")
        bench.server(URL).box.running = 0
        await time.go(3)
        assert not of(bench.watch).busy(URL)
        id = begun(store, bench.clock.wall())
        await time.go(1)
        assert of(bench.watch).busy(URL), "the counters have not told of it yet"
        await time.go(120)
        assert not of(bench.watch).busy(URL), "nobody will see its end"
        kept = store.turn(id)
        assert kept is not None
        store.finish(changed(kept, state=TurnState.DONE, ended_at=bench.clock.wall()), b"{}")
