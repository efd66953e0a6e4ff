"""A turn in words and lines: what its row, its preview and its page say. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from kvtop.model import own
from kvtop.model.account import again, needed
from kvtop.model.shown_turn import Turn
from kvtop.model.timing import tokens_per_s
from kvtop.model.view import ServerView
from kvtop.ui.draw import Line, clip, expected, pick, pick_line, rj, safe, stack, wrap
from kvtop.ui.numbers import DASH, counting, exact, hms, ms, pct, rate, short, tok
from kvtop.ui.verdicts import verdict

_SUFFIX = re.compile(r"[- ](?:code|cli|agent)$", re.IGNORECASE)
"""Of an agent's name: what goes without saying where cells are few."""
_LIBRARY = re.compile(r"(?i)^(anthropic|openai) (?:python|js)$")
"""Of a library's name: its language is what goes first."""
BESIDE = "↳"
"""Before the agent of a turn whose conversation is another's: a side call's, a subagent's."""
UNTOLD = "The counters cannot tell who asked, what the prompt was, and why a part of it had to be read anew."
OWN = "kvtop sent it: a replay, for one token, under a cache salt of its own. What it wrote took room in the KV cache."
APART = "Requests that ended between two reads of /metrics share one row; each number is their mean."


def flying(turn: Turn) -> bool:
    return turn.state == "in_flight"


def agent(turn: Turn, w: int) -> str:
    """Who asked, in w cells: the program that a captured turn names; of a counted one that kvtop's own replay did, or
    that it went past the tap."""
    if turn.own:
        return pick([own.NAME, "replay"], w)
    if not turn.captured:
        return pick(["past tap", "past"], w) if turn.past_tap else DASH
    name = safe(turn.agent or "unknown")
    if turn.began_as is not None:
        mark, w = BESIDE, w - len(BESIDE)
    else:
        mark = ""
    return mark + pick(
        [name, _LIBRARY.sub(r"\1 SDK", name), *filter(None, [_SUFFIX.sub("", _LIBRARY.sub(r"\1", name))])], w
    )


def expected_share(turn: Turn) -> float | None:
    """Of the prompt of a captured turn in flight: what the turn before it left in the cache."""
    guess = turn.estimate
    if not flying(turn) or guess is None or guess.cached_tokens is None or not guess.prompt_tokens:
        return None
    return guess.cached_tokens / guess.prompt_tokens


def read_again(turn: Turn) -> float | None:
    """Of its prompt: the share that had been read before, where that was found out."""
    tokens = again(turn)
    return tokens / turn.prompt_tokens if tokens is not None and turn.prompt_tokens else None


def waited_for(turn: Turn) -> str:
    """Its TTFT: exact where a tap or kvtop's own replay saw the first token, else worked out and marked."""
    text = short(turn.ttft_s)
    exactly = turn.own > 1 or (turn.captured and "ttft_s" not in turn.worked_out)
    return text if exactly or text == DASH else f"~{text}"


def approx(turn: Turn, text: str, w: int, *fields: str) -> str:
    """A figure of a captured turn in w cells: with ~ where the counters told one of the fields that it is made of."""
    if text == DASH or not set(turn.worked_out).intersection(fields):
        return text
    return pick([f"~{text}", f"~{text.replace(' ', '')}", re.sub(r"\.\d", "", f"~{text}")], w)


def waited_style(turn: Turn) -> str:
    """Of a long wait: there is nothing to mend where all that it read was new."""
    return "warn" if turn.new_input or turn.judging else "bad"


def moment(turn: Turn) -> float | None:
    """Unix time that the turn is listed under: its end, which is what the rows are sorted by; in flight its start."""
    return turn.started_at if flying(turn) or turn.ended_at is None else turn.ended_at


def since(turn: Turn, at: float) -> float | None:
    """Seconds that a turn in flight has taken so far."""
    return None if turn.started_at is None else max(0.0, at - turn.started_at)


def speed(turn: Turn) -> float | None:
    """Tokens a second while it wrote, by the rule of `kvtop turns`."""
    return tokens_per_s(turn.completion_tokens, turn.decode_s)


def estimate(turn: Turn) -> str:
    """~ before what was read again, and what was new, where no server counted tokens."""
    return "~" if turn.finding is not None and turn.finding.guessed else ""


def tokens_bar(turn: Turn, w: int) -> Line:
    return stack([(turn.cached_tokens, "cached-device"), (again(turn), "lost"), (needed(turn), "computed")], w)


def phases_bar(turn: Turn, w: int) -> Line:
    return stack([(turn.queue_s, "queue"), (turn.prefill_s, "prefill"), (turn.decode_s, "decode")], w)


