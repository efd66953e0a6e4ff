"""Why a start failed, from its log: the root cause, which is seldom the last line. Pure.

vLLM's processes each write their own traceback: a worker's, then that of the engine that lost the worker, then that of
the web server that lost the engine. The first is the cause, the others only say that there was one.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from kvtop.profiles.running.text import Lines, split
from kvtop.profiles.secret import shown

_ARGPARSE = re.compile(r"^(?:vllm|[\w./-]*\.py)(?: [\w-]+)*: error: (.+)")
_WRAPPER = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|Worker failed with error|"
    r"See root cause above|see stack trace above|EngineDeadError|Failed core proc|^SystemExit|^KeyboardInterrupt|"
    r"^concurrent\.futures\.|^asyncio\.exceptions\.CancelledError|died unexpectedly"
)
_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:: (.*))?$")
_FATAL = re.compile(
    r"engine core exited unexpectedly|encountered a fatal error|died unexpectedly|EngineDeadError|Engine core proc"
)
_SHUTDOWN = re.compile(r"^\[shutdown\] \w+: ")
_LAST_LINES = 60
"""Of a server that ran and says nothing of its end."""
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = re.compile(r"^(?:The above exception was the direct cause|During handling of the above exception)")
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+), in (\S+)')
_TOLD = re.compile(
    r"Insufficient space in /dev/shm|CUDA out of memory|CUDA error|No available memory for the cache blocks|"
    r"Free memory on device|larger than the available KV cache memory|is too large|"
    r"Failed to infer device type|cpu_bytes_to_use must be specified"
)
"""Said outside of a traceback, or worth more than what stands in one."""
_BARE = frozenset(
    ("IndexError", "KeyError", "AttributeError", "TypeError", "AssertionError", "StopIteration", "NameError")
)
"""What these say means nothing without the place that they come from."""
_OF_A_FILE = re.compile(
    r"(?:DecodeError|ScannerError|ParserError|UnpicklingError|SafetensorError|EOFError|BadZipFile)$"
)
"""What these say is wrong with a file, and seldom with which one: what is raised for it knows."""
_PATH = re.compile(r"/[\w.-]")
_PYDANTIC = re.compile(r"^(?:Value error, |Assertion failed, )?(.*?)(?: \[type=.*)?$")

_HINTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"Address already in use", re.IGNORECASE), "the port is taken: another server listens on it"),
    (
        re.compile(r"reasoning parser could not locate|ReasoningParser", re.IGNORECASE),
        "are the tokenizer's files in the model's folder, and is it the parser of this model?",
    ),
    (
        re.compile(
            r"Repo id must be in the form|Invalid repository ID|Can't load the configuration of|"
            r"is not a local folder and is not a valid model identifier"
        ),
        "is the model's path right?",
    ),
    (re.compile(r"(exited|died) unexpectedly"), "its log does not say why: killed, or out of memory?"),
    (re.compile(r"CUDA out of memory|OutOfMemoryError"), "another program may hold memory of the card: see nvidia-smi"),
)
_TOKENIZER = re.compile(r"tokeniz|/encoders?/|chat_utils|renderers?/")


_Line = tuple[str, str, str]
"""See `text.split`."""


@dataclass(slots=True)
class _Raised:
    """One exception of a traceback."""

    kind: str
    says: str
    frames: list[tuple[str, str, str]]
    process: str
    level: str
    chained: bool
    """It was raised while the one before it was being handled."""

    @property
    def text(self) -> str:
        return f"{self.kind.rpartition('.')[2]}: {self.says}" if self.says else self.kind.rpartition(".")[2]


def root_cause(log: bytes, *, ran: bool = False) -> str:
    """One line, fit for a screen, without secrets; empty where the log says nothing of an error.

    `ran`: it had answered, so that errors of single requests may stand before the one that ended it.
    """
    lines: Sequence[_Line] = [split(line) for line in _all(log)]
    if ran:
        lines = _end_of_life(lines)
    cause = _wrong_use(lines) or _told(lines) or _raised(_tracebacks(lines))
    if not cause and ran and lines and _FATAL.search(lines[0][2]):
        cause = _SHUTDOWN.sub("", lines[0][2]).strip()
    return _fit(cause or _last_error(lines))


def ended(cause: str, code: int | None, *, ran: bool, read: bool = True) -> str:
    """A server ended though nobody asked for it: why, in one line. `read`: its log was."""
    how = "it ended" if code is None else _how(code)
    when = "" if ran else " before it answered"
    if ran and code == 0:
        when = " though nobody asked for that"
    if cause:
        return f"{_open(cause)}; {how}{when}"
    return f"{how}{when}; its log {'says no more' if read else 'may say why, and hold its secrets'}"


def _open(sentence: str) -> str:
    """Without its full stop: more follows."""
    return sentence if sentence.endswith("..") else sentence.removesuffix(".")


def _how(code: int) -> str:
    if code > 128:
        try:
            name = signal.Signals(code - 128).name
        except ValueError:
            name = f"signal {code - 128}"
        return f"it was killed by {name}" + (" (out of memory?)" if code == 137 else "")
    return f"it ended with exit code {code}"


def _end_of_life(lines: Sequence[_Line]) -> Sequence[_Line]:
    """From the first word of the engine's end on; nothing of what was before it."""
    for number, (_, level, says) in enumerate(lines):
        if level not in ("INFO", "DEBUG") and _FATAL.search(says):
            return lines[number:]
    return lines[-_LAST_LINES:]


