"""The plays of the embedded box: who is on stage, on what box, and how much of the past has already happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvtop.sim.agents import (
    CLAUDE_CODE,
    OPENCODE,
    PI,
    QWEN_CODE,
    Habits,
    Script,
    Stage,
    burst,
    errands,
    operator,
    tool_loop,
)
from kvtop.sim.spec import EngineSpec

BOX = EngineSpec(model="devstral-small-24b-fp8", blocks=1_630, tier_bytes=32 * 2**30)
"""Two 24 GiB cards, a dense 24B model in 8 bits with fp8 KV: 40 layers x 8 heads x 128 x 2 bytes = 80 KiB a token, so
2 x 0.92 x 24 GiB less weights and workspace leaves 208,640 tokens; a CPU tier of 32 GiB holds twice that."""
NO_TIER = replace(BOX, tier_bytes=None)

Cast = Callable[[Callable[[], Stage]], list[Script]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A play: `cast` gets a maker of stages (one a script, each with random numbers of its own)."""

    name: str
    words: str
    spec: EngineSpec
    past_s: float
    """Seconds played before the port opens."""
    cast: Cast


def _mix(stage: Callable[[], Stage]) -> list[Script]:
    return [
        tool_loop(
            stage(),
            OPENCODE,
            Habits(shuffle_at=(-1_130.0, -68.0, 830.0), shuffle_every=900.0, start_tokens=26_000, limit_tokens=122_000),
            -1_760.0,
        ),
        tool_loop(stage(), CLAUDE_CODE, Habits(limit_tokens=64_000, start_tokens=19_000), -1_850.0),
        errands(stage(), PI, -1_800.0, (12.0, 50.0)),
        burst(stage(), QWEN_CODE, -1_240.0, 330.0, 2, apart_s=9.0),
    ]


def _healthy(stage: Callable[[], Stage]) -> list[Script]:
    return [
        tool_loop(stage(), OPENCODE, Habits(start_tokens=20_000, limit_tokens=125_000), -1_190.0),
        tool_loop(stage(), CLAUDE_CODE, Habits(start_tokens=18_000, limit_tokens=60_000), -1_150.0),
    ]


def _shuffled(stage: Callable[[], Stage]) -> list[Script]:
    habits = Habits(shuffle_at=(-520.0, -40.0), shuffle_every=600.0, start_tokens=40_000)
    return [tool_loop(stage(), OPENCODE, habits, -1_190.0)]


def _clock(stage: Callable[[], Stage]) -> list[Script]:
    return [tool_loop(stage(), OPENCODE, Habits(clock=True, start_tokens=20_000, limit_tokens=60_000), -1_190.0)]


def _two(stage: Callable[[], Stage]) -> list[Script]:
    habits = Habits(start_tokens=76_000, limit_tokens=110_000)
    return [
        tool_loop(stage(), OPENCODE, habits, -1_190.0),
        tool_loop(stage(), CLAUDE_CODE, habits, -1_140.0),
    ]


def _restart(stage: Callable[[], Stage]) -> list[Script]:
    return [*_healthy(stage), operator(stage(), 20.0, 300.0, 6.0)]


def _burst(stage: Callable[[], Stage]) -> list[Script]:
    return [
        tool_loop(stage(), OPENCODE, Habits(start_tokens=30_000), -1_190.0),
        burst(stage(), QWEN_CODE, -1_100.0, 120.0, 8),
    ]


_SMALL = replace(NO_TIER, blocks=1_024)

SCENARIOS = {
    one.name: one
    for one in (
        Scenario("mix", "a day at the box: mostly well, one slow turn early on", BOX, 1_900.0, _mix),
        Scenario("healthy", "two tool loops that only append", NO_TIER, 1_200.0, _healthy),
        Scenario(
            "shuffled", "a gateway changes the key order of tool schemas every ten minutes", BOX, 1_200.0, _shuffled
        ),
        Scenario("clock", "the system prompt begins with the time of day", NO_TIER, 1_200.0, _clock),
        Scenario("eviction", "two long conversations in a pool for one, and no tier", _SMALL, 1_200.0, _two),
        Scenario(
            "tier-unread",
            "a tier smaller than the pool: written all day, never read",
            replace(BOX, tier_bytes=8 * 2**30),
            1_200.0,
            _healthy,
        ),
        Scenario(
            "tier-restores",
            "the same two conversations with a tier that gives them back",
            replace(_SMALL, tier_bytes=32 * 2**30),
            1_200.0,
            _two,
        ),
        Scenario("restart", "the server is restarted every five minutes", NO_TIER, 1_200.0, _restart),
        Scenario("burst", "eight subagents at once, every two minutes", NO_TIER, 1_200.0, _burst),
    )
}
DEFAULT = "mix"
