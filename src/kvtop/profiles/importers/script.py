"""A plain shell script: variables, exports and one command that starts vLLM. What has logic is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvtop.errors import keyless
from kvtop.files import read_start
from kvtop.profiles.importers import search_path
from kvtop.profiles.importers.draft import (
    MOST_CHARACTERS,
    MOST_WORDS,
    Draft,
    Refused,
    Word,
    command_text,
    is_hidden,
    short_enough,
    too_long,
)
from kvtop.profiles.importers.expand import Scope
from kvtop.profiles.importers.others import Other, Values
from kvtop.profiles.importers.search_path import OUTER
from kvtop.profiles.importers.shell import Raw, Statement, assignment, statements
from kvtop.profiles.importers.variables import of_file
from kvtop.profiles.importers.words import CONTAINERS, command, shell_text
from kvtop.profiles.valid import VARIABLE
from kvtop.sources.processes import role

_LOGIC = {
    "if",
    "then",
    "else",
    "elif",
    "fi",
    "for",
    "while",
    "until",
    "do",
    "done",
    "case",
    "esac",
    "function",
    "select",
}
_LOGIC |= {"{", "}", "[[", "[", "test", "!", "coproc", "eval", "return", "readonly", "local", "declare", "typeset"}
_NOTHING = {"echo", "printf", "true", ":", "wait", "exit", "shopt", "date", "clear", "read"}
"""Commands that change nothing of what runs."""
_LEFT_OUT = {"trap", "ulimit", "umask", "conda", "micromamba", "module", "pkill", "kill", "killall", "fuser"}
_MAX_SOURCED = 256_000
_MOST_OTHERS = 300
_ELEMENT = re.compile(r"([A-Za-z_]\w*)\[[^\]]*\]?\+?(?:=|$)")
_EXPORT = re.compile(r"^[ \t]*export[ \t]+([A-Za-z_]\w*)", re.MULTILINE)


def read(draft: Draft, text: str, file: Path | None = None) -> None:
    """Take over a script; `file`: where it is. Raises Refused."""
    _Script(draft, file, text).run(text)


class _Script:
    def __init__(self, draft: Draft, file: Path | None, text: str) -> None:
        self._draft = draft
        self._folder = file.parent if file else None
        self._scope = Scope(self._folder, draft, text)
        self._given = frozenset(self._scope.values)
        self._all_exported = False
        self._bin: Path | None = None
        """Of the environment that the script activates."""
        self._pending: Iterator[Statement] = iter(())
        self._line = 1
        self._begun = False
        self._others = 0
        self._in_background = False

    def run(self, text: str) -> None:
        # one by one: logic is refused by its own word, before what stands in it is read
        self._pending = iter(statements(text))
        while (one := self._next()) is not None:
            self._line = one.line
            self._one(one)
        if not self._begun:
            raise Refused(
                "no command of it starts vLLM", "name the script that does; or give its command line behind --"
            )
        if self._scope.arguments:
            self._draft.note("the script hands its own arguments on ($@): none were taken")

    def _next(self) -> Statement | None:
        return next(self._pending, None)

    def _one(self, one: Statement) -> None:
        if one.words and one.words[0].bare in _LOGIC:
            raise Refused(f"`{one.words[0].bare}`: the script has logic", line=one.line)
        if one.words and (element := _ELEMENT.match(one.words[0].begins)):
            raise Refused(f"an element of the list {element[1]} is set", line=one.line)
        if not one.words:  # one after the other: B=$A has the A before it
            for name, added, raw in one.assigned:
                self._assign(name, added, self._value(name, raw), export=self._all_exported)
            return
        is_export = one.words[0].bare == "export"  # its words are never split
        words = [Word("export")] if is_export else [word for raw in one.words for word in self._scope.words(raw)]
        values = self._in_front(one)
        short_enough(words, one.line)
        if not words:
            for name, value in values.items():
                self._assign(name, False, value, export=self._all_exported)
            return
        if self._builtin(words, one, values):
            if one.end == "||":
                self._next()  # what is done where it fails
            return
        if self._starts(words):
            self._server(one, words, values)
        elif one.end == "|":
            raise Refused(f"a pipe behind `{command_text(words[:1], 40)}`: the script has logic", line=one.line)
        elif one.end == "||":
            instead = self._next()
            if instead is None or [raw.bare for raw in instead.words] not in (["true"], [":"]):
                raise Refused("`||`: the script has logic", line=one.line)
            self._other(one, words, values, may_fail=True)
        else:
            self._other(one, words, values)

    def _in_front(self, one: Statement) -> Values:
        """What is assigned in front of a command, for that alone: each has those before it, the words have none."""
        found: Values = {}
        with self._scope.for_now() as put:
            for name, added, raw in one.assigned:
                found[name] = self._whole(name, added, self._value(name, raw))
                put(name, found[name])
        return found

    def _value(self, name: str, value: Raw | list[Raw]) -> Word | list[Word]:
        if isinstance(value, list):
            return [word for raw in value for word in self._scope.words(raw)]
        self._scope.of_path = name == "PATH"
        try:
            return self._scope.one(value)
        finally:
            self._scope.of_path = False

    def _whole(self, name: str, added: bool, value: Word | list[Word]) -> Word | list[Word]:
        """What a variable has then, hidden where its name tells of a secret. `added`: the value comes behind what it
        has."""
        before: Word | list[Word] | None
        before = self._scope.values.get(name, Word(self._path) if name == "PATH" else None)
        if added and isinstance(before, list):
            value = before + (value if isinstance(value, list) else [value])
        elif added and isinstance(before, Word) and isinstance(value, Word):
            value = Word(before + value, before.secret or value.secret, hidden=before.hidden or value.hidden)
        if len(value) > (MOST_WORDS if isinstance(value, list) else MOST_CHARACTERS):
            raise too_long(self._line)
        for word in value if isinstance(value, list) else [value]:
            self._draft.hide(name, word)
        return value

    def _assign(self, name: str, added: bool, value: Word | list[Word], export: bool = False) -> None:
        value = self._scope.values[name] = self._whole(name, added, value)
        if export or name == "PATH" or name in self._given:  # what came exported stays so
            self._scope.exported[name] = True
        if name == "PATH":
            self._look_for_vllm()

    @property
    def _path(self) -> str:
        """PATH as it is now."""
        value = self._scope.values.get("PATH", OUTER)
        return value if isinstance(value, Word) else OUTER

    def _look_for_vllm(self) -> None:
        """A profile names vLLM itself by its path, where that can be seen."""
        for folder in self._path.split(":"):
            if folder.startswith("/") and (Path(folder) / "vllm").exists():
                self._bin = Path(folder)
                return

    def _activate(self, folder: Path) -> None:
        """What `activate` in a virtual environment's bin/ does."""
        self._bin = folder
        if not folder.is_absolute():
            self._draft.note("PATH and VIRTUAL_ENV: left out; where that environment is depends on where it is run")
            return
        self._assign("PATH", False, Word(f"{folder}:{self._path}", hidden=is_hidden([self._path])))
        self._assign("VIRTUAL_ENV", False, Word(str(folder.parent)), export=True)

    def _builtin(self, words: list[Word], one: Statement, values: Values) -> bool:
        """Whether it is a word of the shell itself, and was taken."""
        name, rest = str(words[0]), words[1:]
        if name == "export":
            self._export(one, values)
        elif name == "unset":
            for word in rest:
                if is_hidden([word]):
                    self._draft.note(f"line {one.line}: `unset …` was left out: it holds a secret")
                elif not word.startswith("-"):
                    self._scope.values.pop(str(word), None)
                    self._scope.exported[str(word)] = False
        elif name == "set":
            for word in rest:
                if word in ("-a", "allexport", "+a"):
                    self._all_exported = word != "+a"
        elif name == "cd":
            self._cd(rest, one)
        elif name in ("source", "."):
            self._source(rest, one, values)
        elif name in _LEFT_OUT:
            self._draft.note(f"line {one.line}: `{command_text(words, 80)}` was left out")
        else:
            return name in _NOTHING
        return True

    def _export(self, one: Statement, in_front: Values) -> None:
        found = [(raw.bare, assignment(raw)) for raw in one.words[1:]]
        # its words are filled in before it assigns any
        values = [(*said[:2], self._value(said[0], said[2])) if said else None for _, said in found]
        for (bare, _), value in zip(found, values, strict=True):
            if value is not None:
                self._assign(*value)
            elif not bare.isidentifier():
                raise Refused("export of what is no name of a variable", line=one.line)
            self._scope.exported[value[0] if value is not None else bare] = True
        named = {bare for bare, said in found if said is None}
        for name in named & in_front.keys():  # stays; what is not exported is of this command alone
            self._assign(name, False, in_front[name])

    def _cd(self, rest: Sequence[Word], one: Statement) -> None:
        self._draft.refuse_unknown(rest)
        if rest and not self._begun:
            where = Path(rest[-1])
            here = Path(self._draft.table("venv").get("cwd", "") or self._folder or ".")
            whole = here / where
            if not whole.is_absolute():
                raise Refused(
                    f"cd {command_text(str(where), 80)}: where that is depends on where it is run", line=one.line
                )
            self._draft.put("venv", "cwd", str(whole))

    def _here(self) -> Path | None:
        cwd = self._draft.raw.get("venv", {}).get("cwd")
        return Path(cwd) if cwd else self._folder

    def _source(self, rest: Sequence[Word], one: Statement, in_front: Values) -> None:
        self._draft.refuse_unknown(rest[:1])
        if not rest:
            return
        here = self._here()
        file = Path(rest[0]) if here is None else here / rest[0]
        if file.name == "activate":
            self._activate(file.parent)
            return
        if self._draft.in_container:
            raise Refused(f"{command_text(str(rest[0]), 80)}, which it sources, is in the container", line=one.line)
        try:
            data, _ = read_start(file, _MAX_SOURCED)
            text = data.decode("utf-8")
        except (OSError, ValueError):
            raise Refused(
                f"{command_text(str(rest[0]), 80)}, which it sources, cannot be read", line=one.line
            ) from None
        with self._scope.for_now() as put:
            for name, value in in_front.items():
                put(name, value)
            self._sourced(text, command_text(str(rest[0]), 80))

    def _sourced(self, text: str, name: str) -> None:
        """A file of variables: what else stands in it is not read."""
        try:
            whole = list(statements(text))
            plain = all(not one.words or one.words[0].bare in ("export", "set", "unset") for one in whole)
        except Refused:
            whole, plain = [], False
        for one in whole if plain else ():
            try:
                self._one(one)
            except Refused as error:
                self._draft.note(f"{name}, {error.what}: left out")
        if plain:
            return
        exported = set(_EXPORT.findall(text))
        for variable, value in of_file(text):
            if not VARIABLE.fullmatch(variable):
                self._draft.note(f"{name}: a line of it that sets no variable is left out")
            elif "$" in value or "`" in value:
                self._draft.note(f"{name}: {keyless(variable, 60)} is left out: a shell computes it")
            else:
                self._assign(variable, False, Word(value), export=self._all_exported or variable in exported)

    def _starts(self, words: Sequence[Word]) -> bool:
        """Whether it starts vLLM, as it stands or through something else."""
        rest = [str(word) for word in words]
        if any(role(rest[at:]) == "api" for at in range(len(rest))):
            return True
        if any(self._text_starts(text) for at in range(len(rest)) if (text := shell_text(rest[at:]))):
            return True
        at = next((at for at, word in enumerate(rest) if Path(word).name in CONTAINERS), None)
        return at is not None and "run" in rest[at : at + 3] and _is_server(rest[at:])

    def _text_starts(self, text: str) -> bool:
        """The same of what a shell is given with -c."""
        try:
            told = [[raw.bare for raw in one.words] for one in statements(text)]
        except Refused:
            return False
        return any(words and words[0] not in _NOTHING and self._starts(list(map(Word, words))) for words in told)

    def _server(
        self,
        one: Statement,
        words: list[Word],
        values: Values,
    ) -> None:
        if self._begun:
            raise Refused("a second command that starts vLLM: a profile is one server", line=one.line)
        self._begun = True
        draft = self._draft
        for name, exported in self._scope.exported.items():
            value = self._scope.values.get(name)
            if not exported:
                draft.outer[name] = None
            elif isinstance(value, Word):
                draft.outer[name] = value
        for name, prefixed in values.items():
            if isinstance(prefixed, Word):
                draft.outer[name] = prefixed
        path = draft.outer.get("PATH") or ""
        if OUTER in path:
            del draft.outer["PATH"]
        was_in_container = draft.in_container
        command(draft, [self._found(word) for word in words])
        if OUTER in path and draft.in_container == was_in_container:
            draft.refuse_unknown([path], by_shell=True)
            # in front: the wrapper, too, is found by it
            draft.put("venv", "wrap", [*search_path.wrap(path), *draft.raw.get("venv", {}).get("wrap", [])])
        for operator, target in one.redirected:
            if not operator.endswith("&"):
                where = command_text(self._scope.words(target), 100)
                draft.note(f"its output went to {where}: kvtop keeps a log of its own ([log] file)")
        self._in_background = one.end == "&" or words[0] == "exec" or _returns_at_once(words)
        if one.end == "|":
            behind = self._next()
            if behind is None or not behind.words or behind.words[0].bare != "tee":
                raise Refused("a pipe behind vLLM: the script has logic", line=one.line)
            draft.note("its output went through tee: kvtop keeps a log of its own ([log] file)")

    def _found(self, word: Word) -> Word:
        """A program of the environment that the script activates, by its path."""
        if self._bin is None or "/" in word:
            return word
        if word == "vllm" or word.startswith("python") or (self._bin / word).exists():
            return Word(str(self._bin / word), line=word.line)
        return word

    def _other(self, one: Statement, words: list[Word], values: Values, may_fail: bool = False) -> None:
        """A command that is none of vLLM's."""
        draft = self._draft
        self._others += 1
        if self._others > _MOST_OTHERS:
            raise Refused(f"more than {_MOST_OTHERS} commands that are none of vLLM", line=one.line)
        if draft.keeps_own:
            return
        shown = f"line {one.line}: `{command_text(words, 80)}`"
        if Path(words[0]).name in CONTAINERS and words[1:2] and words[1] in ("rm", "stop", "kill"):
            draft.note(f"{shown} was left out: kvtop stops what it starts")
            return
        redirected = [(operator, self._scope.words(target)) for operator, target in one.redirected]
        other = Other(words, values, redirected, self._path)
        if other.holds_secret:
            draft.note(f"line {one.line}: `{command_text(words[:1], 40)} …` was left out: it holds a secret")
            return
        draft.refuse_unknown(words, by_shell=True)
        if self._begun and self._in_background:
            draft.note(f"{shown} was left out: it runs beside vLLM")
            return
        if one.end == "&":
            beside = [*other.in_front, *(str(self._found(word)) for word in words)]
            draft.raw.setdefault("sidecar", []).append({"name": Path(words[0]).name, "command": beside})
            draft.note(f"{shown} runs beside vLLM, as a sidecar")
            for where in other.outputs:
                draft.note(f"its output went to {where}: kvtop keeps a log of each sidecar")
            return
        if draft.raw.get("sidecar") and not self._begun:
            names = command_text(", ".join(one["name"] for one in draft.raw["sidecar"]), 60)
            draft.note(
                f"{shown} came behind the start of {names}: kvtop runs it before that; ready_url in [[sidecar]] waits "
                "for one"
            )
        where = "after_stop" if self._begun else "before"
        draft.table("start").setdefault(where, []).append(other.said(may_fail))


def _returns_at_once(words: Sequence[str]) -> bool:
    """Whether the server goes on to run when this command ends: a container in the background."""
    at = next((at for at, word in enumerate(words) if Path(word).name in CONTAINERS), None)
    if at is None:
        return False
    return any(re.fullmatch(r"--detach(?:=true)?|-[itPq]*d[ditPq]*", word) for word in words[at:])


def _is_server(words: Sequence[str]) -> bool:
    """Whether a container is one of vLLM: by its image, or by flags that only vLLM has."""
    return any("vllm" in word.lower() for word in words) or "--served-model-name" in words or "--model" in words
