"""No server: what is known is said, a URL is checked, another host is asked for once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtop.model.view import BoxView, Sentence
from kvtop.readings import Discovery, Gpu, GpuReading, HostReading, OffloadFile, VllmProcess
from kvtop.sources.url import normalise
from kvtop.ui.keys import Keymap
from kvtop.ui.screens.noserver import NoServerScreen, _this_box, host_words
from kvtop.ui.widgets import gpu
from kvtop.ui.widgets.foot import Foot

from .page_app import NOON, PageApp, shown

GIB = 2**30
VIEW = BoxView(
    at=NOON,
    sentence=Sentence("NO SERVER", "warn", "No vLLM server found."),
    discovery=Discovery(
        looked=(("processes", "412 seen, 0 are vLLM"), ("port 11434", "answers, not vLLM: \x1b[2JOllama [bold]")),
        at=NOON - 3,
    ),
    gpu=GpuReading(
        gpus=tuple(
            Gpu(i, "NVIDIA GeForce RTX 3090", memory_total_bytes=24 * GIB, memory_used_bytes=GIB) for i in (0, 1)
        ),
        driver="580.65",
    ),
    host=HostReading(
        memory_total_bytes=126 * GIB,
        memory_available_bytes=104 * GIB,
        shm_total_bytes=63 * GIB,
        shm_used_bytes=GIB,
        offload_files=(OffloadFile("/dev/shm/vllm_offload_1.mmap", 48 * GIB, stale=True),),
        processes=(VllmProcess(77, "api"), VllmProcess(78, "engine")),
    ),
)


class Calls:
    """What the screen asked the app to do."""

    def __init__(self, view: BoxView | None = VIEW) -> None:
        self.view = view
        self.urls: list[str] = []
        self.demos = 0
        page = NoServerScreen(Keymap(), lambda: self.view, self.urls.append, self.demo, now=lambda: NOON)
        self.app = PageApp(page)

    def demo(self) -> None:
        self.demos += 1


async def test_what_is_known_is_said_at_80x24() -> None:
    calls = Calls()
    async with calls.app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        rows = shown(calls.app)
        calls.view = replace(VIEW, looks=41)
        calls.app.page.redraw()
        await pilot.pause()
        assert "looked 41 times, last 3 s ago" in shown(calls.app)[1]
    said = "\n".join(rows)
    assert rows[0].startswith(" NO SERVER  No vLLM server found on this box.")
    assert "last looked 3 s ago" in rows[1]
    assert "412 seen, 0 are vLLM" in said
    assert "2 × RTX 3090, 24 GiB each, 2.0 GiB in use; driver 580.65" in said
    assert "126.0 GiB RAM, 104.0 GiB available; /dev/shm 63.0 GiB, 62.0 GiB free" in said.replace("\n            ", " ")
    assert "process 77 is alive" in said
    assert "78" not in said
    assert "/dev/shm/vllm_offload_1.mmap, 48.0 GiB, no process holds it" in said
    assert "u  give a URL" in said
    assert "D  look at a demo" in said
    assert "␛[2JOllama [bold]" in said, "text from outside is shown, not obeyed"
    assert "\x1b" not in said


async def test_a_long_list_of_ports_is_wrapped_and_not_cut() -> None:
    ports = "port 8000, 8001, 8080, 30000, 11434, 5000"
    calls = Calls(replace(VIEW, discovery=Discovery(looked=((ports, "refused"),), at=NOON)))
    async with calls.app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        said = "\n".join(shown(calls.app))
    assert "…" not in said
    assert all(part in said for part in ("port 8000, 8001, 8080", "30000", "11434, 5000"))


LONG = replace(
    VIEW,
    discovery=Discovery(
        looked=(
            ("processes", "412 seen, 0 are vLLM"),
            ("port 8000, 8001, 8080, 30000", "refused"),
            ("docker", "2 containers, 0 vLLM; their ports are not known"),
        ),
        at=NOON,
    ),
)


async def test_at_80x24_every_place_and_offer_has_one_row() -> None:
    calls = Calls(LONG)
    async with calls.app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        rows = shown(calls.app)
    looked, offers = (next(i for i, row in enumerate(rows) if name in row) for name in ("Where kvtop", "What you can"))
    assert offers - looked == 4
    assert "This box" in rows[offers + 5]
    assert any("doctor says how to remove it" in row for row in rows), "all of it is on the screen"


async def test_on_40_columns_no_text_stands_in_a_column_of_a_few_cells() -> None:
    calls = Calls(LONG)
    async with calls.app.run_test(size=(40, 15)) as pilot:
        await pilot.pause()
        said = "\n".join(shown(calls.app))
        for words in (
            "port 8000, 8001, 8080, 30000: refused",
            "u give a URL: as kvtop http://host:8000",
            "D look at a demo: a simulated box",
            "ask the doctor: kvtop doctor",
        ):
            assert words in said, words
        await pilot.press(*["down"] * 12)
        said = "\n".join(shown(calls.app))
        assert "host: 126.0 GiB RAM, 104.0 GiB" in said and "…" not in said


@pytest.mark.parametrize("size", [(80, 24), (40, 15)])
async def test_while_a_url_is_typed_the_footer_names_the_keys_that_work_then(size: tuple[int, int]) -> None:
    calls = Calls()
    async with calls.app.run_test(size=size) as pilot:
        await pilot.pause()
        calls.app.page.redraw()  # whether there is more below is known when it was painted, and takes room
        await pilot.pause()
        usual = shown(calls.app)[-1]
        assert "u give a URL" in usual and "? help" in usual
        await pilot.press("u")
        await pilot.pause()
        typing = shown(calls.app)[-1]
        shortest = "enter watch it  esc close" if size[0] < 60 else "enter watch it  ctrl+u clear  esc close"
        assert typing.startswith((shortest, "enter watch it  ctrl+u clear  esc close"))
        assert not any(words in typing for words in ("u give", "D demo", "export", "? help", "q quit"))
        await pilot.press("escape")
        await pilot.pause()
        assert shown(calls.app)[-1] == usual


@pytest.mark.parametrize("size", [(40, 15), (80, 24), (200, 50), (20, 6)])
@pytest.mark.parametrize("view", [None, VIEW, replace(VIEW, discovery=None, gpu=None, host=None)])
async def test_it_survives_every_size_and_lack(size: tuple[int, int], view: BoxView | None) -> None:
    calls = Calls(view)
    async with calls.app.run_test(size=size) as pilot:
        await pilot.pause()
        rows = shown(calls.app)
        assert len(rows) == size[1]
        assert "NO SERVER" in rows[0]
        if view is None:
            assert "Looking for vLLM servers" in " ".join(rows[:2])


def test_only_a_server_that_listens_nowhere_may_still_be_loading() -> None:
    servers = (
        VllmProcess(77, "api", port=8000),
        VllmProcess(79, "api", port=8601, ports=(29500, 8601)),
        VllmProcess(80, "api", ports=(8602,)),
        VllmProcess(81, "api", port=8000, contained=True),
    )
    view = replace(VIEW, host=replace(VIEW.host, processes=servers))
    said = ["".join(text for text, _ in line).rstrip() for line in _this_box(view, 100)]
    assert [line.split("  ")[-1].strip() for line in said if "is alive" in line] == [
        "process 77 is alive, port 8000; it may still be loading",
        "process 79 is alive, port 8601",
        "process 80 is alive, port 8602",
        "process 81 is alive, port 8000",
    ]


async def test_d_asks_for_the_demo() -> None:
    calls = Calls()
    async with calls.app.run_test(size=(80, 24)) as pilot:
        await pilot.press("D")
        assert calls.demos == 1


async def test_a_local_url_is_watched_at_once() -> None:
    calls = Calls()
    async with calls.app.run_test(size=(80, 24)) as pilot:
        await pilot.press("u", *"8001", "enter")
        await pilot.pause()
        assert calls.urls == ["http://127.0.0.1:8001"]
        assert not calls.app._exit


@pytest.mark.parametrize("typed", ["::1", "localhost:8000/v1/models", "http://box", "box"])
async def test_what_is_typed_is_read_as_on_the_command_line(typed: str) -> None:
    calls = Calls()
    async with calls.app.run_test(size=(80, 24)) as pilot:
        await pilot.press("u", *typed, "enter", "enter")
        await pilot.pause()
        assert calls.urls == [normalise(typed)]


async def test_a_password_is_not_taken() -> None:
    calls = Calls()
    async with calls.app.run_test(size=(80, 24)) as pilot:
        await pilot.press("u", *"http://user:geheim@box:8000", "enter")
        await pilot.pause()
        assert calls.urls == []
        assert "api_key_env" in "\n".join(shown(calls.app))


async def test_another_host_is_asked_for_once() -> None:
    calls = Calls()
    async with calls.app.run_test(size=(80, 24)) as pilot:
        await pilot.press("u", *"box:8000", "enter")
        await pilot.pause()
        assert calls.urls == []
        assert "http://box:8000 is not this box" in "\n".join(shown(calls.app))
        await pilot.press("enter")
        assert calls.urls == ["http://box:8000"]


async def test_a_changed_url_is_asked_for_again() -> None:
    calls = Calls()
    async with calls.app.run_test(size=(80, 24)) as pilot:
        await pilot.press("u", *"box:8000", "enter", "1", "enter")
        await pilot.pause()
        assert calls.urls == []
        assert "http://box:80001" not in "\n".join(shown(calls.app))
        assert "host or port cannot be read" in "\n".join(shown(calls.app))


async def test_what_is_wrong_stays_to_be_mended() -> None:
    calls = Calls()
    async with calls.app.run_test(size=(80, 24)) as pilot:
        await pilot.press("u", *"ftp://box", "enter")
        await pilot.pause()
        said = "\n".join(shown(calls.app))
        assert "ftp is not http or https" in said
        assert "ftp://box" in said
        await pilot.press("escape")
        await pilot.pause()
        assert calls.app.done == [], "escape closed the line, not the screen"
        assert "ftp://box" not in "\n".join(shown(calls.app))
        await pilot.press("q")
        await pilot.pause()
        assert calls.app._exit


async def test_keys_are_text_while_typing() -> None:
    calls = Calls()
    async with calls.app.run_test(size=(80, 24)) as pilot:
        await pilot.press("u", *"qDe?T", "enter")
        await pilot.pause()
        assert calls.demos == 0
        assert not calls.app._exit
        assert "'?' and '#' do not" in "\n".join(shown(calls.app))


async def test_the_clock_goes_on() -> None:
    calls = Calls()
    async with calls.app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert calls.app.screen.query_one(Foot).clock == NOON


def test_what_a_gpu_reading_says() -> None:
    assert gpu.in_words(None) == "not read yet"
    assert gpu.in_words(GpuReading(error="no NVIDIA driver here")) == "no NVIDIA driver here"
    assert gpu.in_words(GpuReading()) == "no NVIDIA card on this box"
    mixed = GpuReading(gpus=(Gpu(0, "NVIDIA A100", memory_total_bytes=80 * GIB), Gpu(1, "NVIDIA L4")))
    assert gpu.in_words(mixed) == "A100, 80 GiB and L4"


def test_an_unknown_host_figure_is_a_dash() -> None:
    assert host_words(HostReading()) == "– RAM, – available; /dev/shm –, – free"
