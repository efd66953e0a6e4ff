"""The terminal under the screen: given back as it was found, whatever ends kvtop, and left when it is gone."""

from __future__ import annotations

import contextlib
import io
import os
import selectors
import signal
import sys
import termios
import threading
import time
import tty
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO, cast

from textual.drivers.linux_driver import LinuxDriver

from kvtop.ui.typed import Typed

if TYPE_CHECKING:
    from textual.app import App

ENDING = tuple(getattr(signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM"))
"""Signals that end a program which does not catch them. Caught, they leave the terminal as it was."""
PATIENCE_S = 2.0
"""The app may take so long to leave after a signal; then the program ends without it."""
TICK_S = 0.1
UNSURE_S = 2.0
"""So long after input the parser is asked each TICK_S whether what it holds is a key of its own (ESCDELAY). A paste
that is still open then is given up."""
_RESTORE = b"\x1b[?2004l\x1b[?7h\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l"
"""Bracketed paste, wrapping, mouse, keyboard protocol, screen, cursor and focus reports: what the driver writes too."""


def status(signum: int) -> int:
    """The exit status of a program that a signal ended, as shells count."""
    return 128 + signum


class Terminal(LinuxDriver):
    """Textual's driver, which ends the app on a signal, and when the terminal hangs up with the signal ignored.

    Textual itself reads a terminal that is gone for ever, and waits for ever to write to it.
    """

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._size = size or self._get_terminal_size()  # else the app's first layout asks rich, which asks COLUMNS
        out = self._file
        assert out is not None, "the screen is drawn on stderr"
        # A locale or PYTHONIOENCODING that knows no `━` would spell every sign of the screen out.
        out.reconfigure(encoding="utf-8", errors="backslashreplace")
        self._out = out
        self._file = cast(io.TextIOWrapper, _Writer(out, self._gone))
        self._before: dict[int, Any] = {}
        """The handlers that were there."""
        self._leaving = False
        self._on_screen = False
        """Between a start and the stop that belongs to it."""
        self._lent = False
        """Another program has the terminal, and the app goes on."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)

    # ---- beginning and end
    def start_application_mode(self) -> None:
        # The program before may have left it otherwise; a screen that does not fit at once would be lost.
        os.set_blocking(self._out.fileno(), True)
        for signum in ENDING:
            if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup's wish holds
                self._before[signum] = signal.signal(signum, self._told)
        self._key_thread = None
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._on_screen = self._key_thread is not None  # from the background it does not start

    def stop_application_mode(self) -> None:
        self._on_screen = False
        super().stop_application_mode()

    def close(self) -> None:
        super().close()
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before.clear()

    def _get_terminal_size(self) -> tuple[int, int]:
        """What the terminal says. COLUMNS and LINES may be those of another one: asked only where it says nothing."""
        for file in (sys.__stderr__, sys.__stdin__):
            with contextlib.suppress(AttributeError, ValueError, OSError):  # no file, a closed one, no terminal
                size = os.get_terminal_size(file.fileno())  # type: ignore[union-attr]
                if size.columns and size.lines:
                    return size.columns, size.lines
        return super()._get_terminal_size()

    # ---- stopped, and going on
    def _sigtstp_application(self, *_: object) -> None:
        """On the loop: in the midst of a write, a second one would wait for the first for ever."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: it leaves already
            self._loop.call_soon_threadsafe(super()._sigtstp_application)

    def stop_job(self) -> None:
        """As ctrl+z at a shell: all of its job stops. Where no shell could let it go on, the kernel stops nothing."""
        self.suspend_application_mode()
        self._must_signal_resume = True
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(0, signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._sigtstp_application)
        self._loop.call_soon(self._go_on_if_away)  # after what SIGCONT has asked for

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Within a suspension in which another program has the terminal and the app goes on: what it would draw is
        drawn afterwards, and the keys that interrupt are meant for that program."""
        before = {signum: signal.signal(signum, _nothing) for signum in (signal.SIGINT, signal.SIGQUIT)}
        self._lent = True
        try:
            yield
        finally:
            self._lent = False
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def write(self, data: str) -> None:
        if not self._lent:
            super().write(data)

    def _go_on_if_away(self) -> None:
        if not self._on_screen:
            self._go_on()

    def _sigcont_application(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._go_on)

    def _go_on(self) -> None:
        if not self._auto_restart or self._leaving:
            return
        if self._on_screen:
            self._take_back()
        else:
            self.resume_application_mode()
        self._app.refresh(layout=True)

    def _take_back(self) -> None:
        """After a stop that nobody told of: the shell may have had the terminal meanwhile, or nothing has changed.

        What the terminal was like before kvtop stays what it is given back as, and the threads go on.
        """
        if self.attrs_before is not None:
            attributes = list(self.attrs_before)
            attributes[tty.LFLAG] = self._patch_lflag(attributes[tty.LFLAG])
            attributes[tty.IFLAG] = self._patch_iflag(attributes[tty.IFLAG])
            attributes[tty.CC] = [*attributes[tty.CC]]
            attributes[tty.CC][termios.VMIN] = 1
            try:
                termios.tcsetattr(self.fileno, termios.TCSANOW, attributes)
            except termios.error:
                return  # in the background: it stops once more, and is told again when it goes on
        self.write("\x1b[?1049h\x1b[?25l\x1b[?1004h")
        self._enable_mouse_support()
        self._enable_bracketed_paste()
        self._disable_line_wrap()
        if self._in_band_window_resize:
            self._enable_in_band_window_resize()

    # ---- what ends it
    def _told(self, signum: int, frame: FrameType | None) -> None:
        self._leave(status(signum))

    def _gone(self) -> None:
        self._leave(status(signal.SIGHUP))

    def _leave(self, code: int) -> None:
        """End the app with that status, from any thread. The first reason counts."""
        if self._leaving:
            return
        self._leaving = True
        guard = threading.Timer(PATIENCE_S, self._leave_now, (code,))
        guard.daemon = True
        guard.start()
        with contextlib.suppress(RuntimeError):  # the loop is closed: it leaves already
            self._loop.call_soon_threadsafe(self._exit, code)

    def _exit(self, code: int) -> None:
        self._app.exit(return_code=code)

    def _leave_now(self, code: int) -> None:
        """Something holds the app: an output that nobody reads, a call that does not return."""
        if self.attrs_before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.fileno, termios.TCSANOW, self.attrs_before)
        writing = threading.Thread(target=_put, args=(self._out.fileno(), _RESTORE), daemon=True)
        writing.start()
        writing.join(0.2)
        os._exit(code)

    # ---- what is typed
    def run_input_thread(self) -> None:
        """Wait for input without waking up in between: Textual's own looks ten times a second."""
        typed = Typed(self._debug)
        decode = getincrementaldecoder("utf-8")("replace").decode
        unsure_until = 0.0
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                # Only after input can a lone escape turn out to be a key, or a sequence to be broken.
                unsure = time.monotonic() < unsure_until
                if not unsure:
                    typed.silent()
                ready = [key.fd for key, _ in selector.select(TICK_S if unsure else None)]
                if self.fileno in ready:
                    try:
                        data = os.read(self.fileno, 4096)
                    except OSError:
                        data = b""
                    if not data:
                        self._gone()
                        return
                    unsure_until = time.monotonic() + UNSURE_S
                    for event in typed.feed(decode(data)):
                        self.process_message(event)
                for event in typed.tick():
                    self.process_message(event)

    def disable_input(self) -> None:
        os.write(self._wake_write, b"x")
        super().disable_input()
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 64)


class _Writer:
    """A terminal as the file of Textual's writing thread. Where it is gone, what follows goes nowhere."""

    def __init__(self, file: TextIO, gone: Callable[[], None]) -> None:
        self._file, self._gone = file, gone

    def write(self, text: str) -> None:
        self._try(lambda: self._file.write(text))

    def flush(self) -> None:
        self._try(self._file.flush)

    def fileno(self) -> int:
        return self._file.fileno()

    def _try(self, do: Callable[[], object]) -> None:
        try:
            do()
        except OSError:
            # What the file still holds would fail once more at the end of the program.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)
            self._gone()


def _nothing(*_: object) -> None:
    """A handler, where SIG_IGN would be handed on to what is started."""


def _put(fd: int, text: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(fd, text)
