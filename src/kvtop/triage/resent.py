"""A captured request as a replay sends it: one token, a cache of its own, no stream. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from kvtop.capture.api.canonical import encode
from kvtop.capture.turn import Route
from kvtop.errors import KvtopError

PATHS = {
    Route.CHAT: "/v1/chat/completions",
    Route.COMPLETIONS: "/v1/completions",
    Route.MESSAGES: "/v1/messages",
    Route.RESPONSES: "/v1/responses",
}

_LIMIT = {Route.RESPONSES: "max_output_tokens"}
_LEFT_OUT = (
    *("stream_options", "max_completion_tokens", "min_tokens", "n", "best_of", "use_beam_search", "return_token_ids"),
    *("request_id", "kv_transfer_params", "ec_transfer_params"),
)
"""What asks for more than the first token, names a request that was, or a transfer that is over."""


def fresh_salt() -> str:
    """Nobody had it before. 0.33 takes up to 128 characters and none of @ / \\."""
    return f"kvtop-{secrets.token_hex(12)}"


def resent(route: Route, body: Mapping[str, Any], salt: str, *, offloads: bool) -> bytes:
    """The same prompt under that cache salt, for one token. `offloads`: there is a tier behind the device that takes
    `max_offload_tokens` (OffloadingConnector, 0.23), so that it is left alone.

    Every route has `cache_salt` by 0.32, chat the longest; one that does not know it ignores it, which shows in the
    first answer. Raises KvtopError for what cannot be sent again.
    """
    if route not in PATHS:
        raise KvtopError(f"requests of the route {route.value} cannot be replayed", "only those with a prompt can")
    if body.get("previous_response_id") or body.get("prompt_embeds"):
        raise KvtopError("a request whose prompt is not in it cannot be replayed", "replay another turn")
    made = {key: value for key, value in body.items() if key not in _LEFT_OUT}
    made |= {"stream": False, _LIMIT.get(route, "max_tokens"): 1, "cache_salt": salt}
    if route is Route.RESPONSES:
        made |= {"store": False, "background": False}
    if offloads:
        made["kv_transfer_params"] = {"max_offload_tokens": 0}
    try:
        return encode(made)
    except ValueError as error:
        raise KvtopError(f"a request cannot be written as JSON: {error}", "replay another turn") from None


def salts(salt: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, str]:
    """The salts of both: the same one, unless theirs differ, so that what that costs shows."""
    return (salt, salt) if old.get("cache_salt") == new.get("cache_salt") else (salt, f"{salt}-2")
