"""A request of any route -> the chat request that vLLM makes of it, with the place of each piece in the request."""

from __future__ import annotations

from typing import Any

from kvtop.capture.api.canonical import object_of
from kvtop.capture.turn import Route
from kvtop.triage.convert import version as v
from kvtop.triage.convert.converted import Converted, Draft, Dropped, Place, items
from kvtop.triage.convert.inputs import render_inputs
from kvtop.triage.convert.messages import HEADER, from_messages
from kvtop.triage.convert.responses import from_responses
from kvtop.triage.prompt import Path

__all__ = ["Converted", "Dropped", "Path", "Place", "convert", "render_inputs"]

_WHOLE: dict[Path, Place] = {(): Place("")}


def convert(
    route: Route,
    body: object,
    *,
    version: str | None = None,
    merge_system: bool | None = None,
    disabled_effort: str = "none",
) -> Converted:
    """The prompt of a request, as the server's chat template sees it.

    `body`: its JSON, decoded; nothing of it is changed. `version`: of the server, None for the newest. Two things on
    the messages route are decided by the server's chat template (`Tokenizer` finds them out): `merge_system`, whether
    the texts of later system turns go into the first system message (since 0.24; None: not known, they stay in place),
    and `disabled_effort`, the reasoning effort that stands for thinking of type disabled (since 0.31; none or low).
    A chat request stays as it is. Never raises: what the server would refuse, or make something else of, is told in
    `approximate`.
    """
    found = object_of(body)
    if not isinstance(body, dict):
        return Converted(approximate=("the body is no JSON object",))
    if route is Route.MESSAGES:
        return from_messages(found, version, merge_system, disabled_effort)
    if route is Route.RESPONSES:
        return from_responses(found, version)
    if route is Route.CHAT or (route is Route.EMBEDDINGS and "messages" in found):
        return _chat(found, version)
    if route in (Route.COMPLETIONS, Route.EMBEDDINGS):
        return _text(found, "prompt" if route is Route.COMPLETIONS else "input")
    return Converted(approximate=("no prompt is known on this route",))


def _chat(body: dict[str, Any], version: str | None) -> Converted:
    draft = Draft(version)
    if not isinstance(body.get("messages"), list):
        draft.doubt("the request has no list of messages")
        return Converted(None, None, _WHOLE, draft.finish().approximate)
    if draft.since(v.TOOL_CHANGES):
        for message, at in items(body["messages"], "/messages"):
            if object_of(message).get("role") == "system":
                _header(draft, object_of(message).get("content"), f"{at}/content")
    made = draft.finish()
    return Converted(body, None, _WHOLE, made.approximate, made.dropped)


def _header(draft: Draft, content: object, pointer: str) -> None:
    """Notes the attribution header: the server drops its line, wherever a text of a system message begins with it."""
    parts = [(content, pointer)] if isinstance(content, str) else list(items(content, pointer))
    for part, at in parts:
        text = part if isinstance(part, str) else object_of(part).get("text")
        if isinstance(text, str) and text.startswith(HEADER):
            draft.drop(at, "attribution header")


def _text(body: dict[str, Any], key: str) -> Converted:
    prompt: Any = body.get(key)
    pointer = f"/{key}"
    doubts = [f"the prompt is not /{key} alone ({other})" for other in ("suffix", "prompt_embeds") if body.get(other)]
    if isinstance(prompt, list) and prompt and not _are_ids(prompt):
        doubts += ["of several prompts the first is taken"] if len(prompt) > 1 else []
        prompt, pointer = prompt[0], f"{pointer}/0"
    if not (isinstance(prompt, str) or (isinstance(prompt, list) and _are_ids(prompt))):
        return Converted(None, None, _WHOLE, (f"/{key} is neither a text nor a list of ids", *doubts))
    where: dict[Path, Place] = {(): Place(pointer)}
    return Converted(None, prompt, where, tuple(doubts))


def _are_ids(prompt: list[Any]) -> bool:
    return bool(prompt) and all(type(id) is int and 0 <= id < 2**31 for id in prompt)
