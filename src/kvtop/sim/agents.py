"""The coding agents of the embedded box: what they send, and how long they think between two turns.

An agent is a script, a generator: it yields what it does (`Ask`, `Sleep`, `Restart`) and is resumed when that is over.
Everything that it decides comes from its own seeded random numbers, so a scenario plays the same every time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from kvtop.sim.prompt import Message, Part, Prompt, Prompter, Tool, generation_prompt, head_parts, message_part
from kvtop.sim.text import passage


@dataclass(slots=True)
class Ask:
    """One turn: send the conversation. The script is resumed with False where the answer broke off."""

    conversation: Conversation
    reply: str
    reason: str = "stop"


@dataclass(slots=True)
class Sleep:
    """Run a tool, read, have lunch."""

    seconds: float


@dataclass(slots=True)
class Restart:
    """Someone restarts the server: counters and caches begin again, and the port refuses for a while."""

    down_s: float


Act = Ask | Sleep | Restart
Script = Generator[Act, bool, None]


class Conversation:
    """System text, tools and messages; what is sent is derived from them, part by part."""

    def __init__(self, block_tokens: int, agent: str, system: str, tools: Iterable[Tool]) -> None:
        self.agent = agent
        self._system = system
        self._tools = list(tools)
        self.messages: list[Message] = []
        self._prompter = Prompter(block_tokens)
        self._head: list[Part] = []
        self._parts: list[Part] = []
        self._generation = Part(generation_prompt())

    @property
    def system(self) -> str:
        return self._system

    @system.setter
    def system(self, text: str) -> None:
        self._system, self._head = text, []

    @property
    def tools(self) -> list[Tool]:
        return self._tools

    @tools.setter
    def tools(self, tools: Iterable[Tool]) -> None:
        self._tools, self._head = list(tools), []

    @property
    def tokens(self) -> int:
        """Length of the next prompt."""
        return sum(len(p.ids) for p in (*self._head_parts(), *self._parts, self._generation))

    def _head_parts(self) -> list[Part]:
        if not self._head:
            self._head = head_parts(self._system, self._tools)
        return self._head

    def add(self, message: Message) -> None:
        """Append a message; what stands before it stays as it is."""
        self.messages.append(message)
        self._parts.append(message_part(message))

    def user(self, text: str) -> None:
        self.add({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        self.add({"role": "assistant", "content": text})

    def result(self, text: str) -> None:
        self.add({"role": "tool", "tool_call_id": f"call_{len(self.messages)}", "content": text})

    def compact(self, summary: str) -> None:
        """Replace the history by a summary; system and tools stay."""
        self.messages, self._parts = [], []
        self.user(summary)

    def prompt(self) -> Prompt:
        """The token ids of the next turn."""
        return self._prompter.join([*self._head_parts(), *self._parts, self._generation])

    def body(self) -> dict[str, Any]:
        """The /v1/chat/completions body of the next turn."""
        return {"messages": [{"role": "system", "content": self._system}, *self.messages], "tools": self._tools}


_NAMES = (
    "read",
    "write",
    "edit",
    "bash",
    "grep",
    "glob",
    "list",
    "task",
    "todo_write",
    "todo_read",
    "web_fetch",
    "patch",
    "lsp_hover",
    "lsp_references",
    "mcp_issues_search",
    "mcp_issues_get",
    "mcp_browser_open",
    "mcp_browser_click",
    "mcp_sql_query",
    "notebook_edit",
)
_FIELDS = ("path", "pattern", "command", "limit", "offset", "timeout", "recursive", "encoding", "query", "include")


def make_tools(rng: random.Random, count: int, tokens: int) -> list[Tool]:
    """`count` tool schemas of about `tokens` tokens each."""
    tools: list[Tool] = []
    for name in _NAMES[:count]:
        chosen = rng.sample(_FIELDS, 6)
        properties = {
            one: {"type": "string", "description": passage(rng, tokens // 12, f"{one} of {name}")} for one in chosen
        }
        parameters = {"type": "object", "properties": properties, "required": chosen[:2]}
        text = passage(rng, tokens // 3, f"{name}: use it for one thing at a time.")
        tools.append({"type": "function", "function": {"name": name, "description": text, "parameters": parameters}})
    return tools


def shuffled(tools: list[Tool], rng: random.Random, start: int) -> list[Tool]:
    """The same tools, from `start` on with their property keys in another order, as a gateway's hash map does it."""
    out = tools[:start]
    for tool in tools[start:]:
        copy = json.loads(json.dumps(tool))
        parameters = copy["function"]["parameters"]
        keys = list(parameters["properties"])
        before = list(keys)
        while keys == before:
            rng.shuffle(keys)
        parameters["properties"] = {k: parameters["properties"][k] for k in keys}
        out.append(copy)
    return out


@dataclass(frozen=True, slots=True)
class Character:
    """What kind of agent: the sizes of what it sends, in tokens, and its pace, in seconds."""

    name: str
    system_tokens: int
    tools: int
    tool_tokens: int
    result: tuple[int, int] = (900, 3_800)
    reply: tuple[int, int] = (60, 420)
    pause: tuple[float, float] = (4.0, 22.0)

    def head(self) -> tuple[str, list[Tool]]:
        """System text and tools, the same for all of this kind."""
        return _head(self)


@lru_cache(maxsize=16)
def _head(who: Character) -> tuple[str, list[Tool]]:
    rng = random.Random(who.name)
    system = passage(rng, who.system_tokens, f"You are {who.name}, a coding agent. Work in small steps.")
    return system, make_tools(rng, who.tools, who.tool_tokens)


