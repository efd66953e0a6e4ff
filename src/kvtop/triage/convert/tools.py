"""The messages route's tools -> those of the chat request that vLLM makes of them (read in 0.12 to 0.33)."""

from __future__ import annotations

from typing import Any

from kvtop.capture.api.canonical import object_of
from kvtop.triage.convert import version as v
from kvtop.triage.convert.converted import Draft, Place, items, text_of, uncached
from kvtop.triage.prompt import Path

_Tool = tuple[dict[str, Any], str]
"""A tool, or a block that changes the tools, and its pointer."""


def read_tools(draft: Draft, body: dict[str, Any], turns: list[tuple[Any, str]]) -> list[dict[str, Any]] | None:
    """The tools in the shape of the chat route; None where the server has none."""
    tools = body.get("tools")
    draft.places[("tools",)] = Place("/tools" if "tools" in body else "/messages")
    if tools is not None and not isinstance(tools, list):
        draft.doubt("/tools is no list")
    changes = _changes(draft, turns)
    if not isinstance(tools, list) and not changes:
        return None
    listed = _changed(draft, [(object_of(tool), at) for tool, at in items(tools, "/tools")], changes)
    for index, (tool, at) in enumerate(listed):
        _tool(draft, index, tool, at)
    return [_function(draft, tool) for tool, _ in listed]


def _tool(draft: Draft, index: int, tool: dict[str, Any], at: str) -> None:
    """Notes where a tool comes from."""
    uncached(draft, tool, at)
    path: Path = ("tools", index)
    draft.places[path] = Place(at, same=False)
    for key in ("name", "description", "strict", "defer_loading"):
        if key in tool:
            draft.places[(*path, "function", key)] = Place(f"{at}/{key}")
    if isinstance(schema := tool.get("input_schema"), dict):
        draft.places[(*path, "function", "parameters")] = Place(f"{at}/input_schema")
        if "type" not in schema:
            draft.places[(*path, "function", "parameters", "type")] = Place(f"{at}/input_schema", same=False)
    else:
        draft.doubt(f"the server refuses {at}: a tool without an input_schema")
    if text_of(tool.get("name")) is None:
        draft.doubt(f"the server refuses {at}: a tool without a name")


def _function(draft: Draft, tool: dict[str, Any]) -> dict[str, Any]:
    function: dict[str, Any] = {"name": text_of(tool.get("name")) or "", "description": tool.get("description")}
    if isinstance(schema := tool.get("input_schema"), dict):
        function["parameters"] = schema if "type" in schema else schema | {"type": "object"}
    for key, since in (("strict", v.SYSTEM_IN_PLACE), ("defer_loading", v.TOOL_REFERENCES)):
        if tool.get(key) is not None and draft.since(since):
            function[key] = tool[key]
    if function["description"] is None:
        del function["description"]
    return {"type": "function", "function": function}


def _changes(draft: Draft, turns: list[tuple[Any, str]]) -> list[_Tool]:
    """Blocks that change the tools on the way. They stand in system turns alone."""
    if not draft.since(v.TOOL_CHANGES):
        return []
    return [
        (block, at)
        for turn, pointer in turns
        for block, at in items(object_of(turn).get("content"), f"{pointer}/content")
        if isinstance(block, dict) and block.get("type") in ("tool_addition", "tool_removal")
    ]


def _changed(draft: Draft, tools: list[_Tool], changes: list[_Tool]) -> list[_Tool]:
    """The tools that are in effect at the end of the conversation: chat templates see one list."""
    if not changes:
        return tools
    known = {str(tool.get("name")): (tool, at) for tool, at in tools}
    removed: set[str] = set()
    for block, at in changes:
        change = object_of(block.get("tool"))
        if isinstance(definition := change.get("definition"), dict):
            name = str(definition.get("name"))
            known[name] = (definition, f"{at}/tool/definition")
        else:
            name = str(change.get("name"))
            if name not in known:
                draft.doubt(f"the server refuses {at}: it names a tool that is not declared")
            elif block["type"] == "tool_addition":
                tool, there = known[name]
                known[name] = ({k: value for k, value in tool.items() if k != "defer_loading"}, there)
        (removed.add if block["type"] == "tool_removal" else removed.discard)(name)
    return [entry for name, entry in known.items() if name not in removed]


def read_tool_choice(draft: Draft, body: dict[str, Any], tools: list[dict[str, Any]] | None) -> object:
    """The tool choice in the words of the chat route."""
    choice = body.get("tool_choice")
    where = Place("/tool_choice", same=False)
    draft.places[("tool_choice",)] = draft.places[("tools",)] if choice is None else where
    kind = object_of(choice).get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": object_of(choice).get("name")}}
    named = {"auto": "auto", "any": "required", "none": "none"}.get(kind) if isinstance(kind, str) else None
    if choice is not None and named is None:
        draft.doubt("the server refuses /tool_choice")
    return named or ("auto" if tools is not None else None)
