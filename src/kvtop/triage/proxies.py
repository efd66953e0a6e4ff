"""What stood between an agent and the server."""

from __future__ import annotations

from kvtop.capture.turn import Captured

_PROXIES = ("via", "x-forwarded-for", "x-litellm-", "x-bifrost-", "x-portkey-", "x-openrouter-", "cf-ray")


def through_proxy(turn: Captured) -> bool:
    """Its headers are those of a proxy or gateway."""
    return any(name.lower().startswith(_PROXIES) for name, _ in turn.request_headers)
