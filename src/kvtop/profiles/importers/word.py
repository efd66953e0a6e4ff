"""A word of a source, and what is known of it: where its value comes from, whether a secret stands in it."""

from __future__ import annotations

from collections.abc import Iterable

from kvtop.profiles.launch import Secret


class Word(str):
    """A word, and where its value comes from when it is none that is written there."""

    __slots__ = ("hidden", "line", "plain", "secret")
    secret: Secret | None
    plain: bool
    """False: a shell would fill it in, for instance *."""
    line: int | None
    hidden: bool
    """The value of a variable whose name tells of a secret stands in it."""

    def __new__(
        cls,
        text: str,
        secret: Secret | None = None,
        plain: bool = True,
        line: int | None = None,
        hidden: bool = False,
    ) -> Word:
        word = super().__new__(cls, text)
        word.secret, word.plain, word.line, word.hidden = secret, plain, line, hidden
        return word

    def part(self, text: str) -> Word:
        """A piece of it, with what is known of the whole."""
        return Word(text, self.secret, self.plain, self.line, self.hidden)


def secret_of(word: str) -> Secret | None:
    """Where a word's value is, when it is not written there."""
    return word.secret if isinstance(word, Word) else None


def part_of(word: str, text: str) -> str:
    """A piece of a word, with what is known of the whole."""
    return word.part(text) if isinstance(word, Word) else text


def is_hidden(words: Iterable[str]) -> bool:
    """See `Word.hidden`, of any of them."""
    return any(isinstance(word, Word) and word.hidden for word in words)


def line_of(word: str) -> int | None:
    """Where it stands; None: not known."""
    return word.line if isinstance(word, Word) else None