def headline(turn: Turn, server: ServerView | None) -> tuple[str, str, str]:
    """(tone, first clause, the rest) of its page."""
    mark, _, words = verdict(turn, server)
    tone = {"×": "bad", "!": "warn", "?": "warn"}.get(mark, "dim" if flying(turn) or turn.judging else "ok")
    if flying(turn):
        who = f"Turn {turn.name}" if turn.numbered else "A request" if turn.n == 1 else "In flight"
        return tone, f"{who}: {words[0]}", ""
    if turn.finding is not None and turn.finding.sentence:
        first, colon, rest = turn.finding.sentence.partition(": ")
        return tone, first + colon.rstrip(), rest
    took = f"TTFT {waited_for(turn)}, {short(turn.duration_s)} in all"
    if turn.judging and tone == "dim":
        return tone, f"Turn {turn.name}: why it took its time is being worked out;", took
    said = words[0] if words[0] not in ("ok", DASH) else "nothing to mend" if words[0] == "ok" else "no verdict"
    return tone, f"Turn {turn.name}: {said};", took


def legend_of_tokens(turn: Turn, exactly: bool, w: int) -> Line:
    """The parts of the prompt in words, in the longest wording that fits."""

    about = estimate(turn)

    def line(gap: str, *of: str, say: Callable[[float | None], str] = exact if exactly else tok) -> Line:
        lost: Line = [(f"{gap}lost ", "lost"), (about + say(again(turn)), "t")] if again(turn) else []
        return [
            ("cached ", "cached-device"), (say(turn.cached_tokens), "t"), *lost,
            (f"{gap}{'read' if turn.judging else 'new'} ", "computed-text"), (about + say(needed(turn)), "t"),
            (f"{gap}of {say(turn.prompt_tokens)}{''.join(of)}" if of else "", "d"),
        ]  # fmt: skip

    return pick_line(
        [line("   ", " tokens"), line("   ", ""), line(" ", ""), line(" ", "", say=tok), line(" ", say=tok)], w
    )


def legend_of_phases(turn: Turn, w: int) -> Line:
    """Where its time went in words, in the longest wording that fits."""

    def line(gap: str) -> Line:
        return [
            ("queue ", "queue"), (short(turn.queue_s), "t"), (f"{gap}prefill ", "prefill-text"),
            (short(turn.prefill_s), "t"), (f"{gap}decode ", "decode-text"), (short(turn.decode_s), "t"),
        ]  # fmt: skip

    return pick_line([line("   "), line("  "), line(" ")], w)


def blocks_of(tokens: float, unit: int) -> str:
    """So many tokens, which are whole blocks of the cache."""
    n = tokens / unit
    return f"{exact(n)} block{'' if n == 1 else 's'} of {exact(unit)} tokens"


def table(turn: Turn, server: ServerView | None, w: int) -> list[Line]:
    """Tokens, their share of the prompt, and the time that went into them; a remark where w cells hold it."""

    def row(name: str, tokens: float | None, share: str, seconds: float | None, *say: str) -> Line:
        numbers: Line = [
            (name.ljust(9), "d"), *rj((about if name in ("lost", "new") else "") + exact(tokens), 10), *rj(share, 9),
            *rj(short(seconds) if seconds is not None else "", 8),
        ]  # fmt: skip
        return pick_line([*([*numbers, (f"   {words}", "d")] for words in say if words), numbers], w)

    share, lost, about = turn.cached_share, again(turn), estimate(turn)
    read = f"at {tok(turn.new_tokens / turn.prefill_s)} tok/s" if turn.new_tokens and turn.prefill_s else ""
    unit = server.config.match_unit_tokens if server else None
    units = ""
    if unit and turn.n == 1 and turn.cached_tokens and turn.cached_tokens % unit == 0:
        units = blocks_of(turn.cached_tokens, unit)
    new = None if share is None else max(0.0, 1 - share - (read_again(turn) or 0.0))
    spoke = speed(turn)
    wrote = [f"{rate(spoke)} tok/s, gap {ms(turn.inter_token_s)}", f"{rate(spoke)} tok/s"] if spoke else []
    return [
        [(" " * 9, "t"), *rj("tokens", 10, "d"), *rj("share", 9, "d"), *rj("time", 8, "d")],
        row("cached", turn.cached_tokens, pct(share, 1), None, units),
        *([row("lost", lost, pct(read_again(turn), 1), None, "read again")] if lost else []),
        row("new", needed(turn), pct(new, 1), None if lost else turn.prefill_s, "" if lost else read),
        row("written", turn.completion_tokens, "", turn.decode_s, *wrote),
    ]  # fmt: skip


