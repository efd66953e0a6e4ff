"""Which vLLM a server is, as far as what it makes of a request depends on it.

Versions were read in the wheels 0.12 to 0.33; "since X" is the first minor of them that does it.
"""

from __future__ import annotations

import re
from functools import lru_cache

THINKING = (0, 17)
"""Messages route: thinking blocks, tool results by tool_use_id with their texts joined, images of either source."""
HEADER_DROPPED = (0, 18)
"""Messages route: system blocks that begin with the attribution header are dropped."""
EMPTY_USER_DROPPED = (0, 19)
"""Messages route: a user message of which nothing is left (only tool results, say) is dropped."""
TOOL_REFERENCES = (0, 21)
"""Messages route: tool_reference in tool results, defer_loading of tools."""
REASONING_RENAMED = (0, 22)
"""Chat route: `reasoning_content` of a message is read as `reasoning`. From 0.17 to 0.21 it was ignored."""
ITEMS_JOINED = (0, 22)
"""Responses route: reasoning, text and calls in a row make one assistant message."""
EFFORT_ENABLES_THINKING = (0, 22)
"""A reasoning effort sets `enable_thinking` where chat_template_kwargs do not name it."""
SYSTEM_TURNS = (0, 23)
"""Messages route: messages of role system, and output_config. In 0.23 they always went into the first one."""
SYSTEM_IN_PLACE = (0, 24)
"""Messages route: they stay where they are, unless the chat template wants the system message first."""
TOOLS_FILTERED = (0, 27)
"""Tools of the Responses route are written as those of the chat route are."""
DISABLED_THINKING = (0, 31)
"""Messages route: thinking of type disabled sets a reasoning effort."""
TOOL_CHANGES = (0, 32)
"""Messages route: tool_addition and tool_removal blocks. Chat route: the attribution header's line is dropped."""
HARMONY_TOKENIZE = (0, 33)
"""/tokenize renders gpt-oss with Harmony, as the chat route does."""


_NEWEST = (10**4, 0)


@lru_cache(64)
def _number(version: str | None) -> tuple[int, int]:
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})", version or "")
    if found is None or (number := (int(found[1]), int(found[2]))) < (0, 2):
        return _NEWEST  # 0.1.dev is what a build from source without tags calls itself
    return number


def at_least(version: str | None, since: tuple[int, int]) -> bool:
    """Whether a server of this version does what `since` began. None, or no version at all, is taken for the newest."""
    return _number(version) >= since
