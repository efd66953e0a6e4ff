"""`kvtop doctor`: evidence -> checks, and how they are printed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from kvtop.capture.control.running import Mapped, Running
from kvtop.capture.tap.ended import Missed
from kvtop.cli.checks import Check, checks
from kvtop.cli.doctor import COLUMNS, named, report
from kvtop.cli.evidence import Asked, Evidence, Terminal, gather, problems
from kvtop.cli.main import main
from kvtop.cli.target import Target, all_named
from kvtop.config import Loaded, Server, Settings, load
from kvtop.errors import Problem, UsageError
from kvtop.model import metrics
from kvtop.readings import (
    Discovery,
    Found,
    Gpu,
    GpuReading,
    HostReading,
    Model,
    OffloadFile,
    ServerFacts,
    SourceDown,
    State,
    VllmProcess,
)
from kvtop.sources.exposition import Reader

URL = "http://127.0.0.1:8000"
EMPTY = Evidence(
    terminal=Terminal(True, 120, 36, {"TERM": "xterm-256color", "COLORTERM": "truecolor"}),
    config=Loaded(Settings(), Path("/no/config.toml")),
    themes=5,
    problems=(),
    host=HostReading(memory_total_bytes=8 << 30, shm_total_bytes=4 << 30, shm_used_bytes=0, processes_seen=412),
    gpu=GpuReading(error="no NVIDIA driver here: libnvidia-ml.so.1 not found"),
    discovery=Discovery(looked=(("processes", "412 seen, 0 are vLLM"),)),
)


@pytest.fixture
def up(captures: Callable[[str], Path]) -> Evidence:
    """A 0.32 server without connector whose routes answered as vLLM's do."""
    text = min(captures("vllm-0.32.0").glob("*.txt")).read_text()
    return replace(
        EMPTY,
        asked=(
            Asked(
                Target(URL, URL, lambda: None, "command line"),
                Reader(metrics.wanted).read(text, 1.0),
                ServerFacts("0.32.0", (Model("tiny"),), None),
                {
                    "/tokenize": (405, b""),
                    "/v1/chat/completions/render": (405, b""),
                    "/kv_event_sources": (200, b"{}"),
                    "/is_sleeping": (404, b""),
                },
            ),
        ),
    )


def answering(seen: Evidence, **changes: object) -> Evidence:
    """The same with another answer of its server."""
    return replace(seen, asked=(replace(seen.asked[0], **changes),))


def rows(seen: Evidence) -> dict[str, Check]:
    made = list(checks(seen))
    assert len({row.what for row in made}) == len(made)
    return {row.what: row for row in made}


def test_nothing_here() -> None:
    made = rows(EMPTY)
    assert made["server"].ok is False
    assert "412 seen" in made["server"].because
    assert made["NVML"].ok is False
    assert "cached share" not in made


def test_a_server_that_is_up(up: Evidence) -> None:
    made = rows(up)
    assert made["server"].because == f"{URL} (command line) up, vLLM 0.32.0, tiny"
    told = {name: made[name].ok for name in made}
    assert told["cached share"] and told["share by tier"] and told["single turns"] and told["/tokenize"]
    assert told["offload"] is False and "--kv-offloading-size" in made["offload"].fix
    assert told["block lifetimes"] is False and "--kv-cache-metrics" in made["block lifetimes"].fix
    assert told["KV events"] is False and "--kv-events-config" in made["KV events"].fix
    assert told["dev mode"] is False and "VLLM_SERVER_DEV_MODE=1" in made["dev mode"].fix
    assert told["sleep"] is True
    assert told["render route"] is None and "--enable-scale-out" in made["render route"].fix


def test_details_in_usage_are_unknown_not_absent(up: Evidence) -> None:
    row = rows(up)["cached_tokens in usage"]
    assert (row.ok, row.fix) == (None, "--enable-prompt-tokens-details")


def test_a_command_line_that_can_be_seen_tells_more(up: Evidence) -> None:
    command = ("vllm", "serve", "x", "--enable-prompt-tokens-details", "--enable-scale-out")
    process = VllmProcess(7, "api", command, port=8000, ports=(8000,))
    made = rows(replace(up, host=replace(up.host, processes=(process,))))
    assert made["cached_tokens in usage"].ok is True
    assert made["render route"].ok is True


def test_the_render_route_of_older_versions_is_open(up: Evidence) -> None:
    assert rows(answering(up, facts=ServerFacts("0.28.0")))["render route"].ok is True
    gone = {**up.asked[0].probes, "/v1/chat/completions/render": (404, b"")}
    assert rows(answering(up, probes=gone))["render route"].ok is False