OPENCODE = Character("opencode", 2_900, 14, 620)
CLAUDE_CODE = Character("claude-code", 3_600, 18, 700, result=(700, 2_600), reply=(80, 620))
PI = Character("pi", 900, 4, 420, result=(400, 2_400), reply=(120, 700), pause=(3.0, 12.0))
QWEN_CODE = Character("qwen-code", 2_200, 12, 560, result=(1_200, 4_200))


@dataclass
class Stage:
    """What a script may use: the simulated clock, its random numbers, the size of a block."""

    block_tokens: int
    rng: random.Random
    live_at: float
    """Unix time at which the box opened its port: what came before is the warm past."""
    now: float = 0.0
    spawned: list[Script] = field(default_factory=list)
    """Scripts that begin now."""

    @property
    def t(self) -> float:
        """Seconds since the port opened; negative in the warm past."""
        return self.now - self.live_at

    def until(self, t: float) -> Sleep:
        """Wait until `t` seconds after the port opened; not at all where that is over."""
        return Sleep(max(t - self.t, 0.0))

    def conversation(self, who: Character) -> Conversation:
        """A fresh conversation. Agents of one kind share system text and tools, as real ones do."""
        return Conversation(self.block_tokens, who.name, *who.head())

    def text(self, low: int, high: int, head: str = "") -> str:
        """A text of its own, between `low` and `high` tokens."""
        return passage(self.rng, self.rng.randint(low, high), f"{head} #{self.rng.getrandbits(48):012x}".strip())

    def call(self, who: Character) -> str:
        """A reply that ends in a tool call."""
        return self.text(*who.reply, "I will look at the next file.")


@dataclass(slots=True)
class Habits:
    """What an agent does to its prompts besides appending."""

    shuffle_at: tuple[float, ...] = ()
    """Seconds (of the stage) at which the keys of its tool schemas change order."""
    shuffle_every: float | None = None
    """And again after so many seconds, from the last of these on."""
    shuffle_from: int = 4
    """The first tool whose keys move."""
    clock: bool = False
    """The system text begins with the time of day."""
    limit_tokens: int = 118_000
    """Compacts when the prompt is longer."""
    start_tokens: int = 20_000
    """Length of its first prompt."""
    turns: int | None = None
    """Stops after so many turns; None: never."""


def _clocked(text: str, now: float) -> str:
    return f"It is {datetime.fromtimestamp(now, UTC):%A, %d %B %Y, %H:%M:%S} UTC.\n\n{text}"


def tool_loop(stage: Stage, who: Character, habits: Habits, start: float) -> Script:
    """Ask, run a tool, append its result, ask again; compact when the context is full."""
    yield stage.until(start)
    talk = stage.conversation(who)
    plain, tools = talk.system, talk.tools
    room = habits.start_tokens - talk.tokens
    talk.user(stage.text(max(room - 200, 200), max(room, 240), "Here is the task, and the files it is about."))
    due = list(habits.shuffle_at)
    turns = 0
    while habits.turns is None or turns < habits.turns:
        if due and stage.t >= due[0]:
            at = due.pop(0)
            talk.tools = shuffled(tools, stage.rng, habits.shuffle_from)
            if not due and habits.shuffle_every:
                due.append(at + habits.shuffle_every)
        if habits.clock:
            talk.system = _clocked(plain, stage.now)
        reply = stage.call(who)
        if (yield Ask(talk, reply)):
            turns += 1
            talk.answer(reply)
            pause = stage.rng.uniform(*who.pause)
            if due and stage.t < due[0] < stage.t + 45.0:
                pause = due[0] - stage.t  # so that the change is met at its time, not some turns later
            yield Sleep(pause)
            talk.result(stage.text(*who.result, "tool output"))
            if talk.tokens > habits.limit_tokens:
                talk.compact(stage.text(4_000, 6_000, "Summary of the work so far."))
        else:
            yield Sleep(3.0)


def errands(stage: Stage, who: Character, start: float, pause: tuple[float, float]) -> Script:
    """Short jobs, one after the other: a title, a question about one file, a small change of a few turns."""
    yield stage.until(start)
    while True:
        talk = stage.conversation(who)
        kind = stage.rng.random()
        turns = 1 if kind < 0.4 else stage.rng.randint(2, 5)
        size = (150, 700) if kind < 0.3 else (1_000, 4_500)
        talk.user(stage.text(*size, "A question."))
        for _ in range(turns):
            reply = stage.call(who)
            if not (yield Ask(talk, reply)):
                break
            talk.answer(reply)
            yield Sleep(stage.rng.uniform(*who.pause))
            talk.result(stage.text(*who.result, "tool output"))
        yield Sleep(stage.rng.uniform(*pause))


def burst(stage: Stage, who: Character, at: float, every: float, count: int, *, apart_s: float = 0.2) -> Script:
    """Now and then a parent sends out `count` subagents; they share system text and tools."""
    yield stage.until(at)
    while True:
        stage.spawned += [_subagent(stage, who, i * apart_s) for i in range(count)]
        yield Sleep(every)


def _subagent(stage: Stage, who: Character, wait_s: float) -> Script:
    yield Sleep(wait_s)
    talk = stage.conversation(who)
    talk.user(stage.text(2_000, 4_500, "You are a subagent. Look at this part only."))
    for _ in range(2):
        reply = stage.text(80, 200, "Found:")
        if not (yield Ask(talk, reply)):
            return
        talk.answer(reply)
        yield Sleep(stage.rng.uniform(2.0, 6.0))
        talk.result(stage.text(400, 1_800, "tool output"))


def operator(stage: Stage, at: float, every: float, down_s: float) -> Script:
    """Someone who deploys: restarts the server, again and again."""
    yield stage.until(at)
    while True:
        yield Restart(down_s)
        yield Sleep(every)
