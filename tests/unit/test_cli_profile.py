"""kvtop profile list, show, command and import, as they are typed."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import tomlkit

from kvtop.cli.main import main
from kvtop.profiles.launch import READY_TIMEOUT
from kvtop.sources.processes import Processes, ProcessTable

KEY = "sk-madeup-madeup-madeup"


@pytest.fixture
def folder(own_home: Path) -> Path:
    where = own_home / "config" / "profiles"
    where.mkdir(parents=True)
    return where


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["profile", *words]) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return err if code else out


BASE = """\
about = "all day"
gpus = ["0", "1"]
[serve]
model = "org/Base-27B"
port = 8001
args = ["--max-model-len", "32768", "--enable-prefix-caching"]
[serve.json.kv-transfer-config]
kv_connector = "OffloadingConnector"
kv_connector_extra_config = {cpu_bytes_to_use = 4294967296}
[env.set]
A = "1"
"""
HEIR = """\
extends = "base"
[serve]
drop = ["max-model-len"]
args = ["--max_num_seqs=4"]
[serve.json.kv-transfer-config.kv_connector_extra_config]
cpu_bytes_to_use = 8589934592
[env]
unset = ["A"]
[env.from_file]
VLLM_API_KEY = "/run/key"
"""


def test_show_says_where_each_value_came_from(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "base.toml").write_text(BASE)
    (folder / "heir.toml").write_text(HEIR)
    assert said(capsys, "show", "heir").split("\n")[1:] == [
        'runner = "venv"  # default',
        'gpus = ["0", "1"]  # base.toml, line 2',
        "",
        "[serve]",
        'model = "org/Base-27B"  # base.toml, line 4',
        "port = 8001  # base.toml, line 5",
        "args = [",
        '  "--enable-prefix-caching",  # base.toml, line 6',
        '  "--max_num_seqs=4",  # heir.toml, line 4',
        "]",
        "",
        "[serve.json.kv-transfer-config]",
        'kv_connector = "OffloadingConnector"  # base.toml, line 8',
        "",
        "[serve.json.kv-transfer-config.kv_connector_extra_config]",
        "cpu_bytes_to_use = 8589934592  # heir.toml, line 6",
        "",
        "[env]",
        'unset = ["A"]  # heir.toml, line 8',
        "",
        "[env.from_file]",
        'VLLM_API_KEY = "/run/key"  # heir.toml, line 10',
        "",
    ]
    whole = json.loads(said(capsys, "show", "heir", "--json"))
    assert whole["extends"] == ["base"] and whole["profile"]["serve"]["port"] == 8001
    assert whole["origins"]["serve.port"] == {"from": "extends base", "file": str(folder / "base.toml"), "line": 5}


def test_command_is_one_line_for_a_shell(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "base.toml").write_text(BASE)
    (folder / "heir.toml").write_text(HEIR)
    assert said(capsys, "command", "heir") == (
        f"""cd {Path.home()} && VLLM_API_KEY="$(grep -om1 '\\S.*\\S' /run/key)" env -u A """
        f"CUDA_VISIBLE_DEVICES=0,1 {READY_TIMEOUT}=1800 vllm serve "
        "org/Base-27B --port 8001 --enable-prefix-caching --max_num_seqs=4 --kv-transfer-config "
        """'{"kv_connector":"OffloadingConnector","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'\n"""
    )
    whole = json.loads(said(capsys, "command", "heir", "--json"))
    assert whole["command"][:4] == ["vllm", "serve", "org/Base-27B", "--port"]
    assert whole["env"] == {"CUDA_VISIBLE_DEVICES": "0,1", READY_TIMEOUT: "1800"}
    assert (whole["unset"], whole["secrets"]) == (["A"], {"VLLM_API_KEY": {"from": "file", "where": "/run/key"}})


def test_the_line_does_what_it_says(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A shell that is given the line runs exactly the words and the environment of the profile."""
    (tmp_path / "key").write_text("geheim\nnot this\n")
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('K'), "
    code += "os.environ['A'], os.environ.get('GONE'), os.getcwd()]))"
    value = 'it\'s "$HOME" `x` \\ \n é'
    profile = {
        "venv": {"command": [sys.executable, "-c", code], "cwd": str(tmp_path)},
        "serve": {"args": [value, "", "*", "--x={a,b}"], "json": {"j": {"k": value}}},
        "env": {"set": {"A": value}, "unset": ["GONE"], "from_file": {"K": f"{tmp_path}/key"}},
    }
    (folder / "p.toml").write_text(tomlkit.dumps(profile))
    typed = said(capsys, "command", "p")
    assert typed.count("\n") == 1 and typed.strip().isprintable()
    done = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, check=True, env={"GONE": "1"})
    words = [value, "", "*", "--x={a,b}", "--j", json.dumps({"k": value}, separators=(",", ":"), ensure_ascii=False)]
    assert json.loads(done.stdout) == [words, "geheim", value, None, str(tmp_path)]


