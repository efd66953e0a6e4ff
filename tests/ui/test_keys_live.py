"""Remapped keys work in a running app, and the way out cannot be lost."""

from __future__ import annotations

import pytest
from textual.widgets import Input

from kvtop.ui import keys
from kvtop.ui.keys import Keymap, resolve
from kvtop.ui.screens.page import Page

from .page_app import NOON, PageApp


class Probe(Page):
    """Says which actions it was asked for."""

    ON = keys.DASHBOARD
    BINDINGS = keys.bindings(keys.DASHBOARD)

    def __init__(self, keymap: Keymap) -> None:
        super().__init__(keymap, lambda: NOON)
        self.did: list[str] = []

    def action_window(self) -> None:
        self.did.append("window")

    def action_history(self) -> None:
        self.did.append("history")

    def action_next_server(self) -> None:
        self.did.append("next-server")

    def action_panel(self, name: str) -> None:
        self.did.append(name)


async def pressed(remap: dict[str, str], *names: str) -> list[str]:
    keymap, problems = resolve(remap)
    assert not problems
    probe = Probe(keymap)
    app = PageApp(probe, remap=remap)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press(*names)
        await pilot.pause()
        return probe.did


async def test_the_usual_keys() -> None:
    assert await pressed({}, "w", "h", "tab", "1", "6") == ["window", "history", "next-server", "cache", "turns"]


async def test_two_actions_change_places() -> None:
    assert await pressed({"window": "h", "history": "w"}, "w", "h") == ["history", "window"]


async def test_several_keys_for_one_action() -> None:
    assert await pressed({"window": "ctrl+w, f5, W"}, "ctrl+w", "f5", "W", "w") == ["window"] * 3


async def test_panels_change_places() -> None:
    assert await pressed({"panel-cache": "2", "panel-offload": "1"}, "1", "2") == ["offload", "cache"]


async def test_three_in_a_ring() -> None:
    remap = {"window": "h", "history": "tab", "next-server": "w"}
    assert await pressed(remap, "w", "h", "tab") == ["next-server", "window", "history"]


@pytest.mark.parametrize(("remap", "key"), [({}, "q"), ({}, "ctrl+c"), ({"quit": "X"}, "X"), ({"quit": "X"}, "ctrl+c")])
async def test_there_is_always_a_way_out(remap: dict[str, str], key: str) -> None:
    keymap, _ = resolve(remap)
    app = PageApp(Probe(keymap), remap=remap)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        await pilot.pause()
        assert not app.is_running or app._exit


async def test_a_moved_quit_leaves_its_old_key() -> None:
    keymap, _ = resolve({"quit": "X"})
    app = PageApp(Probe(keymap), remap={"quit": "X"})
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("q")
        await pilot.pause()
        assert not app._exit


async def test_ctrl_c_quits_while_something_is_typed() -> None:
    app = PageApp(Probe(Keymap()))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.screen.mount(Input())
        app.screen.query_one(Input).focus()
        await pilot.press("q")
        assert not app._exit
        assert app.screen.query_one(Input).value == "q"
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert app._exit


@pytest.mark.parametrize("remap", [{}, {"back": "b"}])
async def test_escape_always_goes_back(remap: dict[str, str]) -> None:
    keymap, _ = resolve(remap)
    app = PageApp(Probe(keymap), remap=remap)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("escape", *(["b"] if remap else []))
        await pilot.pause()
        assert app.done == ["back"] * (2 if remap else 1)
