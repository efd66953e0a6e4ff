"""What `kvtop doctor` says of profiles, and which ones are named where no server runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from kvtop.cli import profile_checks
from kvtop.cli.main import main
from kvtop.cli.profile_checks import Row, rows
from kvtop.profiles.running import record
from kvtop.profiles.running.record import Record, TierFile, Who
from kvtop.readings import HostReading, OffloadFile
from kvtop.sources import discovery

HOST = HostReading(memory_total_bytes=8 << 30, shm_total_bytes=4 << 30, shm_used_bytes=0, processes_seen=1)
GONE = Who(2**22 + 1, "0")


@pytest.fixture
def where(own_home: Path) -> Path:
    made = own_home / "config" / "profiles"
    made.mkdir(parents=True)
    (made / "good.toml").write_text('[serve]\nmodel = "m"\n')
    (made / "bad.toml").write_text("[serve]\nport = 0\n")
    return made


def told(host: HostReading = HOST) -> dict[str, Row]:
    return {row.what: row for row in rows(profile_checks.look(), host)}


def test_without_a_folder(own_home: Path) -> None:
    (row,) = told().values()
    assert row == Row(
        "profiles",
        True,
        f"none in {own_home}/config/profiles",
        "kvtop profile import makes one of what runs your server",
    )


def test_the_folder_and_what_cannot_be_used_in_it(where: Path) -> None:
    found = told()
    assert set(found) == {"profiles", "profile"}
    assert found["profiles"] == Row("profiles", True, f"{where}, 1 of 2 can be used")
    assert not found["profile"].ok and f"{where}/bad.toml, line 2: serve.port is 0" in found["profile"].because


def here() -> Who:
    who = Who.of(os.getpid())
    assert who is not None
    return who


@pytest.mark.parametrize(
    ("changes", "what", "says"),
    [
        (lambda: {"keeper": here(), "server": here()}, None, ""),
        (lambda: {"keeper": GONE, "server": here()}, "profile's keeper", "good is running and its keeper is gone"),
        (lambda: {"keeper": here(), "server": here(), "sidecars": [here()]}, None, ""),
        (
            lambda: {"keeper": here(), "server": here(), "sidecars": [here(), GONE]},
            "profile's sidecars",
            "good is running and 1 of 2 sidecars has ended",
        ),
        (lambda: {"keeper": here(), "state": "stopping", "sidecars": [GONE]}, None, ""),
        (lambda: {"keeper": GONE, "server": GONE}, "profile's record", "neither keeper nor server is there"),
        (
            lambda: {"state": "starting", "keeper": GONE, "step": here()},
            "profile's keeper",
            "good is starting and its keeper is gone: nobody goes on with what it is at",
        ),
        # whether a container lives is not known without its tool
        (lambda: {"keeper": GONE, "server": GONE, "container": "a" * 12}, None, ""),
        (lambda: {"state": "failed", "after_owed": True}, "profile's after_stop", "after_stop of good was not run"),
        (lambda: {"state": "stopped"}, None, ""),
        (
            lambda: {"state": "failed", "keeper": GONE, "server": GONE, "sidecars": [GONE, here()]},
            "profile's processes",
            "of good, which is failed: 1 outlived its server and its keeper: PID",
        ),
        (
            lambda: {"name": "old", "state": "stopped"},
            "profile's record",
            "of old, whose profile is not there any more",
        ),
    ],
)
def test_records(where: Path, changes: Callable[[], dict[str, object]], what: str | None, says: str) -> None:
    made = msgspec.structs.replace(Record(name="good", state="running"), **changes())
    record.write(made)
    before = record.path_of(made.name).read_bytes()
    found = {name: row for name, row in told().items() if name not in ("profiles", "profile")}
    assert list(found) == ([what] if what else [])
    if what:
        assert not found[what].ok and says.replace("PID", str(os.getpid())) in found[what].because and found[what].fix
    assert record.path_of(made.name).read_bytes() == before  # doctor changes nothing


def test_an_after_stop_that_is_owed_is_offered(where: Path) -> None:
    record.write(Record(name="good", state="failed", after_owed=True))
    assert told()["profile's after_stop"].fix == "kvtop profile stop good offers it"


@pytest.mark.parametrize("made", ["", '{"name": "good", "sta', "[]", None])
def test_a_record_that_cannot_be_read(where: Path, made: str | None) -> None:
    record.write(Record(name="good", state="running"))
    file = record.path_of("good")
    file.unlink()
    file.mkdir() if made is None else file.write_text(made)
    row = told()["profile's record"]
    assert (
        not row.ok
        and f"{file} cannot be read" in row.because
        and row.fix.startswith(f"rm {file}" if made is not None else f"rm -r {file}")
    )


def test_tier_files_that_a_server_left(where: Path) -> None:
    file = OffloadFile("/dev/shm/vllm_offload_x.mmap", 3 << 30, (), True, shell_path="/dev/shm/vllm_offload_x.mmap")
    record.write(Record(name="good", state="stopped", tier_files=[TierFile(file.path, 7)]))
    row = told(replace(HOST, offload_files=(file,)))["profile's tier files"]
    assert row.because == "good left 1 in /dev/shm, 3.0 GiB: /dev/shm/vllm_offload_x.mmap"
    assert row.fix == "rm /dev/shm/vllm_offload_x.mmap"
    assert "profile's tier files" not in told(replace(HOST, offload_files=(replace(file, stale=False),)))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a"], "kvtop profile start a starts one"),
        (["a", "b"], "kvtop profile start a (or b) starts one"),
        (list("abcdefg"), "kvtop profile start a (or b, c, d, e, …) starts one"),
    ],
)
def test_what_can_be_started(names: list[str], words: str) -> None:
    assert profile_checks.startable(names) == words


def test_where_no_server_is_found_the_profiles_are_named(
    where: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def nothing(self: object, host: object) -> discovery.Discovery:
        return discovery.Discovery(looked=(("processes", "none"),))

    monkeypatch.setattr(discovery.DiscoverySource, "read", nothing)
    assert main(["snapshot", "--json"]) == 1
    said = capsys.readouterr().err
    assert "no vLLM server found" in said and "; kvtop profile start good starts one" in said
