"""How a turn went, in the words of its row: a mark, a style, and wordings, longest first. Pure."""

from __future__ import annotations

import re

from kvtop.model.account import needed
from kvtop.model.own import NAME
from kvtop.model.shown_turn import CONTINUES, Turn
from kvtop.model.view import ServerView
from kvtop.ui.draw import clip, safe
from kvtop.ui.numbers import DASH, short, tok

QUEUE_SAID_S = 0.5
"""A shorter time in the queue is no news, even where it is most of the TTFT."""
LIMITS = frozenset({"length", "max_tokens", "max_output_tokens"})
"""How the routes call an answer that ended at its limit."""
_BEGINS = {"first": "first turn", "subagent": "new subagent", "compaction": "compacted"}
"""The relations of `BEGINS` in the words of a row."""
_MUCH_ASKED = (
    r"max_(?:completion_|output_)?tokens=(?P<asked>\d+) cannot be greater than \w+=(?P<fit>\d+)",
    r"is too large: (?P<asked>\d+)\. This model's maximum context length is (?P<fit>\d+)",
    r"context length is (?P<fit>\d+) tokens\. However, you requested (?P<asked>\d+) output tokens",
    r"context length is (?P<fit>\d+) tokens\. However, you requested \d+ tokens \(.*?(?P<asked>\d+) in the completion",
    r"request fewer output tokens|input length and .?max_tokens.? exceed|max_tokens: \d+ > \d+",
)
"""How vLLM of any age, and servers like it, say that the answer's limit does not fit, whatever the prompt is."""
_TOO_LONG = (
    r"maximum context length",
    r"prompt.{0,40}too long",
    r"longer than the maximum",
    r"(?:prompt|prompt_token_ids|input) length \(?\d+\)? exceeds",
    r"prompt has \d+ tokens .{0,80}more than max_model_len",
)
_KNOWN_ERRORS = (
    (re.compile("|".join(_TOO_LONG), re.IGNORECASE), "prompt too long"),
    (re.compile(r"(?i)model.{0,80}(does not exist|not found)"), "no such model"),
    (re.compile(r"(?i)refused"), "no connection"),
)
"""What servers say at length, in the words of a row."""
_ASKED = [re.compile(pattern, re.IGNORECASE) for pattern in _MUCH_ASKED]
_FIRST_WORDS = 12
"""Of an error that is not known: so many of its words at most, where not all of it fits."""
_FIRST_CELLS = 14
"""Of one whose first word does not fit: so many cells of it."""

Verdict = tuple[str, str, list[str]]
"""Mark, style, wordings longest first."""
LOOKING: Verdict = "┄", "d", ["being worked out", "in work", "soon"]
"""Of one that will be judged: what its numbers say by themselves may be wrong."""
_TONES = {"bad": ("×", "bad"), "warn": ("!", "warn"), "ok": ("·", "t"), "unsure": ("?", "warn")}
"""Mark and style of what was found out."""


def verdict(turn: Turn, server: ServerView | None) -> Verdict:
    """Of a row of the table; a captured one knows more of its end."""
    if turn.state == "in_flight":
        return "›", "bright", _doing(turn, server)
    if turn.own:
        step = safe(turn.step)
        return "·", "d", [*([f"{NAME}: {step}", f"replay: {step}"] if step else []), NAME, "replay"]
    ended = _ended(turn) if turn.captured else None
    mark, style, words = ended or _found(turn) or (LOOKING if turn.judging else _counted(turn))
    if turn.record == "truncated" and turn.state is not None:
        words = [*(f"{word}, record incomplete" for word in words), *words]
    return mark, style, words


def _ended(turn: Turn) -> Verdict | None:
    """How a captured turn ended; None where it ended well, and its tokens and times say the rest."""
    if turn.state == "failed":
        return "×", "bad", failure(turn)
    if turn.state == "aborted":
        return "!", "warn", ["aborted by its client", "aborted"]
    if turn.state == "cut":
        why = [safe(turn.error)] if turn.error else []
        return "×", "bad", [*why, "answer broke off", "broke off"]
    if turn.state is None:
        return "?", "d", ["its end was not seen", "end not seen"]
    if turn.finish_reason == "abort":
        # to a client that leaves nothing more is said: this one was there
        return "!", "warn", ["aborted by the server", "aborted"]
    return None


