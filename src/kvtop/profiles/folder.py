"""The folder of profiles: reading each file, putting it on top of what it extends, and where each value came from.

A broken file blocks nothing but itself, and those that extend it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from kvtop import errors, files, paths
from kvtop.errors import UsageError, keyless, printable
from kvtop.profiles import valid
from kvtop.profiles.merge import Origins, idle, merged, spelled, spelled_path
from kvtop.profiles.profile import Profile
from kvtop.toml_text import line_of, lines_of, lines_of_texts, nearest

MAX_BYTES = 256_000
"""Of one profile."""
MAX_BASES = 16
"""Profiles that one extends, one through the other."""
MAX_FILES = 1000
MAX_VALUES = 2000
"""Keys and words of the command line, of one profile. Real ones have some dozens."""
_MOST_SIDECARS = 20
"""Whose values are looked for one by one."""
_EXTENDS = ("extends",)
_DOCS = "docs/profiles.md says what a profile may hold"


class Origin(NamedTuple):
    """Where a value came from."""

    file: Path | None
    line: int | None
    how: str
    """`file`, `extends NAME`, or `default`."""


@dataclass(frozen=True, slots=True)
class Problem(errors.Problem):
    """Why a profile cannot be used; `str()` is its file, line, key and what was expected, in one line."""

    key: str = ""
    """Dotted; empty where it is the file itself."""
    expected: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the folder."""

    name: str
    file: Path
    profile: Profile | None
    """Put together with what it extends; None where it cannot be used."""
    problem: Problem | None = None
    origins: dict[str, Origin] = field(default_factory=dict)
    """Dotted key -> where its value came from; of `serve.args` also each word, `serve.args[0]`. What stands in none
    is a default."""
    bases: tuple[str, ...] = ()
    """What it extends, the nearest first."""
    idle: tuple[str, ...] = ()
    """What it, or what it extends, wants to drop and finds nowhere."""

    def usable(self) -> Profile:
        """The profile. Raises UsageError with the problem where there is none."""
        if self.profile is None:
            raise UsageError(str(self.problem), self.problem.fix if self.problem else "")
        return self.profile


def folder() -> Path:
    """profiles/ beside config.toml. Raises UsageError where the environment names no folder for it."""
    return paths.config_dir() / "profiles"


def read_all(where: Path | None = None) -> list[Entry]:
    """Every profile, by name; empty where there is no such folder. Raises OSError for a folder that cannot be read."""
    where = where or folder()
    try:
        files = [file for file in where.iterdir() if file.suffix == ".toml" and not file.name.startswith(".")]
        found = sorted(files, key=lambda file: file.stem)
    except FileNotFoundError:
        return []
    reader = _Reader()
    return [reader.entry(file) for file in found[:MAX_FILES]]


def find(name_or_path: str, where: Path | None = None) -> Entry:
    """One profile, by its name or by the path of its file. Raises UsageError where there is no such file."""
    where = where or folder()
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        file = paths.from_home(name_or_path).absolute()
    else:
        file = where / f"{name_or_path}.toml"
    try:
        there = file.exists()
    except (OSError, ValueError):
        there = False
    if not there:
        _missing(name_or_path, where)
    return _Reader().entry(file)


def _missing(name: str, where: Path) -> NoReturn:
    from difflib import get_close_matches

    try:
        names = sorted(file.stem for file in where.iterdir() if file.suffix == ".toml")
    except OSError:
        names = []
    what = f"there is no profile '{printable(name, 60)}'"
    if "/" in name:
        raise UsageError(what, "kvtop profile list names those of the folder")
    if near := get_close_matches(name, names, 1, 0.6):
        raise UsageError(what, f"did you mean '{printable(near[0], 60)}'?")
    shown = printable(", ".join(names), 300)
    raise UsageError(what, f"there are {shown}" if names else f"there are none yet in {where}: kvtop profile import")


class _Whole(NamedTuple):
    """A file with what it extends."""

    values: dict[str, Any]
    origins: Origins[Origin]
    bases: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()


class _Unusable(Exception):
    def __init__(self, problem: Problem, root: Problem | None = None) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.root = root or problem
        """That of the file where it is wrong, for those that extend it."""


class _Read(NamedTuple):
    text: str
    raw: dict[str, Any]


