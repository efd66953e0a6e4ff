"""What the parts of the screen say to the app."""

from __future__ import annotations

from textual.message import Message


class Changed(Message):
    """Something below has new numbers. However many wait in the queue, one is left."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Changed)
