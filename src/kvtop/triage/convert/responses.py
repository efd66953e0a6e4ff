"""The responses route: a request -> the chat messages that vLLM makes of its items (read in 0.17 to 0.33)."""

from __future__ import annotations

import json
from typing import Any

from kvtop.capture.api.canonical import object_of
from kvtop.errors import printable
from kvtop.triage.convert import version as v
from kvtop.triage.convert.converted import Converted, Draft, Place, items, text_of
from kvtop.triage.prompt import Path

_UNFINISHED = ("in_progress", "incomplete")

_FREE_FORM = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The parameters that a tool of type custom is shown with: vLLM's own words, since they are tokens of the prompt."""


def from_responses(body: dict[str, Any], version: str | None) -> Converted:
    """The chat request. See `convert`."""
    draft = Draft(version)
    for key in ("previous_response_id", "previous_input_messages"):
        if body.get(key):
            draft.doubt(f"it goes on from messages that the server keeps ({key})")
    if body.get("prompt") is not None:
        draft.doubt("the server refuses prompt templates (/prompt)")
    instructions = body.get("instructions")
    if isinstance(instructions, str) and instructions:
        path = draft.add({"role": "system", "content": instructions}, "/instructions")
        draft.places[(*path, "content")] = Place("/instructions")
    elif instructions:
        draft.doubt("/instructions is no text")
    goes_on = _input(draft, body.get("input"))
    tools = _tools(draft, body.get("tools"))
    for key in ("model", "cache_salt", "chat_template_kwargs", "mm_processor_kwargs", "media_io_kwargs"):
        draft.places[(key,)] = Place(f"/{key}")
    draft.places[("reasoning_effort",)] = Place("/reasoning/effort")
    return draft.finish(
        model=body.get("model"),
        tools=tools if body.get("tools") else None,
        tool_choice=_tool_choice(draft, body, tools),
        reasoning_effort=object_of(body.get("reasoning")).get("effort"),
        cache_salt=body.get("cache_salt"),
        chat_template_kwargs=body.get("chat_template_kwargs"),
        mm_processor_kwargs=body.get("mm_processor_kwargs"),
        media_io_kwargs=body.get("media_io_kwargs"),
        truncate_prompt_tokens=-1 if body.get("truncation", "disabled") != "disabled" else None,
        add_generation_prompt=False if goes_on else None,
        continue_final_message=True if goes_on else None,
    )


def _input(draft: Draft, given: object) -> bool:
    """Read the items; whether the last one is to be continued."""
    if isinstance(given, str):
        path = draft.add({"role": "user", "content": given}, "/input")
        draft.places[(*path, "content")] = Place("/input")
        return False
    if not isinstance(given, list):
        draft.doubt("the request has no input")
    last: dict[str, Any] = {}
    for item, at in items(given, "/input"):
        last = object_of(item)
        _item(draft, last, at)
    return last.get("type", "message") in ("message", "reasoning") and last.get("status") in _UNFINISHED


def _item(draft: Draft, item: dict[str, Any], at: str) -> None:
    kind = item.get("type")
    if kind in ("function_call", "custom_tool_call"):
        _call(draft, item, at, custom=kind == "custom_tool_call")
    elif kind == "reasoning":
        _reasoning(draft, item, at)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        path = draft.add({"role": "tool", "tool_call_id": item.get("call_id"), "content": None}, at)
        draft.places[(*path, "tool_call_id")] = Place(f"{at}/call_id" if "call_id" in item else at, same=False)
        _content(draft, path, item.get("output"), f"{at}/output" if "output" in item else at)
    elif isinstance(role := item.get("role"), str):
        if role != "assistant" or not _said(draft, item, at):
            path = draft.add({"role": role}, at)
            draft.places[(*path, "role")] = Place(f"{at}/role")
            if isinstance(name := item.get("name"), str):
                draft.messages[-1]["name"] = name
                draft.places[(*path, "name")] = Place(f"{at}/name")
            _content(draft, path, item.get("content"), f"{at}/content" if "content" in item else at)
    else:
        word = printable(kind, 40) if isinstance(kind, str) else "no type"
        draft.doubt(f"the server refuses {at}: it knows no item of type {word}")