@pytest.mark.parametrize(
    ("capture", "what"), [("vllm-0.32.0-offload", "offload"), ("vllm-0.28.0", "cached share"), ("vllm-0.28.0", "sleep")]
)
def test_what_other_captures_have(up: Evidence, captures: Callable[[str], Path], capture: str, what: str) -> None:
    text = max(captures(capture).glob("*.txt")).read_text()
    assert rows(answering(up, scrape=Reader(metrics.wanted).read(text, 1.0)))[what].ok is True


def test_by_tier_is_missing_below_0_32(up: Evidence, captures: Callable[[str], Path]) -> None:
    text = max(captures("vllm-0.28.0").glob("*.txt")).read_text()
    row = rows(answering(up, scrape=Reader(metrics.wanted).read(text, 1.0)))["share by tier"]
    assert (row.ok, row.fix) == (False, "vLLM 0.32 or later")


@pytest.mark.parametrize("state", [state for state in State if not state.good])
def test_every_bad_state_says_what_to_do(up: Evidence, state: State) -> None:
    row = rows(answering(up, scrape=SourceDown(state, "the cause", 1.0)))["server"]
    assert row.ok is False
    assert "the cause" in row.because
    assert row.fix


def test_each_of_several_servers_is_checked(up: Evidence) -> None:
    other = "http://127.0.0.1:8001"
    down = SourceDown(State.REFUSED, "nothing listens", 1.0)
    two = replace(up, asked=(*up.asked, Asked(Target(other, other, lambda: None, "config.toml"), down, down)))
    made = list(checks(two))
    machine = {c.what for c in checks(EMPTY)} - {"server"}
    assert [replace(c, about="") for c in made if c.about == URL] == [c for c in checks(up) if c.what not in machine]
    assert [(c.what, c.ok, c.because) for c in made if c.about == other] == [
        ("server", False, f"{other} (config.toml) refused: nothing listens")
    ]
    assert {c.what for c in made if not c.about} == machine
    names = [named(c) for c in made]
    assert len(set(names)) == len(names) and f"cached share, {URL}" in names
    lines = report(made)
    heads = [i for i, line in enumerate(lines) if re.match(r" . server +http", line)]
    assert len(heads) == 2 and all(lines[i - 1] == "" for i in heads)
    assert lines.count("") == 3, "the machine stands apart from the last server"


