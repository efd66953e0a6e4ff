"""The words of a plain shell script: quotes, continuations, comments and simple variables, as a shell reads them.

What a shell would have to compute is refused, with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kvtop.profiles.importers.draft import Refused

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MORE = re.compile(r"[A-Za-z0-9_]+")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_OPERATORS = (
    "&>>",
    "<<<",
    "<<-",
    "&&",
    "||",
    ";;",
    ">>",
    ">&",
    "<&",
    "&>",
    "<<",
    ">|",
    "<>",
    ";",
    "&",
    "|",
    "<",
    ">",
    "(",
    ")",
)
_OPENING = {"(": ")", "{": "}"}


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word."""

    kind: str
    """text, variable (what stands between the braces), command (what stands in $(…)), arithmetic (in $((…)))."""
    text: str
    quoted: bool


@dataclass(slots=True)
class Raw:
    """A word before its variables are put in."""

    line: int
    parts: list[Part] = field(default_factory=list)

    @property
    def bare(self) -> str:
        """Its text, where it is nothing but unquoted text; else ''."""
        return (
            "".join(part.text for part in self.parts)
            if all(p.kind == "text" and not p.quoted for p in self.parts)
            else ""
        )

    @property
    def begins(self) -> str:
        """The unquoted text at its beginning."""
        first = self.parts[0] if self.parts else None
        return first.text if first is not None and first.kind == "text" and not first.quoted else ""


@dataclass(slots=True)
class Statement:
    """A simple command."""

    line: int
    assigned: list[tuple[str, bool, Raw | list[Raw]]] = field(default_factory=list)
    """(name, it is added to what is there, value); a list for an array."""
    words: list[Raw] = field(default_factory=list)
    redirected: list[tuple[str, Raw]] = field(default_factory=list)
    end: str = ""
    """What stands behind it: ; & && || | or nothing."""


def statements(text: str) -> Iterator[Statement]:
    """The simple commands of a script. Raises Refused."""
    lexer = _Lexer(text)
    now = Statement(1)
    for kind, value in lexer.tokens():
        if kind == "word":
            if not now.words and not now.assigned and not now.redirected:
                now.line = value.line
            if now.redirected and not now.redirected[-1][1].parts:
                now.redirected[-1] = (now.redirected[-1][0], value)
            elif not now.words and (found := assignment(value)):
                now.assigned.append(found)
            else:
                now.words.append(value)
        elif kind == "array":
            name, added, raws = value
            now.assigned.append((name, added, raws))
        elif value in ("\n", ";", "&", "&&", "||", "|"):
            if now.words or now.assigned or now.redirected:
                now.end = "" if value == "\n" else str(value)
                yield now
                now = Statement(lexer.line)
        elif str(value).lstrip("0123456789") in ("(", ")", ";;", "<<", "<<-", "<<<", "<>"):
            what = {
                "(": "a function or a subshell",
                "<<": "text for a command's input",
                "<<-": "text for a command's input",
            }
            raise Refused(f"{what.get(str(value), f'`{value}`')} is logic of the script", line=lexer.line)
        else:
            now.redirected.append((str(value), Raw(lexer.line)))
    if now.words or now.assigned or now.redirected:
        yield now


def assignment(raw: Raw) -> tuple[str, bool, Raw] | None:
    """(name, it is added to what is there, value) of NAME=VALUE; None for another word."""
    first = raw.parts[0] if raw.parts else None
    if first is None or first.kind != "text" or first.quoted:
        return None
    found = _ASSIGNED.match(first.text)
    if not found:
        return None
    rest = Part("text", first.text[found.end() :], False)
    return found[1], bool(found[2]), Raw(raw.line, [rest, *raw.parts[1:]])


def parts_of_arithmetic(text: str, line: int) -> list[Part]:
    """The parts of what stands in $((…)), where blanks and operators of a shell say nothing. Raises Refused."""
    lexer = _Lexer(f'"{text}"')
    lexer.line = line
    return lexer.double()