def _all(log: bytes) -> Sequence[str]:
    return list(Lines().feed(log + b"\n"))


def _fit(cause: str) -> str:
    if not cause:
        return ""
    words = shown(" ".join(cause.split()), 400)
    hint = next((hint for pattern, hint in _HINTS if pattern.search(cause)), "")
    return f"{words} ({hint})" if hint else words


def _wrong_use(lines: Sequence[_Line]) -> str:
    for number, (_, _, says) in enumerate(lines):
        if found := _ARGPARSE.match(says):
            if not re.search(r"validation errors? for ", found[1]):
                return found[1]
            following = [line[2] for line in lines[number + 1 : number + 3]]
            if following and following[0].startswith(" "):  # of the whole; else the name of a field stands first
                following = following[:1]
            told = (_PYDANTIC.sub(r"\1", line.strip()) for line in following)
            return ": ".join(filter(None, (found[1], *told)))
    return ""


def _told(lines: Sequence[_Line]) -> str:
    """The first line that says one of the known causes; an exception's name stays."""
    for _, level, says in lines:
        if level not in ("INFO", "DEBUG", "WARNING") and _TOLD.search(says) and not _WRAPPER.search(says):
            return says.strip()
    return ""


def _tracebacks(lines: Sequence[_Line]) -> list[_Raised]:
    """Their exceptions in the order of the log. Lines of several processes may stand between each other."""
    found: list[_Raised] = []
    open_in: dict[str, tuple[list[tuple[str, str, str]], bool]] = {}
    chained: set[str] = set()
    for number, (process, level, says) in enumerate(lines):
        if says.startswith(_TRACEBACK):
            open_in[process] = ([], process in chained)
            chained.discard(process)
        elif _CHAINED.match(says):
            chained.add(process)
        elif process in open_in:
            frames, after = open_in[process]
            if frame := _FRAME.match(says):
                frames.append((frame[1], frame[2], frame[3]))
            elif frames and says.startswith("    ") and not says.strip(" ^~"):
                pass  # the marks below a line of code
            elif frames and says.startswith("    "):
                frames[-1] = (frames[-1][0], frames[-1][1], f"{frames[-1][2]} {says.strip()}")
            elif says[:1] not in (" ", "\t", "") and (named := _EXCEPTION.match(says)):
                del open_in[process]
                more = _further(lines, number, process, named[2] or "")
                found.append(_Raised(named[1], more, frames, process, level, after))
    return found


def _further(lines: Sequence[_Line], number: int, process: str, says: str) -> str:
    """A message of several lines: of pydantic's the one that tells, else the first that says anything."""
    following = [line[2] for line in lines[number + 1 : number + 4] if line[0] == process]
    if re.search(r"validation errors? for ", says):
        for line in following:
            if line.startswith("  ") and (told := _PYDANTIC.sub(r"\1", line.strip())) and "." not in told.split()[:1]:
                return told
    return says


def _raised(found: Sequence[_Raised]) -> str:
    """The first that is none of the wrappers; of a chain the innermost that says something, and which file it is of."""
    real = [one for one in found if not _WRAPPER.search(one.text) and one.level not in ("WARNING", "INFO", "DEBUG")]
    if not real:
        return ""
    later = (one for one in real[1:] if one.process == real[0].process)
    chain = [real[0], *takewhile(lambda one: one.chained, later)]
    while len(chain) > 1 and (chain[0].kind in _BARE or not chain[0].says or "404" in chain[0].says):
        del chain[0]
    if _OF_A_FILE.search(chain[0].kind) and not _PATH.search(chain[0].says):
        return _placed(next((one for one in chain if _PATH.search(one.says)), chain[0]))
    return _placed(chain[0])


def _placed(one: _Raised) -> str:
    if one.kind not in _BARE or not one.frames:
        return one.text
    path, line, code = one.frames[-1]
    function = code.split()[0]
    about = ""
    if any(_TOKENIZER.search(frame[0]) or "tokeniz" in frame[2].lower() for frame in one.frames[-6:]):
        about = ", reading the tokenizer: are its files in the model's folder?"
    return f"{one.text} at {path.rpartition('/')[2]} line {line}, {function}{about}"


def _last_error(lines: Sequence[_Line]) -> str:
    """Without a traceback: what was logged as an error last, or stands last in a log that ended with it."""
    logged = [says for _, level, says in lines if level in ("ERROR", "CRITICAL") and not _WRAPPER.search(says)]
    errors = [says for says in logged if says[:1] not in ("", " ", "\t") and not says.startswith(_TRACEBACK)]
    if errors:
        return errors[-1].strip()
    loose = [
        says
        for _, level, says in lines
        if not level and re.search(r"\berror\b|not found|denied|cannot", says, re.IGNORECASE)
    ]
    return loose[-1].strip() if loose else ""