def test_all_servers_of_the_config_are_asked_once_else_those_of_the_command_line(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_TWO", "sk-two")
    have = Settings(server=[Server("8001"), Server("x:y"), Server("http://127.0.0.1:8002", api_key_env="KEY_OF_TWO"),
                            Server("127.0.0.1:8001")])  # fmt: skip
    assert [t.shown for t in all_named([], have)] == ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    typed = all_named(["8002", "8003", "127.0.0.1:8002", "localhost:8002"], have)
    assert [(t.shown, t.key()) for t in typed] == [
        ("http://127.0.0.1:8002", "sk-two"),
        ("http://127.0.0.1:8003", None),
    ]
    with pytest.raises(UsageError):
        all_named(["8002", "x:y"], have)


async def test_the_evidence_has_an_answer_of_each_server(own_home: Path) -> None:
    seen = await gather(["http://127.0.0.1:9", "http://127.0.0.1:7"])
    assert [one.target.shown for one in seen.asked] == ["http://127.0.0.1:9", "http://127.0.0.1:7"]
    assert all(isinstance(one.scrape, SourceDown) and one.scrape.state is State.REFUSED for one in seen.asked)


async def test_each_server_that_was_found_is_asked(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        Found("http://127.0.0.1:9", "process 5, not listening yet", 5),
        Found("http://127.0.0.1:7", "process 6", 6),
    )

    class Finder:
        def __init__(self, configured: int) -> None: ...

        async def read(self, host: HostReading | None) -> Discovery:
            return Discovery(rows)

    monkeypatch.setattr("kvtop.cli.evidence.DiscoverySource", Finder)
    seen = await gather([])
    assert [(one.target.shown, one.target.why) for one in seen.asked] == [
        ("http://127.0.0.1:7", "process 6"),
        ("http://127.0.0.1:9", "process 5, not listening yet"),
    ]
    assert [check.about for check in checks(seen) if check.what == "server"] == [row.url for row in rows[::-1]]


def test_a_hidden_model_list_asks_for_the_key(up: Evidence) -> None:
    facts = ServerFacts("0.32.0", problems=("/v1/models: HTTP 401: wants an API key (...)",))
    assert "name api_key_env" in rows(answering(up, facts=facts))["server"].fix


def test_a_key_that_is_refused_is_to_be_mended_not_named(up: Evidence) -> None:
    cause = "HTTP 401: the configured API key is refused"
    facts = ServerFacts("0.32.0", problems=(f"/v1/models: {cause}",))
    shut = {**up.asked[0].probes, "/v1/chat/completions/render": (401, b"")}
    made = rows(answering(up, facts=facts, probes=shut))
    assert made["server"].ok is False, "it is up, and what is configured is wrong"
    assert made["render route"].because == "refuses the configured API key"
    for check in (made["server"], made["render route"]):
        assert check.fix == "mend the key that api_key_env or api_key_file names: the server does not take it"
    down = SourceDown(State.UNAUTHORIZED, cause, 1.0, 401)
    assert "mend the key" in rows(answering(up, scrape=down, facts=down))["server"].fix


def test_the_tap() -> None:
    assert rows(EMPTY)["tap"] == Check(
        "tap",
        False,
        "none runs: who asked, and what, is not known",
        "once a server answers: kvtop tap --upstream URL --detach",
    )
    here = Target("http://127.0.0.1:9000", "http://127.0.0.1:9000", lambda: None, "process 7")
    down = SourceDown(State.REFUSED, "nothing listens there", 1.0)
    assert "9000" not in rows(replace(EMPTY, asked=(Asked(here, down, down),)))["tap"].fix
    shut = SourceDown(State.UNAUTHORIZED, "HTTP 401", 1.0, 401)
    answers = (Asked(here, down, down), Asked(replace(here, shown=URL), shut, ServerFacts()))
    fix = next(row.fix for row in checks(replace(EMPTY, asked=answers)) if row.what == "tap")
    assert fix == f"kvtop tap --upstream {URL} --detach, then kvtop tap --how AGENT"
    runs = Running(
        name="127.0.0.1:8001",
        pid=77,
        birth="x/1",
        since="2026-01-01T00:00:00Z",
        mappings=[Mapped("127.0.0.1:8001", "http://127.0.0.1:8000")],
        drain_s=30.0,
    )
    made = rows(replace(EMPTY, taps=(runs,)))["tap"]
    assert made == Check("tap", True, "http://127.0.0.1:8001 -> http://127.0.0.1:8000 (process 77)")
    whole = msgspec.structs.replace(runs, missed=Missed())
    assert "turns recorded" not in rows(replace(EMPTY, taps=(runs, whole)))
    waits = Missed(unwritten="turns.db cannot be written or read: full", unwritten_since=61.0)
    made = rows(replace(EMPTY, taps=(msgspec.structs.replace(runs, missed=waits),)))["turns written"]
    assert made.ok is False and made.because == (
        "tap 127.0.0.1:8001 (process 77): turns wait since 1970-01-01T00:01:01Z: "
        "the store cannot be written: turns.db cannot be written or read: full"
    )
    some = msgspec.structs.replace(runs, missed=Missed(connections=1, bytes=2000, first_at=0.0, last_at=61.0))
    made = rows(replace(EMPTY, taps=(some,)))["turns recorded"]
    assert made.ok is False and made.because == (
        "tap 127.0.0.1:8001 (process 77): not recorded: 2,000 bytes, of 1 connection, "
        "from 1970-01-01T00:00:00Z to 1970-01-01T00:01:01Z"
    )


def test_nothing_raw_is_printed() -> None:
    odd = replace(EMPTY, discovery=Discovery(looked=(("x\x1b[2J", "\x9b31m\x07 \udcff"),)))
    assert all(line.isprintable() for line in report(checks(odd)))


def test_another_users_left_over_comes_without_a_command() -> None:
    files = (OffloadFile("/dev/shm/vllm_offload_a.mmap", 1 << 30, stale=True),)
    made = rows(replace(EMPTY, host=replace(EMPTY.host, offload_files=files)))
    assert not made["left-over tier files"].fix.startswith("rm ")


def test_left_over_files_come_with_the_exact_command() -> None:
    files = (
        OffloadFile(
            "/dev/shm/vllm_offload_a b.mmap", 48 << 30, stale=True, shell_path="'/dev/shm/vllm_offload_a b.mmap'"
        ),
        OffloadFile("/dev/shm/vllm_offload_c.mmap", 1 << 30, mapped_by=(1, 2)),
    )
    made = rows(replace(EMPTY, host=replace(EMPTY.host, offload_files=files)))
    assert made["left-over tier files"].fix == "rm '/dev/shm/vllm_offload_a b.mmap'"
    assert "48.0 GiB" in made["left-over tier files"].because
    assert made["tier file"].ok is True


def test_maps_of_another_user() -> None:
    assert rows(EMPTY)["processes"].because == "412 seen, 0 vLLM servers among them"
    assert rows(replace(EMPTY, host=replace(EMPTY.host, processes_seen=None)))["processes"].ok is False
    row = rows(replace(EMPTY, host=replace(EMPTY.host, unreadable_maps=(41, 42))))["processes"]
    assert row.ok is False
    assert "41, 42" in row.because


@pytest.mark.parametrize(
    ("env", "size", "ok", "words"),
    [
        ({"TERM": "dumb"}, (80, 24), False, "draws no screen"),
        ({"TERM": "tmux-256color", "TMUX": "/tmp/x"}, (80, 24), True, "in tmux, 256 colours"),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, (30, 10), False, "too small"),
        ({"TERM": "xterm", "COLORTERM": "truecolor", "NO_COLOR": "1"}, (80, 24), True, "grey"),
    ],
)
def test_terminals(env: dict[str, str], size: tuple[int, int], ok: bool, words: str) -> None:
    row = rows(replace(EMPTY, terminal=Terminal(True, *size, env)))["terminal"]
    assert row.ok is ok
    assert words in row.because


