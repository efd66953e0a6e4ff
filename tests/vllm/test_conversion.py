"""kvtop's conversion of requests against the code that serves them: random requests, each through both."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from vllm_requests import Json, Maker
from vllm_servers import status

from kvtop.capture.turn import Route
from kvtop.triage.convert import Converted, convert

pytestmark = pytest.mark.vllm

SCRIPT = Path(__file__).with_name("served_messages.py")


def asked(requests: list[Json]) -> list[Json]:
    """The same requests through the server's own code."""
    python = Path(status()["venv"]) / "bin" / "python"
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    environment = os.environ | {"VLLM_TARGET_DEVICE": "cpu"}
    done = subprocess.run(
        [python, SCRIPT], input=lines, capture_output=True, text=True, env=environment, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def message(found: Json) -> Json:
    """What a template can see of a message, with the types of its text parts named alike."""
    kept = {key: found[key] for key in ("role", "content", "tool_calls", "reasoning", "tool_call_id") if key in found}
    if isinstance(kept.get("content"), list):
        kept["content"] = [
            {"type": "text", "text": part["text"]} if part.get("type") in ("input_text", "output_text") else part
            for part in kept["content"]
        ]
    return kept


def tool(found: Json) -> Json:
    return {**found, "function": {key: value for key, value in found["function"].items() if value is not None}}


def assert_same(given: Json, made: Converted, served: Json) -> None:
    body = json.dumps(given)
    if "refused" in served:
        assert made.approximate, (body, served)
        return
    chat = made.chat
    assert chat is not None
    assert not made.approximate, (body, made.approximate)
    assert [message(one) for one in chat["messages"]] == [message(one) for one in served["messages"]], body
    tools = [tool(one) for one in served["tools"]] if served["tools"] else served["tools"]
    assert json.dumps(chat.get("tools")) == json.dumps(tools), body
    for key in ("tool_choice", "reasoning_effort", "chat_template_kwargs", "cache_salt", "continue_final_message"):
        if key in served:
            assert (chat.get(key) or None) == (served[key] or None), (key, body)


@pytest.mark.usefixtures("installed")
def test_random_requests() -> None:
    maker = Maker(seed=20)
    requests = []
    for n in range(600):
        route = ("messages", "responses")[n % 2]
        body = maker.messages_body() if route == "messages" else maker.responses_body()
        requests.append({"route": route, "body": body, "merge_system": n % 4 == 0})
    answers = asked(requests)
    assert len(answers) == len(requests)
    served = [answer for answer in answers if "refused" not in answer]
    assert len(served) > len(requests) / 3, answers[:10]
    for request, answer in zip(requests, answers, strict=True):
        made = convert(Route(request["route"]), request["body"], merge_system=request["merge_system"])
        assert_same(request, made, answer)
