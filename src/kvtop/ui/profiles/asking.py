"""The question at the foot of the page: it stands alone, is answered by y and n, and goes when it is none any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvtop.ui.draw import Line, cells, clip
from kvtop.ui.profiles.deeds import Question

_YES_NO: Line = [("  y", "t bold"), (" yes", "d"), ("  n", "t bold"), (" no", "d")]
_YES_NO_SHORT: Line = [("  y/n", "t bold")]


@dataclass(slots=True)
class Asking:
    """One at a time."""

    say: Callable[[str, str], None]
    """In the head of the page: a text and its tone."""
    changed: Callable[[], None]
    """The foot is to be drawn anew."""
    question: Question | None = None

    def ask(self, question: Question) -> None:
        """What came while another one stood here is not asked: nobody may say yes to what he did not read."""
        if self.question is not None:
            self.say(f"not asked, since another question stood here: {question.wordings[0]}", "warn")
            return
        self.question = question
        self.withdraw()
        self.changed()

    def withdraw(self) -> None:
        """A question about what is not so any more is none."""
        question = self.question
        if question is not None and not question.stands():
            self.question = None
            self.say(question.gone, "warn" if question.gone else "t")
            self.changed()

    def answer(self, key: str) -> Question | None:
        """What a key makes of it: the question, where that is a yes. Others than y, n and esc do nothing."""
        self.withdraw()
        question = self.question
        if question is None or key not in ("y", "n", "escape"):
            return None
        self.question = None
        if key == "escape":
            question.later()
        else:
            question.answered()
        if key != "y":
            self.say("", "t")
        self.changed()
        return question if key == "y" else None

    def prompt(self, w: int) -> list[Line]:
        """Every wording of it with its keys, longest first."""
        if self.question is None:
            return []
        last = clip(f"{self.question.wordings[-1]}?", w - sum(cells(text) for text, _ in _YES_NO_SHORT))
        whole: list[Line] = [
            [(f"{text}?", "warn bold"), *keys] for text in self.question.wordings for keys in (_YES_NO, _YES_NO_SHORT)
        ]
        return [*whole, [(last, "warn bold"), *_YES_NO_SHORT]]  # without its keys it cannot be answered
