"""A plain shell script: variables, exports and one command that starts vLLM. What has logic is refused."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kvtop.profiles.importers import search_path
from kvtop.profiles.importers.builtin import LEFT_OUT, LOGIC, NOTHING, Builtins
from kvtop.profiles.importers.draft import Draft, Refused, command_text, short_enough
from kvtop.profiles.importers.expand import Scope
from kvtop.profiles.importers.others import Other, Values
from kvtop.profiles.importers.shell import Raw, Statement, statements
from kvtop.profiles.importers.word import Word
from kvtop.profiles.importers.words import CONTAINERS, command, shell_text
from kvtop.sources.processes import role

_LINKS = ("&&", "||")
_MOST_OTHERS = 300
_SAYS = NOTHING - {":", "true", "read"}
"""Those whose words need not be known."""
_ELEMENT = re.compile(r"([A-Za-z_]\w*)\[[^\]]*\]?\+?(?:=|$)")


def read(draft: Draft, text: str, file: Path | None = None) -> None:
    """Take over a script; `file`: where it is. Raises Refused."""
    _Script(draft, file, text).run(text)


class _Second(Refused):
    """Another server in the same script."""


class _Script:
    def __init__(self, draft: Draft, file: Path | None, text: str) -> None:
        self._draft = draft
        self._scope = Scope(file, draft, text)
        self._shell = Builtins(draft, self._scope, self._within)
        self._pending: Iterator[Statement] = iter(())
        self._ahead: deque[Statement] = deque()
        """Read already, and not yet done."""
        self._taken = ""
        """How the statement ended that was taken last."""
        self._begun = False
        self._others: list[tuple[str, int, Path | None]] = []
        """(key of [start], which of them, its folder) of the commands that are none of vLLM's."""
        self._in_background = self._is_relative = False
        self._served: tuple[Path | None, bool] = (None, False)
        """The folder that it was in when the server was started, and whether it had gone there itself."""

    def run(self, text: str) -> None:
        try:
            # one by one: logic is refused by its own word, before what stands in it is read
            self._all(statements(text))
        except _Second:
            raise
        except Refused as error:
            if not (self._begun and self._in_background) or self._has_second():
                raise
            self._draft.note(f"{error.what}: it and what stands behind it runs beside vLLM, and was left out")
        if not self._begun:
            raise Refused(
                "no command of it starts vLLM", "name the script that does; or give its command line behind --"
            )
        self._put_folders()
        if self._scope.arguments:
            self._draft.note("the script hands its own arguments on ($@): none were taken")

    def _all(self, given: Iterable[Statement]) -> None:
        self._pending = iter(given)
        while True:
            is_first = self._taken not in _LINKS
            if (one := self._next()) is None:
                break
            if is_first and one.end in _LINKS and self._goes_beside():
                self._in_its_own(one)
            else:
                self._one(one)

    def _within(self, given: Iterable[Statement]) -> None:
        """Those of another file."""
        kept = self._pending, self._ahead, self._taken
        self._ahead, self._taken = deque(), ""
        try:
            self._all(given)
        finally:
            self._pending, self._ahead, self._taken = kept

    def _next(self) -> Statement | None:
        one = self._ahead.popleft() if self._ahead else next(self._pending, None)
        self._taken = one.end if one is not None else ""
        return one

    def _goes_beside(self) -> bool:
        """Whether what is linked to this statement ends with &: all of it is a process of its own then."""
        for one in self._pending:
            self._ahead.append(one)
            if one.end not in _LINKS:
                return one.end == "&"
        return False

    def _in_its_own(self, first: Statement) -> None:
        one, folder = first, self._shell.bin
        with self._scope.subshell():
            while True:
                self._one(one)
                if self._taken not in _LINKS or (then := self._next()) is None:
                    break
                one = then
        self._shell.bin = folder

    def _has_second(self) -> bool:
        """Whether another server is started in what was not read."""
        try:
            rest = [[Word(raw.bare) for raw in one.words] for one in (*self._ahead, *self._pending)]
        except Refused:
            return False
        return any(words and self._starts(words) for words in rest)

    def _one(self, one: Statement) -> None:
        first = one.words[0] if one.words else None
        if first is not None and first.bare in LOGIC:
            raise Refused(f"`{first.bare}`: the script has logic", line=one.line)
        if first is not None and (element := _ELEMENT.match(first.begins)):
            raise Refused(f"an element of the list {element[1]} is set", line=one.line)
        if first is None:
            self._shell.assign_all(one)
            if one.end == "||":
                self._next()  # what is done where it fails, and it does not
            return
        if first.bare in _SAYS and one.end != "|" and not any(map(self._is_file, one.redirected)):
            if one.end == "||":
                self._next()
            return  # what it would say is not asked for
        is_export = first.bare == "export"  # its words are never split
        try:
            words = [Word("export")] if is_export else [word for raw in one.words for word in self._scope.words(raw)]
        except Refused as error:
            if first.bare not in _SAYS | LEFT_OUT or one.end == "|":
                raise
            what = error.what.removeprefix(f"line {one.line}: ")
            self._draft.note(f"line {one.line}: `{first.bare} …` was left out: {what}")
            return
        values = self._in_front(one)
        short_enough(words, one.line)
        if not words:
            for name, value in values.items():
                self._shell.assign(name, False, value, line=one.line)
            return
        starts = self._starts(words)
        if not starts and first.bare not in _SAYS and self._shell.takes(words, one, values):
            if one.end == "||":
                self._next()
            return
        self._is_relative |= any(word.startswith(("./", "../")) for word in words)
        if starts:
            self._server(one, words, values)
        elif one.end == "|":
            raise Refused(f"a pipe behind `{command_text(words[:1], 40)}`: the script has logic", line=one.line)
        else:
            self._other(one, words, values, may_fail=one.end == "||" and self._may_fail(one.line))

    def _may_fail(self, line: int) -> bool:
        """Behind ||: whether the script goes on where the command fails. Raises Refused for what has more to do."""
        instead = self._next()
        name = instead.words[0].bare if instead is not None and instead.words else ""
        if name not in ("true", ":", "exit", *_SAYS):
            raise Refused("`||`: the script has logic", line=line)
        return name != "exit"

    def _is_file(self, redirected: tuple[str, Raw]) -> bool:
        """Whether what is said goes into a file, or comes from one."""
        operator, target = redirected
        return not operator.endswith("&") and target.bare != "/dev/null"

    def _put_folders(self) -> None:
        """All that a profile runs has one folder: what the script runs in another one goes there by itself."""
        here, moved = self._served
        if here is not None and not moved and self._is_relative:
            self._draft.note("its relative paths are taken to be in the folder of the script ([venv] cwd)")
        if here is not None and (moved or self._is_relative):
            self._draft.put("venv", "cwd", str(here))
        for key, number, folder in self._others:
            if folder is None or folder == here:
                continue
            cd = f"cd {shlex.quote(str(folder))} &&"
            if key == "sidecar":
                sidecar = self._draft.raw[key][number]
                command = sidecar["command"]
                text = f"exec {shlex.join(command)}" if isinstance(command, list) else command
                sidecar["command"] = f"{cd} {text}"
            else:
                command = self._draft.table("start")[key][number]
                text = shlex.join(command) if isinstance(command, list) else command
                self._draft.table("start")[key][number] = f"{cd} {text}"

    def _in_front(self, one: Statement) -> Values:
        """What is assigned in front of a command, for that alone: each has those before it, the words have none."""
        found: Values = {}
        with self._scope.for_now() as put:
            for name, added, raw in one.assigned:
                found[name] = self._shell.whole(name, added, self._shell.value(name, raw), one.line)
                put(name, found[name])
        return found

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
        return any(words and words[0] not in NOTHING and self._starts(list(map(Word, words))) for words in told)

    def _server(
        self,
        one: Statement,
        words: list[Word],
        values: Values,
    ) -> None:
        if self._begun:
            raise _Second("a second command that starts vLLM: a profile is one server", line=one.line)
        self._begun = True
        self._served = self._scope.here, self._scope.moved
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
        lists = {name: value for name, value in draft.outer.items() if value and search_path.is_open(name, value)}
        for name in lists:
            del draft.outer[name]
        was_in_container = draft.in_container
        at = max((at for at in range(len(words)) if role([str(word) for word in words[at:]]) == "api"), default=-1)
        if any(Path(word).name in CONTAINERS for word in words[: at + 1]):
            at = -1  # in the container it is found by itself
        command(draft, [*map(self._found, words[: at + 1]), *words[at + 1 :]])
        if lists and draft.in_container == was_in_container:
            draft.refuse_unknown([*lists.values()], by_shell=True)
            # in front: the wrapper, too, is found by it
            draft.put("venv", "wrap", [*search_path.wrap(lists), *draft.raw.get("venv", {}).get("wrap", [])])
        for operator, target in one.redirected:
            if not operator.endswith("&"):
                try:
                    where = command_text(self._scope.words(target), 100)
                except Refused:  # its name is known only when it runs
                    where = "a file"
                draft.note(f"its output went to {where}: kvtop keeps a log of its own ([log] file)")
        self._in_background = one.end == "&" or words[0] == "exec" or _returns_at_once(words)
        if one.end == "|":
            behind = self._next()
            if behind is None or not behind.words or behind.words[0].bare != "tee":
                raise Refused("a pipe behind vLLM: the script has logic", line=one.line)
            draft.note("its output went through tee: kvtop keeps a log of its own ([log] file)")

    def _beside(self, other: Other) -> None:
        sidecars = self._draft.raw.setdefault("sidecar", [])
        self._others.append(("sidecar", len(sidecars), self._scope.here))
        command: str | list[str]
        if other.is_plain:
            first, *rest = other.words
            command = [*other.in_front, str(self._found(first)), *map(str, rest)]
            for where in other.outputs:
                self._draft.note(f"its output went to {where}: kvtop keeps a log of each sidecar")
        else:
            command = other.said(may_fail=False)
        names = {one["name"] for one in sidecars}
        name = other.name
        unused = next(one for one in (name, *(f"{name}-{n}" for n in range(2, _MOST_OTHERS + 2))) if one not in names)
        sidecars.append({"name": unused, "command": command})

    def _found(self, word: Word) -> Word:
        """A program of the environment that the script activates, by its path."""
        folder = self._shell.bin
        if folder is None or "/" in word:
            return word
        if word == "vllm" or word.startswith("python") or (folder / word).exists():
            return Word(str(folder / word), line=word.line)
        return word

    def _other(self, one: Statement, words: list[Word], values: Values, may_fail: bool = False) -> None:
        """A command that is none of vLLM's."""
        draft = self._draft
        if len(self._others) >= _MOST_OTHERS:
            raise Refused(f"more than {_MOST_OTHERS} commands that are none of vLLM", line=one.line)
        if draft.keeps_own:
            return
        shown = f"line {one.line}: `{command_text(words, 80)}`"
        if Path(words[0]).name in CONTAINERS and words[1:2] and words[1] in ("rm", "stop", "kill"):
            draft.note(f"{shown} was left out: kvtop stops what it starts")
            return
        redirected = [(operator, self._scope.words(target)) for operator, target in one.redirected]
        other = Other(words, values, redirected, self._shell.lists)
        if other.holds_secret:
            draft.note(f"line {one.line}: `{command_text(words[:1], 40)} …` was left out: it holds a secret")
            return
        draft.refuse_unknown(words, by_shell=True)
        if self._begun and self._in_background:
            draft.note(f"{shown} was left out: it runs beside vLLM")
            return
        if one.end == "&":
            self._beside(other)
            draft.note(f"{shown} runs beside vLLM, as a sidecar")
            return
        if draft.raw.get("sidecar") and not self._begun:
            names = command_text(", ".join(one["name"] for one in draft.raw["sidecar"]), 60)
            draft.note(
                f"{shown} came behind the start of {names}: kvtop runs it before that; ready_url in [[sidecar]] waits "
                "for one"
            )
        commands = draft.table("start").setdefault(key := "after_stop" if self._begun else "before", [])
        self._others.append((key, len(commands), self._scope.here))
        commands.append(other.said(may_fail))


def _returns_at_once(words: Sequence[str]) -> bool:
    """Whether the server goes on to run when this command ends: a container in the background."""
    at = next((at for at, word in enumerate(words) if Path(word).name in CONTAINERS), None)
    if at is None:
        return False
    return any(re.fullmatch(r"--detach(?:=true)?|-[itPq]*d[ditPq]*", word) for word in words[at:])


def _is_server(words: Sequence[str]) -> bool:
    """Whether a container is one of vLLM: by its image, or by flags that only vLLM has."""
    return any("vllm" in word.lower() for word in words) or "--served-model-name" in words or "--model" in words
