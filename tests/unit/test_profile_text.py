"""A profile as TOML: it comes back the same, whatever stands in it, and is shown without harm."""

from __future__ import annotations

import contextlib
import json
import tomllib
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profile_strategies import TEXTS, profiles

from kvtop.cli.profile import command, show
from kvtop.errors import UsageError
from kvtop.profiles import folder
from kvtop.profiles.folder import read_all
from kvtop.profiles.profile import Profile
from kvtop.profiles.schema import schema_text
from kvtop.profiles.text import bare, to_toml, value_text

DOCS = Path(__file__).parents[2] / "docs"
ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@ANY
@given(profiles(), st.lists(TEXTS, max_size=3))
def test_any_profile_comes_back_the_same(tmp_path: Path, profile: Profile, comments: list[str]) -> None:
    (tmp_path / "any.toml").write_text(to_toml(profile, comments), encoding="utf-8", newline="")
    entry = folder.find("any", tmp_path)
    assert entry.problem is None
    assert entry.profile == profile


@ANY
@given(profiles())
def test_any_profile_is_shown_without_harm(tmp_path: Path, profile: Profile) -> None:
    (tmp_path / "any.toml").write_text(to_toml(profile), encoding="utf-8", newline="")
    for job in (show, command):
        for more in ([], ["--json"]):
            said = _printed(job, [str(tmp_path / "any.toml"), *more])
            assert all(line.isprintable() for line in said.split("\n"))
            if more and said:
                json.loads(said)


def _printed(job: object, argv: list[str]) -> str:
    import io

    out = io.StringIO()
    # a profile that lacks what its runner needs has no command: that is said in one line
    with contextlib.redirect_stdout(out), contextlib.suppress(UsageError):
        job.main(argv)  # type: ignore[attr-defined]
    return out.getvalue()


@ANY
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_whatever_stands_in_a_file_the_reason_is_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "good.toml").write_text('about = "good"')
    (tmp_path / "any.toml").write_bytes(data)
    any_one, good = read_all(tmp_path)
    assert good.profile == Profile(about="good")
    assert (any_one.profile is None) != (any_one.problem is None)
    if any_one.problem is not None:
        assert str(any_one.problem).isprintable() and any_one.problem.fix


KEYS = st.sampled_from(
    [
        "about",
        "serve",
        "args",
        "json",
        "env",
        "set",
        "unset",
        "gpus",
        "runner",
        "sidecar",
        "start",
        "before",
        "x",
        "port",
    ]
)
VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats() | TEXTS | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@ANY
@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_a_value_of_the_wrong_kind_is_named_with_its_key(tmp_path: Path, raw: dict[str, object]) -> None:
    import tomlkit

    text = tomlkit.dumps(raw)
    with contextlib.suppress(tomllib.TOMLDecodeError):
        tomllib.loads(text)
        (tmp_path / "any.toml").write_text(text, encoding="utf-8", newline="")
        (entry,) = read_all(tmp_path)
        assert (entry.profile is None) == (not _converts(tomllib.loads(text)) or (entry.problem is not None))
        if entry.profile is None:
            assert entry.problem is not None and entry.problem.key and entry.problem.expected


def _converts(raw: dict[str, object]) -> bool:
    try:
        msgspec.convert(raw, Profile)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True


def test_the_schema_in_the_docs_is_that_of_the_program() -> None:
    assert (DOCS / "profile.schema.json").read_text(encoding="utf-8") == schema_text()


def test_the_schema_knows_every_key_and_what_it_means() -> None:
    whole = json.loads(schema_text())
    assert whole["additionalProperties"] is False
    serve = whole["$defs"]["Serve"]["properties"]
    assert serve["config"]["description"] == "`--config FILE`: a YAML file of flags."
    assert set(serve) == {"model", "names", "host", "port", "config", "args", "json", "drop"}
    assert whole["properties"]["about"]["description"] == (
        "One line for the list; of this profile alone, never of the one that it extends."
    )


@given(st.text())
def test_what_an_editor_would_not_show_is_escaped(text: str) -> None:
    made = value_text(text)
    assert made.isprintable() and tomllib.loads(f"a = {made}") == {"a": text}
    key = bare(f"k{text}")
    assert key.isprintable() and tomllib.loads(f"{key} = 1") == {f"k{text}": 1}
