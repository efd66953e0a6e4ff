"""Whole numbers as a shell computes them in $((…)): of 64 bits, and beyond the largest comes the smallest."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

MOST_CHARACTERS = 1_000
_MOST_DEEP = 100
_END = 1 << 63
_TOKEN = re.compile(r"[0-9]\w*|[A-Za-z_]\w*|\*\*|<<|>>|[<>=!]=|&&|\|\||[^ \t\n]", re.ASCII)
_STEP = re.compile(r"(?:\+\+|--)[ \t\n]*[A-Za-z_]|\b[A-Za-z_]\w*[ \t\n]*(?:\+\+|--)", re.ASCII)
"""i++ and --i. Beside a number these are two signs."""
_WHOLE = re.compile(r"[ \t\n]*([-+]?(?:(0[xX][0-9a-fA-F]+)|(0[0-7]*)|[1-9][0-9]*))[ \t\n]*")
_UNREAD = "only whole numbers, variables and their operators are read"


class NoArithmetic(ValueError):
    """Why it cannot be computed, in a few words that quote nothing but names of variables."""


def evaluate(text: str, value: Callable[[str], str]) -> int:
    """What a shell makes of the text between $(( and )). `value`: what a variable holds, asked of those alone that
    count: not of one behind `0 &&`. Raises NoArithmetic, and what `value` raises."""
    if len(text) > MOST_CHARACTERS:
        raise NoArithmetic("it is too long")
    tokens = _TOKEN.findall(text)
    if "=" in tokens or _STEP.search(text):
        raise NoArithmetic("it sets a variable")
    return _Reader(tokens, value).whole()


def _number(text: str, why: str = _UNREAD) -> int:
    found = _WHOLE.fullmatch(text)
    if found is None:
        raise NoArithmetic(why)
    number = int(found[1], 16 if found[2] else 8 if found[3] else 10)
    if not -_END <= number < _END:  # some shells begin anew, some stop at the largest one
        raise NoArithmetic("a number that 64 bits do not hold")
    return number


def _wrapped(number: int) -> int:
    return (number + _END) % (2 * _END) - _END


def _divided(one: int, other: int) -> int:
    # // rounds down, a shell towards zero
    return abs(one) // abs(other) * (1 if (one < 0) == (other < 0) else -1)


_SIGNS: dict[str, Callable[[int], int]] = {"+": operator.pos, "-": operator.neg, "~": operator.inv, "!": operator.not_}
_OPERATORS: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda one, other: bool(one or other)),
    "&&": (2, lambda one, other: bool(one and other)),
    "|": (3, operator.or_),
    "^": (4, operator.xor),
    "&": (5, operator.and_),
    "==": (6, operator.eq),
    "!=": (6, operator.ne),
    "<": (7, operator.lt),
    "<=": (7, operator.le),
    ">": (7, operator.gt),
    ">=": (7, operator.ge),
    "<<": (8, operator.lshift),
    ">>": (8, operator.rshift),
    "+": (9, operator.add),
    "-": (9, operator.sub),
    "*": (10, operator.mul),
    "/": (10, _divided),
    "%": (10, lambda one, other: one - other * _divided(one, other)),
    "**": (11, lambda one, other: pow(one, other, 2 * _END)),
}
"""(How closely it binds, what it makes of its two sides.)"""


def _computed(sign: str, one: int, other: int) -> int:
    if sign in ("/", "%") and other == 0:
        raise NoArithmetic("it divides by zero")
    if sign == "**" and other < 0:
        raise NoArithmetic("an exponent below zero")
    if sign in ("<<", ">>") and not 0 <= other < 64:  # what comes of it is the processor's choice
        raise NoArithmetic("a shift by less than 0 or more than 63 bits")
    return _wrapped(_OPERATORS[sign][1](one, other))


class _Reader:
    def __init__(self, tokens: list[str], value: Callable[[str], str]) -> None:
        self._left = ["", *reversed(tokens)]
        self._value = value
        self._skipped = 0
        """Above 0: what is read does not count, and may divide by zero."""

    def whole(self) -> int:
        found = self._choice(0)
        self._take("")
        return found

    def _take(self, wanted: str) -> None:
        if self._left.pop() != wanted:
            raise NoArithmetic(_UNREAD)

    def _choice(self, depth: int) -> int:
        found = self._joined(1, depth)
        if self._left[-1] != "?":
            return found
        self._take("?")
        one = self._branch(found != 0, depth)
        self._take(":")
        other = self._branch(found == 0, depth)
        return one if found else other

    def _branch(self, counts: bool, depth: int) -> int:
        self._skipped += not counts
        found = self._choice(depth + 1)
        self._skipped -= not counts
        return found

    def _joined(self, least: int, depth: int) -> int:
        """Operands, and the operators between them that bind at least as closely as that."""
        one = self._operand(depth)
        while self._left[-1] in _OPERATORS and (level := _OPERATORS[self._left[-1]][0]) >= least:
            sign = self._left.pop()
            skipped = (sign == "&&" and not one) or (sign == "||" and one != 0)
            self._skipped += skipped
            other = self._joined(level + (sign != "**"), depth + 1)
            self._skipped -= skipped
            # a shell refuses an exponent below zero also where it does not count
            one = _computed(sign, one, other) if not self._skipped or (sign == "**" and other < 0) else 0
        return one

    def _operand(self, depth: int) -> int:
        if depth > _MOST_DEEP:
            raise NoArithmetic("nested too deeply")
        signs = []
        while self._left[-1] in _SIGNS:
            signs.append(self._left.pop())
        token = self._left.pop()
        if token == "(":
            found = self._choice(depth + 1)
            self._take(")")
        elif token.isascii() and token.isidentifier():
            why = f"what is in ${token} is no whole number"
            found = 0 if self._skipped else _number(self._value(token), why)
        else:
            found = _number(token)
        for sign in reversed(signs):
            found = _wrapped(_SIGNS[sign](found))
        return found
