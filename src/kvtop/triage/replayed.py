"""What a replay found, as values, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvtop.triage.kinds import Verdict


class Name(StrEnum):
    """Which request it was."""

    COLD = "cold"
    """The old turn, under a salt that nobody had."""
    WARM = "warm"
    """The old turn once more."""
    NEW = "new"
    OLD_FIXED = "old_fixed"
    NEW_FIXED = "new_fixed"


@dataclass(frozen=True, slots=True)
class Run:
    """One request and its answer."""

    name: Name
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None
    """To the answer of a request for one token."""
    disturbed: bool = False
    """Another request ran at the same time."""

    @property
    def share(self) -> float | None:
        if self.prompt_tokens is None or self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens

    @property
    def document(self) -> dict[str, Any]:
        return {
            "name": self.name.value,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "share": self.share,
            "ttft_s": self.ttft_s,
        }


@dataclass(frozen=True, slots=True)
class Live:
    """How the new turn itself went, and what came before it."""

    cached_tokens: int | None = None
    reply_tokens: int | None = None
    """Tokens of the old turn's answer: the live turn may have had them from the cache, a replay has not."""
    went_on_from: int | None = None
    """The turn that it really went on from, where that is not the old one of this pair."""
    left_tokens: int | None = None
    """What that one left it to reuse; None: not known."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a replay would do to a server, before it does."""

    url: str
    idle: bool
    busy: str = ""
    """What it does instead."""
    write_tokens: int | None = None
    """At most."""
    counted: bool = True
    """By the server; else guessed from bytes."""
    pool_tokens: int | None = None
    """That its KV cache holds."""
    seconds: float | None = None
    offloads: bool = False
    """There is a tier behind the device, which is asked to be left alone."""

    @property
    def sentence(self) -> str:
        about = "" if self.counted else "about "
        said = f"writes up to {about}{self.write_tokens or 0:,} tokens into "
        if self.pool_tokens is None:
            said += "a KV cache of unknown size"
        else:
            said += f"a KV cache of {self.pool_tokens:,}"
            if (self.write_tokens or 0) >= self.pool_tokens:
                said += ", which evicts all that is in it"
        said += f", in about {_seconds(self.seconds)}" if self.seconds is not None else ", in a time that is not known"
        return said + ("; the tier behind it is left alone (from vLLM 0.23 on)" if self.offloads else "")


@dataclass(frozen=True, slots=True)
class Replayed:
    """What was sent so far, and what it shows."""

    url: str
    idle: bool
    """It was when this began."""
    salt: str
    runs: tuple[Run, ...]
    verdict: Verdict
    sentence: str

    @property
    def document(self) -> dict[str, Any]:
        """As `kvtop replay --json` prints it."""
        return {
            "url": self.url,
            "idle": self.idle,
            "salt": self.salt,
            "runs": [run.document for run in self.runs],
            "verdict": self.verdict.value,
            "sentence": self.sentence,
        }


def judged(
    runs: Sequence[Run],
    live: Live,
    *,
    unit_tokens: int | None = None,
    pool_tokens: int | None = None,
    fix: str | None = None,
) -> tuple[Verdict, str]:
    """What the runs say of the two turns. `unit_tokens`: cached tokens are a multiple of it. `fix`: what was repaired,
    in words that follow 'with'; None: nothing was."""
    by_name = {run.name: run for run in runs}
    wanted = [Name.COLD, Name.WARM, Name.NEW, *((Name.OLD_FIXED, Name.NEW_FIXED) if fix is not None else ())]
    if any(run.disturbed for run in runs):
        return Verdict.UNKNOWN, "another request ran in between: replay again when nothing else runs"
    if missing := [name.value for name in wanted if name not in by_name]:
        told = [run.prompt_tokens - (run.cached_tokens or 0) for run in runs if run.prompt_tokens is not None]
        written = f"{sum(told):,}" if len(told) == len(runs) else "an unknown number of"
        return Verdict.UNKNOWN, (
            f"stopped before {missing[0]}: {written} tokens were written under a salt of their own, which nobody uses"
        )
    counts = [by_name[name].cached_tokens for name in wanted]
    if None in counts:
        return Verdict.UNKNOWN, (
            "the server tells no cached tokens: start it with --enable-prompt-tokens-details, or without "
            "--disable-log-stats"
        )
    cold, warm, new = (count or 0 for count in counts[:3])
    before = max(cold, counts[3] or 0) if fix is not None else cold
    if before:
        return Verdict.UNKNOWN, (
            f"{before:,} tokens were cached under a salt that nobody had: this server does not keep salts apart on "
            "this route"
        )
    unit = unit_tokens or 1
    if not warm:
        return Verdict.UNKNOWN, _nothing_kept(by_name[Name.COLD], unit_tokens, pool_tokens)
    verdict, said = _of_pair(warm, new, by_name[Name.NEW].prompt_tokens, live, unit)
    if fix is not None:
        said += f". With {fix} {_of_fixed(by_name[Name.OLD_FIXED], by_name[Name.NEW_FIXED])}"
    return verdict, said


