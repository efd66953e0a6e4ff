"""The log of a server: it opens at its end, follows, scrolls through 100,000 lines, and is searched."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from textual import events
from textual.pilot import Pilot

from kvtop.live.logbook import KEPT, LogBook, LogReader
from kvtop.profiles.running import record
from kvtop.profiles.running.record import Record
from kvtop.ui.keys import Keymap
from kvtop.ui.screens.log import LogScreen

from .page_app import NOON, PageApp, shown

LINE = "(APIServer pid=1) {level} 11-29 12:{m:02}:{s:02} [x.py:1] line {i:06} of it\n"
SIZES = [(80, 24), (200, 50)]


def line(i: int, level: str = "INFO") -> str:
    return LINE.format(level=level, m=i // 60 % 60, s=i % 60, i=i)


def page(file: Path) -> PageApp:
    return PageApp(LogScreen(Keymap(), Record(name="qwen27", log=str(file)), lambda: NOON))


async def until(app: PageApp, pilot: Pilot[None], *wanted: str) -> list[str]:
    for _ in range(400):
        await pilot.pause(0.02)
        rows = shown(app)
        if all(any(text in row for row in rows) for text in wanted):
            return rows
    raise AssertionError("\n".join(shown(app)))


@pytest.mark.parametrize("size", SIZES)
async def test_100_000_lines_open_at_their_end_and_scroll(size: tuple[int, int], tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text("".join(line(i) for i in range(100_000)))
    app = page(file)
    async with app.run_test(size=size) as pilot:
        rows = await until(app, pilot, "line 099999", "of 100,000, following")
        assert rows[-2].endswith("INFO  line 099999 of it") and rows[0].startswith(" Log qwen27 ─")
        await pilot.press("home")
        rows = await until(app, pilot, "line 000000", f"lines 1–{size[1] - 2} of 100,000")
        assert rows[1] == " 12:00:00 INFO  line 000000 of it" and "following" not in rows[0]
        await pilot.press("down", "pagedown")
        await until(app, pilot, f"line {size[1] - 2:06} of it")
        with file.open("a") as out:
            out.write(line(100_000, "ERROR"))
        await until(app, pilot, "of 100,001")
        assert not any("line 100000" in row for row in shown(app)), "what one reads does not move"
        await pilot.press("f")
        rows = await until(app, pilot, "line 100000", "following")
        assert "ERROR line 100000" in rows[-2]


POLL = 'INFO:     127.0.0.1:5 - "GET /metrics HTTP/1.1" 200 OK\n'


async def test_polls_are_left_out_until_they_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text("".join(line(i) + POLL * 2 for i in range(300)))
    app = page(file)
    async with app.run_test(size=(120, 24)) as pilot:
        rows = await until(app, pilot, "line 000299", "of 300, 600 polls left out")
        assert not any("/metrics" in row for row in rows)
        with file.open("a") as out:
            out.write(POLL[:20])
            out.flush()
            out.write(POLL[20:] + line(300))
        await until(app, pilot, "line 000300", "of 301, 601 polls left out")
        await pilot.press("home", "pagedown")
        await until(app, pilot, "line 000022")
        top = shown(app)[1]
        await pilot.press("a")
        rows = await until(app, pilot, "/metrics", "of 902")
        assert rows[1] == top and "left out" not in rows[0]
        await pilot.press("a", "f")
        rows = await until(app, pilot, "of 301, 601 polls left out", "line 000300")


async def test_a_line_without_an_end_is_there(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text(line(0) + "(EngineCore pid=7) Fatal Python error: Segmentation fault")
    app = page(file)
    async with app.run_test(size=(120, 24)) as pilot:
        await until(app, pilot, "Fatal Python error: Segmentation fault", "of 2, following")


async def test_polls_that_are_asked_for_while_the_log_is_read_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, reads, go = tmp_path / "a.log", [], threading.Event()
    file.write_text("".join(line(i) + POLL for i in range(8_000)))
    really = LogReader.read

    def read(reader: LogReader, most: int, *, polls: bool) -> LogBook:
        book = really(reader, most, polls=polls)
        reads.append((most, polls))
        if most == KEPT and not polls:
            go.wait(20)
        return book

    monkeypatch.setattr(LogReader, "read", read)
    app = page(file)
    async with app.run_test(size=(120, 24)) as pilot:
        await until(app, pilot, "polls left out")
        await pilot.press("a")
        go.set()
        await until(app, pilot, "of 16,000, following", "GET /metrics")
        assert reads[-1] == (KEPT, True)


async def test_a_container_that_was_never_made_has_no_log() -> None:
    state = Record(name="box", runner="docker", why="docker did not start it: Cannot connect to the Docker daemon")
    app = PageApp(LogScreen(Keymap(), state, lambda: NOON))
    async with app.run_test(size=(120, 24)) as pilot:
        await until(app, pilot, "its last start has no log: docker did not start it: Cannot connect to the Docker")


async def test_it_is_searched_whatever_the_case(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text(
        "".join(line(i, "WARNING" if i % 300 == 7 else "INFO") for i in range(1_000)) + "Needle \x1b]0;x\x07\n"
    )
    app = page(file)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(app, pilot, "Needle")
        assert "\x1b" not in "".join(shown(app))
        await pilot.press("slash", *"LINE 0003", "enter")
        rows = await until(app, pilot, "100 of 100 with “LINE 0003”")
        assert any(row.startswith("▸") and "line 000399" in row for row in rows)
        await pilot.press("n")
        rows = await until(app, pilot, "1 of 100 with")
        assert any(row.startswith("▸") and "line 000300" in row for row in rows)
        await pilot.press("N")
        await until(app, pilot, "100 of 100 with")
        await pilot.press("slash", "q", "escape")
        await until(app, pilot, "100 of 100 with “LINE 0003”")
        await pilot.press("n")
        await until(app, pilot, "1 of 100 with “LINE 0003”")
        await pilot.press("slash", *"zebra", "enter")
        await until(app, pilot, "nothing has “zebra”")
        await pilot.press("slash", "q", "escape")
        await until(app, pilot, "nothing has “zebra”")
        await pilot.press("slash", "enter")
        await until(app, pilot, "lines ", "q quit")
        assert "with" not in shown(app)[0] and "has" not in shown(app)[0]
        await pilot.press("home")
        rows = await until(app, pilot, "line 000007")
        assert any("WARN  line 000007" in row for row in rows)


@pytest.mark.parametrize("left", [False, True])
async def test_a_search_that_takes_its_time_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    file, go, done = tmp_path / "a.log", threading.Event(), threading.Event()
    file.write_text("".join(line(i) for i in range(10)))
    really = LogBook.matches

    def matches(book: LogBook, text: str) -> Sequence[int]:
        go.wait(20)
        done.set()
        return really(book, text)

    monkeypatch.setattr(LogBook, "matches", matches)
    app = page(file)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(app, pilot, "line 000009")
        await pilot.press("slash", *"line", "enter")
        await until(app, pilot, "looks for “line”")
        if not left:
            go.set()
            await until(app, pilot, "1 of 10 with “line”")
            return
        await pilot.press("slash", "escape")
        await until(app, pilot, "lines 1–10 of 10, following")
        go.set()
        done.wait(20)
        await pilot.pause()
        assert "following" in shown(app)[0] and not any(row.startswith("▸") for row in shown(app))


async def test_a_line_that_is_found_by_what_is_left_out_of_it_is_shown_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text(line(1) + line(2, "ERROR") + "(EngineCore pid=77) INFO 11-29 12:00:03 [core.py:9] begins\n")
    app = page(file)
    async with app.run_test(size=(80, 24)) as pilot:
        rows = await until(app, pilot, "INFO  begins")
        await pilot.press("slash", *"PID=77", "enter")
        rows = await until(app, pilot, "1 of 1 with “PID=77”")
        assert rows[3] == "▸12:00:03 INFO  (EngineCore pid=77) INFO 11-29 12:00:03 [core.py:9] begins"
        assert rows[1] == " 12:00:01 INFO  line 000001 of it", "what was not found is as it was"
        await pilot.press("slash", *"error", "enter")
        rows = await until(app, pilot, "1 of 1 with “error”")
        assert rows[2] == "▸12:00:02 ERROR line 000002 of it" and rows[3] == " 12:00:03 INFO  begins"


async def test_a_long_line_is_read_sideways(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text(f"{'x' * 100}the end\n")
    app = page(file)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(app, pilot, "xxx…")
        await pilot.press("right", "right", "right")
        await until(app, pilot, "the end")
        await pilot.press("f", "f")
        await until(app, pilot, "xxx…", "following")
        await pilot.press("right", "right", "right")
        await until(app, pilot, "the end")
        await pilot.press("left", "left", "left")
        await until(app, pilot, "xxx…")


async def test_a_log_that_is_not_there_is_said(tmp_path: Path) -> None:
    app = page(tmp_path / "none.log")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(app, pilot, "cannot be read: No such file or directory")
        (tmp_path / "none.log").write_text("here it is\n")
        await until(app, pilot, "here it is")


async def test_what_was_found_in_the_end_of_it_is_found_again_when_the_rest_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read, gate = tmp_path / "a.log", LogReader.read, threading.Event()
    file.write_text("".join(line(i) for i in range(20_000)))

    def slow(reader: LogReader, most: int, *, polls: bool) -> LogBook:
        assert most < KEPT or gate.wait(30)
        return read(reader, most, polls=polls)

    monkeypatch.setattr(LogReader, "read", slow)
    app = page(file)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(app, pilot, "line 019999")
        await pilot.press("slash", *"line 019990", "enter")
        await until(app, pilot, "1 of 1 with “line 019990”")
        gate.set()
        await until(app, pilot, "of 20,000")
        await pilot.press("home")
        await until(app, pilot, "line 000000")
        await pilot.press("n")
        rows = await until(app, pilot, "line 019990")
        assert any(row.startswith("▸") and "line 019990" in row for row in rows)


async def test_after_a_resize_the_title_tells_the_lines_that_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text("".join(line(i) for i in range(1_000)))
    app = page(file)
    async with app.run_test(size=(120, 24)) as pilot:
        await until(app, pilot, "line 000999")
        await pilot.press("home")
        await until(app, pilot, "lines 1–22 of 1,000")
        await pilot.resize_terminal(120, 40)
        await until(app, pilot, "lines 1–38 of 1,000")


async def test_what_is_found_beyond_the_edge_is_scrolled_to(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text(f"needle at once {'x' * 100}\n{'y' * 200}needle{'z' * 100}\n")
    app = page(file)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(app, pilot, "yyy…")
        await pilot.press("slash", *"needle", "enter")
        rows = await until(app, pilot, "1 of 2 with", "needle at once")
        assert rows[1].endswith("xx…") and rows[2].endswith("yy…")
        await pilot.press("n")
        rows = await until(app, pilot, "yneedlezz", "2 of 2 with")
        assert rows[2].endswith("zz…"), "what is cut shows that it is, also where something is marked"
        await pilot.press("n")
        await until(app, pilot, "needle at once")


async def test_where_this_start_begins_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path))
    file = tmp_path / "a.log"
    file.write_text("old ERROR\n")
    now = Record(name="qwen27", log=str(file), log_offset=10, started_at=NOON)
    app = PageApp(LogScreen(Keymap(), now, lambda: NOON))
    async with app.run_test(size=(80, 24)) as pilot:
        rows = await until(app, pilot, "old ERROR", "---- started 2026-")
        assert "started" in rows[2]
        with file.open("a") as out:
            out.write("new\n")
        await until(app, pilot, "new")
        record.write(Record(name="qwen27", log=str(file), log_offset=14, started_at=NOON + 60))
        with file.open("a") as out:
            out.write("newest\n")
        rows = await until(app, pilot, "newest")
        assert [row.split()[:2] for row in rows[1:6]] == [
            ["old", "ERROR"], ["----", "started"], ["new"], ["----", "started"], ["newest"],
        ]  # fmt: skip


async def test_from_the_log_of_a_sidecar_it_goes_on_to_that_of_the_server_for_whoever_follows(tmp_path: Path) -> None:
    side, server = tmp_path / "side.log", tmp_path / "server.log"
    side.write_text("".join(f"warming up {i}\n" for i in range(100)))
    server.write_text(line(1))
    start = Record(name="box", log=str(server), started_at=5.0, sidecar_log=str(side))
    record.write(start)
    app = PageApp(LogScreen(Keymap(), start.at_sidecar(), lambda: NOON))
    async with app.run_test(size=(120, 24)) as pilot:
        await until(app, pilot, "warming up 99", "following")
        await pilot.press("home")
        await until(app, pilot, "warming up 0")
        start.sidecar_log = ""
        record.write(start)
        side.write_text(side.read_text() + "the last\n")
        await until(app, pilot, "of 101")
        assert "warming up 0" in shown(app)[1], "what one reads does not go away"
        await pilot.press("f")
        await until(app, pilot, "line 000001", "following")
        start.sidecar_log, start.started_at = str(side), 6.0
        record.write(start)
        await until(app, pilot, "the last")


async def test_of_a_container_that_is_being_made_the_last_one_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Record(name="box", runner="docker", container="a" * 64, started_at=5.0)
    record.write(state)
    reader = LogReader(state)
    assert reader.elsewhere() is None
    for container, other in (("", None), ("b" * 64, "b" * 64)):
        record.write(msgspec.structs.replace(state, container=container, started_at=6.0))
        now = reader.elsewhere()
        assert (now.container if now is not None else None) == other
    record.write(msgspec.structs.replace(state, container="c" * 64, started_at=4.0))
    assert reader.elsewhere() is None, "of an earlier start"


async def test_no_secret_of_a_log_is_on_the_screen(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    key = "hf_" + "abcdefghijklmnopqrstuvwxyz123456"
    file.write_text(f"token {key}\n" + f"(APIServer pid=1) INFO 11-29 12:00:00 [x.py:1] args api_key={key}\n")
    app = page(file)
    async with app.run_test(size=(120, 24)) as pilot:
        rows = await until(app, pilot, "token ***", "api_key=***")
        assert key not in "".join(rows)
        await pilot.press("slash", *"token", "enter")
        rows = await until(app, pilot, "1 of 1 with")
        assert key not in "".join(rows) and key not in app.export_screenshot()


async def test_what_is_typed_right_behind_the_key_of_the_search_is_searched(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text("".join(line(i) for i in range(100)) + "kv cache\n")
    app = page(file)
    async with app.run_test(size=(120, 24)) as pilot:
        await until(app, pilot, "kv cache", "following")
        for key, text in (("slash", "/"), *((char, char) for char in "kv"), ("enter", None)):
            app.post_message(events.Key(key, text))
        await until(app, pilot, "1 of 1 with “kv”")
