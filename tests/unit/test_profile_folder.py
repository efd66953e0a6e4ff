"""The folder of profiles: what a broken file says and blocks, what extends what, and where each value came from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvtop.errors import UsageError
from kvtop.profiles import folder
from kvtop.profiles.folder import MAX_BASES, MAX_BYTES, Entry


def write(where: Path, **files: str) -> None:
    for name, text in files.items():
        (where / f"{name}.toml").write_text(text, encoding="utf-8")


def problem(where: Path, name: str = "p") -> str:
    entry = folder.find(name, where)
    assert entry.profile is None and entry.problem is not None and entry.problem.fix
    with pytest.raises(UsageError) as refused:
        entry.usable()
    assert refused.value.what == str(entry.problem)
    return entry.problem.short


@pytest.mark.parametrize(
    ("text", "said", "key"),
    [
        ("[serve]\nport = 'x'", 'p.toml, line 2: serve.port is "x": expected a port from 1 to 65535', "serve.port"),
        ("[serve]\nport = 0", "p.toml, line 2: serve.port is 0: expected a port from 1 to 65535", "serve.port"),
        (
            "\n[serve]\n\nargs = '--a'",
            'p.toml, line 4: serve.args is "--a": expected a list of words: ["vllm", "serve"]',
            "serve.args",
        ),
        ("gpus = [0, 1]", 'p.toml, line 1: gpus has 0 in it: expected a list of texts in quotes: ["a", "b"]', "gpus"),
        (
            "runner = 'podman'",
            'p.toml, line 1: runner is "podman": expected one of venv, docker, compose, systemd, attach',
            "runner",
        ),
        ("serve = 3", "p.toml, line 1: serve is 3: expected a table [serve]", "serve"),
        ("sidecar = 3", "p.toml, line 1: sidecar is 3: expected tables [[sidecar]]", "sidecar"),
        (
            "[[sidecar]]\nname = 'a'\ncommand = 'b'\n[[sidecar]]\nname = 'c'",
            "p.toml, line 4: sidecar.command is missing: expected a command: a text for the shell, or a list of words",
            "sidecar.command",
        ),
        (
            "[serve.json]\nkv-transfer-config = '{}'",
            'p.toml, line 2: serve.json.kv-transfer-config is "{}": expected a table [serve.json.kv-transfer-config]',
            "serve.json.kv-transfer-config",
        ),
        (
            "[serve.json.a]\nb = nan",
            "p.toml, line 2: serve.json.a.b is nan: expected what JSON can hold: a text, a finite number, true, false, "
            "lists, tables",
            "serve.json.a.b",
        ),
        (
            "[env.set]\nOMP_NUM_THREADS = 8",
            "p.toml, line 2: env.set.OMP_NUM_THREADS is 8: expected a text in quotes",
            "env.set.OMP_NUM_THREADS",
        ),
        (
            "[env.set]\nA = '1'\n[env]\nunset = ['A']",
            "p.toml, line 4: env.unset A is in env.set too: expected it in one of the tables of [env]",
            "env.unset",
        ),
        (
            "[env.set]\n'A-B' = '1'",
            'p.toml, line 2: env.set.A-B "A-B" is no name of a variable: expected letters, digits and _, '
            "no digit first",
            "env.set.A-B",
        ),
        (
            "[env.from_file]\nA = 'key'",
            'p.toml, line 2: env.from_file.A is "key": expected a whole path, or one from ~/',
            "env.from_file.A",
        ),
        (
            "[start]\ntimeout_s = 0",
            "p.toml, line 2: start.timeout_s is 0: expected more than 0, at most 86400 (seconds)",
            "start.timeout_s",
        ),
        (
            "[systemd]\nuser = 'yes'",
            'p.toml, line 2: systemd.user is "yes": expected true or false',
            "systemd.user",
        ),
        (
            'about = "a\\u0000b"',
            'p.toml, line 1: about is "a\\x00b": expected a text without the character NUL',
            "about",
        ),
    ],
)
def test_what_is_wrong_is_said_with_line_key_and_what_was_expected(
    tmp_path: Path, text: str, said: str, key: str
) -> None:
    write(tmp_path, p=text)
    assert problem(tmp_path) == said
    found = folder.find("p", tmp_path).problem
    assert found is not None and found.key == key


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("model = 'x'", "p.toml, line 1: model is no key here: it belongs to [serve]: expected one of about, "),
        (
            "[serve]\nmodle = 'x'",
            "p.toml, line 2: serve.modle is no key here (did you mean 'model'?): expected one of ",
        ),
        ("[serve]\nextends = 'x'", "p.toml, line 2: serve.extends is no key here: it belongs to the top, before"),
        ("[env]\nA = '1'", "p.toml, line 2: env.A is no key here: expected one of set, unset, from_file, from_env"),
    ],
)
def test_a_key_that_is_none_names_the_one_that_was_meant(tmp_path: Path, text: str, start: str) -> None:
    write(tmp_path, p=text)
    assert problem(tmp_path).startswith(start)


def test_a_secret_in_the_wrong_place_is_not_said(tmp_path: Path) -> None:
    write(tmp_path, p="[serve]\nport = 'sk-madeup-madeup-madeup'")
    assert "madeup" not in problem(tmp_path)


def test_a_broken_file_blocks_nothing_but_itself(tmp_path: Path) -> None:
    write(tmp_path, a="about = 'a'", b="about = = 3", c="extends = 'b'", d="extends = 'a'\ngpus = ['1']")
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "link.toml").symlink_to("nowhere")
    (tmp_path / "big.toml").write_text("#" * (MAX_BYTES + 1))
    (tmp_path / "bad name.toml").write_text("")
    (tmp_path / "latin.toml").write_bytes(b"about = '\xe9'")
    (tmp_path / ".hidden.toml").write_text("x")
    entries = {entry.name: entry for entry in folder.read_all(tmp_path)}
    said = {name: entry.problem.short for name, entry in entries.items() if entry.problem}
    assert said == {
        "b": "b.toml, line 1: not TOML: invalid value",
        "bad name": "bad name.toml: 'bad name' is no name of a profile: expected letters, digits, - _ and ., "
        "at most 100",
        "big": "big.toml: larger than 256 kB",
        "c": "c.toml, line 1: extends b: b.toml, line 1: not TOML: invalid value",
        "folder": "folder.toml: cannot be read: Is a directory",
        "latin": "latin.toml: not UTF-8",
        "link": "link.toml: is not there any more",
        "pipe": "pipe.toml: cannot be read: not a regular file",
    }
    assert entries["d"].usable().gpus == ["1"]


def test_no_folder_holds_no_profile(tmp_path: Path) -> None:
    assert folder.read_all(tmp_path / "none") == []
    with pytest.raises(UsageError) as refused:
        folder.find("x", tmp_path / "none")
    assert refused.value.what == "there is no profile 'x'"


def test_a_name_that_is_none_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, qwen27="")
    for name, fix in (("qwen72", "did you mean 'qwen27'?"), ("zzz", "there are qwen27")):
        with pytest.raises(UsageError) as refused:
            folder.find(name, tmp_path)
        assert refused.value.fix == fix


def test_a_file_is_found_by_its_path(tmp_path: Path) -> None:
    write(tmp_path, a="about = 'x'")
    assert folder.find(str(tmp_path / "a.toml"), tmp_path / "elsewhere").usable().about == "x"


BASE = """\
about = "base"
gpus = ["0"]
[serve]
model = "m"
port = 8000
names = ["n"]
args = ["--max_model_len", "32768", "--enable-x"]
[serve.json.kv_transfer_config]
kv_role = "kv_both"
extra = {size = 1}
[env]
unset = ["GONE"]
[env.set]
A = "1"
B = "2"
[env.from_env]
KEY = "KEY"
[docker]
options = ["--ipc=host"]
"""


def test_tables_are_merged_and_args_put_behind(tmp_path: Path) -> None:
    write(
        tmp_path,
        base=BASE,
        p="extends = 'base'\nabout = 'own'\n[serve]\nargs = ['--more']\n"
        "[serve.json.kv-transfer-config.extra]\nsize = 2\n[docker]\noptions = ['--shm-size=1g']",
    )
    profile = folder.find("p", tmp_path).usable()
    assert (profile.about, profile.gpus, profile.serve.model, profile.serve.port) == ("own", ["0"], "m", 8000)
    assert profile.serve.args == ["--max_model_len", "32768", "--enable-x", "--more"]
    assert profile.serve.json == {"kv-transfer-config": {"kv_role": "kv_both", "extra": {"size": 2}}}
    assert profile.docker.options == ["--shm-size=1g"]
    assert profile.extends == ""


def test_what_a_base_says_about_itself_is_not_said_of_its_heirs(tmp_path: Path) -> None:
    write(tmp_path, base=BASE, mid="extends = 'base'", p="extends = 'mid'", own="extends = 'mid'\nabout = 'own'")
    found = {name: folder.find(name, tmp_path) for name in ("base", "mid", "p", "own")}
    assert [entry.usable().about for entry in found.values()] == ["base", "", "", "own"]
    assert ["about" in entry.origins for entry in found.values()] == [True, False, False, True]
    assert found["own"].origins["about"].line == 2 and found["p"].usable().gpus == ["0"]


def test_what_a_profile_says_takes_the_place_of_what_its_base_says_in_another_form(tmp_path: Path) -> None:
    write(
        tmp_path,
        base=BASE,
        p="extends = 'base'\n[serve]\nargs = ['--port=9', '--kv_transfer_config', '{}']\n"
        "[serve.json.max-model-len]\n[env]\nunset = ['A']\n[env.set]\nGONE = 'back'\n[env.from_file]\nKEY = '/k'",
    )
    profile = folder.find("p", tmp_path).usable()
    assert profile.serve.port is None
    assert profile.serve.json == {"max-model-len": {}}
    assert profile.serve.args == ["--enable-x", "--port=9", "--kv_transfer_config", "{}"]
    assert profile.env.set == {"B": "2", "GONE": "back"}
    assert profile.env.unset == ["A"]
    assert (profile.env.from_file, profile.env.from_env) == ({"KEY": "/k"}, {})


def test_flags_are_dropped_with_their_values(tmp_path: Path) -> None:
    drop = '["max-model-len", "port", "--kv_transfer_config", "served_model_name"]'
    write(tmp_path, base=BASE, p=f"extends = 'base'\n[serve]\ndrop = {drop}")
    serve = folder.find("p", tmp_path).usable().serve
    assert (serve.args, serve.port, serve.json, serve.names, serve.model) == (["--enable-x"], None, {}, [], "m")
    assert serve.drop == []


@pytest.mark.parametrize("name", ["tp", "-tp", "--tensor_parallel_size", "tensor-parallel"])
def test_a_flag_is_dropped_by_any_of_its_names(name: str, tmp_path: Path) -> None:
    write(
        tmp_path, base="[serve]\nargs = ['-tp', '2', '--enable-x']", p=f"extends = 'base'\n[serve]\ndrop = ['{name}']"
    )
    entry = folder.find("p", tmp_path)
    assert (entry.usable().serve.args, entry.idle) == (["--enable-x"], ())


def test_what_is_dropped_and_was_never_there(tmp_path: Path) -> None:
    write(
        tmp_path,
        base=BASE,
        mid="extends = 'base'\n[serve]\ndrop = ['max-model-length', 'host', 'port']",
        p="extends = 'mid'\n[serve]\ndrop = ['port', 'quux', 'kv-transfer-config.kv_role']",
        alone="[serve]\nargs = ['--seed', '1']\ndrop = ['seed']",
    )
    told = ["port", "quux", "kv-transfer-config.kv_role"]
    below = ["max-model-length", "host"]
    assert [*folder.find("p", tmp_path).idle] == [*told, *below]
    assert [*folder.find("mid", tmp_path).idle] == below
    assert [*folder.find("alone", tmp_path).idle] == ["seed"]


def origins(entry: Entry) -> dict[str, tuple[str, int | None, str]]:
    return {key: (o.file.name if o.file else "", o.line, o.how) for key, o in entry.origins.items()}


def test_each_value_knows_where_it_came_from(tmp_path: Path) -> None:
    write(
        tmp_path,
        base=BASE,
        mid="extends = 'base'\n[serve]\nport = 8001\ndrop = ['max-model-len']",
        p="extends = 'mid'\n[serve]\nargs = ['--more']\n[env.set]\nA = '3'",
    )
    entry = folder.find("p", tmp_path)
    assert entry.bases == ("mid", "base")
    found = origins(entry)
    assert found["gpus"] == ("base.toml", 2, "extends base")
    assert found["serve.port"] == ("mid.toml", 3, "extends mid")
    assert found["serve.args[0]"] == ("base.toml", 7, "extends base")
    assert found["serve.args[1]"] == ("p.toml", 3, "file")
    assert "serve.args[2]" not in found and "serve.drop" not in found and "extends" not in found
    assert found["serve.json.kv-transfer-config.kv_role"] == ("base.toml", 9, "extends base")
    assert found["env.set.A"] == ("p.toml", 5, "file")
    assert found["env.set.B"] == ("base.toml", 15, "extends base")


def test_a_loop_is_refused_by_its_names(tmp_path: Path) -> None:
    write(tmp_path, a="extends = 'b'", b="\nextends = 'c'", c="extends = 'a'", d="extends = 'd'", e="extends = 'a'")
    end = ": expected a profile that does not extend this one"
    assert problem(tmp_path, "a") == f"c.toml, line 1: extends a: a loop, a extends b extends c extends a{end}"
    assert problem(tmp_path, "d") == f"d.toml, line 1: extends d: a loop, d extends d{end}"
    assert problem(tmp_path, "e") == f"c.toml, line 1: extends a: a loop, a extends b extends c extends a{end}"


def test_a_base_that_is_not_there_is_named(tmp_path: Path) -> None:
    write(tmp_path, p="\nextends = 'gone'", q="extends = '../x'")
    said = "p.toml, line 2: extends gone: there is no gone.toml beside it: expected the name of another profile"
    assert problem(tmp_path) == said
    assert problem(tmp_path, "q") == 'q.toml, line 1: extends is "../x": expected the name of another profile'


def test_a_chain_has_an_end(tmp_path: Path) -> None:
    for number in range(MAX_BASES + 2):
        write(tmp_path, **{f"p{number}": f"extends = 'p{number + 1}'" if number <= MAX_BASES else "gpus = ['7']"})
    assert folder.find("p1", tmp_path).usable().gpus == ["7"]
    assert "extends more than 16 profiles" in problem(tmp_path, "p0")


def test_each_value_of_each_sidecar_has_its_own_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        base="[[sidecar]]\nname = 'x'\ncommand = 'x'",
        p="extends = 'base'\n[[sidecar]]\nname = 'a'\ncommand = 'b'\n\n[[sidecar]]\nname = 'c'\ncommand = 'd'",
    )
    origins = folder.find("p", tmp_path).origins
    lines = [origins[f"sidecar[{number}].{key}"].line for number in (0, 1) for key in ("name", "command")]
    assert lines == [3, 4, 7, 8] and all(one.file == tmp_path / "p.toml" for one in origins.values())


def test_a_long_chain_tells_its_reason_once(tmp_path: Path) -> None:
    for number in range(12):
        write(tmp_path, **{f"p{number}": f"extends = 'p{number + 1}'"})
    assert problem(tmp_path, "p0").count("extends") == 2
    assert "p11.toml, line 1: extends p12: there is no p12.toml" in problem(tmp_path, "p0")