def _of_pair(warm: int, new: int, prompt: int | None, live: Live, unit: int) -> tuple[Verdict, str]:
    """`warm`: tokens that the old turn gets of its own; `new`: that the new one gets of them, which has `prompt`."""
    # The old prompt ends with what asks for the answer, which the new one need not hold: that may cost one unit.
    diverged = warm - new > unit
    was = live.cached_tokens
    shares = f"right behind the old turn the new one gets {new:,} of {warm:,} tokens that could be reused"
    if prompt is not None and prompt < warm:
        shares = f"right behind the old turn, which is longer, the new one gets {new:,} of its own {prompt:,} tokens"
        diverged = (prompt - 1) // unit * unit - new > unit
    if was is not None and new - was >= unit:
        both = (
            "the cache was evicted or lost in between; the prompts part as well"
            if diverged
            else ("the prompts are not to blame, the cache was evicted or lost in between")
        )
        return Verdict.ENGINE_LOST_CACHE, f"{shares}, and got {was:,} then: {both}"
    verdict = Verdict.PROMPT_DIVERGED if diverged else Verdict.NO_FAULT
    pair = "these two prompts part" if diverged else "the new prompt goes on where the old one ends"
    if was is not None and was - new >= unit + (live.reply_tokens or 0):
        got = f"{shares}, and got {was:,} then"
        if live.went_on_from is None:
            return Verdict.UNKNOWN, f"{got}: it followed another turn than this old one"
        if live.left_tokens is not None and abs(was - live.left_tokens) < unit:
            return verdict, f"{got}, all that turn {live.went_on_from} had left: {pair}, nothing was evicted"
        return Verdict.UNKNOWN, f"{got}: it followed turn {live.went_on_from}, not this old one"
    then = "" if was is None else f", and got {was:,} then"
    if live.went_on_from is not None and (live.left_tokens is None or live.left_tokens - new >= unit):
        left = "" if live.left_tokens is None else f", which left it {live.left_tokens:,} tokens"
        more = f"live it went on from turn {live.went_on_from}{left}"
        return verdict, f"{shares}{then}: {pair}; {more}: whether that was evicted, only a replay of those two can tell"
    if diverged:
        return verdict, f"{shares}{then}: the prompts explain it, nothing was evicted"
    return verdict, f"{shares}{then}: {pair}"


def _nothing_kept(cold: Run, unit_tokens: int | None, pool_tokens: int | None) -> str:
    prompt = cold.prompt_tokens
    if prompt is None:
        return "sent twice in a row, the old turn gets nothing from the cache, and its length is not told"
    if unit_tokens and prompt <= unit_tokens:
        return f"the old turn has {prompt:,} tokens, no more than the {unit_tokens:,} that are matched at once"
    if pool_tokens and prompt >= pool_tokens:
        return f"the old turn has {prompt:,} tokens, and the KV cache holds {pool_tokens:,}: nothing of it stays"
    return "sent twice in a row, the old turn gets nothing from the cache: it is off, or keeps nothing of such a prompt"


def _of_fixed(old: Run, new: Run) -> str:
    """Another old prompt is another base: each is told."""
    gets = f"the new turn gets {new.cached_tokens or 0:,}"
    if old.prompt_tokens is not None:
        gets += f" of the {old.prompt_tokens:,} tokens that the old one then has"
    return gets if new.share is None else f"{gets} ({100 * new.share:.0f} % of its own {new.prompt_tokens:,})"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 1 else f"{max(seconds, 0.001) * 1000:.0f} ms"