def _previous(draft: Draft, key: str) -> Path | None:
    """The message before, if it is one of the assistant that has no `key` yet."""
    if draft.messages and draft.since(v.ITEMS_JOINED):
        message = draft.messages[-1]
        if message.get("role") == "assistant" and message.get(key) is None:
            return ("messages", len(draft.messages) - 1)
    return None


def _join(draft: Draft, key: str, value: str, at: str, place: Place) -> None:
    """Put a text into the assistant's message before, or into a new one."""
    path = _previous(draft, key) or draft.add({"role": "assistant"}, at)
    draft.messages[-1][key] = value
    draft.places[(*path, key)] = place


def _call(draft: Draft, item: dict[str, Any], at: str, *, custom: bool) -> None:
    name = text_of(item.get("name"))
    given = item.get("input" if custom else "arguments")
    named = "input" if custom else "arguments"
    if name is None or text_of(item.get("call_id")) is None or not isinstance(given, str):
        draft.doubt(f"the server refuses {at}: a call without call_id, name or {named}")
    arguments = text_of(given) or ""
    if custom:
        arguments = json.dumps({"input": arguments}, ensure_ascii=False)
    space = text_of(item.get("namespace"))
    full = f"{space}__{name}" if space and not custom else name or ""
    call = {
        "id": text_of(item.get("call_id")) or "",
        "type": "function",
        "function": {"name": full, "arguments": arguments},
    }
    joins = _assistant_before(draft)
    if joins is None:
        joins = draft.add({"role": "assistant"}, at)
    calls = draft.messages[-1].setdefault("tool_calls", [])
    path: Path = (*joins, "tool_calls", len(calls))
    calls.append(call)
    draft.places[path] = Place(at, same=False)
    for below, key in ((("id",), "call_id"), (("function", "name"), "name"), (("function", "arguments"), named)):
        draft.places[(*path, *below)] = Place(f"{at}/{key}" if key in item else at, same=False)


def _assistant_before(draft: Draft) -> Path | None:
    """The message before, if it is one of the assistant: calls are added to it."""
    if draft.messages and draft.since(v.ITEMS_JOINED) and draft.messages[-1].get("role") == "assistant":
        return ("messages", len(draft.messages) - 1)
    return None


def _reasoning(draft: Draft, item: dict[str, Any], at: str) -> None:
    if item.get("encrypted_content"):
        draft.doubt(f"the server refuses {at}: encrypted reasoning")
    texts = [(text, f"{there}/text") for there, text in _texts(item.get("content"), f"{at}/content")]
    summaries = [(text, f"{there}/text") for there, text in _texts(item.get("summary"), f"{at}/summary")]
    if not isinstance(item.get("summary"), list):
        draft.doubt(f"the server refuses {at}: reasoning without a summary")
    if not draft.since(v.HEADER_DROPPED) and len(summaries) == 1:
        texts, summaries = summaries, texts  # 0.17 took the summary first
    found = texts or summaries
    for _, pointer in found[1:] + (summaries if texts else []):
        draft.drop(pointer, "reasoning beyond its first text")
    text, pointer = found[0] if found else ("", at)
    _join(draft, "reasoning", text, at, Place(pointer, same=False))


def _texts(parts: object, pointer: str) -> list[tuple[str, str]]:
    found = ((at, text_of(object_of(part).get("text"))) for part, at in items(parts, pointer))
    return [(at, text) for at, text in found if text is not None]