def _is_bracketed(text: str) -> bool:
    """Whether its first bracket ends with it: of (a) (b) it does not."""
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth < 1:
            return at > 0 and at == len(text) - 1
    return False


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self.line = 1

    def tokens(self) -> Iterator[tuple[str, Any]]:
        while True:
            self._blanks()
            if self._at >= len(self._text):
                return
            if self._text[self._at] == "\n":
                self._at += 1
                yield "operator", "\n"
                self.line += 1
                continue
            if operator := self._operator():
                yield "operator", operator
                continue
            raw = self._word()
            if self._peek() == "(" and raw.bare and (found := _ASSIGNED.fullmatch(raw.bare)):
                yield "array", (found[1], bool(found[2]), self._array())
            else:
                yield "word", raw

    def _peek(self, ahead: int = 0) -> str:
        return self._text[self._at + ahead : self._at + ahead + 1]

    def _blanks(self) -> None:
        while True:
            if self._text.startswith("\\\n", self._at):
                self._at += 2
                self.line += 1
            elif self._peek() in (" ", "\t") and self._peek():
                self._at += 1
            elif self._peek() == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                return

    def _operator(self) -> str:
        number = re.compile(r"\d+(?=[<>])").match(self._text, self._at)
        start = number.end() if number else self._at
        for operator in _OPERATORS:
            if self._text.startswith(operator, start):
                self._at = start + len(operator)
                return f"{number[0] if number else ''}{operator}"
        return ""

    def _array(self) -> list[Raw]:
        self._at += 1
        begun = self.line
        out: list[Raw] = []
        while True:
            self._blanks()
            if self._at >= len(self._text):
                raise Refused("a list in ( ) has no end", line=begun)
            if self._peek() == "\n":
                self._at += 1
                self.line += 1
            elif self._peek() == ")":
                self._at += 1
                return out
            elif self._operator():
                raise Refused("an operator in a list ( )", line=self.line)
            else:
                out.append(self._word())

    def _word(self) -> Raw:
        raw = Raw(self.line)
        text = ""

        def keep() -> None:
            nonlocal text
            if text:
                raw.parts.append(Part("text", text, False))
            text = ""

        while self._at < len(self._text):
            char = self._peek()
            if char in " \t\n;&|<>()":
                break
            if char == "\\":
                if self._peek(1) == "\n":
                    self.line += 1
                elif self._peek(1):
                    keep()
                    raw.parts.append(Part("text", self._peek(1), True))
                self._at += 2
            elif char == "'":
                keep()
                raw.parts.append(Part("text", self._single(), True))
            elif char == '"':
                keep()
                raw.parts += self.double()
            elif char in "$`":
                if char == "$" and self._peek(1) == '"':
                    self._at += 1  # to be translated: it is as it is
                    continue
                if self._peek(1) == "'":
                    raise Refused("$'…' is not read", line=self.line)
                keep()
                raw.parts.append(self._dollar(False))
            else:
                text += char
                self._at += 1
        keep()
        return raw

    def _single(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise Refused("a quote ' has no end", line=self.line)
        inside = self._text[self._at + 1 : end]
        self.line += inside.count("\n")
        self._at = end + 1
        return inside

    def double(self) -> list[Part]:
        begun = self.line
        parts: list[Part] = []
        text = ""
        self._at += 1
        while self._at < len(self._text):
            char = self._peek()
            if char == '"':
                self._at += 1
                return [*parts, Part("text", text, True)] if text or not parts else parts
            if char == "\\" and self._peek(1) in ("$", "`", '"', "\\", "\n"):
                text += self._peek(1).replace("\n", "")
                self.line += self._peek(1) == "\n"
                self._at += 2
            elif char in "$`" and (char == "`" or self._peek(1) not in ('"', " ", "'", "", ":", "/", "%", ".", ",")):
                parts += [Part("text", text, True)] if text else []
                text = ""
                parts.append(self._dollar(True))
            else:
                text += char
                self.line += char == "\n"
                self._at += 1
        raise Refused('a quote " has no end', line=begun)

    def _dollar(self, quoted: bool) -> Part:
        if self._peek() == "`":
            return Part("command", self._backquoted(), quoted)
        if self._peek(1) in _OPENING and self._peek(1):
            kind = "variable" if self._peek(1) == "{" else "command"
            inside = self._balanced(self._at + 1)
            if kind == "command" and _is_bracketed(inside):
                return Part("arithmetic", inside[1:-1], quoted)
            return Part(kind, inside, quoted)
        if found := _NAME.match(self._text, self._at + 1):
            self._at = found.end()
            return Part("variable", found[0] + self._rest_of_name(), quoted)
        if self._peek(1) and self._peek(1) in "0123456789@*#?$!-":
            self._at += 2
            return Part("variable", self._text[self._at - 1], quoted)
        self._at += 1
        return Part("text", "$", quoted)

    def _backquoted(self) -> str:
        end = self._text.find("`", self._at + 1)
        inside = self._text[self._at + 1 : end]
        if end < 0 or "\\" in inside:
            raise Refused("what `…` prints is known only when it runs", line=self.line)
        self.line += inside.count("\n")
        self._at = end + 1
        return inside

    def _rest_of_name(self) -> str:
        """What of a variable's name stands on the next line: a continuation is taken out before names are read."""
        more = ""
        while self._text.startswith("\\\n", self._at):
            found = _MORE.match(self._text, self._at + 2)
            if not found:
                break
            more += found[0]
            self.line += 1
            self._at = found.end()
        return more

    def _balanced(self, at: int) -> str:
        """What stands between an opening bracket and its end; goes on behind it."""
        opening, closing = self._text[at], _OPENING[self._text[at]]
        depth, quote, start = 0, "", at
        while at < len(self._text):
            char = self._text[at]
            if char == "\\":
                at += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in "'\"" and opening == "(":
                quote = char
            elif char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if depth == 0:
                    inside = self._text[start + 1 : at]
                    self.line += inside.count("\n")
                    self._at = at + 1
                    return inside
            at += 1
        raise Refused(f"a ${opening} has no end", line=self.line)
