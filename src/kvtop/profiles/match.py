"""Which profile a running server is, by its command line: the one way to find the servers of profiles that kvtop did
not start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvtop.errors import UsageError, printable
from kvtop.profiles.differences import flag_values
from kvtop.profiles.folder import Entry
from kvtop.profiles.launch import Launch, launch
from kvtop.profiles.secret import masked_words
from kvtop.readings import VllmProcess
from kvtop.sources.processes import ENTRIES, program_of

_KEYS = ("--api-key", "--hf-token")
"""A profile hands these to vLLM by its environment."""


def launches(entries: Iterable[Entry]) -> dict[str, Launch]:
    """What each profile that can be used runs, by its name."""
    found = {}
    for entry in entries:
        if entry.profile is not None:
            try:
                found[entry.name] = launch(entry.name, entry.profile)
            except UsageError:
                continue
    return found


def servers(
    processes: Sequence[VllmProcess], runs: Mapping[str, Launch]
) -> Iterator[tuple[VllmProcess, tuple[str, ...]]]:
    """The servers among these processes, each with the names of all profiles whose command line it has.

    The API servers of one `vllm serve` are its children: the first of them stands for all.
    """
    pids = {process.pid for process in processes}
    for process in processes:
        if process.role == "api" and process.parent not in pids:
            yield process, tuple(name for name, run in runs.items() if is_of(run, process))


def is_of(run: Launch, process: VllmProcess) -> bool:
    """Whether a server runs what a profile says: the same flags with the same values, in whatever order."""
    words = behind_serve(process.command)
    return words is not None and bool(run.serve) and _asked(run.serve) == _asked(words)


def behind_serve(command: Sequence[str]) -> list[str] | None:
    """What stands behind `vllm serve` in a command line; None for one that is no server's."""
    program, rest = program_of(command)
    if program in ENTRIES:
        return rest[1:] if rest[:1] == ["serve"] else None
    return rest if program.startswith("vllm") else None


def _asked(words: Sequence[str]) -> dict[str, str]:
    # as the table of processes has them
    found = flag_values([printable(word, 4000) for word in masked_words(words)])
    return {name: value for name, value in found.items() if name not in _KEYS}