def test_each_problem_has_its_row_and_its_fix() -> None:
    wrong = (
        Problem("config", "[poll] metrics_s is 0: expected more", "look", Path("/c.toml"), 3),
        Problem("keys", "[keys] window: 'h' is history already", "choose", Path("/c.toml")),
        Problem("theme", "theme 'x' is not there", "choose"),
    )
    made = rows(replace(EMPTY, problems=wrong))
    assert [made[what].ok for what in ("config", "keys", "themes")] == [False] * 3
    assert (made["config"].because, made["config"].fix) == ("/c.toml, line 3: " + wrong[0].what, "look")
    well = rows(EMPTY)
    assert (well["config"].ok, well["themes"].because) == (True, "5 can be chosen")
    assert "the defaults are used" not in well["config"].because
    assert rows(replace(EMPTY, themes=0))["themes"].ok is False


def test_doctor_says_all_that_the_dashboard_says(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    folder = own_home / "config"
    (folder / "themes").mkdir(parents=True)
    (folder / "themes" / "mine.toml").write_text("name = 3")
    (folder / "config.toml").write_text(
        'theme = "nope"\nwindw = "1m"\nexport_dir = "/no/such/folder"\n[keys]\nwindow = "h"\n'
        '[[server]]\nurl = "ftp://x"\n[[server]]\nurl = "h:1"\napi_key_env = "NO_SUCH_KEY"\n'
    )
    count, found = problems(load())
    assert count == 5
    assert [problem.about for problem in found] == ["config", "keys", "server", "server", "config", "theme", "theme"]
    assert all(problem.fix and "\n" not in str(problem) for problem in found)
    assert [problem.line for problem in found if problem.file == folder / "config.toml"] == [2, 5, 7, 10, 3, 1]


def test_the_line_is_that_of_the_server_that_is_meant(own_home: Path) -> None:
    """One without a URL is not among those that are judged."""
    (own_home / "config").mkdir(parents=True)
    (own_home / "config" / "config.toml").write_text(
        '[[server]]\nname = "x"\n[[server]]\nurl = 3\n[[server]]\nurl = "h:1"\n[[server]]\nurl = "ftp://x"\n'
    )
    _, found = problems(load())
    assert [problem.line for problem in found] == [1, 4, 8]


def test_cards() -> None:
    good = GpuReading((Gpu(0, "RTX 3090"), Gpu(1, "RTX 3090")), driver="580")
    assert rows(replace(EMPTY, gpu=good))["NVML"].because == "2 x RTX 3090, driver 580"
    lost = GpuReading((Gpu(0, "RTX 3090"), Gpu(1, "RTX 3090", lost="GPU is lost")), driver="580")
    assert rows(replace(EMPTY, gpu=lost))["NVML"].ok is False


def test_the_report_fits_80_columns_but_never_breaks_a_command(up: Evidence) -> None:
    long = Check("left-over tier files", False, "words " * 40, "rm " + "/dev/shm/vllm_offload_x.mmap " * 5)
    lines = report([*checks(up), long])
    assert all(len(line) <= COLUMNS for line in lines if " rm " not in line)
    assert sum(line.strip() == long.fix.strip() for line in lines) == 1


def test_the_door(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def looked(_: list[str]) -> Evidence:
        return replace(EMPTY, config=Loaded(Settings(server=[Server(URL)]), Path("/c.toml")))

    monkeypatch.setattr("kvtop.cli.evidence.gather", looked)
    assert main(["doctor", "--json"]) == 0
    sees = json.loads(capsys.readouterr().out)["sees"]
    assert all(set(row) == {"what", "ok", "because", "fix"} for row in sees)
    assert {row["ok"] for row in sees} <= {True, False, None}
    assert main(["doctor"]) == 0
    assert "NVML" in capsys.readouterr().out
    assert main(["doctor", "--what"]) == 2
