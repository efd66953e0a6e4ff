"""What start, stop and switch share: the profile that was named, the servers of others, a question on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop.cli import stdio
from kvtop.errors import KvtopError, UsageError, printable
from kvtop.profiles import folder
from kvtop.profiles.flags import Flags
from kvtop.profiles.folder import Entry
from kvtop.profiles.launch import launch
from kvtop.profiles.match import launches
from kvtop.profiles.running import adopt, client, record
from kvtop.profiles.running.adopt import Foreign
from kvtop.profiles.running.client import Chosen
from kvtop.profiles.running.look import Seen


def choose(entry: Entry) -> Chosen:
    """A profile, ready to be started. Raises UsageError where it cannot be used."""
    profile = entry.usable()
    run = launch(entry.name, profile)
    flags = Flags.read(run.serve)
    names = list(flags.values("served-model-name")) or ([flags.model] if flags.model else [])
    return Chosen(entry.name, str(entry.file), profile, run, names)


def name_of(word: str) -> str:
    """The profile that is meant, by its name or the path of its file; by a name it need not be there any more."""
    return folder.find(word).name if "/" in word else word


ONLY = "where another server would be stopped: stop none. By the number of its process, or `mark` of list --json"
"""Of the option --only."""


def several(names: Sequence[str], fix: str) -> UsageError:
    """It is not clear which of the servers that run is meant."""
    return UsageError(f"{len(names)} servers run: {', '.join(printable(name, 60) for name in names)}", fix)


def foreign() -> list[Foreign]:
    """The servers of this machine that kvtop did not start."""
    return adopt.foreign(launches(folder.read_all()))


def asked(question: str, *, yes: bool, flag: str = "--yes") -> bool:
    """Whether a person at the terminal, or the flag, says yes. Raises UsageError where there is nobody to ask."""
    return yes or stdio.agreed(question, f"{question} There is no terminal to ask at", f"{flag} says yes")


def settle(chosen: Chosen) -> None:
    """What the end of its last server owes is run in front of a new start, as it would have been; under the lock."""
    state = record.read(chosen.name)
    if state is None or not state.after_owed:
        return
    name = printable(chosen.name, 80)
    try:
        # its own file, which may be another one of that name
        owing = choose(folder.find(state.file or state.name))
        n = len(owing.profile.start.after_stop)
        stdio.tell(f"runs what the last server of {name} owes: {n} after_stop command{'s' * (n != 1)}")
        told(client.run_after_stop(owing, locked=True))
    except KvtopError as error:  # nobody could run it any more
        stdio.tell(f"the after_stop of the last server of {name} did not run, and is owed no more")
        told([str(error)])


def refuse_other(only: str | None, found: Seen | Foreign) -> None:
    """Raises KvtopError where `--only` names another server than the one that would be stopped."""
    marks: set[str | None]
    if isinstance(found, Foreign):
        marks, words = {str(found.who.pid)}, found.words
    else:
        marks = {str(found.pid), found.record.mark if found.record is not None else None}
        words = f"{printable(found.name, 80)}{found.where}"
    if only is not None and only not in marks:
        raise KvtopError(
            f"nothing was stopped: what runs has changed, {words} is not the one that was meant",
            "kvtop profile list shows what runs",
        )


def told(notes: Sequence[str]) -> None:
    for note in notes:
        stdio.tell(f"  {printable(note, 400)}")


def failed(seen: Seen) -> KvtopError:
    """A start that came to nothing: it went wrong, or somebody ended it before the server answered."""
    shown, state = printable(seen.name, 80), seen.record
    if seen.state == "stopped":
        by = state.ask.by if state is not None and state.ask is not None else "another kvtop"
        return KvtopError(f"{shown} was stopped before it answered, by {printable(by, 80)}")
    why = state.why if state is not None else ""
    whole = "" if "; its log: " in why else f"the whole log: kvtop profile logs {shown}"
    return KvtopError(f"{shown} did not start: {printable(why, 600)}", whole)
