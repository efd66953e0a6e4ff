"""Variables put into the words of a script: those that the script itself sets, and defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvtop.profiles.importers.arithmetic import MOST_CHARACTERS as MOST_COMPUTED
from kvtop.profiles.importers.arithmetic import NoArithmetic, evaluate
from kvtop.profiles.importers.draft import MOST_CHARACTERS, MOST_WORDS, Draft, Refused, too_long, unknown
from kvtop.profiles.importers.search_path import LISTS, is_open, outer
from kvtop.profiles.importers.shell import Part, Raw, parts_of_arithmetic
from kvtop.profiles.importers.word import Word, is_hidden
from kvtop.profiles.launch import Secret
from kvtop.sources.secret_names import names_secret

_NAME = re.compile(r"[A-Za-z_]\w*")
_SIMPLE = re.compile(r"([A-Za-z_]\w*|[0-9@*#?$!-])(?:(:?[-=?+])(.*))?", re.DOTALL)
_LISTED = re.compile(r"([A-Za-z_]\w*)\[[@*]\](?:(:?[-+])(.*))?", re.DOTALL)
_TILDE = re.compile(r":~(?=[/:]|$)")
_CAT = re.compile(r"""\s*(?:cat\s+|<\s*)(["']?)([^\s"'|;&]+)\1\s*""")
_SELF = r'"?(?:\$0|\$\{0\}|\$BASH_SOURCE|\$\{BASH_SOURCE(?:\[0\])?(?::-\$0)?\})"?'
_DIR = rf'\s*dirname\s+(?:--\s+)?(?:{_SELF}|"?\$\(\s*(?:readlink\s+-f|realpath)\s+(?:--\s+)?{_SELF}\s*\)"?)\s*'
_HERE = re.compile(
    rf'\s*(?:{_DIR}|cd\s+(?:--\s+)?"?\$\({_DIR}\)(?P<more>(?:/[\w.-]+)*)"?\s*(?:>\s*/dev/null\s*(?:2>&1\s*)?)?&&\s*pwd(?:\s+-P)?)\s*'
)
"""The folder of the script itself, as scripts ask for it."""
_NAMED = re.compile(r"(?:[A-Za-z_]\w*|--[\w.-]+)=")
"""What a value from elsewhere may stand behind: NAME= and --flag=."""
_MOST_DEEP = 20
_BEGINS = re.compile(r"\s*([!#]?[A-Za-z_][\w-]{0,40})(?![\w-])")
"""What of a text may be said: its rest may be a secret."""


class Scope:
    """The variables of a script while it is read."""

    def __init__(self, file: Path | None, draft: Draft, text: str) -> None:
        """`draft`: what is known of the environment that it finds. `text`: the script; `file`: where it is, where that
        is known."""
        self._text = text
        self.values: dict[str, Word | list[Word]] = dict(draft.known())
        self.exported: dict[str, bool] = {}
        """Name -> True: exported; False: taken out of the environment."""
        self._draft = draft
        self._file, self.folder = file, file.parent if file else None
        self.here = self.folder
        """The folder that it is in; None: not known."""
        self.moved = False
        """It has gone there itself."""
        self.unknown: dict[str, Refused] = {}
        """Why what a variable has is not known, though the script sets it."""
        self.all_exported = False
        self.own_arguments: list[Word] | None = None
        """Which it has set itself."""
        self.of = ""
        """The variable whose value is read: of a list of folders what that was before may stand in it."""
        self.arguments = False
        """It hands its own arguments on."""

    def forget(self, name: str, why: Refused) -> None:
        """It has a value that only its run could tell."""
        self.values.pop(name, None)
        self.unknown[name] = why

    @contextmanager
    def for_now(self) -> Iterator[Callable[[str, Word | list[Word]], None]]:
        """What is put in by what this gives is taken out again at the end, and what was there before comes back."""
        kept: dict[str, Word | list[Word] | None] = {}

        def put(name: str, value: Word | list[Word]) -> None:
            kept.setdefault(name, self.values.get(name))
            self.values[name] = value

        try:
            yield put
        finally:
            for name, before in kept.items():
                if before is not None:
                    self.values[name] = before
                else:
                    self.values.pop(name, None)

    @contextmanager
    def subshell(self) -> Iterator[None]:
        """What is set and where it goes in here is of a process of its own."""
        kept = dict(self.values), dict(self.exported), dict(self.unknown)
        own = self.here, self.moved, self.all_exported, self.own_arguments
        try:
            yield
        finally:
            self.values, self.exported, self.unknown = kept
            self.here, self.moved, self.all_exported, self.own_arguments = own

    def words(self, raw: Raw, *, split: bool = True) -> list[Word]:
        """The words that one becomes: none, one, or several where an unquoted variable holds blanks, unless that is not
        `split`, as in an assignment."""
        out: list[Word] = []
        now: Word | None = None
        plain = not _filled_in(raw)

        def add(text: str, secret: Secret | None = None, hidden: bool = False) -> None:
            nonlocal now
            hidden |= now is not None and now.hidden
            if now is None or (now == "" and now.secret is None):
                now = Word(text, secret, plain, raw.line, hidden)
            elif now.secret is None and (secret is None or _NAMED.fullmatch(now)):
                now = Word(now + text, secret, plain, raw.line, hidden)
            elif text or secret:
                raise unknown(secret or now.secret, raw.line, self._draft.has_outside)
            if len(now) > MOST_CHARACTERS or len(out) > MOST_WORDS:
                raise too_long(raw.line)

        for number, part in enumerate(raw.parts):
            if part.kind == "text":
                text = self._home(part.text, raw.line) if number == 0 and not part.quoted else part.text
                add(text)
                continue
            found = self._value(part, raw.line)
            if (part.quoted or not split) and not _is_list(part):
                add(" ".join(found), found[0].secret if len(found) == 1 else None, is_hidden(found))
                continue
            for at, word in enumerate(found):
                is_whole = part.quoted or not split or word.secret or isinstance(found, _Cut)
                pieces = [str(word)] if is_whole else word.split()
                if at and now is not None:
                    out.append(now)
                    now = None
                for place, piece in enumerate(pieces):
                    if place and now is not None:
                        out.append(now)
                        now = None
                    add(piece, word.secret, word.hidden)
        if now is not None:
            out.append(now)
        if is_hidden([self._text]):  # it was put in before the script was read
            told = self._draft.parts(self._text, out)
            out = [
                Word(word, word.secret, word.plain, word.line, is_hidden([one, word]))
                for word, one in zip(out, told, strict=True)
            ]
        return out

    def one(self, raw: Raw) -> Word:
        """The value of an assignment: never split."""
        found = self.words(self._tildes(raw), split=False)
        if len(found) > 1:
            return Word(" ".join(found), line=raw.line, hidden=is_hidden(found))
        return found[0] if found else Word("", line=raw.line)

    def _tildes(self, raw: Raw) -> Raw:
        """In the value of an assignment ~ is the home behind each colon as well."""
        if not self._draft.has_home or not any(part.kind == "text" and ":~" in part.text for part in raw.parts):
            return raw
        parts = [
            part
            if part.quoted or part.kind != "text"
            else Part("text", _TILDE.sub(f":{Path.home()}", part.text), False)
            for part in raw.parts
        ]
        return Raw(raw.line, parts)

    def _value(self, part: Part, line: int) -> Sequence[Word]:
        if part.kind == "arithmetic":
            return [self._computed(part.text, line)]
        return (
            self._command(part.text, line) if part.kind == "command" else self._variable(part.text, line, part.quoted)
        )

    def _command(self, text: str, line: int) -> Sequence[Word]:
        if found := _CAT.fullmatch(text):
            place = Secret("file", self._whole(self._home(found[2], line), line))
            return [self._from_elsewhere(place, line)]
        if self.folder is not None and (here := _HERE.fullmatch(text)):
            return [Word(os.path.normpath(f"{self.folder}{here['more'] or ''}"))]
        if text.strip() in ("id -u", "id -g") and self._draft.has_home:  # kvtop runs it as whoever imports it
            return [Word(str(os.getuid() if text.strip().endswith("u") else os.getgid()))]
        if self.here is not None and text.strip() == "pwd":
            return [Word(str(self.here))]
        raise Refused(f"what $({_begin(text)}) prints is known only when it runs", line=line)

    def _computed(self, text: str, line: int) -> Word:
        """What $((…)) comes to, where nothing in it is a secret."""
        text = text.replace("\\\n", "")
        try:
            if len(text) > MOST_COMPUTED:
                raise NoArithmetic("it is too long")
            if text.count("$(") > _MOST_DEEP:
                raise NoArithmetic("too many others stand in it")
            if set(text) & set("\"'`\\"):
                raise NoArithmetic("quotes in it are not read")
            if any(map(names_secret, _NAME.findall(text))):
                raise NoArithmetic("it is computed from a secret")
            # a shell first puts in, as text, what begins with $: 2-$A may become 2--3
            parts = parts_of_arithmetic(text, line)
            filled = [one.text if one.kind == "text" else self._operand(self._value(one, line), line) for one in parts]
            if self._draft.tells_secret("".join(filled)):
                raise NoArithmetic("it is computed from a secret")
            number = evaluate("".join(filled), lambda name: self._operand(self._variable(name, line, True), line))
        except NoArithmetic as error:
            raise Refused(f"$((…)): {error}", line=line) from None
        return Word(str(number), line=line)

    def _operand(self, found: Sequence[Word], line: int) -> str:
        for word in found:
            if word.secret:
                why = unknown(word.secret, None, self._draft.has_outside)
                raise Refused(f"$((…)): {why.what}", why.fix, line)
            if word.hidden:
                raise NoArithmetic("it is computed from a secret")
        text = " ".join(found)
        if len(text) > MOST_COMPUTED:
            raise NoArithmetic("it is too long")
        if self._draft.tells_secret(text):  # under a name that does not say so
            raise NoArithmetic("it is computed from a secret")
        return text

    def _whole(self, path: str, line: int) -> str:
        name = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")

        def value(found: re.Match[str]) -> str:
            known = self._variable(found[1], line)
            return str(known[0]) if known and not (known[0].secret or known[0].hidden) else found[0]

        path = name.sub(value, path)
        if self.here is not None and not path.startswith("/"):
            path = str(self.here / path)
        return path

    def _variable(self, text: str, line: int, quoted: bool = False) -> Sequence[Word]:
        if text.count("${") > _MOST_DEEP:
            raise Refused("defaults inside of defaults, too deep", line=line)
        if listed := _LISTED.fullmatch(text):
            return self._list(listed[1], listed[2] or "", listed[3] or "", line, quoted)
        found = _SIMPLE.fullmatch(text)
        if not found:
            raise Refused(f"${{{_begin(text)}}} is computed by the shell", line=line)
        name, operator, default = found[1], found[2] or "", found[3] or ""
        if name in self.unknown:
            raise self.unknown[name]
        if self.own_arguments is not None and (name in "@*" or name.isdecimal()):
            at = int(name) - 1 if name.isdecimal() else None
            return self.own_arguments if at is None else self.own_arguments[at : at + 1] if at >= 0 else []
        value = self._known(name)
        if operator.endswith("+"):
            there = value is not None and not (operator == ":+" and value == "" and not value.secret)
            return self._default(default, line, quoted) if there else [Word("")]
        empty = value is None or (operator.startswith(":") and value == "" and not value.secret)
        if not empty and value is not None:
            return [self._named(name, value)]
        if operator.endswith(("-", "=")):
            given = self._default(default, line, quoted)
            made = type(given)(self._named(name, one) for one in given)
            if operator.endswith("="):
                self.values[name] = made[0] if made else Word("")
                if self.all_exported:
                    self.exported[name] = True
            return made
        if name in "@*":
            self.arguments = True
            return []
        if not name.isidentifier():
            raise Refused(f"${name} is known only when it runs", line=line)
        return [self._from_elsewhere(Secret("env", name), line)]

    def _list(self, name: str, operator: str, default: str, line: int, quoted: bool) -> Sequence[Word]:
        """${NAME[@]}, with what stands in its place."""
        if name in self.unknown:
            raise self.unknown[name]
        known = self.values.get(name)
        if known is None and not operator:
            raise Refused(f"the list {name} is not set by the script", line=line)
        found = known if isinstance(known, list) else [] if known is None else [known]
        if operator.endswith("+"):
            return self._default(default, line, quoted) if found else []
        return (
            [self._named(name, one) for one in found] if found or not operator else self._default(default, line, quoted)
        )

    def _named(self, name: str, value: Word) -> Word:
        """The value that a variable has: hidden where its name tells of a secret."""
        if value.secret is None and not value.hidden and self._draft.hide(name, value):
            return Word(value, None, value.plain, value.line, hidden=True)
        return value

    def _from_elsewhere(self, place: Secret, line: int) -> Word:
        if self._draft.names_its_own:
            raise unknown(place, line, from_outside=True)
        return Word("", place, line=line)

    def _known(self, name: str) -> Word | None:
        value = self.values.get(name)
        if isinstance(value, list):
            return value[0] if value else Word("")
        if value is None and name == "HOME" and name not in self.exported and self._draft.has_home:
            return Word(str(Path.home()))
        if name in LISTS and self.of == name and name not in self.exported and value is None:
            return Word(outer(name))
        if self.of != name and value is not None and is_open(name, value):
            return None
        if value is None and name == "PWD" and self.here is not None:
            return Word(str(self.here))
        if value is None and name == "0" and self._file is not None:
            return Word(str(self._file))
        return value

    def _home(self, text: str, line: int) -> str:
        if text != "~" and not text.startswith("~/"):
            return text
        if not self._draft.has_home:
            raise Refused("what ~ stands for is known only when it runs", line=line)
        return str(Path.home()) + text[1:]

    def _default(self, text: str, line: int, quoted: bool) -> list[Word]:
        """What stands behind :- in ${NAME:-…}: text, with quotes and variables."""
        from kvtop.profiles.importers.shell import statements

        if not text:
            return [Word("")]
        if not set(text) & set("$`\"'\\"):
            return [Word(text if quoted else self._home(text, line))]
        if not quoted and set(text) & set("'\"\\"):
            return self._cut(text, line)
        if quoted and "'" in text:
            raise Refused("quotes inside of quotes in a default", line=line)
        if not text.startswith('"'):
            text = f'"{text}"' if '"' not in text else text
        found = list(statements(text))
        raws = [raw for one in found for raw in one.words]
        if len(found) != 1 or len(raws) != 1 or found[0].end:
            raise Refused("a default that is more than a text with variables", line=line)
        return [self.one(raws[0])]

    def _cut(self, text: str, line: int) -> list[Word]:
        """Of an unquoted variable: the words of the default, as far as its own quotes hold them together."""
        from kvtop.profiles.importers.shell import statements

        found = list(statements(text))
        if len(found) != 1 or found[0].assigned or found[0].redirected or found[0].end:
            raise Refused("a default that is more than a text with variables", line=line)
        return _Cut(word for raw in found[0].words for word in self.words(raw))


class _Cut(list[Word]):
    """Words that are not split once more."""


def _is_list(part: Part) -> bool:
    """ "$@" and "${NAME[@]}" are several words within quotes too."""
    listed = _LISTED.fullmatch(part.text) if part.kind == "variable" else None
    return part.text == "@" or (listed is not None and f"{listed[1]}[@]" == part.text[: len(listed[1]) + 3])


def _filled_in(raw: Raw) -> bool:
    """Whether a shell would look for files of that pattern, or make several words of it."""
    bare = "".join(part.text if part.kind == "text" and not part.quoted else "x" for part in raw.parts)
    braces = bare[bare.find("{") : bare.rfind("}")] if "{" in bare else ""
    return bool(set(bare) & set("*?[")) or "," in braces or ".." in braces


def _begin(text: str) -> str:
    found = _BEGINS.match(text)
    return "…" if found is None else f"{found[1]}{'…' if found.end() < len(text) else ''}"
