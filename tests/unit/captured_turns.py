"""Turns and bodies for the tests of the store."""

from __future__ import annotations

import json
from typing import Any

from kvtop.capture.turn import Captured, Part, Record, Route, Sample, Source, TurnState

FULL = Captured(
    source=Source.IMPORT,
    state=TurnState.CUT,
    record=Record.TRUNCATED,
    upstream="http://127.0.0.1:8000",
    method="POST",
    path="/v1/chat/completions",
    route=Route.CHAT,
    stream=True,
    model="qwen3",
    started_at=1_796_000_000.25,
    sent_at=1_796_000_000.5,
    first_byte_at=1_796_000_001.0,
    first_token_at=1_796_000_002.5,
    ended_at=1_796_000_012.5,
    status=200,
    finish_reason="length",
    error="broke off",
    response_id="chatcmpl-1",
    prompt_tokens=12_000,
    cached_tokens=11_000,
    cached_source="usage",
    completion_tokens=101,
    reasoning_tokens=40,
    usage={"prompt_tokens": 12_000, "prompt_tokens_details": {"cached_tokens": 11_000}},
    queue_s=0.5,
    prefill_s=1.5,
    inter_token_p50_s=0.1,
    inter_token_p95_s=0.2,
    inter_token_n=100,
    coalesced=True,
    request_bytes=48_000,
    response_bytes=9_000,
    request_headers=[("Host", "127.0.0.1"), ("X-A", "1"), ("X-A", "2")],
    response_headers=[("server", "uvicorn")],
    agent="opencode",
    agent_version="1.2.3",
    hints={"user": "u1"},
    outline=[Part("tool", 600, "00112233aabbccdd", name="read"), Part("message", 900, "ffeeddccbbaa9988", role="user")],
    prompt_unproven="no tools",
    conversation="c1",
    parent=3,
    relation="next",
    samples=[Sample(at=1.0, running=1.0, by_source={"computed": 5.0}), Sample(at=2.0)],
    alone=True,
)


def body(messages: int, system: str = "You are an agent. ", **more: Any) -> bytes:
    """A chat request of so many messages."""
    said = [{"role": "system", "content": system * 20}]
    said += [{"role": "user", "content": f"message {i}, long enough to be a piece of its own"} for i in range(messages)]
    return json.dumps({"model": "qwen3", "messages": said, **more}).encode()