def _found(turn: Turn) -> Verdict | None:
    """What was found out about it; None where that was not tried, or says no more than the row by itself."""
    found = turn.finding
    if found is None or not found.cells:
        return None
    if found.verdict == "no_fault":
        return "·", "d", [*found.cells[:-1], *_plain(turn)]
    if found.verdict == "new_tokens" and turn.relation in _BEGINS:
        return "·", "t", [*_limited(turn, _begun(turn)[0]), *_begun(turn)]
    return (*_TONES[found.tone], list(found.cells))


def failure(turn: Turn) -> list[str]:
    """`failed: 400 prompt too long`, and shorter."""
    status = [str(turn.status)] if turn.status is not None else []
    says = [safe(turn.error), *_briefly(turn.error)] if turn.error else []
    words = [f"failed: {' '.join([*status, said])}" for said in says]
    return [*words, f"failed: {status[0]}" if status else "failed", "failed"]


def _briefly(error: str) -> list[str]:
    """What an error says, in the words of a row; of one that is not known its own first words."""
    for pattern in _ASKED:
        if found := pattern.search(error):
            numbers = found.groupdict()
            much = ["asks for more output than fits", "too much output"]
            if "asked" not in numbers:
                return much
            asked, fit = (tok(float(numbers[name][:15])) for name in ("asked", "fit"))
            return [f"asks for {asked} of output, the context is {fit}", *much]
    for pattern, brief in _KNOWN_ERRORS:
        if pattern.search(error):
            return [brief]
    words = safe(error).split()
    begun = [f"{' '.join(words[:n])} …" for n in range(min(_FIRST_WORDS, len(words) - 1), 0, -1)]
    return [*begun, clip(" ".join(words), _FIRST_CELLS)]


def _counted(turn: Turn) -> Verdict:
    many = [f"{turn.n} requests, mean"] if turn.n > 1 else []

    def joined(*words: str) -> list[str]:
        return (
            [f"{many[0]}; {w}" for w in words] + [many[0], f"{turn.n} together", f"× {turn.n}"] if many else list(words)
        )

    if turn.finish_reason == "error":
        return "×", "bad", joined("failed: the engine gave up", "failed")
    if turn.finish_reason == "abort":
        return "!", "warn", joined("aborted by its client", "aborted")
    if turn.verdict == "queued":
        return "!", "warn", joined(f"queued {short(turn.queue_s)}", "queued")
    if turn.queue_ruled and turn.waited:
        queue = f"queue {short(turn.queue_s)}"
        return "!", "warn", joined(f"{queue}: in line or for a KV load", f"{queue}: line or KV load", queue)
    if turn.waited and turn.captured and turn.queue_s is None and not turn.may_have_read:
        return "!", "warn", joined(*_unread(turn))
    if turn.waited and turn.captured and turn.relation in _BEGINS:
        return "·", "t", joined(*_begun(turn))
    if turn.captured and turn.relation in _BEGINS and turn.verdict == "new_tokens":
        return "·", "t", joined(*_limited(turn, _begun(turn)[0]), *_begun(turn))
    if turn.verdict == "new_tokens":
        new = tok(turn.new_tokens)
        return (
            "·",
            "t",
            joined(f"{new} new tokens: long input", f"{new} new tokens", f"{new} new"),
        )
    if turn.waited:
        return "?" if turn.accused or not turn.captured else "!", "warn", joined(*_read_anew(turn))
    if turn.reread and turn.new_tokens is not None:
        read = [f"read {tok(turn.new_tokens)} tokens anew", f"{tok(turn.new_tokens)} read anew"]
        why = [f"{word}: {turn.changes}" for word in (*read, f"{tok(turn.new_tokens)} anew") if turn.changed]
        return "?", "warn", [*why, *_limited(turn, read[0]), *read, f"{tok(turn.new_tokens)} anew"]
    return "·", "d", joined(*_plain(turn))


