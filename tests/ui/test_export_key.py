"""`e` writes what is on the screen, says so in one line, and fails in one line."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import kvtop.ui.app
from kvtop.config import Settings
from kvtop.model.view import BoxView, Sentence, ServerView
from kvtop.readings import HostReading, State, VllmProcess
from kvtop.ui import export
from kvtop.ui.app import KvtopApp

from .page_app import NOON
from .screen import Held, text

VIEW = BoxView(
    at=NOON,
    sentence=Sentence("OK", "ok", "95 % cached"),
    servers=(ServerView(url="http://127.0.0.1:8000", label="127.0.0.1:8000", state=State.UP, last_good_at=NOON),),
    host=HostReading(processes=(VllmProcess(7, "api", ("vllm", "serve", "--api-key", "s3cret"), 8000),)),
)


SEEN: list[str] = []
"""The screens after the key was pressed."""


def written(folder: Path) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda p: p.suffix, reverse=True)


async def exported(app: KvtopApp) -> None:
    """Until what was asked for is written, or cannot be."""
    assert app._exporting is not None
    await app._exporting.wait()


async def press(folder: Path | str, size: tuple[int, int] = (120, 36)) -> tuple[list[str], KvtopApp]:
    app = KvtopApp(Held(VIEW), Settings(export_dir=str(folder)), now=lambda: NOON)
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        await pilot.press("e")
        await exported(app)
        await pilot.pause()
        await pilot.pause()
        SEEN.append(text(app))
        return [n.message for n in app._notifications], app


async def test_it_writes_two_files_and_one_line(tmp_path: Path) -> None:
    said, _ = await press(tmp_path)
    svg, document = written(tmp_path)
    assert re.fullmatch(r"kvtop-\d{8}-\d{6}\.svg", svg.name)
    assert said == [f"saved {svg.name} and .json\nin {tmp_path}"]
    picture = svg.read_text()
    assert "127.0.0.1:8000" in picture
    assert "s3cret" not in picture + document.read_text()
    assert "http://" not in picture.replace("http://www.w3.org", "").replace("http://127.0.0.1", "")
    made = json.loads(document.read_text())
    assert made["sentence"]["chip"] == "OK"
    assert made["servers"][0]["state"] == "up"


async def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    said, app = await press(tmp_path / "nowhere")
    assert said == [f"{tmp_path / 'nowhere'}: No such file or directory; nothing was exported"]
    assert app.return_code in (None, 0)


async def test_a_file_in_the_folders_place_is_one_line(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("mine")
    said, _ = await press(place)
    assert said == [f"{place}: Not a directory; nothing was exported"]
    assert place.read_text() == "mine"


@pytest.mark.parametrize("folder", ["~nosuchuser/x", "\0"])
async def test_a_folder_that_cannot_be_is_one_line(folder: str) -> None:
    said, app = await press(Path(folder))
    assert len(said) == 1
    assert said[0].endswith("nothing was exported") and "\n" not in said[0]
    assert app.return_code in (None, 0)


async def test_a_fault_of_our_own_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(export, "document", fail)
    said, app = await press(tmp_path)
    assert said == ["kvtop's own export failed (RecursionError): nothing was exported; --debug tells more"]
    assert app.return_code in (None, 0)


async def test_names_are_whole_and_cover_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for size, rows in (((80, 24), 1), ((40, 15), 2)):
        await press("", size)
        name = sorted(written(tmp_path), key=lambda path: len(path.stem))[-1].stem + ".svg"
        lines = [line for line in SEEN[-1].splitlines() if "▌" in line]
        assert len(lines) == rows
        assert f"saved {name}" in lines[0]
        assert "and .json" in lines[-1]


async def test_a_folder_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, real = threading.Event(), export.write

    def hangs(*args: Any) -> tuple[Path, ...]:
        assert gate.wait(30)
        return real(*args)

    monkeypatch.setattr(export, "write", hangs)
    held = Held(VIEW)
    app = KvtopApp(held, Settings(export_dir=str(tmp_path)), now=lambda: NOON)
    async with app.run_test(notifications=True) as pilot:
        await pilot.press("e", "w", "e")
        assert held.asked[-1][0] == "1h", "keys work meanwhile"
        assert [n.message for n in app._notifications][-1].startswith("the last export is still being written")
        gate.set()
        await exported(app)
        assert [n.message for n in app._notifications][-1].startswith("saved kvtop-")
        assert len(written(tmp_path)) == 2


@pytest.mark.parametrize("hangs", [False, True])
async def test_leaving_waits_for_an_export_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    gate, real = threading.Event(), export.write

    def slow(*args: Any) -> tuple[Path, ...]:
        gate.wait(30 if hangs else 0.2)
        return real(*args)

    monkeypatch.setattr(export, "write", slow)
    monkeypatch.setattr(kvtop.ui.app, "QUIT_S", 0.05 if hangs else 20.0)
    app = KvtopApp(Held(VIEW), Settings(export_dir=str(tmp_path)), now=lambda: NOON)
    async with app.run_test() as pilot:
        await pilot.press("e", "q")
        assert app._exit and bool(written(tmp_path)) is not hangs
    gate.set()
