"""Captured turns and the tap on the screen, as a person sees them."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed
from rich.cells import cell_len
from textual.pilot import Pilot

from kvtop.capture.api.answer_text import CALL, REASONING, TEXT, Piece
from kvtop.capture.control.plan import Leg, leg
from kvtop.capture.control.running import Mapped, Running
from kvtop.capture.turn import Captured, Part, Record, Route, Source, TurnState
from kvtop.config import Capture, Settings
from kvtop.errors import KvtopError
from kvtop.live.desk import Detail, TapRow
from kvtop.model.shown_turn import Turn
from kvtop.model.view import BoxView
from kvtop.ui.app import KvtopApp
from kvtop.ui.draw import pick
from kvtop.ui.numbers import tok
from kvtop.ui.turn_words import agent
from kvtop.ui.verdicts import verdict

from . import boxes
from .screen import Held, lines, text, until

EVIL = "\x1b[31mred\x1b[0m\u202eevil\x9bnext"


class FakeDesk:
    """Answers at once, as a test says."""

    def __init__(self) -> None:
        self.details: dict[int, Detail] = {}
        self.texts: dict[int, tuple[bytes | None, bytes | None]] = {}
        self.here: list[Running] = []
        self.fails = ""
        self.free = "127.0.0.1:8001"
        self.asked: list[int] = []
        self.done: list[str] = []

    async def detail(self, id: int) -> Detail | None:
        self.asked.append(id)
        if self.fails:
            raise KvtopError(self.fails)
        return self.details.get(id)

    async def bodies(self, id: int) -> tuple[bytes | None, bytes | None]:
        if self.fails:
            raise KvtopError(self.fails)
        return self.texts.get(id, (None, None))

    @property
    def taps(self) -> tuple[Running, ...]:
        return tuple(self.here)

    def listens(self, url: str) -> tuple[str, ...]:
        return tuple(m.listen for r in self.here for m in r.mappings if m.upstream == url)

    async def rows(self) -> tuple[TapRow, ...]:
        return tuple(TapRow(record, 2) for record in self.here)

    async def planned(self, url: str) -> Leg:
        if self.fails:
            raise KvtopError(self.fails, "do that")
        return leg(self.free, url)

    async def would(self, url: str) -> Leg:
        return await self.planned(url)

    async def start(self, way: Leg) -> str:
        self.done.append(f"start {way.as_map}")
        self.here.append(tap())
        return f"it listens on http://{way.listen} (process 4242)"

    async def stop(self, record: Running) -> str:
        self.done.append(f"stop {record.name}")
        self.here.remove(record)
        return f"{record.name} ended: no open connections cut"


class Box(Held):
    """A collector that knows of taps."""

    def __init__(self, view: BoxView) -> None:
        super().__init__(view)
        self.desk = FakeDesk()


def tap() -> Running:
    return Running(
        name="127.0.0.1:8001", pid=4242, birth="x", since="2026-11-29T12:00:00Z", drain_s=30.0, store="/turns.db",
        mappings=[Mapped("127.0.0.1:8001", boxes.URL)], log="/log",
    )  # fmt: skip


def whole(**more: object) -> Captured:
    """Turn 812 in full."""
    parts = [Part("tool", 1_200, "a" * 16, name=name) for name in ("bash", "edit", "read")]
    parts += [Part("system", 14_210, "b" * 16, role="system")]
    parts += [Part("message", 500 + i, "c" * 16, role=("user", "assistant")[i % 2]) for i in range(40)]
    made = Captured(
        id=812, state=TurnState.DONE, upstream=boxes.URL, method="POST", path="/v1/chat/completions", route=Route.CHAT,
        stream=True, model="Qwen/Qwen3.8-27B", started_at=boxes.NOW - 250, agent="opencode", agent_version="1.2.3",
        outline=parts, hints={"x-session-id": "ses_" + "0123456789" * 6}, conversation="c800", parent=811,
        relation="next", usage={"prompt_tokens": 123_180, "prompt_tokens_details": {"cached_tokens": 11_792}},
        response_id="chatcmpl-42", inter_token_p50_s=0.026, inter_token_p95_s=0.041, inter_token_n=417,
        request_bytes=492_000, response_bytes=75_000, status=200, prompt_tokens=123_180, cached_tokens=11_792,
    )  # fmt: skip
    return changed(made, **more)


ANSWER = (
    Piece(REASONING, "Let me see."),
    Piece(TEXT, "\n".join(f"line {i}" for i in range(1, 9))),
    Piece(CALL, '{"path": "a.py"}', "edit"),
)


def detail(**more: object) -> Detail:
    one = whole(**more)
    others = [changed(one, id=id, prompt_tokens=100, cached_tokens=share) for id, share in ((811, 95), (808, 96))]
    return Detail(one, ANSWER, (one, *others))


@asynccontextmanager
async def shown(
    view: BoxView | None = None, w: int = 80, h: int = 24, settings: Settings | None = None
) -> AsyncIterator[tuple[KvtopApp, Pilot[str], Box]]:
    box = Box(view or boxes.captured())
    app = KvtopApp(box, settings, now=lambda: boxes.NOW)
    async with app.run_test(size=(w, h)) as pilot:
        await pilot.pause()
        yield app, pilot, box


async def settled(app: KvtopApp, pilot: Pilot[str]) -> str:
    """After what a key began has come back."""
    await pilot.pause()
    await asyncio.gather(*(worker.wait() for worker in app.workers if worker.name != "collector"))
    await pilot.pause()
    return text(app)


async def look(view: BoxView, w: int = 80, h: int = 24) -> str:
    async with shown(view, w, h) as (app, _, _):
        return text(app)


# ---------------------------------------------------------------- the table
async def test_80_by_24_has_who_asked_and_what_is_expected() -> None:
    screen = await look(boxes.captured())
    for words in (
        "3 in flight, 812 captured, newest first",
        " turn   time  agent     prompt  cached            TTFT    verdict",
        "pi        ~22.4k  ┄┄┄┄┄┄┄─ ~91 %   2.1 s  › waits for room",
        "opencode   ~130k  ┄┄┄┄┄┄┄─ ~97 %   2.6 s  › reads, ~1 s left",
        "claude    ~43.9k  ┄┄┄┄┄┄┄─ ~93 %   2.6 s  › writes",
        "opencode    126k  ━━━━━━━─  98 %   2.7 s  · ok",
        "tap :8001",
    ):  # fmt: skip
        assert words in screen, words


@pytest.mark.parametrize(("w", "h"), [(80, 24), (120, 36), (200, 50)])
async def test_a_subagents_rows_are_told_from_its_main_agents(w: int, h: int) -> None:
    view = boxes.captured()
    turns = tuple(replace(t, began_as="subagent") if t.id in (812, 816) else t for t in view.servers[0].turns)
    screen = await look(replace(view, servers=(replace(view.servers[0], turns=turns),)), w, h)
    marked = [int(m[1]) for row in screen.split("\n") if (m := re.match(r"[ ▸] +(\d+) .*  ↳openco(?:…|de) ", row))]
    assert marked == [816, 812] and all(cell_len(row) <= w for row in screen.split("\n"))


@pytest.mark.parametrize(("w", "h"), [(80, 24), (120, 36), (200, 50)])
async def test_an_imported_row_is_marked(w: int, h: int) -> None:
    view = boxes.captured()
    turns = tuple(replace(t, source="import") if t.id == 812 and t.captured else t for t in view.servers[0].turns)
    screen = await look(replace(view, servers=(replace(view.servers[0], turns=turns),)), w, h)
    marked = [row for row in screen.split("\n") if re.search(r"\bimport\b", row)]
    assert [re.match(r"[ ▸] +812 ", row) is not None for row in marked] == [True]


async def test_200_by_50_has_all_columns_and_every_end() -> None:
    screen = await look(boxes.captured(), 200, 50)
    for words in (
        "turn      time  agent           prompt  cached                 new   queue    TTFT    out  tok/s",
        "claude-code     ~43.9k  ┄┄┄┄┄┄┄┄┄┄┄─ ~93 %   ~3.2k",
        "› reads 4.2k new, ~1 s left",
        "› waits for room in the KV pool",
        "! queued 7.4 s",
        "? 111k of 123k read anew",
        "past tap",
        "· ok, a side call",
        "× failed: 400 prompt too long",
        "! aborted by its client",
        "× answer broke off",
        "? its end was not seen",
        "ok, record incomplete",
        "tap 127.0.0.1:8001",
        "Turn 817",
    ):  # fmt: skip
        assert words in screen, words
    rows = {int(m[1]): row for row in screen.split("\n") if (m := re.match(r"[ ▸] +(\d{2,3})  \d\d:", row))}
    assert "~6.8 s" in rows[77], "counted: worked out"
    assert " 92 s" in rows[812] and "~" not in rows[812], "captured: exact"
    assert "    –" in rows[805], "cached tokens that nobody told"


async def test_40_by_15_and_the_widths_between() -> None:
    async with shown() as (app, pilot, _):
        for w, h in [(40, 15), (60, 20), (66, 24), (76, 24), (100, 30), (116, 36), (128, 40), (160, 45), (300, 60)]:
            await pilot.resize_terminal(w, h)
            await pilot.pause()
            assert all(cell_len(row) == w for row in lines(app)), w
            screen = text(app)
            assert "could not be drawn" not in screen and "writes" in screen, w
            assert ("opencode" in screen) == (w >= 75), w


async def test_what_goes_past_the_tap_is_told_where_it_is_known() -> None:
    past = boxes.captured(share=0.92, passed_by_tokens=45_000)
    assert "tap sees 92 % of the prompt tokens; the rest goes past it" in await look(past, 120, 36)
    assert "812 captured; tap sees 92 % of the prompt tokens" in await look(past)
    for fine in (boxes.captured(share=0.99, passed_by_tokens=45_000), boxes.captured(share=None),
                 boxes.captured(share=0.5, passed_by_tokens=50)):  # fmt: skip
        assert "tap sees" not in await look(fine, 120, 36)


async def test_the_flag_for_cached_tokens_is_hinted_at_quietly() -> None:
    view = boxes.captured(no_details=True)
    assert "newest first; --enable-prompt-tokens-details would tell cached tokens" in await look(view, 120, 36)
    assert "3 in flight, 812 captured, newest first" in await look(view)


async def test_streams_without_usage_are_no_fault_of_the_server() -> None:
    view = boxes.captured(no_details=True, no_usage=4)
    screen = await look(view, 120, 36)
    assert "812 captured; 4 streams without usage: the client does not set stream_options.include_usage" in screen
    assert "--enable-prompt-tokens-details" not in screen
    assert "812 captured; 4 streams without usage" in await look(view)


async def test_streams_whose_client_asked_for_usage_are_no_fault_of_the_client() -> None:
    screen = await look(boxes.captured(usage_unsent=1), 120, 36)
    assert "newest first; 1 stream without usage: the server sent none" in screen
    assert "include_usage" not in screen


async def test_a_store_that_cannot_be_read_is_one_line() -> None:
    problem = "/home/x/turns.db was written by a newer kvtop (version 9 of the file; this kvtop knows up to 1)"
    assert f"{problem}" in await look(boxes.captured(problem=problem), 120, 36)
    assert "captured turns: /home/x/turns.db was written" in await look(boxes.captured(problem=problem))


async def test_a_store_that_cannot_be_written_is_told_above_the_turns() -> None:
    why = "/home/somebody/data/turns.db cannot be written or read: database or disk is full"
    view = boxes.captured(unwritten=why)
    assert "turns wait: database or disk is full" in await look(view)
    assert f"turns wait: {why}" in await look(view, 120, 36)
    assert f"turns wait: {why}" in await look(view, 200, 50)
    assert "turns wait: the store cannot be written: no room" in await look(boxes.captured(unwritten="no room"))


async def test_a_tap_that_captured_nothing_yet_says_so() -> None:
    view = boxes.captured()
    server = replace(view.servers[0], turns=boxes.turns(), tap=replace(view.servers[0].tap, captured=0))
    screen = await look(replace(view, servers=(server,)), 120, 36)
    assert "812 done; nothing through the tap yet" in screen and "agent" not in screen


async def test_numbers_of_five_digits_fit() -> None:
    rows = tuple(replace(t, id=t.id + 12_000) if t.captured else t for t in boxes.captured_turns())
    view = boxes.captured()
    screen = await look(replace(view, servers=(replace(view.servers[0], turns=rows),)))
    assert "12817  13:04" in screen.replace("\u25b8", " ") or "12817" in screen


def only(*turns: Turn) -> BoxView:
    view = boxes.captured()
    return replace(view, servers=(replace(view.servers[0], turns=turns),))


async def test_the_cursor_stays_with_a_turn_that_ends_and_with_one_that_turns_out_to_be_captured() -> None:
    one, two, three = (boxes.captured_turn(i, 10 * i, 9_000, 8_576, 0, 60) for i in (1, 2, 3))
    flying = replace(one, state="in_flight", ended_at=None, phase="reads")
    counted = boxes.turn(1, 15, 9_000, 8_576, 0, 60)
    async with shown(only(flying, counted, two, three)) as (app, pilot, box):
        await pilot.press("down")
        assert app.dashboard.cursor == ("counted", 1)
        await pilot.press("up")
        assert app.dashboard.cursor == ("captured", 1)
        box.now = only(two, one, counted, three)
        app.dashboard.look()
        assert app.dashboard.cursor == ("captured", 1), "it has ended: the same turn"
        app.dashboard.choose_turn(("counted", 1))
        box.now = only(two, one, replace(three, counted=1))
        app.dashboard.look()
        assert app.dashboard.cursor == ("captured", 3), "the row's request turned out to be this one"
        box.now = only(two, one)
        app.dashboard.look()
        assert app.dashboard.cursor == ("captured", 1), "gone: the one in its place"


async def test_the_filter_knows_agents_conversations_and_ends() -> None:
    async with shown(w=120, h=50) as (app, _, _):
        for words, ids in (
            ("claude", [815, 813]),
            ("aborted", [809]),
            ("cut", [808, 807]),
            ("side", [811]),
            ("past", [77]),
            ("failed", [810, 809, 808]),
            ("opencode side", [811]),
            ("c801", []),
        ):
            app.dashboard.words = words
            app.dashboard.look()
            assert [turn.id for turn in app.dashboard.made.rows] == ids, words  # type: ignore[union-attr]
        app.dashboard.words = "c800 flight"
        app.dashboard.look()
        assert "3 of 44 rows: c800 flight" in text(app)


# ---------------------------------------------------------------- five thousand
def thousands(n: int = 5_000) -> tuple[Turn, ...]:
    return tuple(boxes.captured_turn(n - i, 10 + i, 9_000, 8_576, 0, 60) for i in range(n))


async def test_of_five_thousand_turns_a_drawing_touches_what_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    plain = Turn.key.fget  # type: ignore[attr-defined]

    def key(turn: Turn) -> tuple[str, int]:
        nonlocal asked
        asked += 1
        return plain(turn)  # type: ignore[no-any-return]

    async with shown(only(*thousands()), 120, 36) as (app, pilot, _):
        monkeypatch.setattr(Turn, "key", property(key))
        await pilot.press("end")
        assert app.dashboard.cursor == ("captured", 1)
        asked = 0
        for press in ("up", "pageup", "up", "down"):
            await pilot.press(press)
            await pilot.pause()
        assert 0 < asked < 600, "some hundred looks at rows, not thousands"


# ---------------------------------------------------------------- the page
@asynccontextmanager
async def page(
    made: Detail | None = None, w: int = 120, h: int = 50, id: int = 812, view: BoxView | None = None
) -> AsyncIterator[tuple[KvtopApp, Pilot[str], Box]]:
    async with shown(view, w, h) as (app, pilot, box):
        if made is not None:
            box.desk.details[id] = made
        app.dashboard.choose_turn(("captured", id))
        await pilot.press("enter")
        await settled(app, pilot)
        yield app, pilot, box


async def test_a_captured_turns_page_has_all_that_is_known() -> None:
    async with page(detail()) as (app, _, _):
        screen = text(app)
    for words in (
        "Turn 812: 111k of 123k read anew",
        "opencode · 13:01:51 · chat · Qwen/Qwen3.8-27B · c800 · finished: stop",
        "cached 11,792   new 111,388   of 123,180 tokens",
        "queue 400 ms   prefill 92 s   decode 11 s",
        "TTFT 92 s, 418 tokens out, 38 tok/s",
        "gap between tokens p50 26 ms, p95 41 ms, n=417",
        "POST /v1/chat/completions, stream, 492 kB sent",
        "3 tools              3.6 kB  bash, edit, read",
        "system              14.2 kB",
        "messages[1]           500 B  user",
        "··· 33 messages",
        "messages[40]          539 B  assistant",
        "hints x-session-id ses_01234567890123456…456789",
        "11 characters of reasoning, calls edit; 75.0 kB came",
        "line 8",
        'edit {"path": "a.py"}',
        "c800, turn 3 of the last 3",
        "continues turn 811",
        "usage prompt_tokens 123,180, prompt_tokens_details.cached_tokens 11,792",
        "response chatcmpl-42",
        "opencode 1.2.3, by tap",
    ):  # fmt: skip
        assert words.replace("13:01:51", "") in screen or re.sub(r"\d\d:\d\d:\d\d", "", words) in re.sub(
            r"\d\d:\d\d:\d\d", "", screen
        ), words
    assert "line 2" not in screen, "of the answer only its end"
    assert "counters cannot tell" not in screen


@pytest.mark.parametrize(("w", "h"), [(80, 24), (40, 15), (200, 50), (20, 5)])
async def test_the_page_fits_and_scrolls(w: int, h: int) -> None:
    async with page(detail(), w, h) as (app, pilot, _):
        seen = ""
        for _ in range(20):
            assert all(cell_len(row) == w for row in lines(app))
            assert "could not be drawn" not in text(app)
            seen += text(app)
            await pilot.press("pagedown")
        if w >= 40:
            assert "messages[1]" in seen and "chatcmpl-42" in seen


async def test_what_is_not_known_is_said_so() -> None:
    async with page(detail(outline=[], usage={}, record=Record.TRUNCATED, coalesced=True, stream=None)) as (app, _, _):
        screen = text(app)
    for words in ("its parts are not known", "none came", "kvtop did not record all of it", "coarse: several came"):
        assert words in screen, words


@pytest.mark.parametrize(
    ("id", "words"),
    [
        (810, "failed: 400 This model's maximum context length"),
        (809, "aborted by its client"),
        (808, "answer broke off"),
        (807, "its end was not seen"),
        (805, "The server does not tell cached tokens of a request: --enable-prompt-tokens-details lets it"),
        (816, "about 130k tokens, ~126k cached, ~4.2k new"),
    ],
)
async def test_pages_of_other_ends(id: int, words: str) -> None:
    async with page(detail(), id=id, w=160) as (app, _, _):
        assert words in re.sub(r"\s+", " ", text(app))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"finish_reason": "abort"}, "aborted by the server"),
        ({"finish_reason": "error"}, "failed: the engine gave up"),
        ({"state": "aborted"}, "aborted by its client"),
        ({"state": "cut"}, "answer broke off"),
        ({"state": "cut", "error": "cut when the tap stopped"}, "cut when the tap stopped"),
    ],
)
def test_who_ended_a_turn(changes: dict[str, str], said: str) -> None:
    turn = replace(boxes.captured_turn(1, 0, 9_000, 8_576, 0, 60), **changes)
    assert verdict(turn, None)[2][0] == said


async def test_hostile_text_is_shown_and_not_obeyed() -> None:
    made = detail(
        outline=[Part("tool", 5, "d" * 16, name=EVIL), Part("message", 5, "e" * 16, role=EVIL), Part(EVIL, 1, "f")],
        hints={EVIL: EVIL}, path=EVIL, response_id=EVIL, agent=EVIL, conversation=EVIL, usage={EVIL: EVIL}, error=EVIL,
        upstream=EVIL, agent_version=EVIL, prompt_unproven=EVIL,
    )  # fmt: skip
    for one in (made, replace(made, turn=changed(made.turn, error=None), answer=(Piece(CALL, EVIL, EVIL),))):
        async with page(one) as (app, _, _):
            assert not any(ord(c) < 32 or c in "\u202e\x9b" for row in lines(app) for c in row)
            assert "␛[31mred" in text(app)


async def test_a_store_that_fails_is_a_line_and_is_asked_again() -> None:
    async with shown(w=120, h=36) as (app, pilot, box):
        box.desk.fails = "turns.db is held by another program"
        app.dashboard.choose_turn(("captured", 812))
        await pilot.press("enter")
        assert "turns.db is held by another program" in await settled(app, pilot)
        box.desk.fails, box.desk.details[812] = "", detail()
        app.screen.tick()  # type: ignore[attr-defined]
        assert "messages[1]" in await settled(app, pilot)
        asked = len(box.desk.asked)
        app.screen.tick()  # type: ignore[attr-defined]
        await settled(app, pilot)
        assert len(box.desk.asked) == asked, "what has not changed is not read again"


async def test_the_next_turn_is_read_too_and_a_counted_one_is_not() -> None:
    async with page(detail()) as (app, pilot, box):
        await pilot.press("n")
        await settled(app, pilot)
        assert "Turn 77" in text(app) and "v bodies" not in text(app)
        assert box.desk.asked == [812]
        await pilot.press("v")
        assert app.screen.ON == "turn"  # type: ignore[attr-defined]
        await pilot.press("n")
        await settled(app, pilot)
        assert box.desk.asked == [812, 811] and "v bodies" in text(app)


@pytest.mark.parametrize(
    ("relation", "changed_", "said"),
    [
        ("branch", ["system"], "asks what turn 811 asked: the same messages with another system prompt"),
        ("branch", ["tools"], "asks what turn 811 asked: the same messages with other tools"),
        ("branch", [], "branches off from turn 811"),
        ("retry", [], "asks again what turn 811 asked"),
        ("next", ["system", "tools"], "continues turn 811 with another system prompt and other tools"),
    ],
)
async def test_the_page_says_what_else_of_the_prompt_changed(relation: str, changed_: list[str], said: str) -> None:
    view = boxes.captured()
    turns = tuple(
        replace(t, relation=relation, changed=tuple(changed_)) if t.id == 812 and t.captured else t
        for t in view.servers[0].turns
    )
    view = replace(view, servers=(replace(view.servers[0], turns=turns),))
    async with page(detail(relation=relation, changed=changed_), view=view, w=160) as (app, _, _):
        assert said in text(app)


async def test_an_imported_turn_shows_no_key_of_kvtops_own() -> None:
    async with page(detail(source=Source.IMPORT, hints={"import.key": "abe7" * 8})) as (app, _, _):
        screen = text(app)
    assert "import.key" not in screen and "hints" not in screen and "abe7" not in screen
    async with page(detail(hints={"import.key": "abe7", "user": "u1"}), w=160) as (app, _, _):
        screen = text(app)
    assert "hints user u1" in screen and "from the request's first byte to the answer's last" in screen


# ---------------------------------------------------------------- bodies
async def test_bodies_are_laid_out_and_changed_between() -> None:
    async with page(detail(), 80, 24) as (app, pilot, box):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"hé {EVIL} " + "x" * 200}]})
        box.desk.texts[812] = (body.encode(), b'data: {"a": "\x1b[2J"}\r\n\r\ndata: [DONE]\n\n')
        await pilot.press("v")
        screen = await settled(app, pilot)
        assert '  "model": "m",' in screen and "Turn 812: request" in screen and "lines 1–" in screen
        assert "JSON, indented here" in screen
        assert all(cell_len(row) == 80 for row in lines(app))
        await pilot.press("v")
        screen = text(app)
        assert "Turn 812: answer" in screen and 'data: {"a": "␛[2J"}' in screen and "data: [DONE]" in screen
        assert "as it was sent" in screen and "indented" not in screen
        await pilot.press("escape")
        assert "messages[1]" in text(app)


async def test_a_body_that_is_not_there_or_too_long_is_said_so() -> None:
    async with page(detail(), 80, 24) as (app, pilot, box):
        box.desk.texts[812] = (b'{"a": "' + b"y" * 2_100_000 + b'"}', None)
        await pilot.press("v")
        assert "2.1 MB, only the first 2.0 MB are shown" in await settled(app, pilot)
        await pilot.press("end")
        assert "yyyy" in text(app)
        await pilot.press("tab")
        assert "there is none" in text(app)


@pytest.mark.parametrize("w", [80, 120, 200])
async def test_a_turn_of_another_day_has_its_date(w: int) -> None:
    then = boxes.NOW - 3 * 86_400
    old = replace(boxes.captured_turn(700, 3 * 86_400, 1_000, 900, 0, 1), ended_at=then)
    view = boxes.captured()
    view = replace(view, servers=(replace(view.servers[0], turns=(old,)),))
    async with shown(view, w, 50) as (app, pilot, _):
        date = time.strftime("%d %b" if w >= 127 else "%d%b", time.localtime(then))
        row = next(row for row in lines(app) if row.startswith("▸"))
        assert re.match(rf"▸ +700 +{date}  opencode", row)
        await pilot.press("enter")
        assert time.strftime("opencode · %d %b %H:%M · ", time.localtime(then)) in await settled(app, pilot)


# ---------------------------------------------------------------- the tap
async def opened(pilot: Pilot[str], app: KvtopApp) -> str:
    await pilot.press("t")
    return await settled(app, pilot)


@pytest.mark.parametrize(("w", "h"), [(80, 24), (200, 50), (40, 15)])
async def test_without_a_tap_the_page_says_what_one_is_and_how_to_start_it(w: int, h: int) -> None:
    view = boxes.box()
    async with shown(view, w, h) as (app, pilot, _):
        screen = re.sub(r"\s+", " ", await opened(pilot, app))
        assert "No tap to 127.0.0.1:8000 runs." in screen
        assert all(cell_len(row) == w for row in lines(app))
        if w >= 80:
            assert "so does kvtop tap --upstream http://127.0.0.1:8000 --detach" in screen
            assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:8001" in screen and "Qwen/Qwen3.8-27B" in screen


@pytest.mark.parametrize(("by_itself", "h"), [(False, 50), (True, 50)])
async def test_beside_the_taps_of_other_servers_the_page_names_the_port_that_would_be_taken(
    by_itself: bool, h: int
) -> None:
    view = boxes.captured(listens=(), by_itself=True) if by_itself else boxes.box()
    async with shown(view, 120, h) as (app, pilot, box):
        box.desk.here = [changed(tap(), mappings=[Mapped("127.0.0.1:8001", "http://127.0.0.1:9000")])]
        box.desk.free = "127.0.0.1:8006"
        screen = re.sub(r"\s+", " ", await opened(pilot, app))
        assert "1 runs, none to this server" in screen and "none runs" not in screen
        assert "http://127.0.0.1:8001 → http://127.0.0.1:9000" in screen
        assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:8006" in screen
        assert "kvtop tap --upstream http://127.0.0.1:8000 --listen 127.0.0.1:8006 --detach" in screen
        await pilot.press("s")
        screen = re.sub(r"\s+", " ", await settled(app, pilot))
        assert "s again starts a tap: http://127.0.0.1:8006 in front of" in screen
        box.desk.here.append(changed(tap(), mappings=[Mapped("127.0.0.1:8003", boxes.URL)]))
        await pilot.press("down", "up")
        screen = re.sub(r"\s+", " ", await settled(app, pilot))
        assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:8003" in screen


async def test_where_no_tap_can_be_started_no_port_is_named() -> None:
    async with shown(boxes.box(), 120, 50) as (app, pilot, box):
        box.desk.fails = "not an address of this machine's loopback"
        screen = await opened(pilot, app)
        assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:PORT" in screen and "8001" not in screen


async def test_a_tap_is_started_after_it_was_said_what_happens() -> None:
    async with shown(boxes.box(), 120, 36) as (app, pilot, box):
        await opened(pilot, app)
        await pilot.press("s")
        screen = re.sub(r"\s+", " ", await settled(app, pilot))
        assert "s again starts a tap: http://127.0.0.1:8001 in front of http://127.0.0.1:8000." in screen
        assert "readable by you alone, for 7 days" in screen
        assert box.desk.done == []
        await pilot.press("enter")
        screen = await settled(app, pilot)
        assert box.desk.done == ["start 127.0.0.1:8001=http://127.0.0.1:8000"]
        assert "it listens on http://127.0.0.1:8001 (process 4242)" in screen
        assert "http://127.0.0.1:8001 → http://127.0.0.1:8000" in screen and "2 open now" in screen


@pytest.mark.parametrize(("days", "words"), [(1, "1 day."), (0.5, "0.5 days."), (30, "30 days.")])
async def test_how_long_turns_are_kept_is_as_the_settings_say(days: float, words: str) -> None:
    async with shown(boxes.box(), 120, 36, Settings(capture=Capture(keep_days=days))) as (app, pilot, _):
        await opened(pilot, app)
        await pilot.press("s")
        screen = re.sub(r"\s+", " ", await settled(app, pilot))
        assert f"readable by you alone, for {words}" in screen


@pytest.mark.parametrize(("captured", "words"), [(0, "0 turns captured."), (1, "1 turn captured.")])
async def test_the_taps_page_counts_turns_in_good_grammar(captured: int, words: str) -> None:
    async with shown(boxes.captured(captured=captured), 120, 36) as (app, pilot, box):
        box.desk.here = [tap()]
        assert words in re.sub(r"\s+", " ", await opened(pilot, app))


async def test_what_was_captured_before_is_told_where_no_tap_runs() -> None:
    async with shown(boxes.captured(captured=5, listens=()), 120, 36) as (app, pilot, _):
        screen = re.sub(r"\s+", " ", await opened(pilot, app))
        assert "Its turns are not captured; captured before: 5." in screen


async def test_the_simulated_box_needs_no_tap() -> None:
    async with shown(boxes.captured(listens=(), by_itself=True), 120, 36) as (app, pilot, _):
        screen = re.sub(r"\s+", " ", await opened(pilot, app))
        assert "No tap to 127.0.0.1:8000 runs: this simulated box tells its turns itself" in screen


async def test_a_tap_to_the_simulated_box_is_not_said_to_have_captured_its_turns() -> None:
    async with shown(boxes.captured(by_itself=True), 120, 36) as (app, pilot, box):
        box.desk.here = [tap()]
        screen = re.sub(r"\s+", " ", await opened(pilot, app))
        assert "127.0.0.1:8001 is in front of 127.0.0.1:8000: the simulated box tells its own turns" in screen
        assert "captured." not in screen and "go through it" not in screen


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Claude Code", "Claude"),
        ("qwen-code", "qwen"),
        ("Gemini CLI", "Gemini"),
        ("pi", "pi"),
        ("opencode", "opencode"),
    ],
)
def test_few_cells_have_the_short_name_of_an_agent(name: str, short: str) -> None:
    turn = Turn(1, 1.0, source="tap", agent=name)
    assert (agent(turn, 11), agent(turn, 8)) == (name, short)


@pytest.mark.parametrize(
    ("name", "cells_14", "cells_11"),
    [("Anthropic Python", "Anthropic SDK", "Anthropic"), ("OpenAI Python", "OpenAI Python", "OpenAI SDK")],
)
def test_a_library_is_named_without_its_language_where_cells_are_few(name: str, cells_14: str, cells_11: str) -> None:
    turn = Turn(1, 1.0, source="tap", agent=name)
    assert (agent(turn, 16), agent(turn, 14), agent(turn, 11)) == (name, cells_14, cells_11)


async def test_names_have_fourteen_cells_where_there_is_room() -> None:
    view = boxes.captured()
    rows = tuple(replace(t, agent="Anthropic Python") if t.captured else t for t in view.servers[0].turns)
    view = replace(view, servers=(replace(view.servers[0], turns=rows),))
    for w in (120, 130, 200):
        assert "Anthropic SDK" in await look(view, w, 36), w
    assert "Anthropic  " in await look(view, 160, 36), "beside the preview"


async def test_what_the_counters_told_of_a_captured_turn_is_marked() -> None:
    view = boxes.captured()
    known = {"prompt_tokens": 12_600, "cached_tokens": 0, "new_tokens": 12_600, "completion_tokens": 12_600}
    untold = Turn(900, boxes.NOW - 5, source="tap", agent="pi", ttft_s=1.0, worked_out=(*known, "queue_s", "decode_s"),
                  cached_source="metrics", queue_s=0.2, decode_s=290.0, **known)  # type: ignore[arg-type]  # fmt: skip
    piece = Turn(899, boxes.NOW - 6, source="tap", agent="pi", ttft_s=0.092, worked_out=("ttft_s",))
    view = replace(view, servers=(replace(view.servers[0], turns=(untold, piece)),))
    screen = await look(view, 200, 36)
    row = next(line for line in screen.splitlines() if line.lstrip("▸ ").startswith("900"))
    for words in ("~12.6k", "~0 %", "~200ms", " 1.0 s", "  ~12k", "~43"):
        assert words in row, words
    assert "~92 ms" in next(line for line in screen.splitlines() if line.lstrip("▸ ").startswith("899"))


async def test_the_page_of_a_stream_in_flight_has_the_ttft_of_its_row() -> None:
    async with page(id=815) as (app, _, _):
        assert "TTFT 2.6 s: as its client saw it" in text(app)


async def test_a_tap_that_cannot_be_started_says_why() -> None:
    async with shown(boxes.box(), 120, 36) as (app, pilot, box):
        box.desk.fails = "not an address of this machine's loopback"
        await opened(pilot, app)
        await pilot.press("s")
        assert "× not an address of this machine's loopback: do that" in await settled(app, pilot)


async def test_a_tap_is_ended_after_one_question() -> None:
    async with shown(w=120, h=36) as (app, pilot, box):
        box.desk.here = [tap()]
        screen = await opened(pilot, app)
        assert "127.0.0.1:8001 is in front of 127.0.0.1:8000. 812 turns captured. 100 % of the prompt" in screen
        await pilot.press("x")
        assert "x again ends 127.0.0.1:8001: open answers have 30 s to finish, 2 open now" in await settled(app, pilot)
        assert box.desk.done == []
        await pilot.press("x")
        assert "127.0.0.1:8001 ended: no open connections cut" in await settled(app, pilot)
        assert box.desk.done == ["stop 127.0.0.1:8001"]
        await pilot.press("x")
        assert "no tap to this server runs" in await settled(app, pilot)


async def test_the_agents_lines_are_chosen() -> None:
    async with shown(boxes.box(), 120, 50) as (app, pilot, _):
        await opened(pilot, app)
        await pilot.press("down")
        screen = await settled(app, pilot)
        assert "Point opencode at it" in screen and '"baseURL": "http://127.0.0.1:8001/v1"' in screen
        await pilot.press("up", "up")
        assert "Point curl at it" in await settled(app, pilot)


async def test_connections_that_cannot_be_counted_are_not_known_and_are_counted_again() -> None:
    async with shown(w=120, h=36) as (app, pilot, box):
        box.desk.here = [tap()]
        count = box.desk.rows

        async def fails() -> tuple[TapRow, ...]:
            raise RuntimeError

        box.desk.rows = fails  # type: ignore[method-assign]
        screen = await opened(pilot, app)
        assert f"process {tap().pid}" in screen and "open now" not in screen
        box.desk.rows = count  # type: ignore[method-assign]
        await until(pilot, lambda: "2 open now" in text(app))


async def test_a_tap_that_runs_for_days_says_since_which() -> None:
    async with shown(w=120, h=36) as (app, pilot, box):
        box.desk.here = [changed(tap(), since="2026-11-25T12:00:00Z")]
        began = time.localtime(datetime(2026, 11, 25, 12, tzinfo=UTC).timestamp())
        assert time.strftime("since %d %b %H:%M, 2 open now", began) in await opened(pilot, app)


async def test_what_goes_past_is_told_on_the_taps_page() -> None:
    async with shown(boxes.captured(share=0.4, passed_by_tokens=300_000), 120, 36) as (app, pilot, box):
        box.desk.here = [tap()]
        screen = re.sub(r"\s+", " ", await opened(pilot, app))
        assert "Tap sees 40 % of the prompt tokens; the rest goes past it." in screen


def test_a_sequence_of_turns_is_told_in_the_right_order() -> None:
    """The box of these tests is as a collector makes it: in flight first, then newest first."""
    rows: Sequence[Turn] = boxes.captured_turns()
    ends = [turn.ended_at or turn.started_at or 0 for turn in rows if turn.state != "in_flight"]
    assert ends == sorted(ends, reverse=True)


@pytest.mark.parametrize(
    ("known", "mark", "longest", "shorter"),
    [
        ({"waited": True, "relation": "first"}, "·", "first turn, 16.0k new", "16.0k new"),
        ({"relation": "first"}, "·", "first turn, 16.0k new", "16.0k new"),
        ({"relation": "first", "verdict": "no_fault"}, "·", "first turn, 16.0k new", "16.0k new"),
        ({"relation": "first", "verdict": "new_tokens"}, "·", "first turn, 16.0k new", "16.0k new"),
        ({"relation": "first", "ttft_s": None}, "·", "first turn, 16.0k new", "16.0k new"),
        ({"relation": "subagent", "verdict": "no_fault"}, "·", "new subagent, 16.0k new", "16.0k new"),
        ({"waited": True, "relation": "subagent"}, "·", "new subagent, 16.0k new", "16.0k new"),
        (
            {"waited": True, "relation": "next", "lost": True},
            "?",
            "16.0k of 16.0k read anew: prompt changed or cache lost",
            "16.0k anew",
        ),
        ({"waited": True, "relation": "next"}, "!", "16.0k of 16.0k read anew: why is not known", "16.0k anew"),
        (
            {"waited": True, "relation": "next", "lost": True, "read_s": 5.4, "queue_seen": True},
            "!",
            "queued ~5.6 s: others ran",
            "queued",
        ),
        ({"waited": True, "relation": "first", "queue_seen": True}, "!", "queued: others ran", "queued"),
        ({"waited": True, "relation": "first", "read_s": 0.2}, "!", "slow, why is not known", "slow"),
        ({"waited": True, "relation": "next", "lost": False, "read_s": 0.2}, "!", "slow, why is not known", "slow"),
        ({"relation": "next", "reread": True}, "?", "read 16.0k tokens anew", "16.0k anew"),
        (
            {"relation": "branch", "reread": True, "changed": ("system",)},
            "?",
            "read 16.0k tokens anew: another system prompt",
            "16.0k anew",
        ),
        (
            {"waited": True, "relation": "next", "changed": ("tools",)},
            "?",
            "16.0k of 16.0k read anew: other tools",
            "16.0k anew",
        ),
        (
            {"relation": "branch", "changed": ("system", "tools"), "verdict": "no_fault"},
            "·",
            "the same messages with another system prompt and other tools",
            "ok",
        ),
        (
            {"relation": "next", "reread": True, "finish_reason": "length"},
            "?",
            "read 16.0k tokens anew, cut at its length limit",
            "16.0k anew",
        ),
    ],
)
def test_a_row_says_whether_what_was_read_could_have_been_cached(
    known: dict[str, object], mark: str, longest: str, shorter: str
) -> None:
    base = Turn(1, 1.0, source="tap", ttft_s=11.0, prompt_tokens=15_980, cached_tokens=0, new_tokens=15_980)
    made = verdict(replace(base, **known), None)  # type: ignore[arg-type]
    assert (made[0], made[2][0], made[2][-1]) == (mark, longest, shorter)


@pytest.mark.parametrize(("relation", "word"), [("first", "first turn"), ("subagent", "new subagent")])
@given(st.integers(0, 3_000_000), st.integers(10, 40))
def test_the_word_for_a_beginning_is_the_same_at_every_width(relation: str, word: str, new: int, w: int) -> None:
    turn = Turn(1, 1.0, source="tap", relation=relation, prompt_tokens=new, cached_tokens=0, new_tokens=new)
    said = pick(verdict(turn, None)[2], w)
    assert said == word or said.startswith(f"{word}, ") or (w < len(word) and said == f"{tok(new)} new")


async def test_the_page_of_a_stream_without_usage_says_who_did_not_ask() -> None:
    async with page(detail(usage={}, source=Source.TAP, record=Record.COMPLETE, usage_asked=True)) as (app, _, _):
        assert "Its answer told no usage: the server sent none." in text(app)
    async with page(detail(usage={}, source=Source.TAP, record=Record.COMPLETE, usage_asked=False)) as (app, _, _):
        screen = text(app)
    assert "Its answer told no usage: its client did not set stream_options.include_usage." in screen
    assert "123,180 tokens, by the counters" in screen and "as usage says" not in screen


@pytest.mark.parametrize(("w", "h"), [(80, 24), (200, 50)])
async def test_an_open_page_of_a_turn_that_is_forgotten_says_so(w: int, h: int) -> None:
    held = Box(boxes.captured())
    app = KvtopApp(held, now=lambda: boxes.NOW)
    async with app.run_test(size=(w, h)) as pilot:
        await pilot.pause()
        app.dashboard.choose_turn(("captured", 812))
        await pilot.press("enter")
        await settled(app, pilot)
        server = held.now.servers[0]
        left = replace(server, turns=tuple(turn for turn in server.turns if turn.id != 812))
        held.say(replace(held.now, servers=(left,)))
        await until(pilot, lambda: "GONE" in text(app))
        rows = lines(app)
        said = " ".join(" ".join(rows[:2]).split())
        assert said == "GONE Turn 812 is not kept any more: it was forgotten, or newer ones took its place."
        assert "d diff" not in rows[-1] and "v bodies" not in rows[-1] and "n older" in rows[-1]
        await pilot.press("d", "v", "r", "c")
        assert app.screen.__class__.__name__ == "TurnScreen"
        held.say(replace(held.now, servers=(server,)))
        await until(pilot, lambda: "GONE" not in text(app))
        held.say(replace(held.now, servers=(left,)))
        await until(pilot, lambda: "GONE" in text(app))
        await pilot.press("n")
        await until(pilot, lambda: "GONE" not in text(app))
        await pilot.press("escape")
        assert app.screen is app.dashboard
