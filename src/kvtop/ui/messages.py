"""What the parts of the screen say to the app."""

from __future__ import annotations

from textual.message import Message


class Changed(Message):
    """Something below has new numbers. However many wait in the queue, one is left."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Changed)


class OtherUrl(Message):
    """The URL that was given is not the one: ask for another."""

    def __init__(self, url: str) -> None:
        """`url`: as the view names the server."""
        super().__init__()
        self.url = url