def test_diff_of_what_runs_the_same_in_other_words(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    (folder / "a.toml").write_text('[serve]\nmodel = "m"\n[venv]\ncwd = "~"\nwrap = ["~/run"]\n')
    (folder / "b.toml").write_text(
        '[serve]\nmodel = "m"\n[venv]\ncwd = "/home/me"\nwrap = ["/home/me/run"]\ncommand = ["vllm", "serve"]\n'
    )
    (folder / "c.toml").write_text('extends = "a"\n[venv]\ncwd = "/srv"\n')
    (folder / "none.toml").write_text('[serve]\nmodel = "m"\n')
    assert said(capsys, "command", "a", "--diff", "b") == "a and b run the same\n"
    assert said(capsys, "command", "none", "--diff", "c").splitlines()[1:] == [
        '  key       venv.wrap  not given -> ["/home/me/run"]',
        "  key       venv.cwd   not given -> /srv",
    ]


def test_the_values_of_a_long_name_stand_under_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "a_key_of_the_connector_that_has_a_rather_long_name"
    (folder / "a.toml").write_text('[serve]\nmodel = "m"\n')
    (folder / "b.toml").write_text(f'[serve]\nmodel = "m"\nport = 8001\n[serve.json.kv-transfer-config]\n{long} = 1\n')
    assert said(capsys, "command", "a", "--diff", "b").splitlines()[1:] == [
        "  flag      --port  not given -> 8001",
        f"  flag      --kv-transfer-config.{long}",
        "                    not given -> 1",
    ]


def test_diff_names_flags_keys_and_variables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "base.toml").write_text(BASE)
    (folder / "heir.toml").write_text(HEIR)
    (folder / "same.toml").write_text(
        'gpus = ["0", "1"]\n[serve]\nargs = ["--enable_prefix_caching", "--port=8001", "--max_model_len=32768", '
        '"--model", "org/Base-27B", "--kv_transfer_config", \'{"kv_connector_extra_config": '
        '{"cpu_bytes_to_use": 4294967296}, "kv_connector": "OffloadingConnector"}\']\n[env.set]\nA = "1"\n'
    )
    assert said(capsys, "command", "base", "--diff", "same") == "base and same run the same\n"
    assert said(capsys, "command", "base", "--diff", "heir") == (
        "base -> heir\n"
        "  flag      --max-model-len  32768 -> not given\n"
        "  flag      --kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use\n"
        "                             4294967296 -> 8589934592\n"
        "  flag      --max-num-seqs   not given -> 4\n"
        "  variable  A                1 -> taken out of the environment\n"
        "  variable  VLLM_API_KEY     not given -> from file /run/key\n"
    )
    rows = json.loads(said(capsys, "command", "heir", "--diff", "base", "--json"))
    assert {"kind": "flag", "name": "--max-num-seqs", "old": "4", "new": None} in rows["differences"]


def test_secrets_are_masked_wherever_they_were_typed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "p.toml").write_text(
        f'[serve]\nargs = ["--api-key", "{KEY}", "--x", "{KEY}", "--url", "http://u:madeup@h/"]\n'
        f'[serve.json.j]\napi_key = "madeup"\nb = ["{KEY}"]\n[env.set]\nHF_TOKEN = "madeup"\nX = "{KEY}"\n'
        f'[start]\nbefore = ["curl -H \'Authorization: Bearer {KEY}\' x", ["login", "--token", "madeup"]]\n'
        f'[docker]\noptions = ["-e", "A_TOKEN=madeup"]\n'
    )
    (folder / "q.toml").write_text("")
    for words in (
        ["show", "p"],
        ["show", "p", "--json"],
        ["command", "p"],
        ["command", "p", "--json"],
        ["command", "q", "--diff", "p"],
        ["command", "p", "--diff", "q", "--json"],
        ["list"],
        ["list", "--json"],
    ):
        assert main(["profile", *words]) == 0
        out, err = capsys.readouterr()
        assert "madeup" not in out + err, words
    main(["profile", "command", "p"])
    assert "put it into [env.from_file]" in capsys.readouterr().err


def test_hostile_text_is_shown_and_not_sent(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "p.toml").write_text('about = "a\\u001b[31m\\u202e"\n[serve]\nmodel = "m\\u001b]0;x\\u0007"\n')
    for words in (["show", "p"], ["command", "p"], ["list"], ["show", "p", "--json"], ["list", "--json"]):
        out = said(capsys, *words)
        assert all(line.isprintable() for line in out.split("\n"))


def test_list_has_a_row_for_each(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(ProcessTable, "read", lambda _: Processes((), None, ()))  # not those of other tests
    (folder / "base.toml").write_text(BASE)
    (folder / "broken.toml").write_text("a = = 1")
    (folder / "no-image.toml").write_text('runner = "docker"')
    (folder / "config.toml").write_text('[serve]\nconfig = "/nowhere/x.yaml"')
    rows = {row["name"]: row for row in json.loads(said(capsys, "list", "--json"))}
    assert rows["base"] == {
        "name": "base",
        "file": str(folder / "base.toml"),
        "about": "all day",
        "runner": "venv",
        "model": "org/Base-27B",
        "port": 8001,
        "gpus": ["0", "1"],
        "cpu_tier_bytes": 4294967296,
        "changed": None,
        "state": "stopped",
        "pid": None,
        "mark": None,
        "since": None,
        "keeper_gone": None,
        "sidecars_ended": None,
        "after_stop_owed": False,
        "error": None,
    }
    assert (rows["broken"]["state"], rows["broken"]["runner"], rows["broken"]["port"]) == ("unreadable", None, None)
    assert rows["broken"]["error"] == f"{folder}/broken.toml, line 1: not TOML: invalid value"
    assert rows["no-image"]["error"] == "profile no-image: docker.image is missing"
    assert rows["config"]["port"] is None and rows["config"]["cpu_tier_bytes"] is None
    lines = said(capsys, "list").split("\n")
    assert lines[0].split("  ")[0] == "name"
    broken = next(line for line in lines if line.startswith("broken"))
    assert broken.endswith("unreadable  see below")
    assert "broken: broken.toml, line 1: not TOML: invalid value" in lines
    (folder / "talks.toml").write_text(f'about = "{"much of it " * 12}"\n[serve]\nmodel = "org/M"')
    (folder / f"{'long-' * 9}.toml").write_text('[serve]\nmodel = "org/M"')
    lines = said(capsys, "list").split("\n")
    assert next(line for line in lines if line.startswith("talks ")).endswith("stopped     see below")
    assert next(line for line in lines if line.startswith("talks: much of it"))
    assert next(line for line in lines if line.startswith("long-")).startswith("long-long-long-lon…  ")
    assert not [line for line in lines if line.rstrip().endswith(":")], "nothing stands below that says nothing"
    assert "Base-27B  8001  0,1  4.0 GiB  stopped     all day" in next(
        line for line in lines if line.startswith("base")
    )


def test_what_stands_in_the_file_of_config_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "x.yaml").write_text("model: org/M\nport: 8044\nkv-offloading-size: 2\nmax-model-len: 4096\n")
    (folder / "file.toml").write_text(f'[serve]\nconfig = "{folder}/x.yaml"\nargs = ["--max-model-len", "8192"]')
    (folder / "words.toml").write_text(
        '[serve]\nmodel = "org/M"\nport = 8044\nargs = ["--kv_offloading_size=2", "--max-model-len", "4096"]'
    )
    row, _ = json.loads(said(capsys, "list", "--json"))
    assert (row["model"], row["port"], row["cpu_tier_bytes"]) == ("org/M", 8044, 2 << 30)
    assert said(capsys, "command", "words", "--diff", "file") == (
        "words -> file\n  flag      --max-model-len  4096 -> 8192\n"
    )


