"""config.toml: what is good is taken, what is not is said in one line with its place, and nothing else is lost."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtop import config
from kvtop.model.view import WINDOWS
from kvtop.ui.layout import PANELS


def load(tmp_path: Path, text: str) -> tuple[config.Settings, list[str]]:
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    made = config.load(file)
    assert all(str(problem).isprintable() and problem.fix for problem in made.problems)
    return made.settings, [problem.short for problem in made.problems]


def test_the_words_are_those_of_the_program() -> None:
    assert get_args(config.PanelName) == PANELS
    for key, _, _ in WINDOWS:
        assert msgspec.convert(key, config.WindowKey) == key
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert("5m\n", config.WindowKey)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('windw = "1m"', "config.toml, line 1: windw is no setting: did you mean 'window'?"),
        ("xyzzy = 1", "config.toml, line 1: xyzzy is no setting"),
        ("\n[pol]", "config.toml, line 2: pol is no setting: did you mean 'poll'?"),
        ("metrics_s = 1.0", "config.toml, line 1: metrics_s is no setting here: it belongs to [poll]"),
        (
            '[poll]\ntheme = "x"',
            "config.toml, line 2: [poll] theme is no setting here: it belongs to the top, before the first table",
        ),
        (
            'window = "2m"',
            'config.toml, line 1: window is "2m": expected one of 10s, 1m, 5m, 1h, start; "5m" holds',
        ),
        ("theme = 3", 'config.toml, line 1: theme is 3: expected a text in quotes; "kvtop-dark" holds'),
        (
            "on_slow = 3",
            "config.toml, line 1: on_slow is 3: expected a command: a text for the shell, or a list of words; "
            "it is left out",
        ),
        (
            "on_slow = [1]",
            "config.toml, line 1: on_slow is a list: expected a command: a text for the shell, or a list "
            "of words; it is left out",
        ),
        ("export_dir = true", "config.toml, line 1: export_dir is true: expected a text in quotes; it is left out"),
        (
            "\n# x\n[poll] # y\n\nmetrics_s = 0",
            "config.toml, line 5: [poll] metrics_s is 0: expected 0.05 to 3600 (seconds); 1.0 holds",
        ),
        ("[poll]\ngpu_s = nan", "config.toml, line 2: [poll] gpu_s is nan: expected 0.05 to 3600 (seconds); 1.0 holds"),
        (
            "[poll]\nhost_s = inf",
            "config.toml, line 2: [poll] host_s is inf: expected 0.05 to 3600 (seconds); 2.0 holds",
        ),
        ("poll.gpu_s = -1", "config.toml, line 1: [poll] gpu_s is -1: expected 0.05 to 3600 (seconds); 1.0 holds"),
        ("poll = {gpu_s = -1}", "config.toml, line 1: [poll] gpu_s is -1: expected 0.05 to 3600 (seconds); 1.0 holds"),
        (
            "[poll]\nmetrics_max_bytes = 1.5",
            "config.toml, line 2: [poll] metrics_max_bytes is 1.5: "
            "expected a whole number from 10000 to 1000000000 (bytes); 16000000 holds",
        ),
        ("poll = 3", "config.toml, line 1: poll is 3: expected a table [poll]; its defaults hold"),
        (
            "[thresholds]\nkv_pool_full = 95",
            "config.toml, line 2: [thresholds] kv_pool_full is 95: expected a share from 0 to 1; 0.95 holds",
        ),
        (
            "[thresholds]\nslow_factor = 0",
            "config.toml, line 2: [thresholds] slow_factor is 0: expected more than 0, at most 1000 (times); 3.0 holds",
        ),
        (
            "[thresholds]\nshare_poor = 0.9",
            "config.toml, line 2: [thresholds] share_poor is 0.9: expected at most share_good, which is 0.85; "
            "0.6 and 0.85 hold",
        ),
        (
            "[capture]\nkeep_days = 0",
            "config.toml, line 2: [capture] keep_days is 0: expected more than 0, at most 36500 (days); 7.0 holds",
        ),
        (
            '[capture]\nmax_bytes = "2 GiB"',
            'config.toml, line 2: [capture] max_bytes is "2 GiB": '
            "expected a whole number, 1000000 (1 MB) or more (bytes); 2147483648 holds",
        ),
        (
            'hide = ["gpu", "gpus"]',
            'config.toml, line 1: hide: "gpus" is no panel; the panels are cache, offload, queue, ttft, gpu, turns',
        ),
        ('hide = "gpu"', 'config.toml, line 1: hide is "gpu": expected a list such as ["gpu"]; it is left out'),
        ("[keys]\nwindow = 3", "config.toml, line 2: [keys] window is 3: expected a key in quotes; it is left out"),
        ("server = 3", "config.toml, line 1: server: expected [[server]] tables; it is left out"),
        (
            '[[server]]\nurl = "h:1"\n[[server]]\nname = "x"',
            "config.toml, line 3: [[server]] url is missing; this server is left out",
        ),
        (
            '[[server]]\nurl = "h:1"\n[[server]]\nurl = 8000',
            "config.toml, line 4: [[server]] url: expected a text in quotes; this server is left out",
        ),
        (
            '[[server]]\nurl = "h:1"\napi_key = "sk-geheim"',
            "config.toml, line 3: [[server]] api_key is no setting: did you mean 'api_key_env'?",
        ),
        ("a = 1\nb = = 2", "config.toml, line 2: not TOML: invalid value; the defaults are used"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, line: str) -> None:
    _, said = load(tmp_path, text)
    assert said == [line]
    assert "geheim" not in "".join(said)


@pytest.mark.parametrize("text", ["x = " + "[" * 5000, 'a = "', "x = " + "9" * 5000, "x = 1\nx = 2", "[poll]\n[poll]"])
def test_what_tomllib_refuses_is_one_line(tmp_path: Path, text: str) -> None:
    made, said = load(tmp_path, text)
    assert made == config.Settings()
    assert len(said) == 1 and "not TOML" in said[0] and said[0].endswith("; the defaults are used")


def test_one_bad_key_costs_no_other(tmp_path: Path) -> None:
    made, said = load(
        tmp_path,
        'theme = "kvtop-light"\nwindow = 3\nhide = ["gpu", "nonsense"]\n'
        "[poll]\nmetrics_s = 3.0\ngpu_s = 0\n[thresholds]\nshare_good = 7\nslow_factor = 2\n"
        '[[server]]\nurl = "http://a:1"\napi_key_env = 5\n[[server]]\nnam = "x"\n[keys]\nwindow = "x"\nfreeze = 1\n',
    )
    assert len(said) == 8
    assert (made.theme, made.window, made.hide) == ("kvtop-light", "5m", ["gpu"])
    assert (made.poll.metrics_s, made.poll.gpu_s) == (3.0, 1.0)
    assert (made.thresholds.share_good, made.thresholds.slow_factor) == (0.85, 2)
    assert [(one.url, one.api_key_env) for one in made.server] == [("http://a:1", "")]
    assert made.keys == {"window": "x"}


def test_a_good_file_has_no_problem(tmp_path: Path) -> None:
    made, said = load(
        tmp_path, "[thresholds]\nshare_poor = 0.85\nshare_good = 0.85\n[poll]\nmetrics_s = 1\nfacts_s = 3600\n"
    )
    assert said == []
    assert made.thresholds.share_poor == 0.85
    assert made.poll.metrics_s == 1.0


def test_no_file_and_no_text(tmp_path: Path) -> None:
    none = config.load(tmp_path / "config.toml")
    assert (none.settings, none.problems, none.exists) == (config.Settings(), (), False)
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    assert [p.short for p in config.load(tmp_path / "config.toml").problems] == [
        "config.toml: not UTF-8; the defaults are used"
    ]
    (tmp_path / "a").write_text("")
    inside = config.load(tmp_path / "a" / "config.toml")
    assert [p.short for p in inside.problems] == ["config.toml: cannot be read: Not a directory; the defaults are used"]


values = st.recursive(
    st.one_of(
        st.integers(-(10**30), 10**30).map(str), st.floats().map(str), st.sampled_from(['"gpu"', "true", "1979-05-27"])
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
    max_leaves=4,
)
names = st.sampled_from(
    [
        f
        for part in (config.Settings, config.Server, config.Poll, config.Thresholds, config.Capture)
        for f in part.__struct_fields__
    ]
)


@settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.dictionaries(names, values, max_size=4),
    st.sampled_from(["poll", "thresholds", "[server]", "capture", "keys"]),
    st.dictionaries(names, values, max_size=4),
)
def test_any_file_gives_settings_that_hold_the_limits(
    tmp_path: Path, top: dict[str, str], table: str, inside: dict[str, str]
) -> None:
    lines = [f"{k} = {v}" for k, v in top.items()] + [f"[{table}]"] + [f"{k} = {v}" for k, v in inside.items()]
    made, _ = load(tmp_path, "\n".join(lines))
    assert msgspec.convert(msgspec.to_builtins(made), config.Settings) == made
    assert made.thresholds.share_poor <= made.thresholds.share_good
