"""What a request says of its session in headers and body: ids, a parent's id, that it is a side call.

Hints help to link turns and never decide alone: titles and subagents share the id of the session that they serve.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from kvtop.capture.turn import Captured

_KEYS = (
    "x-claude-code-session-id",
    "thread-id",
    "thread_id",
    "x-session-id",
    "x-session-affinity",
    "session-id",
    "session_id",
    "x-affinity",
    "x-conversation-id",
    "conversation_id",
    "conversation",
    "metadata.session_id",
    "metadata.user_id.session_id",
    "x-litellm-session-id",
)
"""Headers and fields that hold the id of a session, the finest first."""
_USER_SESSION = re.compile(r"_session_([0-9A-Za-z-]{8,})$")
_SIDE_KINDS = re.compile(r"title|summary|memory|suggestion", re.I)


@dataclass(frozen=True, slots=True)
class Session:
    """Empty where the request does not tell."""

    key: str = ""
    """Equal for all requests of one session of the program. Another key is another session."""
    agent: str = ""
    """Which subagent inside the session: two conversations where it differs."""
    parent: str = ""
    """Key, or agent, of what spawned this one."""
    side: bool = False
    """It says of itself that it is a side call."""
    window: int | None = None
    """Rises by one with each compaction."""
    follows: str = ""
    """Id of the response that it goes on from."""
    cache_key: str = ""
    """prompt_cache_key: where it is equal it binds, another one tells nothing (some gateways make one a request)."""

    def holds(self, other: Session) -> bool:
        """Both tell the same session, and the same agent in it."""
        return bool(self.key) and (self.key, self.agent) == (other.key, other.agent)


def session_of(turn: Captured) -> Session:
    """What the hints and headers of a turn say. Never raises: hints are text from outside."""
    seen = {name.lower(): value for name, value in turn.hints.items()}
    seen.update((name.lower(), value) for name, value in turn.request_headers)  # hints may be cut short
    about = _object(seen.get("x-codex-turn-metadata", ""))
    kind = _text(about.get("request_kind")) + " " + _text(about.get("thread_source"))
    kind += " " + seen.get("query_source", "")
    agent = seen.get("x-claude-code-agent-id", "")
    return Session(
        key=next((seen[name] for name in _KEYS if seen.get(name)), "") or _from_user(seen.get("metadata.user_id", "")),
        agent=agent,
        parent=seen.get("x-claude-code-parent-agent-id", "")
        or seen.get("x-parent-session-id", "")
        or seen.get("x-codex-parent-thread-id", "")
        or _text(about.get("parent_thread_id")),
        side=bool(seen.get("x-claude-code-auxiliary-type")) or bool(_SIDE_KINDS.search(kind)),
        window=_window(seen.get("x-codex-window-id", "")),
        follows=seen.get("previous_response_id", ""),
        cache_key=seen.get("prompt_cache_key", ""),
    )


def _from_user(user: str) -> str:
    """Claude Code's metadata.user_id: JSON with a session_id, in older versions a text that ends in it."""
    found = _USER_SESSION.search(user)
    return found[1] if found else _text(_object(user).get("session_id"))


def _window(text: str) -> int | None:
    number = text.rpartition(":")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else None


def _object(text: str) -> dict[str, object]:
    if not text.startswith("{"):
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