def test_a_card_by_its_uuid_pushes_no_column_away(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uuid = "GPU-1a2b3c4d-0000-1111-2222-333344445555"
    (folder / "a.toml").write_text(f'gpus = ["{uuid}", "1"]\n')
    assert " GPU-1a2b3c4d…,1 " in said(capsys, "list")
    (row,) = json.loads(said(capsys, "list", "--json"))
    assert row["gpus"] == [uuid, "1"]


def test_list_without_profiles_says_how_to_begin(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(said(capsys, "list", "--json")) == []
    assert f"no profiles in {own_home}/config/profiles" in said(capsys, "list")


def test_a_server_that_runs_with_the_flags_of_a_profile_is_foreign(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "vllm"
    program.write_text("import time; print('up', flush=True); time.sleep(60)")
    flags = ["--port=8001", "--enable_prefix_caching", "--max_model_len", "32768", "--kv-transfer-config"]
    json_flag = '{"kv_connector_extra_config": {"cpu_bytes_to_use": 4294967296}, "kv_connector": "OffloadingConnector"}'
    (folder / "base.toml").write_text(BASE)
    (folder / "heir.toml").write_text(HEIR)
    words = [sys.executable, str(program), "serve", "org/Base-27B", *flags, json_flag]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == b"up\n"
            rows = {row["name"]: row for row in json.loads(said(capsys, "list", "--json"))}
        finally:
            server.kill()
    assert (rows["base"]["state"], rows["base"]["pid"]) == ("foreign", server.pid)
    assert rows["base"]["since"].endswith("Z")
    assert (rows["heir"]["state"], rows["heir"]["pid"]) == ("stopped", None)


def test_import_writes_a_private_file_and_never_over_another(
    own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = own_home / "config" / "profiles"
    out = said(capsys, "import", "--", "vllm", "serve", "org/Some-Model", "--api-key", KEY)
    file = folder / "some-model.toml"
    assert out.startswith(f"wrote {file}, from a command line\n  --api-key, as VLLM_API_KEY: its value was not copied.")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert file.read_text().startswith(
        "# Imported by kvtop from a command line.\n# --api-key, as VLLM_API_KEY: its value was not"
    )
    before = file.read_text()
    err = said(capsys, "import", "--", "vllm", "serve", "Some-Model", code=2)
    assert err == f"kvtop: {file} is there already\n  --name NAME calls it otherwise, --force writes over it\n"
    assert file.read_text() == before
    whole = json.loads(said(capsys, "import", "--force", "--json", "--", "vllm", "serve", "Some-Model"))
    assert whole == {"name": "some-model", "file": str(file), "from": "a command line", "left_out": []}
    assert [one.name for one in folder.iterdir()] == ["some-model.toml"]
    said(capsys, "import", "--name", "other", "--", "vllm", "serve", "x")
    assert said(capsys, "command", "other").endswith("vllm serve x\n")


def test_a_container_s_profile_is_called_as_the_container(
    own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "box.json"
    file.write_text(json.dumps([{"Name": "/vllm-prod", "Config": {"Image": "vllm/x", "Cmd": ["m"]}}]))
    assert json.loads(said(capsys, "import", "--json", str(file)))["name"] == "vllm-prod"
    file.write_text(json.dumps([{"Config": {"Image": "vllm/x", "Cmd": ["m"]}}]))
    assert json.loads(said(capsys, "import", "--json", str(file)))["name"] == "box"


@pytest.mark.parametrize("place", ["/nowhere/x.sh", "/dev"])
def test_an_import_that_is_refused_prints_a_document(
    own_home: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    assert main(["profile", "import", place, "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert place in told["error"] and told["fix"].startswith("name a script")


def test_import_never_follows_a_link(own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = own_home / "config" / "profiles"
    folder.mkdir(parents=True)
    (tmp_path / "mine").write_text("mine")
    (folder / "x.toml").symlink_to(tmp_path / "mine")
    said(capsys, "import", "--name", "x", "--", "vllm", "serve", "m", code=2)
    said(capsys, "import", "--name", "x", "--force", "--", "vllm", "serve", "m")
    assert (tmp_path / "mine").read_text() == "mine" and not (folder / "x.toml").is_symlink()


@pytest.mark.parametrize(
    ("words", "err"),
    [
        (["import"], "kvtop: kvtop profile import: name one of FILE, --pid N and -- COMMAND LINE\n"),
        (["import", "/nowhere/x.sh"], "kvtop: cannot read '/nowhere/x.sh': No such file or directory\n"),
        (["import", "/dev"], "kvtop: /dev is a folder, not a file\n  name a script, a compose file, a unit,"),
        (["import", "/dev/null"], "kvtop: cannot read '/dev/null': not a regular file\n"),
        (["import", "--", "ls"], "kvtop: there is no `vllm serve` in this command line\n"),
        (["import", "--name", "a b", "--", "vllm", "serve"], "kvtop: 'a b' is no name of a profile"),
        (["import", "--pid", "4194305"], "kvtop: there is no process 4194305\n"),
        (["show"], "kvtop: kvtop profile show: no profile was named\n"),
        (["show", "nope"], "kvtop: there is no profile 'nope'\n"),
        (["command", "nope"], "kvtop: there is no profile 'nope'\n"),
    ],
)
def test_wrong_use_is_two_lines(own_home: Path, capsys: pytest.CaptureFixture[str], words: list[str], err: str) -> None:
    assert said(capsys, *words, code=2).startswith(err)