def _said(draft: Draft, item: dict[str, Any], at: str) -> bool:
    """Read a message of the assistant: the server takes its first text alone. False: it has none."""
    content = item.get("content")
    if isinstance(content, str):
        _join(draft, "content", content, at, Place(f"{at}/content"))
        return True
    first = next(items(content, f"{at}/content"), None)
    text = text_of(object_of(first[0]).get("text")) if first else None
    if first is None or text is None:
        draft.doubt(f"the server fails at {at}: a message of the assistant whose first part is no text")
        return False
    for part, there in list(items(content, f"{at}/content"))[1:]:
        draft.drop(there, f"a message's parts beyond its first ({printable(str(object_of(part).get('type')), 30)})")
    _join(draft, "content", text, at, Place(f"{first[1]}/text", same=False))
    return True


def _content(draft: Draft, path: Path, content: object, at: str) -> None:
    """A content that stays what it is, with the parts' types as the chat route names them."""
    message = draft.messages[-1]
    draft.places[(*path, "content")] = Place(at)
    if not isinstance(content, list):
        message["content"] = content
        if not isinstance(content, str):
            draft.doubt(f"{at} is neither a text nor a list")
        return
    parts: list[object] = []
    for index, (part, there) in enumerate(items(content, at)):
        parts.append(_part(draft, part, there, (*path, "content", index)))
    message["content"] = parts


def _part(draft: Draft, part: object, at: str, path: Path) -> object:
    found = object_of(part)
    kind = found.get("type")
    if kind in ("input_text", "output_text"):
        return {"type": "text", "text": found.get("text")}
    if kind == "input_image":
        if not isinstance(url := found.get("image_url"), str):
            draft.doubt(f"{at} is an image without a URL")
        draft.places[(*path, "image_url")] = Place(f"{at}/image_url" if "image_url" in found else at, same=False)
        return {"type": "image_url", "image_url": {"url": url}}
    if kind in ("input_file", "input_audio"):
        draft.doubt(f"what the server makes of {at} ({kind}) is not known")
    return part


def _tools(draft: Draft, given: object) -> list[dict[str, Any]]:
    if given is not None and not isinstance(given, list):
        draft.doubt("/tools is no list")
    tools: list[dict[str, Any]] = []
    for tool, at in items(given, "/tools"):
        found = object_of(tool)
        kind = found.get("type")
        if kind == "function":
            _tool(draft, tools, found, at)
        elif kind == "namespace":
            for inner, there in items(found.get("tools"), f"{at}/tools"):
                if object_of(inner).get("type") == "function":
                    _tool(draft, tools, object_of(inner), there, f"{text_of(found.get('name')) or ''}__")
        elif kind == "custom":
            draft.places[("tools", len(tools), "function", "parameters")] = Place(at, same=False)
            _tool(draft, tools, {k: found[k] for k in ("name", "description") if k in found}, at)
            tools[-1]["function"]["parameters"] = _FREE_FORM
        else:
            draft.drop(at, "a tool that is not shown to the model")
    if tools and not draft.since(v.TOOLS_FILTERED):
        draft.doubt("before 0.27 the tools of this route were written with their keys in another order")
    return tools


def _tool(draft: Draft, tools: list[dict[str, Any]], tool: dict[str, Any], at: str, space: str = "") -> None:
    path: Path = ("tools", len(tools))
    draft.places[path] = Place(at, same=False)
    function: dict[str, Any] = {"name": space + (text_of(tool.get("name")) or "")}
    draft.places[(*path, "function", "name")] = Place(f"{at}/name" if "name" in tool else at, same=False)
    for key in ("description", "parameters", "strict", "defer_loading"):
        if tool.get(key) is not None:
            function[key] = tool[key]
            draft.places[(*path, "function", key)] = Place(f"{at}/{key}")
    tools.append({"type": "function", "function": function})


def _tool_choice(draft: Draft, body: dict[str, Any], tools: list[dict[str, Any]]) -> object:
    if not tools:
        return None  # the server then has none to choose from, whatever was sent
    choice = body.get("tool_choice", "auto")
    draft.places[("tool_choice",)] = Place("/tool_choice" if "tool_choice" in body else "/tools", same=False)
    if isinstance(choice, dict):
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice
