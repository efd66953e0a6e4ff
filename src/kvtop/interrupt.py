"""ctrl-c before there is an event loop that could take it.

Python raises KeyboardInterrupt wherever it happens to be. In the middle of an import that is inside a C extension or
the compiler, which make another error of it, leave something half-made, or crash. So until a loop begins the process
ends where it stands: there is nothing yet that would have to be put in order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

CODE = 130


def _leave(number: int, frame: object) -> None:
    os._exit(CODE)


def at_once() -> None:
    """From now on ctrl-c ends the process where it stands. Not where it is ignored, or taken already."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def as_usual() -> None:
    """From now on it is taken as Python takes it: asyncio puts its own way in the place of that one alone."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """What must not be half done: ctrl-c takes effect behind it. For a block that ends by itself."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
