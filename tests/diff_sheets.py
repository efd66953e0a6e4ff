"""Sheets to look at: an agent's prompt with fourteen tools and a history, against one that was changed."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

from hypothesis import strategies as st

from kvtop.triage.hunks import hunks_of
from kvtop.triage.kinds import Kind, Who
from kvtop.triage.result import Cause, Diff, FirstDifference, Tokens
from kvtop.triage.sheet import Sheet

PIECE = re.compile(r"\s?\w{1,8}|\s?[^\w\s]{1,2}|\n+|\s+")
WORD = re.compile(r"\S*\s+|\S+")
TEXT = (
    "run a command in the project folder and return what it prints output over limits is cut replace one piece of text "
    "must occur exactly once find files by pattern newest first search with regular expression match at most"
)
WORDS = re.findall(r"\w+", TEXT)
UNIT = 512
EVIL = "\x1b[31mred\x1b[0m\u202eevil\x9b\x07\u200d\u2028[bold]x[/] \ud800 e\u0301\u0301 漢字 👩\u200d👧\ufe0f\r\t\x00"


def _tool(n: int, chance: random.Random, keys: tuple[str, ...]) -> str:
    names = ("path", "old_text", "new_text", "replace_all")[: chance.randint(1, 4)]
    properties = {name: {"type": "string", "description": " ".join(chance.choices(WORDS, k=6))} for name in names}
    whole = {"type": "object", "properties": properties, "required": list(names)}
    function = {
        "name": f"tool_{n}",
        "description": " ".join(chance.choices(WORDS, k=60)),
        "parameters": {key: whole[key] for key in keys},
    }
    return json.dumps({"type": "function", "function": function}) + "\n"


def _prompt(messages: int, changed: bool) -> list[tuple[str, str]]:
    """(section, text), in order."""
    chance = random.Random(3)
    as_ever, other = ("type", "properties", "required"), ("required", "properties", "type")
    parts = [("", "<|im_start|>system\n# Tools\n\nYou may call one or more functions:\n<tools>\n")]
    parts += [(f"tools[{n}]", _tool(n, chance, other if changed and n == 4 else as_ever)) for n in range(14)]
    parts.append(("system", "</tools>\n\nYou are a coding agent.\nBe short.\n<|im_end|>\n"))
    for n in range(messages):
        lines = [" ".join(chance.choices(WORDS, k=chance.randint(3, 30))) for _ in range(chance.randint(1, 12))]
        if changed and n == messages // 2:
            lines.insert(0, "<system-reminder>plan mode</system-reminder>")
        if n % 5 == 3:
            lines.append("def f(x):\n    if x:\n        return x + 1\n")
        role = ("user", "assistant")[n % 2]
        parts.append((f"messages[{n}]", f"<|im_start|>{role}\n" + "\n".join(lines) + "<|im_end|>\n"))
    return parts


def sheet(messages: int = 40, *, words: bool = False, appended: bool = False) -> Sheet:
    """Turns 811 and 812: keys of a tool in another order, a reminder, and two messages more; or only the messages."""
    chance = random.Random(9)
    more = [
        (f"messages[{messages + n}]", f"<|im_start|>user\n{' '.join(chance.choices(WORDS, k=60))}<|im_end|>\n")
        for n in range(2)
    ]
    old, sections, new = [], [], []
    for _, text in _prompt(messages, changed=False):
        old += (WORD if words else PIECE).findall(text)
    for name, text in [*_prompt(messages, changed=not appended), *more]:
        if name:
            sections.append((len(new), name))
        new += (WORD if words else PIECE).findall(text)
    hunks = hunks_of(old, new)
    common = hunks[0].new.stop
    reusable, would = common // UNIT * UNIT, len(old) // UNIT * UNIT
    tokens = Tokens(len(old), len(new), common, reusable, len(old) - common, would - reusable)
    middle = messages // 2
    causes = () if appended else (
        Cause(
            Kind.TOOL_KEY_ORDER, "/tools/4/function/parameters", "tools[4].function.parameters",
            "The keys of tools[4].function.parameters are in another order.",
            "Sort the keys of tool schemas, or send them as they came.", Who.GATEWAY,
            lost_tokens=None if words else len(old) - common - 2_144, lost_s=None if words else 86.0,
            seen="3 of the last 41 turns",
        ),
        Cause(
            Kind.REMINDER_MOVED, f"/messages/{middle}", f"messages[{middle}]",
            "A <system-reminder> stands in another message.", "Keep reminders where they were.",
            pointer_new=f"/messages/{middle + 6}", lost_tokens=None if words else 2_144, lost_s=None if words else 1.8,
        ),
    )  # fmt: skip
    first = FirstDifference("tools[4].function.parameters", "/tools/4/function/parameters", "a", "b", common)
    made = Diff(
        "811", "812", "server_tokens", True, tokens, causes, None if appended else first, appended, UNIT, reusable,
        reusable,
    )  # fmt: skip
    if words:
        made = replace(
            made, method="text", exact=False, tokens=Tokens(), match_unit_tokens=None, cached_tokens=None,
            expected_cached_tokens=None, notes=("No server was asked: words are compared, not tokens.",),
        )  # fmt: skip
    counts = (("tools", sum(name.startswith("tools[") for _, name in sections)),)
    return Sheet(made, old, new, hunks, not words, tuple(sections), "turn 811", "turn 812", counts)


def of(old: list[str], new: list[str], *causes: Cause, tokens: bool = True, **changes: object) -> Sheet:
    """A sheet of these pieces, of which nothing else is known."""
    hunks = hunks_of(old, new)
    common = hunks[0].new.stop if hunks and hunks[0].same else 0
    told = Tokens(len(old), len(new), common, common, len(old) - common) if tokens else Tokens()
    made = Diff("a", "b", "server_tokens" if tokens else "text", tokens, told, causes, **changes)
    return Sheet(made, old, new, hunks, tokens, ((0, "system"),) if new else (), "a.json", "b.json")


def big(pieces: int = 120_000) -> Sheet:
    """So many tokens, changed in front, in the middle and near the end."""
    chance = random.Random(5)
    common = [f" w{min(9_999, int(chance.paretovariate(0.7)))}" for _ in range(pieces)]
    common[::40] = ["\n"] * len(common[::40])
    new = common[:]
    for at in (pieces - 900, pieces // 2, 3_000):
        new[at : at + 3] = [f" changed{at}", " here"]
    made = of(common, new, match_unit_tokens=16)
    return replace(made, old_label="turn 1", new_label="turn 2")


hostile = st.lists(
    st.one_of(
        st.sampled_from(
            [EVIL, "\n", "\n\n", " ", "", "▏", "⏎", "a" * 300, " word", "漢" * 50, "\u202e", "\ufe0f", "é"]
        ),
        st.text(max_size=6),
        st.text(alphabet="ab \n", max_size=6),
    ),
    max_size=60,
)
"""Pieces of any kind."""


@st.composite
def sheets(draw: st.DrawFn) -> Sheet:
    """Two prompts of such pieces, the second one edited from the first as often as not."""
    old = draw(hostile) * draw(st.sampled_from([1, 1, 1, 8]))
    new = draw(hostile)
    if draw(st.booleans()):
        at = draw(st.integers(0, len(old)))
        new = [*old[:at], *draw(hostile), *old[at + draw(st.integers(0, 5)) :]]
    tokens = draw(st.booleans())
    cause = Cause(Kind.TEXT_EDITED, "/x", draw(st.text(max_size=20)), draw(st.text(max_size=200)), draw(st.text()))
    more = {"cached_tokens": draw(st.none() | st.integers(-3, 500)), "match_unit_tokens": draw(st.none() | st.just(16))}
    made = of(old, new, *[cause] * draw(st.integers(0, 11)), tokens=tokens, **more)
    notes = tuple(draw(st.lists(st.text(), max_size=3)))
    labels = draw(st.sampled_from([("turn 1", "turn 2"), ("", ""), (EVIL, "x" * 300)]))
    return replace(made, diff=replace(made.diff, notes=notes), old_label=labels[0], new_label=labels[1])