def ttft(turn: Turn, w: int) -> Line:
    """What it waited for its first token."""
    told: Line = [("TTFT ", "d"), (waited_for(turn), "t")]
    if turn.own > 1:
        whence = ("all that its one token took, as the replay saw it", "as the replay saw it")
    elif turn.captured and "ttft_s" not in turn.worked_out:
        whence = ("as its client saw it", "at the tap")
    else:
        whence = ("queue and prefill together", "queue + prefill")
    return pick_line([[*told, (f": {words}", "d")] for words in whence], w)


def saved(turn: Turn, server: ServerView | None, w: int) -> Line:
    """What its cached tokens spared, at this server's own measured speed."""
    speed_now = server.savings.prefill_tokens_per_s if server else None
    seconds = turn.cached_tokens / speed_now if turn.cached_tokens is not None and speed_now else None
    told: Line = [("spared ", "d"), (short(seconds), "t"), (" of prefill", "d")]
    return pick_line([[*told, (f" at {tok(speed_now)} tok/s", "d")], told] if speed_now else [told], w)


def so_far(turn: Turn, at: float, w: int) -> Line:
    """How long a turn in flight has been so."""
    if turn.started_at is None:
        return [(pick(["when it came is not known: it was not alone", "when it came is not known"], w), "d")]
    told: Line = [("in flight for ", "d"), (counting(since(turn, at)), "t")]
    return pick_line([[*told, (f", since {hms(turn.started_at, at)}", "d")], told], w)


def prompt_so_far(turn: Turn, exactly: bool, w: int) -> list[Line]:
    """The prompt of one in flight: what is known of it, else what it is expected to be; empty where nothing is."""
    if turn.prompt_tokens is not None:
        return [tokens_bar(turn, w), legend_of_tokens(turn, exactly, w)]
    guess = turn.estimate
    if guess is None:
        return []
    share = expected_share(turn)
    say: Line = [("about ", "d"), (tok(guess.prompt_tokens), "t"), (" tokens", "d")]
    if share is None:
        return [say]
    parts: Line = [(", ", "d"), (f"~{tok(guess.cached_tokens)}", "t"), (" cached", "cached-device")]
    parts += [(", ", "d"), (f"~{tok(guess.new_tokens)}", "t"), (" new", "computed-text")]
    return [expected(share, w, "cached-device"), pick_line([[*say, *parts], say], w)]


def preview(turn: Turn, server: ServerView | None, at: float, w: int) -> list[Line]:
    """Beside the table."""
    mark, style, words = verdict(turn, server)
    tone = "t bold" if style == "d" else f"{style} bold"
    out: list[Line] = wrap([(f"{mark} ", style), (words[0], tone)], w, 2)
    if flying(turn):
        return [*out, [], so_far(turn, at, w), *([[], *rows] if (rows := prompt_so_far(turn, False, w)) else [])]
    out += [[], tokens_bar(turn, w), legend_of_tokens(turn, False, w), [], *table(turn, server, w)]
    out += [[], phases_bar(turn, w), legend_of_phases(turn, w)]
    out += [ttft(turn, w), [], saved(turn, server, w)]
    if turn.n > 1:
        out += [[], *wrap([(APART, "d")], w)]
    return out


def origin(turn: Turn, server: ServerView | None, at: float, w: int) -> str:
    """Where a turn comes from, in the longest wording that fits; `at`: now."""
    engine = f" · engine {safe(turn.engine)}" if turn.engine is not None else ""
    finish = f" · finished: {safe(turn.finish_reason)}" if turn.finish_reason else ""
    when = hms(moment(turn), at)
    if turn.captured:
        who = safe(turn.agent or "unknown")
        kind = f" · {safe(turn.route or DASH)}"
        model = f" · {clip(safe(turn.model), 40)}" if turn.model else ""
        part = f" · {safe(turn.conversation)}" if turn.conversation else ""
        return pick(
            [
                f"{who} · {when}{kind}{model}{engine}{part}{finish}",
                f"{who} · {when}{kind}{part}{finish}",
                f"{who} · {when}{kind}{finish}",
                f"{who} · {when}",
                when,
            ],
            w,
        )
    model = f" · {clip(safe(server.models[0].id), 40)}" if server and server.models else ""
    who = f"{own.NAME} · " if turn.own else ""
    whence = "from its note" if turn.own > 1 else "from the counters"
    return pick([f"{who}{when}{engine}{model}{finish} · {whence}", f"{who}{when}{finish} · {whence}", when], w)
