"""A key that was written in the wrong place is not shown where the place is complained of."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtop import config, paths
from kvtop.errors import keyless
from kvtop.servers import problems
from kvtop.ui import keys, themes

SECRETS = (
    "sk-geheim-live-abc",
    "hf_qZabcdefghijklmnopgeheim",
    "9f8e7d6c5b4a39281706geheim",
    "AKIAGEHEIMGEHEIM",
    "eyJhbGciOiJIUzI1NiJ9geheim",
    "geheimabcdefghijklmnopqrstuv",
)
ORDINARY = ("windw", "metrics_busy_s", "offload_connector_name", "http://127.0.0.1:99999", "skip-this",
            "ctrl+shift+f12", "gpubox-7.lan:8000", "hf_x", "kvtop-light-colorblind")  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS)
def test_of_a_key_four_characters_are_shown(secret: str) -> None:
    assert keyless(f"x '{secret}' is no") == f"x '{secret[:4]}…' is no"


@pytest.mark.parametrize("text", ORDINARY)
def test_what_is_no_key_is_shown(text: str) -> None:
    assert keyless(text) == text


def test_it_is_cut_and_escaped_like_any_text() -> None:
    assert keyless("a\x1b[2J") == "a\\x1b[2J"
    assert len(keyless("a b " * 5000, 40)) == 40


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "text",
    [
        '"{0}" = 1',
        '[[server]]\nurl = "h:1"\n"{0}" = 1',
        '[keys]\n"{0}" = 1',
        '[keys]\n"{0}" = "x"',
        '[keys]\nwindow = "{0}"',
        'theme = "{0}"',
        'window = "{0}"',
        'hide = ["{0}"]',
        'poll = "{0}"',
        '["{0}"]\n["{0}"]',
        'x = {{"{0}" = 1, "{0}" = 2}}',
        '[[server]]\nurl = "http://{0}/a b"',
        '[[server]]\nurl = "{0} "\nname = "a b"\n[[server]]\nurl = "{0}:x"',
        '[[server]]\nurl = "{0}://h"',
        '[[server]]\nurl = "h:1"\napi_key_file = "{0}"',
        '[[server]]\nurl = "h:1:2:3"\nname = "{0}"',
    ],
)
def test_no_problem_of_config_toml_shows_a_key(secret: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text.format(secret))
    loaded = config.load(file)
    _, refused = keys.resolve(loaded.settings.keys)
    found = (
        *loaded.problems,
        *problems(loaded.settings.server, file),
        *keys.problems(refused, file),
        *themes.problems(themes.load((paths.builtin_themes(),)), loaded.settings.theme),
    )
    assert found
    for problem in found:
        assert secret[4:].lower() not in f"{problem} {problem.fix}".lower()


@pytest.mark.parametrize("old", ["dark = true", "[variables]\n", 'bad = "#f0716b"'])
def test_no_problem_of_a_theme_shows_a_key(old: str) -> None:
    text = (paths.builtin_themes() / "kvtop-dark.toml").read_text()
    new = f'{old}\n"sk-geheim-live" = 1' if "bad" not in old else 'bad = "sk-geheim-live"'
    with pytest.raises(themes.ThemeError) as error:
        themes.parse(text.replace(old, new, 1))
    assert "geheim" not in str(error.value)