class _Reader:
    """Reads each file once."""

    def __init__(self) -> None:
        self._read: dict[Path, _Read | Problem] = {}

    def entry(self, file: Path) -> Entry:
        try:
            if not valid.NAME.fullmatch(file.stem):
                what = f"'{printable(file.stem, 60)}' is no name of a profile"
                self._refuse(file, None, what, "", "letters, digits, - _ and ., at most 100")
            whole = self._resolved(file, ())
            profile = msgspec.convert(whole.values, Profile)
        except _Unusable as error:
            return Entry(file.stem, file, None, error.problem)
        except FileNotFoundError:  # a link to nowhere, or taken away meanwhile
            return Entry(file.stem, file, None, Problem("profile", "is not there any more", _DOCS, file))
        except (msgspec.ValidationError, RecursionError, OverflowError):
            problem = Problem("profile", "cannot be read", _DOCS, file)
            return Entry(file.stem, file, None, problem)
        return Entry(file.stem, file, profile, None, whole.origins, whole.bases, whole.idle)

    def _resolved(self, file: Path, below: tuple[Path, ...]) -> _Whole:
        """A file with what it extends; `below` are those that extend it."""
        text, raw = self._one(file)
        how = f"extends {file.stem}" if below else "file"
        lines = lines_of(text)
        origins = {
            dotted(spelled_path(path)): Origin(file, nearest(lines, path), how)
            for path in _leaves(raw)
            if path != _EXTENDS
        }
        for number, row in enumerate(raw.get("sidecar", ())[:_MOST_SIDECARS]):
            for key in row:
                line = line_of(text, ("sidecar", key), number)
                origins[f"sidecar[{number}].{key}"] = Origin(file, line, how)
        raw = spelled(raw)
        args = raw.get("serve", {}).get("args", ())
        if args:
            whole = origins["serve.args"]
            rows = [] if whole.line is None else lines_of_texts(text, whole.line, len(args))
            for number, row in enumerate(rows or [None] * len(args)):
                origins[f"serve.args[{number}]"] = whole._replace(line=row)
        base = raw.pop("extends", "")
        if not base:
            return _Whole(*merged({}, raw, {}, origins), idle=tuple(idle({}, raw)))
        line = nearest(lines, _EXTENDS)
        chain_ = (*below, file)
        if not valid.NAME.fullmatch(base):
            self._refuse(file, line, f'extends is "{keyless(base, 40)}"', "extends", "the name of another profile")
        base_file = file.with_name(f"{base}.toml")
        if base_file in chain_:
            ring = [one.stem for one in chain_[chain_.index(base_file) :]] + [base]
            what = f"extends {base}: a loop, {' extends '.join(ring)}"
            self._refuse(file, line, what, "extends", "a profile that does not extend this one")
        if len(chain_) > MAX_BASES:
            self._refuse(
                file, line, f"extends more than {MAX_BASES} profiles, one through the other", "extends", "less"
            )
        try:
            under = self._resolved(base_file, chain_)
        except FileNotFoundError:
            what = f"extends {base}: there is no {base}.toml beside it"
            self._refuse(file, line, what, "extends", "the name of another profile")
        except _Unusable as error:
            if error.problem.file == file or (error.problem.key == "extends" and error.problem.what.count(" loop")):
                raise
            what = f"extends {base}: {error.root.short}"
            problem = Problem("profile", what, _DOCS, file, line, key="extends", expected=error.problem.expected)
            raise _Unusable(problem, error.root) from None
        found = dict.fromkeys((*idle(under.values, raw), *under.idle))
        return _Whole(*merged(under.values, raw, under.origins, origins), (base, *under.bases), tuple(found))

    def _one(self, file: Path) -> _Read:
        known = self._read.get(file)
        if known is None:
            known = self._read[file] = self._from_disk(file)
        if isinstance(known, Problem):
            raise _Unusable(known)
        return known

    def _from_disk(self, file: Path) -> _Read | Problem:
        try:
            text, raw = files.read_toml(file, MAX_BYTES)
        except files.Unusable as error:
            return Problem("profile", str(error), error.fix, file, error.line)
        except ValueError as error:
            return Problem("profile", f"cannot be read: {error}", _DOCS, file)
        try:
            if values_of(raw) > MAX_VALUES:
                return Problem("profile", f"more than {MAX_VALUES} keys and words", "make it smaller", file)
            for fault in chain(valid.faults(raw), valid.more_faults(raw)):
                line = line_of(text, fault.path, fault.nth)
                key = dotted(fault.path)
                what = f"{keyless(key, 100)} {fault.what}: expected {fault.expected}"
                return Problem("profile", what, _DOCS, file, line, key=key, expected=fault.expected)
        except RecursionError:
            return Problem("profile", "nested too deeply", _DOCS, file)
        return _Read(text, raw)

    def _refuse(self, file: Path, line: int | None, what: str, key: str, expected: str) -> NoReturn:
        what = f"{what}: expected {expected}"
        raise _Unusable(Problem("profile", what, _DOCS, file, line, key=key, expected=expected))


def dotted(path: Sequence[str]) -> str:
    return ".".join(path)


def values_of(raw: dict[str, Any]) -> int:
    """How many keys and words a profile has."""
    serve = raw.get("serve")
    args = serve.get("args") if isinstance(serve, dict) else None
    return sum(1 for _ in _leaves(raw)) + (len(args) if isinstance(args, list) else 0)


def _leaves(raw: dict[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in raw.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*at, name))
        else:
            yield (*at, name)
