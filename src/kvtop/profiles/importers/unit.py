"""A systemd unit. It goes on to hold what is run; the profile says what is expected of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from kvtop.errors import keyless
from kvtop.files import read_start
from kvtop.profiles.importers.draft import MOST_CHARACTERS, MOST_WORDS, Draft, Refused, command_text, too_long
from kvtop.profiles.importers.variables import of_file
from kvtop.profiles.importers.word import Word
from kvtop.profiles.importers.words import command
from kvtop.profiles.secret import holds_secret

_SECTION = re.compile(r"\[([\w-]+)\]")
_SPECIFIER = re.compile(r"%(.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "s": " ", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_UNITS = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hr": 3600, "ms": 0.001}
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_IN_BRACES = re.compile(rf"\$\{{({_NAME})\}}")
_MAX_ENV = 256_000


def read(draft: Draft, text: str, file: Path | None) -> None:
    """Take over a unit. Raises Refused."""
    if file is not None and file.stem.endswith("@"):
        stem = command_text(file.stem, 100)
        raise Refused(
            f"{stem}.service is a template, which systemd starts only with a name behind its @",
            f"systemctl cat {stem}NAME > {stem}NAME.service, and import that",
        )
    settings = list(_settings(text))
    unit = _Unit(draft, file, settings)
    draft.raw["runner"] = "systemd"
    if file is not None:
        draft.put("systemd", "unit", file.name)
        user = "user" in file.parts or any(value == "default.target" for key, value, _ in settings if key == "WantedBy")
        if user:
            draft.put("systemd", "user", True)
    unit.environment()
    unit.run()
    unit.rest()


def _settings(text: str) -> Iterator[tuple[str, str, int]]:
    """(key, value, line) of [Service] and [Install], continuations joined."""
    section, held, begun = "", "", 0
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if held and line.lstrip().startswith(("#", ";")):
            continue
        begun = begun if held else number
        held += line.strip() if not held else line.lstrip()
        if held.endswith("\\"):
            held = held[:-1].rstrip() + " "
            continue
        whole, held = held.strip(), ""
        if found := _SECTION.fullmatch(whole):
            section = found[1]
        elif whole and whole[0] not in "#;" and section in ("Service", "Install"):
            key, equals, value = whole.partition("=")
            if equals:
                yield key.strip(), value.strip(), begun


class _Unit:
    def __init__(self, draft: Draft, file: Path | None, settings: list[tuple[str, str, int]]) -> None:
        self._draft, self._file, self._settings = draft, file, settings
        self._variables: dict[str, str] = {}

    def _of(self, key: str) -> list[tuple[str, int]]:
        """All values of a key; an empty one takes back those before it."""
        found: list[tuple[str, int]] = []
        for name, value, line in self._settings:
            if name == key:
                found = [*found, (value, line)] if value else []
        return found

    def environment(self) -> None:
        """Environment below EnvironmentFile, less UnsetEnvironment."""
        for value, line in self._of("Environment"):
            for word in _split(self._specified(value), line):
                name, equals, text = word.partition("=")
                if equals:
                    self._set(name, text)
        for value, _ in self._of("EnvironmentFile"):
            name = self._specified(value.removeprefix("-"))
            try:
                data, _mode = read_start(Path(name), _MAX_ENV)
                text = data.decode("utf-8")
            except (OSError, ValueError):
                self._draft.note(
                    f"EnvironmentFile {command_text(name, 100)} cannot be read: what stands in it is not known here"
                )
                continue
            for variable, given in of_file(text):
                self._set(variable, given)
        for value, line in self._of("UnsetEnvironment"):
            for word in _split(self._specified(value), line):
                self._variables.pop(word.partition("=")[0], None)
                self._draft.unset(word.partition("=")[0])

    def _set(self, name: str, value: str) -> None:
        self._variables[name] = value
        self._draft.variable(name, value)

    def run(self) -> None:
        """ExecStart."""
        starts = self._of("ExecStart")
        if len(starts) != 1:
            raise Refused(
                f"{len(starts)} lines ExecStart" if starts else "no line ExecStart", "name a unit that runs vLLM"
            )
        value, line = starts[0]
        words = self._expanded(_split(self._specified(value.lstrip("-@:+!|")), line))
        try:
            command(self._draft, words)
        except Refused as error:
            what = command_text(words, 100)
            self._draft.note(f"what ExecStart runs is not known to kvtop: {error.what}: `{what}`")
            self._draft.note("import that script too, or write [serve] by hand, where check is to know what runs")
        for key in ("command", "wrap", "cwd"):
            self._draft.table("venv").pop(key, None)
        for key in ("name", "entrypoint", "command", "program", "env_files"):
            self._draft.table("docker").pop(key, None)

    def _expanded(self, words: list[str]) -> list[str]:
        """Variables put in: ${NAME} anywhere, $NAME as a word of its own, which is split."""
        out: list[str] = []
        for word in words:
            names = [alone[1]] if (alone := re.fullmatch(rf"\$({_NAME})", word)) else _IN_BRACES.findall(word)
            hidden = any([self._draft.hide(name, self._variables.get(name, "")) for name in names])
            if alone:
                try:
                    pieces = _split(self._variables.get(alone[1], ""), 0)
                except Refused:
                    pieces = self._variables.get(alone[1], "").split()
                out += [Word(one, hidden=hidden) for one in pieces]
            else:
                if sum(len(self._variables.get(name, "")) for name in names) > MOST_CHARACTERS:
                    raise too_long()
                filled = _IN_BRACES.sub(lambda found: self._variables.get(found[1], ""), word)
                out.append(Word(filled.replace("$$", "$"), hidden=hidden))
            if len(out) > MOST_WORDS:
                raise too_long()
        return out

    def _specified(self, text: str) -> str:
        """Specifiers put in, as far as they can be told from the file."""

        def value(found: re.Match[str]) -> str:
            letter = found[1]
            if letter == "%":
                return "%"
            if letter == "h" and self._is_users():
                return str(Path.home())
            if letter in "niNpP" and self._file is not None:
                return _names(self._file.name).get(letter, found[0])
            self._draft.note(f"%{keyless(letter, 4)}: systemd puts its value in; it stands here as it is")
            return found[0]

        return _SPECIFIER.sub(value, text)

    def _is_users(self) -> bool:
        return bool(self._draft.raw.get("systemd", {}).get("user"))

    def rest(self) -> None:
        """What systemd does around it: that is its own, and told."""
        for key in ("ExecStartPre", "ExecStartPost", "ExecStop", "ExecStopPost"):
            for value, line in self._of(key):
                try:
                    words = _split(self._specified(value), line)
                except Refused:  # it is systemd's, and no part of the profile
                    self._draft.note(f"systemd runs {key}, which cannot be told apart into words")
                    continue
                self._draft.note(f"systemd runs {key}: {command_text(words if holds_secret(words) else value, 100)}")
        for value, _ in self._of("TimeoutStartSec"):
            seconds = _seconds(value)
            if seconds and 0 < seconds <= 86_400 and seconds != 1800:
                self._draft.put("start", "timeout_s", seconds)
        for value, _ in self._of("Restart"):
            if value not in ("no", ""):
                self._draft.note(f"Restart={command_text(value, 20)}: systemd starts it again after a crash")
        for value, _ in self._of("MemoryMax"):
            self._draft.note(f"MemoryMax={command_text(value, 20)} limits its memory")


def _names(name: str) -> Mapping[str, str]:
    stem = name.rpartition(".")[0]
    prefix, _, instance = stem.partition("@")
    return {"n": name, "N": stem, "p": prefix, "P": prefix, "i": instance}


def _split(text: str, line: int) -> list[str]:
    """Words as systemd reads them: quotes around whole words or parts, \\ escapes inside and outside of them."""
    words: list[str] = []
    now: str | None = None
    quote = ""
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'" and at + 1 < len(text):
            now = (now or "") + _ESCAPES.get(text[at + 1], text[at + 1])
            at += 1
        elif quote:
            if char == quote:
                quote = ""
            else:
                now = (now or "") + char
        elif char in "\"'":
            quote = char
            now = now or ""
        elif char.isspace():
            if now is not None:
                words.append(now)
            now = None
        else:
            now = (now or "") + char
        at += 1
    if quote:
        raise Refused("a quote has no end", "mend the unit", line)
    return [*words, *([] if now is None else [now])]


def _seconds(span: str) -> float | None:
    if span == "infinity":
        return 86_400.0
    total = 0.0
    found = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", span)
    for number, unit in found:
        if unit not in _UNITS:
            return None
        total += float(number) * _UNITS[unit]
    return total if found else None
