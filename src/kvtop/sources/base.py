"""How text from outside is made fit for a screen, before it leaves a source.

A source does I/O and gives no meaning. It never raises for what the world does to it: a server that is gone, a driver
that was unloaded or a file that may not be read is a value (`SourceDown`, `GpuReading.error`, None), with its cause in
words.
"""

from __future__ import annotations


def printable(text: str, limit: int = 200) -> str:
    """Text from outside with its control, format and private characters shown as escapes, cut to `limit` cells.

    Nothing that moves a cursor, sets a colour or turns the writing direction gets through.
    """
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[: limit + 1])
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"
