"""The rules: each cause is a function that claims the changes it explains. Most specific first; what one has claimed
the next ones do not see."""

from __future__ import annotations

from collections.abc import Callable

from kvtop.triage.causes import conversations, history, messages, request, text, tools
from kvtop.triage.causes.board import Board

RULES: tuple[Callable[[Board], None], ...] = (
    conversations.other_agent,
    *request.RULES,
    *history.RULES_FIRST,
    *tools.RULES,
    *messages.EARLY,
    *text.EARLY,
    *history.RULES_MOVES,
    *text.LATE[:-1],
    history.last_message_replaced,
    *history.RULES_LAST,
    *messages.LATE,
    *text.LATE[-1:],
)

__all__ = ["RULES", "Board"]
