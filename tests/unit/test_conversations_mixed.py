"""Any mixture of talks comes apart again: interleaved at random, with drifting heads, edits, retries and side calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from capture_talks import Recorder, Where
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.capture.turn import TurnState


@dataclass
class Talk:
    """One talk as a machine: each move is a request or an answer."""

    name: str
    agent: str
    key: str
    drift: bool
    """System prompt and tools differ with every turn."""
    clears: bool
    """Its oldest tool output is cleared once there are three."""
    leaves: bool
    """A reminder leaves the first message with the third step."""
    opening: str
    words: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    open: str = ""
    again: bool = False
    sides: int = 0

    def ask(self, box: Recorder) -> None:
        turn, step = len(self.sent), len(self.words) // 2
        first = f"u {self.opening}" + (" reminder" if self.leaves and step < 2 else "")
        words = [first, *self.words]
        if self.clears and step > 3:
            words[2] = "t cleared"
        kind = {"agent": self.agent, "headers": [("x-session-id", self.key)] if self.key else []}
        if self.drift:
            kind |= {"system": [f"at {self.name} {turn}"], "tools": [f"read {turn}", "bash"][:: 1 - turn % 2 * 2]}
        name = f"{self.name}{turn}"
        where = box.ask(name, words, **kind)
        parent = self.sent[-1] if self.sent else None
        again = "branch" if self.drift else "retry"
        relation = "first" if not parent else again if self.again else "next"
        assert where == Where(self.sent[0] if self.sent else name, parent, relation)
        self.sent.append(name)
        self.open = name

    def answer(self, box: Recorder, fails: bool) -> None:
        self.again = fails
        box.end(self.open, state=TurnState.FAILED if fails else TurnState.DONE)
        if not fails:
            self.words += [f"a {self.name} {len(self.sent)}", f"t {self.name} {len(self.sent)}"]
        self.open = ""

    def side(self, box: Recorder) -> None:
        self.sides += 1
        name = f"{self.name}-side{self.sides}"
        system = ("you write titles",)
        headers = [("x-session-id", self.key)]
        where = box.turn(
            name, ["u title of", f"u {self.opening}"], agent=self.agent, headers=headers, tools=(), system=system
        )
        assert where.conversation == f"{self.name}-side1" and where.relation in ("side", "retry")


@st.composite
def talks(draw: st.DrawFn) -> list[Talk]:
    found = []
    for i in range(draw(st.integers(2, 5))):
        keyed = draw(st.booleans())
        found.append(
            Talk(
                name="abcde"[i],
                agent=draw(st.sampled_from(["opencode", "pi"])),
                key=f"ses-{i}" if keyed else "",
                drift=draw(st.booleans()),
                clears=draw(st.booleans()),
                leaves=draw(st.booleans()),
                opening="the same task"
                if keyed
                else f"task {i}",  # without a key equal tasks are one another's retries
            )
        )
    return found


@settings(max_examples=150, deadline=None)
@given(talks(), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=10, max_size=80))
def test_mixed_talks_come_apart(mixed: list[Talk], moves: list[tuple[int, int]]) -> None:
    box = Recorder()
    for which, what in moves:
        talk = mixed[which % len(mixed)]
        if talk.open:
            talk.answer(box, fails=what == 0)
        elif what == 1 and talk.key and talk.sent:
            talk.side(box)
        else:
            talk.ask(box)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 6), st.lists(st.integers(0, 5), min_size=6, max_size=60))
def test_equal_runs_without_a_key_stay_apart_once_their_models_spoke(runs: int, moves: list[int]) -> None:
    """All start at once with one prompt: whose a second request is nobody can tell; from then on it is plain."""
    box = Recorder()
    names = "abcdef"[:runs]
    words: dict[str, list[str]] = {name: ["u look"] for name in names}
    for name in names:
        assert box.ask(f"{name}0", words[name]) == Where(f"{name}0", None, "first")
    for name in names:
        box.end(f"{name}0")
    homes: dict[str, str] = {}
    sent = dict.fromkeys(names, 0)
    for move in moves:
        name = names[move % runs]
        sent[name] += 1
        words[name] += [f"a {name}{sent[name]}", f"t {name}{sent[name]}"]
        where = box.turn(f"{name}{sent[name]}", words[name])
        assert where.relation == "next"
        assert homes.setdefault(name, where.conversation) == where.conversation
        assert sent[name] == 1 or where.parent == f"{name}{sent[name] - 1}"
    assert len(set(homes.values())) == len(homes)
