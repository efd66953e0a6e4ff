"""One loop a source: what dies, hangs, lies or comes back is a state, and the others go on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from live_fakes import Bench

from kvtop.config import Poll
from kvtop.config import Server as Configured
from kvtop.errors import UsageError
from kvtop.live import endpoint
from kvtop.live.lookout import SELDOM_S
from kvtop.readings import (
    Discovery,
    Found,
    Gpu,
    GpuReading,
    HostReading,
    OffloadFile,
    Scrape,
    SourceDown,
    State,
    VllmProcess,
)

A, B, C = "http://127.0.0.1:8000", "http://127.0.0.1:8001", "http://127.0.0.1:8002"


async def test_the_first_scrape_waits_for_nothing() -> None:
    bench = Bench(A)
    async with bench.running():
        assert bench.order[0] == "server"
        assert bench.watch.view("5m").servers[0].state is State.UP
        assert set(bench.order) == {"server", "gpu", "host", "captures"}
        assert bench.changes > 0


async def test_the_pace_follows_what_happens() -> None:
    bench = Bench(A)
    server = bench.server(A)
    async with bench.running() as time:
        await time.go(5)
        assert len(server.scrapes) == 6
        server.box.running = 1
        await time.go(1)
        before = len(server.scrapes)
        await time.go(2)
        assert len(server.scrapes) - before in (9, 10)
        server.box.running = 0
        await time.go(40)
        before = len(server.scrapes)
        await time.go(10)
        assert len(server.scrapes) - before == 5


async def test_a_server_that_dies_is_down_with_its_last_numbers_and_comes_back() -> None:
    bench = Bench(A)
    server = bench.server(A)
    async with bench.running() as time:
        server.box.prompt = 100
        await time.go(2)
        server.down()
        await time.go(10)
        view = bench.watch.view("5m").servers[0]
        assert view.state is State.REFUSED and view.stale and view.failed_tries > 2
        assert view.last_good_at is not None and bench.clock.now - view.last_good_at >= 9
        assert bench.watch.view("5m").sentence.chip == "DOWN"
        server.box.started = bench.clock.now - 1
        server.box.prompt = 7
        server.back()
        facts = server.asked_facts
        await time.go(5)
        view = bench.watch.view("5m").servers[0]
        assert view.state is State.UP and view.failed_tries == 0
        assert view.reset_at is not None and view.window.state is State.RESET
        assert bench.watch.view("5m").sentence.chip == "RESTARTED"
        assert server.asked_facts == facts + 1


async def test_a_dead_server_is_asked_less_often_but_never_forgotten() -> None:
    bench = Bench(A)
    server = bench.server(A)
    server.down(State.TIMEOUT)
    async with bench.running() as time:
        await time.go(100)
        before = len(server.scrapes)
        await time.go(40)
        assert len(server.scrapes) - before == 10


async def test_a_source_that_hangs_is_cancelled_and_the_other_goes_on() -> None:
    bench = Bench(A, B)
    bench.server(A).hangs = True
    async with bench.running() as time:
        hung = bench.watch._servers.all[0]
        await asyncio.wait_for(hung.tried.wait(), 5)
        await time.go(3)
        first, second = bench.watch.view("5m").servers
        assert first.state is State.TIMEOUT and "no answer within" in first.cause
        assert second.state is State.UP and len(bench.server(B).scrapes) > 3


async def test_a_slow_first_look_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SAID_AFTER_S", 0.02)
    monkeypatch.setattr(endpoint, "SAID_AGAIN_S", 0.02)
    bench = Bench(A, poll=Poll(metrics_timeout_s=0.25))
    bench.server(A).hangs = True
    async with bench.running():
        for doing in ("/metrics has not answered yet", "reading 14 MB of /metrics"):
            bench.server(A).doing = doing
            while not bench.watch.view("5m").sentence.text.endswith(f": {doing}"):
                assert not bench.watch._servers.all[0].tried.is_set(), bench.watch.view("5m").sentence.text
                await asyncio.sleep(0.01)
        await asyncio.wait_for(bench.watch._servers.all[0].tried.wait(), 5)
        assert bench.watch.view("5m").servers[0].waits_for == ""


async def test_an_exception_is_a_state_that_names_it() -> None:
    bench = Bench(A, B)

    def broken() -> Scrape:
        raise ZeroDivisionError("secret prompt text")

    bench.server(A).answer = broken
    async with bench.running() as time:
        await time.go(3)
        first, second = bench.watch.view("5m").servers
        assert first.state is State.HTTP_ERROR
        assert first.cause == "kvtop itself failed while asking for /metrics: ZeroDivisionError"
        assert second.state is State.UP
        bench.server(A).back()
        await time.go(5)
        assert bench.watch.view("5m").servers[0].state is State.UP


async def test_a_text_that_the_model_cannot_take_is_a_state() -> None:
    bench = Bench(A)
    bench.server(A).answer = lambda: Scrape({("vllm:prompt_tokens_total",): 1.0}, {}, bench.clock.now)  # type: ignore[dict-item]
    async with bench.running() as time:
        await time.go(2)
        view = bench.watch.view("5m").servers[0]
        assert view.state is State.HTTP_ERROR and "kvtop itself failed while reading /metrics" in view.cause
        bench.server(A).back()
        await time.go(3)
        assert bench.watch.view("5m").servers[0].state is State.UP


async def test_html_is_not_vllm() -> None:
    bench = Bench(A)
    server = bench.server(A)
    async with bench.running() as time:
        await time.go(1)
        server.answer = lambda: Scrape({}, {}, bench.clock.now, has_vllm=False)
        await time.go(2)
        assert bench.watch.view("5m").sentence.chip == "NOT VLLM"
        server.back()
        await time.go(5)
        assert bench.watch.view("5m").servers[0].state is State.UP


async def test_facts_come_at_the_connection_and_every_half_minute() -> None:
    bench = Bench(A)
    async with bench.running() as time:
        assert bench.server(A).asked_facts == 1
        await time.go(28)
        assert bench.server(A).asked_facts == 1
        await time.go(4)
        assert bench.server(A).asked_facts == 2
        assert bench.watch.view("5m").servers[0].version == "0.32.0"


@pytest.mark.parametrize("begun", ["counters fell", "another start"])
async def test_a_server_that_was_replaced_between_two_looks_is_asked_what_it_serves(begun: str) -> None:
    bench = Bench(A)
    server = bench.server(A)
    async with bench.running() as time:
        server.box.prompt = 100
        await time.go(3)
        asked = server.asked_facts
        server.box.prompt = 7 if begun == "counters fell" else 100
        if begun == "another start":
            server.box.started = bench.clock.now
        await time.go(3)
        assert bench.watch.view("5m").servers[0].reset_at is not None
        assert server.asked_facts == asked + 1


async def test_pcie_is_sampled_seldom_and_stands_in_between() -> None:
    bench = Bench(A)
    async with bench.running() as time:
        await time.go(10)
        sampled = [at for at, pcie in bench.gpu.reads if pcie]
        assert len(bench.gpu.reads) == 11 and len(sampled) == 3
        reading = bench.watch.view("5m").gpu
        assert reading is not None and reading.gpus[0].pcie_tx_bytes_per_s == 11


async def test_nvml_that_breaks_is_a_line_and_the_rest_goes_on() -> None:
    bench = Bench(A)

    def broken() -> GpuReading:
        raise OSError("driver unloaded")

    async with bench.running() as time:
        await time.go(2)
        bench.gpu.read_now = broken
        await time.go(5)
        reading = bench.watch.view("5m").gpu
        assert reading is not None and reading.error == "kvtop could not read the cards: OSError"
        assert reading.gpus and reading.at is not None and bench.clock.now - reading.at >= 4
        assert bench.watch.view("5m").servers[0].state is State.UP
        bench.gpu.read_now = None
        await time.go(2)
        again = bench.watch.view("5m").gpu
        assert again is not None and again.error is None


async def test_a_box_without_a_driver_is_asked_every_half_minute() -> None:
    bench = Bench(A)
    bench.gpu.read_now = lambda: GpuReading(error="no NVIDIA driver here", at=bench.clock.now)
    async with bench.running() as time:
        await time.go(61)
        assert len(bench.gpu.reads) == 3


async def test_a_host_that_cannot_be_read_keeps_its_last_reading_and_its_time() -> None:
    bench = Bench(A)
    bench.host.reading = lambda: HostReading(memory_total_bytes=1)

    def broken() -> HostReading:
        raise PermissionError

    async with bench.running() as time:
        await time.go(4)
        at = bench.clock.now
        bench.host.reading = broken
        await time.go(10)
        host = bench.watch.view("5m").host
        assert host is not None and host.memory_total_bytes == 1 and host.at is not None and host.at <= at
        assert host.error == "kvtop could not read this machine: PermissionError"
        bench.host.reading = lambda: HostReading(memory_total_bytes=2)
        await time.go(4)
        host = bench.watch.view("5m").host
        assert host is not None and (host.memory_total_bytes, host.error) == (2, None)


async def test_with_a_url_nothing_is_looked_for() -> None:
    bench = Bench(A)
    bench.server(A).down()
    async with bench.running() as time:
        await time.go(10)
        assert bench.finder.looks == []


async def test_servers_are_found_as_they_appear_and_looking_stops() -> None:
    bench = Bench()
    async with bench.running() as time:
        await time.go(5)
        view = bench.watch.view("5m")
        assert view.sentence.chip == "NO SERVER" and view.looks == 3 and view.discovery is not None
        bench.finder.finds = lambda: Discovery((Found(A, "process 7", 7),))
        await time.go(2)
        assert bench.urls == [A]
        await time.go(3)
        looks = len(bench.finder.looks)
        await time.go(10)
        assert len(bench.finder.looks) == looks
        assert bench.watch.view("5m").servers[0].state is State.UP


async def test_a_found_server_that_is_gone_is_told_until_another_one_is_there() -> None:
    bench = Bench()
    bench.finder.finds = lambda: Discovery((Found(A, "process 7", 7),))
    async with bench.running() as time:
        await time.go(5)
        bench.server(A).down()
        bench.finder.finds = Discovery
        await time.go(10)
        assert bench.urls == [A] and bench.watch.view("5m").sentence.chip == "DOWN"
        bench.finder.finds = lambda: Discovery((Found(B, "process 9", 9),))
        await time.go(5)
        assert bench.urls == [B]
        assert bench.server(A).closed
        await time.go(5)
        assert bench.watch.view("5m").servers[0].state is State.UP


async def test_a_server_that_starts_later_is_found_while_another_one_answers() -> None:
    bench = Bench()
    first, second = Found(A, "process 7", 7), Found(B, "process 8", 8)
    bench.finder.finds = lambda: Discovery((first, second))
    async with bench.running() as time:
        await time.go(5)
        bench.server(B).down()
        bench.finder.finds = lambda: Discovery((first,))
        await time.go(20)
        assert bench.urls == [A, B], "that it is gone is told, though the other one is there as before"
        assert bench.watch.view("5m").sentence.chip == "DOWN"
        bench.finder.finds = lambda: Discovery((first, Found(C, "process 9", 9)))
        await time.go(4)
        assert bench.urls == [A, C], "another one has come"


async def test_while_all_found_servers_answer_others_are_looked_for_seldom() -> None:
    bench = Bench()
    bench.finder.finds = lambda: Discovery((Found(A, "process 7", 7),))
    async with bench.running() as time:
        await time.go(10)
        looks = len(bench.finder.looks)
        bench.finder.finds = lambda: Discovery((Found(A, "process 7", 7), Found(B, "process 8", 8)))
        await time.go(SELDOM_S)
        assert bench.urls == [A, B]
        await time.go(SELDOM_S - 12)
        assert len(bench.finder.looks) == looks + 1


async def test_a_found_port_that_is_no_vllm_is_dropped_for_good() -> None:
    bench = Bench()
    bench.server(A).down(State.NOT_VLLM)
    bench.finder.finds = lambda: Discovery((Found(A, "a listening port"),))
    async with bench.running() as time:
        await time.go(12)
        assert bench.urls == [] and len(bench.made) == 1


async def test_a_look_that_fails_is_told() -> None:
    bench = Bench()

    def broken() -> Discovery:
        raise OSError

    bench.finder.finds = broken
    async with bench.running() as time:
        await time.go(3)
        found = bench.watch.view("5m").discovery
        assert found is not None and found.looked == (("this box", "failed: OSError"),)
        bench.finder.finds = lambda: Discovery((Found(A, "process 7"), Found("no url at all", "?")))
        await time.go(3)
        assert bench.urls == [A]


async def test_a_url_given_later_is_watched_at_once_and_ends_the_search() -> None:
    bench = Bench()
    async with bench.running() as time:
        await time.go(3)
        bench.watch.add_url("127.0.0.1:8001/metrics")
        bench.watch.add_url(B)
        await time.go(1)
        assert bench.urls == [B]
        assert bench.watch.view("5m").servers[0].last_good_at is not None
        looks = len(bench.finder.looks)
        bench.server(B).down()
        await time.go(10)
        assert len(bench.finder.looks) == looks
    with pytest.raises(UsageError):
        bench.watch.add_url("http://")


async def test_two_names_of_one_port_of_this_machine_are_one_server() -> None:
    bench = Bench("44235", "localhost:44235", "http://localhost:44236", "[::1]:44235", "https://localhost:44235")
    assert bench.urls == [
        "http://127.0.0.1:44235", "http://localhost:44236", "http://[::1]:44235", "https://localhost:44235",
    ]  # fmt: skip
    bench.watch.add_url("127.0.0.1:44236")
    assert len(bench.urls) == 4


async def test_a_url_that_is_dropped_is_asked_no_more_and_the_search_goes_on() -> None:
    bench = Bench()
    bench.server(B).down()
    async with bench.running() as time:
        bench.watch.add_url(B)
        await time.go(3)
        bench.watch.drop_url(B)
        bench.watch.drop_url("http://127.0.0.1:9")
        assert bench.urls == []
        await time.go(1)
        asked, looks = len(bench.server(B).scrapes), len(bench.finder.looks)
        assert bench.server(B).closed
        await time.go(10)
        assert len(bench.server(B).scrapes) == asked
        assert len(bench.finder.looks) > looks
        bench.server(B).back()
        bench.watch.add_url(B)
        await time.go(1)
        assert bench.watch.view("5m").servers[0].state is State.UP


async def test_configured_servers_have_their_names_and_a_bad_one_is_skipped() -> None:
    servers = [Configured("http://gpubox:8000", name="office"), Configured("ftp://x"), Configured(A)]
    bench = Bench(servers=servers)
    async with bench.running() as time:
        await time.go(2)
        assert bench.urls == ["http://gpubox:8000", A]
        assert [line.label for line in bench.watch.view("5m").lines] == ["office", "127.0.0.1:8000"]
        assert bench.made[0][1] is servers[0]
        assert bench.finder.looks == []


async def test_a_typed_url_uses_the_configured_key_of_that_server() -> None:
    configured = Configured("http://127.0.0.1:8000/", api_key_env="K")
    bench = Bench("8000", servers=[configured])
    async with bench.running():
        assert bench.made == [("http://127.0.0.1:8000/", configured)]


async def test_the_process_that_served_is_remembered_and_its_end_is_told() -> None:
    bench = Bench(A)
    bench.host.reading = lambda: HostReading(processes=(VllmProcess(41233, "api", ports=(8000,)),))
    async with bench.running() as time:
        await time.go(5)
        assert bench.watch.view("5m").servers[0].pid == 41233
        bench.host.reading = HostReading
        bench.server(A).down()
        await time.go(6)
        assert "process 41233 is gone" in bench.watch.view("5m").sentence.text


async def test_only_its_own_tier_file_is_told_as_left_over() -> None:
    engine = VllmProcess(41234, "engine", parent=41233)
    others = OffloadFile("/dev/shm/vllm_offload_other.mmap", 2 << 30, stale=True)
    mine = OffloadFile("/dev/shm/vllm_offload_mine.mmap", 1 << 30, mapped_by=(41234,))
    bench = Bench(A)
    process = VllmProcess(41233, "api", ports=(8000,))
    bench.host.reading = lambda: HostReading(processes=(engine, process), offload_files=(others, mine))
    async with bench.running() as time:
        await time.go(5)
        bench.host.reading = lambda: HostReading(offload_files=(others, replace(mine, mapped_by=(), stale=True)))
        bench.server(A).down()
        await time.go(6)
        assert "process 41233 is gone; its tier file (1 GiB) is left over" in plain(bench)


async def test_no_file_of_others_is_told_of_a_server_that_had_none() -> None:
    others = OffloadFile("/dev/shm/vllm_offload_other.mmap", 2 << 30, stale=True)
    bench = Bench(A)
    process = VllmProcess(41233, "api", ports=(8000,))
    bench.host.reading = lambda: HostReading(processes=(process,), offload_files=(others,))
    async with bench.running() as time:
        await time.go(5)
        bench.host.reading = lambda: HostReading(offload_files=(others,))
        bench.server(A).down()
        await time.go(6)
        assert plain(bench).endswith("process 41233 is gone")


def plain(bench: Bench) -> str:
    return bench.watch.view("5m").sentence.text.replace("\N{NO-BREAK SPACE}", " ")


async def test_a_remote_server_is_not_taken_for_a_local_process() -> None:
    bench = Bench("http://10.0.0.7:8000")
    bench.host.reading = lambda: HostReading(processes=(VllmProcess(41233, "api", ports=(8000,)),))
    async with bench.running() as time:
        await time.go(5)
        assert bench.watch.view("5m").servers[0].pid is None


async def test_what_the_machine_knows_explains_a_refusal() -> None:
    bench = Bench(A)
    bench.server(A).down()
    explained = SourceDown(State.LOADING, "process 7 runs", 0.0)
    async with bench.running() as time:
        bench.explained = lambda down: explained
        await time.go(3)
        assert bench.watch.view("5m").sentence.chip == "LOADING"


async def test_several_servers_have_lines_and_one_is_selected() -> None:
    bench = Bench(A, B)
    async with bench.running() as time:
        await time.go(2)
        view = bench.watch.view("1m", selected=1)
        assert [line.selected for line in view.lines] == [False, True]
        assert view.server is view.servers[1] and view.window_key == "1m"
        assert bench.watch.view("1m", selected=9).selected == 1


async def test_engines_of_one_server_are_lines_too() -> None:
    bench = Bench(A)
    bench.server(A).box.engines = ("0", "1")
    async with bench.running() as time:
        await time.go(2)
        view = bench.watch.view("1m", engine="1")
        assert [line.key for line in view.lines] == ["0", "1"]
        assert view.servers[0].engine == "1"


async def test_the_end_ends_everything() -> None:
    bench = Bench(A, B)
    before = asyncio.all_tasks()
    async with bench.running() as time:
        await time.go(2)
    assert asyncio.all_tasks() == before
    assert bench.server(A).closed and bench.server(B).closed


async def test_an_idle_watch_writes_nothing_and_sends_only_its_polls(own_home: Path) -> None:
    bench = Bench(A)
    async with bench.running() as time:
        await time.go(120)
        assert not list(own_home.parent.iterdir())
        assert len(bench.server(A).scrapes) <= 30 + 1 + 46
        assert bench.server(A).asked_facts == 4 + 1


async def test_a_fault_of_our_own_is_raised_not_hidden() -> None:
    bench = Bench(A)
    ended = bench.watch.run(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(ended, 5)


async def test_a_slow_server_is_not_asked_more_than_half_of_the_time() -> None:
    bench = Bench(A, poll=Poll(metrics_s=1.0))
    endpoint = bench.watch._servers.all[0]
    assert endpoint.pause(0.1) == pytest.approx(0.9)
    assert endpoint.pause(1.5) == 1.5


async def test_a_gpu_that_is_lost_keeps_no_pcie_of_before() -> None:
    bench = Bench(A)
    async with bench.running() as time:
        await time.go(1)
        bench.gpu.read_now = lambda: GpuReading((Gpu(0, "H200", lost="GPU is lost"),), at=bench.clock.now)
        await time.go(2)
        reading = bench.watch.view("5m").gpu
        assert reading is not None and reading.gpus[0].pcie_tx_bytes_per_s is None