def _plain(turn: Turn) -> list[str]:
    """Nothing to look at."""
    if turn.verdict is None and turn.queue_ruled and (turn.queue_s or 0) > QUEUE_SAID_S:
        plain = [f"queue {short(turn.queue_s)}"]
    elif turn.captured and turn.relation in _BEGINS:
        plain = _begun(turn)
    elif turn.verdict is None and turn.new_tokens is not None:
        plain = [f"read {tok(turn.new_tokens)} tokens", f"{tok(turn.new_tokens)} read"]
    else:
        plain = ["ok" if turn.verdict == "no_fault" or (turn.captured and turn.ttft_s is None) else DASH]
    plain = [*_limited(turn, plain[0]), *plain]
    if turn.changed:
        same = [f"the same messages with {turn.changes}"] if turn.relation == "branch" else []
        plain = [*same, f"{plain[0]}, {turn.changes}", turn.changes, *plain]
    if turn.relation == "side":
        plain = [f"{plain[0]}, a side call", f"{plain[-1]}, side", *plain]
    return plain


def _limited(turn: Turn, words: str) -> list[str]:
    """These words with what they leave unsaid: that its answer was cut."""
    return [f"{words}, cut at its length limit", f"{words}, length limit"] if turn.finish_reason in LIMITS else []


def _begun(turn: Turn) -> list[str]:
    """Of a prompt whose messages were read by nobody before."""
    words = _BEGINS.get(turn.relation or "", "")
    if turn.new_tokens is None:
        return [words]
    new = f"{tok(needed(turn))} new"
    return [f"{words}, {new}", words, new]


def _read_anew(turn: Turn) -> list[str]:
    """A long wait of which only this is known."""
    whys = ["the counters cannot tell why"]
    if turn.captured:
        whys = ["why is not known" if turn.relation in CONTINUES else "why cannot be told yet"]
        if turn.accused:
            whys = [turn.changes or "prompt changed or cache lost"]
    if turn.new_tokens is None:
        return [*(f"slow, {why}" for why in whys), "slow"]
    new, prompt = tok(turn.new_tokens), tok(turn.prompt_tokens)
    read = f"{new} of {prompt} read anew"
    return [*(f"{read}: {why}" for why in whys), read, f"{new} read anew", f"{new} anew"]


def _unread(turn: Turn) -> list[str]:
    """A captured turn whose long wait was not for reading its prompt."""
    if not turn.queue_seen:
        return ["slow, why is not known", "slow"]
    if turn.read_s is None or turn.ttft_s is None:
        return ["queued: others ran", "queued"]
    queue = f"queued ~{short(turn.ttft_s - turn.read_s)}"
    return [f"{queue}: others ran", queue, "queued"]


def _doing(turn: Turn, server: ServerView | None) -> list[str]:
    """Of a turn in flight."""
    if turn.phase == "waits":
        room = server is not None and server.no_room
        words = ["waits for room in the KV pool", "waits for room", "waits"] if room else ["waits"]
    elif turn.phase == "reads":
        words = _reads(turn)
    elif turn.phase == "writes":
        words = ["writes"]
    else:
        words = ["in flight"]
    if turn.n == 1:
        return words
    many = [_plural(word) for word in words]
    return [*(f"{turn.n} requests {word}" for word in many), f"{turn.n} {many[-1]}", f"× {turn.n}"]


def _plural(doing: str) -> str:
    verb, _, rest = doing.partition(" ")
    if not verb.endswith("s"):
        return doing
    return f"{verb[:-1]} {rest}".strip().replace("its prompt", "their prompts")


def _reads(turn: Turn) -> list[str]:
    guess = turn.estimate
    if guess is None:
        return ["reads its prompt", "reads"]
    if guess.new_tokens is None:
        return [f"reads ~{tok(guess.prompt_tokens)} tokens", "reads"]
    new = f"reads {tok(guess.new_tokens)} new"
    if guess.left_s is None:
        return [new, "reads"]
    left = f"~{short(max(1.0, round(guess.left_s)))}".replace(".0 ", " ")
    return [f"{new}, {left} left", f"reads, {left} left", f"reads {left}", "reads"]
