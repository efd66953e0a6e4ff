"""A list shows of a server that runs what it was started with, whatever its file says by now, and tells that."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from test_live_profiles import Looks

from kvtop.live.profile_asks import url_of, url_of_next
from kvtop.live.profile_view import ProfilesView
from kvtop.live.profiled import Profiled
from kvtop.live.profiles import Profiles
from kvtop.model.view import ServerView
from kvtop.profiles import differences, folder
from kvtop.profiles.launch import launch
from kvtop.profiles.profile import Profile
from kvtop.profiles.running import lock, record
from kvtop.profiles.running.record import Record, Setup, Who
from kvtop.profiles.running.setup import setup
from kvtop.profiles.standing import FILE_GONE, Standing, known, standing
from kvtop.readings import State, VllmProcess

GIB = 1 << 30
FILE = """about = "{about}"
gpus = [{gpus}]
[serve]
model = "/m/{model}"
port = {port}
args = ["--kv-offloading-size", "{tier}"]
[env.set]
VLLM_API_KEY = "{key}"
"""
SAID = {"about": "x", "gpus": '"0"', "model": "tiny", "port": 21001, "tier": 2, "key": "sk-one-1234567890abcdef"}


@pytest.fixture
def files(own_home: Path) -> Path:
    made = own_home / "config" / "profiles"
    made.mkdir(parents=True)
    return made


def write(files: Path, **changes: object) -> None:
    (files / "tier.toml").write_text(FILE.format(**SAID | changes))


def started(state: record.State = "running") -> Record:
    """Its record, as a start makes it of the file that is there."""
    (entry,) = folder.read_all()
    assert entry.profile is not None
    run = launch(entry.name, entry.profile)
    me = Who.of(os.getpid())
    made = Record(
        name="tier", file=str(entry.file), model="/m/tiny", port=run.port, setup=setup(entry.profile, run),
        state=state, started_at=100.0, ready_at=None if state == "starting" else 110.0, keeper=me, server=me,
    )  # fmt: skip
    record.write(made)
    return made


def row() -> Standing:
    (found,) = standing([known(entry) for entry in folder.read_all()], ())
    return found


def shows(one: Standing) -> tuple[object, ...]:
    facts = one.facts
    return facts.model, facts.port, facts.gpus, facts.tier_bytes


def test_what_runs_is_shown_and_not_what_its_file_says_by_now(files: Path) -> None:
    write(files)
    started()
    as_started = ("/m/tiny", 21001, ("0",), 2 * GIB)
    assert shows(row()) == as_started and row().changed is False
    write(files, about="told otherwise")
    assert row().changed is False, "what runs is the same"
    write(files, port=21005, gpus='"1"', model="other", tier=1)
    assert shows(row()) == as_started and row().changed is True
    assert (url_of(row()), url_of_next(row())) == ("http://127.0.0.1:21001", "http://127.0.0.1:21005")
    (files / "tier.toml").write_text('[serve]\nmodel = "x')
    assert shows(row()) == as_started and row().changed is None and "not TOML" in row().known.problem
    (files / "tier.toml").unlink()
    assert shows(row()) == as_started and row().known.problem == FILE_GONE


def test_what_is_stopped_is_what_its_file_says(files: Path) -> None:
    write(files)
    state = started()
    record.write(msgspec.structs.replace(state, state="stopped", ended_at=200.0, keeper=None, server=None))
    write(files, port=21005, tier=1)
    assert shows(row()) == ("/m/tiny", 21005, ("0",), GIB)
    assert url_of(row()) == url_of_next(row()) == "http://127.0.0.1:21005"


@pytest.mark.parametrize("state", ["starting", "running", "stopping", "stopped", "failed"])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("owed", [True, False])
def test_whose_keeper_is_gone_and_whose_after_stop_is_owed(
    files: Path, monkeypatch: pytest.MonkeyPatch, state: record.State, kept: bool, owed: bool
) -> None:
    write(files)
    assert not row().unkept and not row().owed, "never started"
    monkeypatch.setattr(lock, "held", lambda: True)  # by whoever stops it
    keeper = Who.of(os.getpid()) if kept else Who(2**22 + 1, "0")
    record.write(msgspec.structs.replace(started(state), keeper=keeper, after_owed=owed))
    found, live = row(), state in ("starting", "running", "stopping")
    assert found.state == state
    assert (found.unkept, found.owed) == (live and not kept, owed and not live)


def test_a_server_that_kvtop_did_not_start_has_no_keeper_to_miss(files: Path) -> None:
    write(files)
    record.write(
        msgspec.structs.replace(started(), state="failed", keeper=None, server=None, after_owed=True, ended_at=200.0)
    )
    words = ("vllm", "serve", "/m/tiny", "--port", "21001", "--kv-offloading-size", "2")
    server = VllmProcess(4242, "api", words, 21001)
    (found,) = standing([known(entry) for entry in folder.read_all()], (server,))
    assert (found.state, found.unkept, found.owed) == ("foreign", False, True)


def test_what_the_record_of_an_earlier_kvtop_lacks_is_not_known(files: Path) -> None:
    write(files)
    state = msgspec.structs.replace(started("starting"), setup=Setup())
    record.write(state)
    assert shows(row()) == ("/m/tiny", None, (), None) and row().changed is None
    record.write(msgspec.structs.replace(state, state="running", ready_at=110.0))
    assert shows(row()) == ("/m/tiny", 21001, (), None), "it has answered there"


def test_a_profile_has_another_fingerprint_where_it_runs_something_else(files: Path) -> None:
    def fingerprint(**changes: object) -> str:
        write(files, **changes)
        return row().known.fingerprint

    first = fingerprint()
    assert first == fingerprint(about="y")
    assert first == fingerprint(key="sk-two-1234567890abcdef"), "a secret goes into nothing that is kept"
    assert (
        len({first, *(fingerprint(**{key: value}) for key, value in (("port", 1), ("tier", 3), ("gpus", '"2"')))}) == 4
    )


def test_a_base_and_the_file_of_config_count_too(files: Path) -> None:
    (files / "x.yaml").write_text("max-model-len: 4096\n")
    (files / "base.toml").write_text(f'[serve]\nmodel = "m"\nconfig = "{files}/x.yaml"\n')
    (files / "tier.toml").write_text('extends = "base"\n')

    def fingerprint() -> str:
        return {one.name: known(one).fingerprint for one in folder.read_all()}["tier"]

    first = fingerprint()
    (files / "x.yaml").write_text("max-model-len: 8192\n")
    second = fingerprint()
    (files / "base.toml").write_text(f'[serve]\nmodel = "n"\nconfig = "{files}/x.yaml"\n')
    assert len({first, second, fingerprint()}) == 3


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [("1 a", "1 a", False), ("1 a", "1 b", True), ("1 a", "2 b", None), ("", "1 a", None), ("1 a", "", None)],
)
def test_fingerprints_of_two_versions_of_kvtop_tell_nothing(was: str, now: str, said: bool | None) -> None:
    assert differences.changed(was, now) is said


def test_a_server_is_its_profiles_where_it_was_started_and_who_ended_it_there_is_told(files: Path) -> None:
    write(files)
    state = started()
    write(files, port=21005)
    profiles = Profiles(Looks, lambda name: None, None, None)  # type: ignore[arg-type, return-value]
    profiled = Profiled(profiles, tuple, lambda url: None, lambda one: None)
    here, there = (ServerView(f"http://127.0.0.1:{port}", "", State.REFUSED) for port in (21001, 21005))
    profiles.view = ProfilesView(1.0, rows=(row(),))
    assert (profiled.marked(here, 1.0).profile, profiled.marked(there, 1.0).profile) == ("tier", "")
    record.write(
        msgspec.structs.replace(
            state,
            state="stopped",
            ended_at=200.0,
            keeper=None,
            server=None,
            ask=record.Ask("kvtop profile stop", 190.0),
        )
    )
    profiles.view = replace(profiles.view, rows=(row(),))
    assert profiled.marked(here, 1.0).ended_by == "kvtop profile stop" and not profiled.marked(there, 1.0).ended_by


@pytest.mark.parametrize(
    ("more", "gpus"),
    [
        ({}, ()),
        ({"gpus": ["2"], "env": {"set": {"CUDA_VISIBLE_DEVICES": "0"}}}, ("0",)),
        ({"env": {"set": {"CUDA_VISIBLE_DEVICES": "0,GPU-1a2b"}}}, ("0", "GPU-1a2b")),
        ({"serve": {"args": ["--device-ids", "0,1"]}, "env": {"set": {"CUDA_VISIBLE_DEVICES": "3,5"}}}, ("3", "5")),
        (
            {
                "serve": {"args": ["--device-ids", "1"]},
                "runner": "docker",
                "docker": {"image": "i"},
                "gpus": ["2", "3"],
            },
            ("3",),
        ),
        ({"env": {"set": {"CUDA_VISIBLE_DEVICES": "none"}}}, ()),
    ],
)
def test_cards_are_shown_wherever_they_are_named(more: dict[str, object], gpus: tuple[str, ...]) -> None:
    made = msgspec.convert(more, Profile)
    assert setup(made, launch("p", made)).gpus == gpus
