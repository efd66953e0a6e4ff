"""What the words of a shell itself do in a script: to its variables, to its folder, to what it finds programs by."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from kvtop.errors import keyless
from kvtop.files import read_start
from kvtop.profiles.importers.draft import MOST_CHARACTERS, MOST_WORDS, Draft, Refused, command_text, too_long
from kvtop.profiles.importers.expand import Scope
from kvtop.profiles.importers.others import Values
from kvtop.profiles.importers.search_path import LISTS, is_open, outer
from kvtop.profiles.importers.shell import Raw, Statement, assignment
from kvtop.profiles.importers.sourced import told
from kvtop.profiles.importers.variables import of_file
from kvtop.profiles.importers.word import Word, is_hidden
from kvtop.profiles.valid import VARIABLE

LOGIC = {
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
LOGIC |= {"{", "}", "[[", "[", "test", "!", "coproc", "eval", "return", "readonly", "local", "declare", "typeset"}
LOGIC |= {"pushd", "popd", "let", "mapfile", "readarray", "deactivate"}
NOTHING = {"echo", "printf", "true", ":", "wait", "exit", "shopt", "date", "clear", "read"}
NOTHING |= {"hash", "disown", "type", "jobs", "bg", "fg", "history"}
"""Commands that change nothing of what runs, as long as nothing is made of what they say."""
LEFT_OUT = {"trap", "ulimit", "umask", "micromamba", "module", "pkill", "kill", "killall", "fuser", "alias", "conda"}
_CONDAS = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", ".conda")
_ANOTHER = ": [venv] command names the vllm of another environment than kvtop's"
_MAX_SOURCED = 256_000
_ENV_FILE = re.compile(r"\s*(?:cat|grep\s+-v\s+(['\"]?)\^#\1)\s+([^\s|;&\"'$]+)\s*(?:\|\s*xargs(?:\s+-0)?\s*)?")
"""What `export $(…)` reads a file of variables by."""
_OF_A_RUN = ("!", "$", "?", "#", "_", "-")
"""Variables that only a shell that runs knows."""


class Builtins:
    """Of one script."""

    def __init__(self, draft: Draft, scope: Scope, run: Callable[[Sequence[Statement]], None]) -> None:
        """`run`: does what statements of a sourced file say."""
        self._draft, self._scope, self._run = draft, scope, run
        self._given = frozenset(scope.values)
        self.bin: Path | None = None
        """Of the environment that the script activates."""
        self._before: Path | None = None
        """The folder that it was in before this one."""
        self._conda: Path | None = None
        """Where conda is, as the script itself says."""

    # ---- variables
    def value(self, name: str, value: Raw | list[Raw]) -> Word | list[Word]:
        """What stands behind NAME= once its variables are put in."""
        if isinstance(value, list):
            return [word for raw in value for word in self._scope.words(raw)]
        self._scope.of = name
        try:
            return self._scope.one(value)
        finally:
            self._scope.of = ""

    def whole(self, name: str, added: bool, value: Word | list[Word], line: int | None) -> Word | list[Word]:
        """What a variable has then, hidden where its name tells of a secret. `added`: the value comes behind what it
        has."""
        before: Word | list[Word] | None
        before = self._scope.values.get(name)
        if before is None and name in LISTS and name not in self._scope.exported:
            before = Word(outer(name))
        if added and before is not None:
            value = _behind(before, value)
        if len(value) > (MOST_WORDS if isinstance(value, list) else MOST_CHARACTERS):
            raise too_long(line)
        for word in value if isinstance(value, list) else [value]:
            self._draft.hide(name, word)
        return value

    def assign(
        self, name: str, added: bool, value: Word | list[Word], *, export: bool = False, line: int | None = None
    ) -> None:
        self._scope.unknown.pop(name, None)
        value = self._scope.values[name] = self.whole(name, added, value, line)
        if export or self._scope.all_exported or name == "PATH" or name in self._given:  # what came exported stays so
            self._scope.exported[name] = True
        if name == "PATH":
            self._look_for_vllm()

    def assign_all(self, one: Statement) -> None:
        """NAME=VALUE without a command, one after the other: B=$A has the A before it. What is not known is refused
        only where it is used."""
        for name, added, raw in one.assigned:
            try:
                self.assign(name, added, self.value(name, raw), line=one.line)
            except Refused as error:
                is_exported = self._scope.all_exported or self._scope.exported.get(name) or name in self._given
                if is_exported or not self._is_of_a_run(raw):
                    raise
                self._scope.forget(name, error)

    def _is_of_a_run(self, value: Raw | list[Raw]) -> bool:
        """Whether a value may be left open: what a command prints, or a shell that runs knows, changes nothing else."""
        parts = [part for raw in (value if isinstance(value, list) else [value]) for part in raw.parts]
        if any(part.kind == "arithmetic" or (part.kind == "variable" and "=" in part.text) for part in parts):
            return False
        return any(part.kind == "command" or part.text in (*_OF_A_RUN, *self._scope.unknown) for part in parts)

    @property
    def path(self) -> str:
        """PATH as it is now."""
        value = self._scope.values.get("PATH", outer("PATH"))
        return value if isinstance(value, Word) else outer("PATH")

    @property
    def lists(self) -> dict[str, Word]:
        """Those that a command gets, and that begin or end with what they were before."""
        values = {name: self._scope.values.get(name) for name in LISTS if self._scope.exported.get(name)}
        return {name: value for name, value in values.items() if isinstance(value, Word) and is_open(name, value)}

    def _look_for_vllm(self) -> None:
        """A profile names vLLM itself by its path, where that can be seen."""
        for folder in self.path.split(":"):
            if folder.startswith("/") and (Path(folder) / "vllm").exists():
                self.bin = Path(folder)
                return

    # ---- words of the shell
    def takes(self, words: list[Word], one: Statement, values: Values) -> bool:
        """Whether it is a word of the shell itself, or a command that leaves no trace, and was taken."""
        name, rest = str(words[0]), words[1:]
        if name == "export":
            self._export(one, values)
        elif name == "unset":
            self._unset(rest, one.line)
        elif name == "set":
            self._set(rest)
        elif name == "cd":
            self._cd(rest, one)
        elif name in ("source", "."):
            self._source(rest, one, values)
        elif name == "conda" and rest[:1] == ["activate"] and self._has_activated(rest[1:]):
            pass
        elif name in LEFT_OUT:
            another = _ANOTHER if name == "conda" else ""
            self._draft.note(f"line {one.line}: `{command_text(words, 80)}` was left out{another}")
        elif name == "exec" and not rest:  # only its own output goes elsewhere
            pass
        elif name == "shift":
            self._shift(rest, one.line)
        elif name == "read":
            for word in filter(str.isidentifier, rest):
                why = Refused(f"what is read into {word} is known only when it runs", line=one.line)
                self._scope.forget(word, why)
        else:
            return name in NOTHING
        return True

    def _export(self, one: Statement, in_front: Values) -> None:
        # its words are filled in before it assigns any
        todo: list[tuple[str, bool, Word | list[Word] | None]] = []
        for raw in one.words[1:]:
            if said := assignment(raw):
                todo.append((said[0], said[1], self.value(said[0], said[2])))
            elif (text := _env_file(raw)) is not None:
                given = of_file(self._read(text, one.line)[0])
                todo += [(name, False, Word(value)) for name, value in given if VARIABLE.fullmatch(name)]
            else:
                for word in self._scope.words(raw):
                    name, equals, value = word.partition("=")
                    if not name.isidentifier() and not name.startswith("-"):
                        raise Refused("export of what is no name of a variable", line=one.line)
                    todo.append((name, False, word.part(value) if equals else None))
        for name, added, found in todo:
            if name.startswith("-"):
                continue
            if found is None and name in in_front:  # it stays; what is not exported is of this command alone
                found = in_front[name]
            if found is not None:
                self.assign(name, added, found, line=one.line)
            elif name in self._scope.unknown:
                raise self._scope.unknown[name]
            self._scope.exported[name] = True

    def _unset(self, rest: Sequence[Word], line: int) -> None:
        for word in rest:
            if is_hidden([word]):
                self._draft.note(f"line {line}: `unset …` was left out: it holds a secret")
            elif not word.startswith("-"):
                self._scope.values.pop(str(word), None)
                self._scope.unknown.pop(str(word), None)
                self._scope.exported[str(word)] = False

    def _set(self, rest: Sequence[Word]) -> None:
        """-a, also among other letters; the arguments behind --."""
        for at, word in enumerate(rest):
            if word == "--":
                self._scope.own_arguments = list(rest[at + 1 :])
                return
            if word == "allexport" or (word[:1] in "+-" and "a" in word[1:]):
                self._scope.all_exported = word[:1] != "+"

    def _shift(self, rest: Sequence[Word], line: int) -> None:
        own, number = self._scope.own_arguments, str(rest[0]) if rest else "1"
        if own is None or not number.isdecimal():
            raise Refused("`shift`: the script takes its own arguments", line=line)
        self._scope.own_arguments = own[int(number) :]

    def _cd(self, rest: Sequence[Word], one: Statement) -> None:
        self._draft.refuse_unknown(rest)
        where = [word for word in rest if word not in ("-P", "-L", "--")]
        if where == ["-"]:
            if self._before is None:
                raise Refused("`cd -`: where that is depends on where it is run", line=one.line)
            whole = self._before
        elif where:
            whole = (self._scope.here or Path()) / where[-1]
        elif self._draft.has_home:
            whole = Path.home()
        else:
            raise Refused("`cd`: where its home is depends on where it is run", line=one.line)
        if not whole.is_absolute():
            raise Refused(f"cd {command_text(where[-1:], 80)}: where that is depends on where it is run", line=one.line)
        self._before, self._scope.here, self._scope.moved = self._scope.here, whole, True

    # ---- other files
    def _source(self, rest: Sequence[Word], one: Statement, in_front: Values) -> None:
        self._draft.refuse_unknown(rest[:2])
        if not rest:
            return
        here = self._scope.here
        file = Path(rest[0]) if here is None else here / rest[0]
        if file.name == "activate" and not rest[1:]:
            self._activate(file.parent)
            return
        if file.name == "activate":  # conda's own has an environment's name behind it
            self._conda = file.parents[1] if "/" in rest[0] and len(file.parents) > 1 else self._conda
            if not self._has_activated(rest[1:]):
                self._draft.note(f"line {one.line}: `{command_text(['source', *rest], 80)}` was left out{_ANOTHER}")
            return
        if file.name == "conda.sh":
            self._conda = file.parents[2] if len(file.parents) > 2 else None
            return
        if self._draft.in_container:
            raise Refused(f"{command_text(str(rest[0]), 80)}, which it sources, is in the container", line=one.line)
        try:
            text, name = self._read(rest[0], one.line)
        except Refused as error:
            if one.end != "||":
                raise
            self._draft.note(f"{error.what}: left out")
            return
        with self._scope.for_now() as put:
            for variable, value in in_front.items():
                put(variable, value)
            own = self._scope.folder
            self._scope.folder = file.parent if file.is_absolute() else own
            try:
                self._sourced(text, name)
            finally:
                self._scope.folder = own

    def _read(self, named: str, line: int) -> tuple[str, str]:
        """(text, name fit for a note) of another file."""
        name = command_text(str(named), 80)
        try:
            return read_start((self._scope.here or Path()) / named, _MAX_SOURCED)[0].decode("utf-8"), name
        except (OSError, ValueError):
            raise Refused(f"{name}, which it sources, cannot be read", line=line) from None

    def _sourced(self, text: str, name: str) -> None:
        """A file of variables: what else stands in it is not read, nor what stands under a condition."""
        found = told(text)
        if found is None:
            self._lines(text, name)
            return
        for chain in found[0]:
            try:
                self._run(chain)
            except Refused as error:
                self._draft.note(f"{name}, {error.what}: left out")
        for less in found[1]:
            self._draft.note(f"{name}: {less}")

    def _lines(self, text: str, name: str) -> None:
        """Of a file that is no script."""
        for variable, value in of_file(text):
            if not VARIABLE.fullmatch(variable):
                self._draft.note(f"{name}: a line of it that sets no variable is left out")
            elif "$" in value or "`" in value:
                self._draft.note(f"{name}: {keyless(variable, 60)} is left out: a shell computes it")
            else:
                exported = re.search(rf"^[ \t]*export[ \t]+{variable}=", text, re.MULTILINE)
                self.assign(variable, False, Word(value), export=exported is not None)

    # ---- environments
    def _activate(self, folder: Path) -> None:
        """What `activate` in a virtual environment's bin/ does."""
        self.bin = folder
        if not folder.is_absolute():
            self._draft.note("PATH and VIRTUAL_ENV: left out; where that environment is depends on where it is run")
            return
        self.assign("PATH", False, Word(f"{folder}:{self.path}", hidden=is_hidden([self.path])))
        self.assign("VIRTUAL_ENV", False, Word(str(folder.parent)), export=True)

    def _has_activated(self, names: Sequence[Word]) -> bool:
        """Whether that environment of conda is there to be named."""
        self._draft.refuse_unknown(names)
        homes = [Path.home() / one for one in _CONDAS] if self._draft.has_home else []
        for root in [self._conda] if self._conda is not None else homes:
            folder = root / "envs" / names[0] / "bin" if names and names[0] != "base" else root / "bin"
            if folder.is_dir():
                self._activate(folder)
                return True
        return False


def _behind(before: Word | list[Word], value: Word | list[Word]) -> Word | list[Word]:
    """What NAME+= makes of both."""
    if isinstance(value, list):
        return [*(before if isinstance(before, list) else [before]), *value]
    first = before[0] if isinstance(before, list) and before else Word("") if isinstance(before, list) else before
    joined = Word(first + value, first.secret or value.secret, hidden=first.hidden or value.hidden)
    return [joined, *before[1:]] if isinstance(before, list) else joined


def _env_file(raw: Raw) -> str | None:
    """The file of `$(cat .env | xargs)`."""
    part = raw.parts[0] if len(raw.parts) == 1 else None
    found = _ENV_FILE.fullmatch(part.text) if part is not None and part.kind == "command" else None
    return found[2] if found else None
