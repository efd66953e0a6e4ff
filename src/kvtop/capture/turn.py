"""One captured request: what is known of it, whoever recorded it. Unknown is None."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class Route(StrEnum):
    """Which API was asked."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    OTHER = "other"


class TurnState(StrEnum):
    """How it ended."""

    IN_FLIGHT = "in_flight"
    DONE = "done"
    ABORTED = "aborted"
    """By the client, before the answer was complete."""
    FAILED = "failed"
    """The upstream answered with an error status, or an error in the stream, or took no connection."""
    CUT = "cut"
    """The answer broke off on the upstream's side."""


class Record(StrEnum):
    """Whether all of it was recorded: about us, not about the traffic."""

    COMPLETE = "complete"
    TRUNCATED = "truncated"


class Source(StrEnum):
    """Who told of it."""

    TAP = "tap"
    IMPORT = "import"


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """One piece of the prompt, in the order in which a chat template prints them: tools, system, messages."""

    kind: str
    """tool, system, message, prompt (completions, embeddings) or other (response_format, ...)."""
    size: int
    """Bytes of its JSON as it was sent."""
    digest: str
    """16 hex digits over its content in canonical form (`kvtop.capture.api.routes`): equal content, equal digest,
    whatever the formatting of its JSON, and without what reaches no prompt (cache_control)."""
    role: str = ""
    """Of a message: user, assistant, tool, system, developer."""
    name: str = ""
    """Of a tool; of a message `summary` or `suggestion` where it marks itself as one; of a system prompt the program
    that writes it, where that can be told (`kvtop.capture.api.markers`)."""
    bare: str = ""
    """Of a user's message before the first reply: a digest over its text without tagged blocks, equal where only
    reminders came or went."""


_PROMPT = frozenset({"tool", "system", "message", "prompt"})


def prompt_bytes(outline: Sequence[Part]) -> int | None:
    """As `Captured.prompt_bytes`."""
    return sum(part.size for part in outline if part.kind in _PROMPT) or None


class Sample(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The upstream's counters at one moment of a turn: what a verdict needs later. Sums over the engines."""

    at: float
    """Unix time."""
    started_at: float | None = None
    """process_start_time_seconds: another value is another process."""
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    by_source: dict[str, float] = {}
    """Prompt tokens by source (0.16 and newer), lifetime values."""
    queries: float | None = None
    hits: float | None = None
    external_hits: float | None = None
    generation_tokens: float | None = None
    finished: float | None = None
    preempted: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage_share: float | None = None
    load_bytes: float | None = None
    store_bytes: float | None = None
    resets: float | None = None
    """Requests that clear the prefix cache, answered so far (`kvtop.readings.CLEARING`)."""


class Captured(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One turn. Times are Unix seconds, sizes bytes, `*_s` seconds. `msgspec.structs.replace` makes a later one."""

    id: int = 0
    """Given by the store: 1, 2, 3 ..., never used twice."""
    source: Source = Source.TAP
    state: TurnState | None = TurnState.IN_FLIGHT
    """None: it was in flight when its recorder died, and nobody saw the end."""
    record: Record = Record.COMPLETE

    upstream: str = ""
    """Base URL without user and password; for an import what the format tells, else empty."""
    method: str = ""
    path: str = ""
    """Path and query as asked, values that look like secrets taken out."""
    route: Route = Route.OTHER
    stream: bool | None = None
    """The client asked for a stream."""
    usage_asked: bool | None = None
    """Of a stream: its client set stream_options.include_usage. None: not told, as in rows of before this was read."""
    model: str | None = None

    started_at: float = 0.0
    """First byte of the request."""
    sent_at: float | None = None
    """Last byte of the request."""
    first_byte_at: float | None = None
    """First byte of the answer."""
    first_token_at: float | None = None
    """First piece of the answer that holds content, reasoning or a tool call; of an answer that is no stream, None."""
    ended_at: float | None = None

    status: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    """What an error body says, in one line of at most 300 characters, fit to be shown."""
    response_id: str | None = None

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cached_source: str | None = None
    """usage or metrics: who told cached_tokens."""
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    usage: dict[str, object] = {}
    """The usage object as it came."""

    queue_s: float | None = None
    """From vLLM's own `metrics` object, or from the counters where the turn was alone."""
    prefill_s: float | None = None
    inter_token_p50_s: float | None = None
    inter_token_p95_s: float | None = None
    inter_token_n: int = 0
    """Gaps between stream events that the two stand on."""
    coalesced: bool = False
    """Several events came in one read: gaps between tokens are then coarser than the server's."""

    request_bytes: int | None = None
    """Of its body. None: nobody saw it, for instance where the upstream took no connection."""
    prompt_bytes: int | None = None
    """Of those the tools, the system prompt and the messages: not the model's name, limits, and what else is no prompt.
    None where its parts are not known, and in rows of before this was told."""
    response_bytes: int | None = None
    """The same of the answer; None also until it ended."""
    request_headers: list[tuple[str, str]] = []
    """In order, secrets taken out."""
    response_headers: list[tuple[str, str]] = []

    agent: str = "unknown"
    """Program that asked, from the user-agent, else from session headers, else from its instructions."""
    agent_version: str | None = None
    hints: dict[str, str] = {}
    """Session hints as they came: session headers, metadata.user_id, user, prompt_cache_key, ..."""
    outline: list[Part] = []
    prompt_unproven: str = ""
    """Of an import: what the format cannot prove, for instance 'no tools, no system prompt'."""

    conversation: str | None = None
    """Id of the conversation it belongs to: that of its first turn, 'c' and the turn's id."""
    parent: int | None = None
    """The turn that it continues."""
    relation: str | None = None
    """How: first, next, retry, branch, side, subagent or compaction (`kvtop.capture.conversations.linker`)."""
    changed: list[str] = []
    """Of one with its parent's messages: what before or between them is another than there. system (the system prompt),
    system_messages (later ones), tools. Empty in rows of before this was told."""

    samples: list[Sample] = []
    """Just before, each second while in flight (thinned to 64), just after."""
    alone: bool | None = None
    """Nothing else ran on the upstream while it did, as far as the counters tell."""

    @property
    def ttft_s(self) -> float | None:
        """Request sent (its last byte, else its first) to first token; of an answer that is no stream None."""
        if self.first_token_at is None:
            return None
        return max(0.0, self.first_token_at - (self.sent_at or self.started_at))

    @property
    def duration_s(self) -> float | None:
        return None if self.ended_at is None else max(0.0, self.ended_at - self.started_at)

    @property
    def new_tokens(self) -> int | None:
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return self.prompt_tokens - self.cached_tokens

    @property
    def cached_share(self) -> float | None:
        if not self.prompt_tokens or self.cached_tokens is None:
            return None
        return self.cached_tokens / self.prompt_tokens


def possible(cached_tokens: int | None, prompt_tokens: int | None) -> int | None:
    """The cached tokens that a server told; None also for a number that cannot be true."""
    if cached_tokens is None or cached_tokens < 0:
        return None
    return None if prompt_tokens is not None and cached_tokens > prompt_tokens else cached_tokens
