"""Whether a turn was slow, and what of the reason the counters alone can prove."""

from __future__ import annotations

from dataclasses import dataclass

from kvtop.model import metrics as m
from kvtop.model.engine_config import config
from kvtop.model.growth import Growth, ratio
from kvtop.model.samples import Samples
from kvtop.model.shown_turn import Turn


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Slow is a TTFT over `factor` times and `extra_s` above the expected one; with no rate known, over `no_rate_s`.
    A wait over `no_rate_s` is long, whatever was expected."""

    factor: float = 3.0
    extra_s: float = 3.0
    no_rate_s: float = 10.0

    def slow(self, ttft_s: float, expected_s: float | None) -> bool:
        """`expected_s`: what its new tokens should take at the server's prefill rate; None: no rate is known."""
        if expected_s is None:
            return ttft_s > self.no_rate_s
        return ttft_s > self.factor * expected_s and ttft_s > expected_s + self.extra_s

    def long(self, ttft_s: float) -> bool:
        """Someone waited long for it, whatever the reason."""
        return ttft_s > self.no_rate_s


class Judge:
    """Knows one engine's prefill rate, and the longest prompt that its cache can hold."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._rate: float | None = None
        """Tokens a second: computed prompt tokens of all finished requests before this one, over their prefill time."""
        self._longest: float | None = None
        """No earlier prompt was longer; None: kvtop did not see them all."""
        self._began = False

    def restart(self) -> None:
        """The server began anew, with an empty cache."""
        self._rate = None
        self._longest, self._began = 0.0, True

    def learn(self, g: Growth, row: Turn | None) -> None:
        """Take in a scrape and the row that it finished, for the turns to come."""
        self._rate = ratio(g.now(m.REQUEST_COMPUTED, "_sum"), g.now(m.PREFILL, "_sum"))
        if not self._began:
            self._began = True
            self._longest = 0.0 if g.now(m.PROMPT) == 0 and g.now(m.E2E, "_count") == 0 else None
        elif row is not None and self._longest is not None:
            longest = None if row.prompt_tokens is None else row.prompt_tokens * row.n  # of a group: at most all of it
            self._longest = None if longest is None else max(self._longest, longest)

    def verdict(self, row: Turn, g: Growth, idle: Samples | None) -> tuple[bool, str | None]:
        """(slow, verdict). The expected reuse is not known here, so what cannot be proven without it is None.

        no_fault     its TTFT would not be slow whatever it should have reused
        queued       slow, most of it in the queue, and that was no KV load (which counts as queue time in vLLM)
        new_tokens   slow to start, and its cached tokens cover the longest prompt there ever was: the rest was new
        """
        ttft, limits = row.ttft_s, self._thresholds
        if ttft is None:
            return False, None
        expected = ratio(row.new_tokens, self._rate)
        slow = limits.slow(ttft, expected)
        if ttft * row.n <= (limits.no_rate_s if expected is None else limits.extra_s):
            return False, "no_fault"
        if slow and row.queue_s is not None and row.queue_s > ttft / 2:
            return True, "queued" if self._no_load(row.queue_s, g, idle) else None
        return slow, "new_tokens" if self._all_new(row, g) else None

    def long(self, row: Turn) -> bool:
        """Someone waited long for it, whatever the reason."""
        return row.ttft_s is not None and self._thresholds.long(row.ttft_s)

    def _no_load(self, queue_s: float, g: Growth, idle: Samples | None) -> bool:
        """The queue time was not spent on loading KV, as far as the loads since the engine was idle tell."""
        if idle is None:
            return False
        spell = Growth(idle, g.after, g.label, zero=False)
        if g.has(m.LOAD_TIME):
            load_s = spell.grew(m.LOAD_TIME)
            return load_s is not None and load_s <= 0.1 * queue_s
        return all(spell.grew(q) == 0 for q in (m.SIMPLE_LOADS, m.EXTERNAL_HITS) if g.has(q))

    def _all_new(self, row: Turn, g: Growth) -> bool:
        """Everything that could have been reused was: its new tokens are new to this server."""
        if row.n != 1 or row.cached_tokens is None or self._longest is None:
            return False
        # prompts that were read but have not finished, or whose client hung up, are in the cache too
        if g.now(m.PROMPT) != g.now(m.REQUEST_PROMPT, "_sum"):
            return False
        block = config(g).block_tokens
        if self._longest == 0:
            return True
        return block is not None and row.cached_tokens >= int((self._longest - 1) // block) * block
