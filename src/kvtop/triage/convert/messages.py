"""The messages route: an Anthropic request -> the chat request that vLLM makes of it (read in 0.12 to 0.33)."""

from __future__ import annotations

import json
from typing import Any

from kvtop.capture.api.canonical import object_of
from kvtop.errors import printable
from kvtop.triage.convert import version as v
from kvtop.triage.convert.converted import (
    Converted,
    Draft,
    Place,
    Text,
    items,
    joined,
    text_of,
    uncached,
)
from kvtop.triage.convert.tools import read_tool_choice, read_tools
from kvtop.triage.prompt import Path

HEADER = "x-anthropic-billing-header"
"""Begins the block that names the client and, from some clients, differs in each request."""

_Places = dict[Path, Place]

_NO_PROMPT = ("redacted_thinking", "tool_reference")
"""Blocks of a message that are accepted and left out."""


def from_messages(body: dict[str, Any], version: str | None, merge_system: bool | None, disabled: str) -> Converted:
    """The chat request. See `convert` for the arguments."""
    draft = Draft(version)
    turns = list(items(body.get("messages"), "/messages"))
    if not isinstance(body.get("messages"), list):
        draft.doubt("the request has no list of messages")
    merged = _merges(draft, turns, merge_system)
    _system(draft, body.get("system"), turns if merged else [])
    for turn, pointer in turns:
        _turn(draft, turn, pointer, merged)
    tools = read_tools(draft, body, turns)
    for key in ("model", "cache_salt", "chat_template_kwargs"):
        draft.places[(key,)] = Place(f"/{key}")
    if not draft.since((0, 20)) and body.get("chat_template_kwargs") is not None:
        draft.drop("/chat_template_kwargs", "chat_template_kwargs, which this version does not know here")
    return draft.finish(
        model=body.get("model"),
        tools=tools,
        tool_choice=read_tool_choice(draft, body, tools),
        reasoning_effort=_effort(draft, body, disabled),
        response_format=_response_format(draft, body),
        cache_salt=body.get("cache_salt") if draft.since((0, 27)) else None,
        chat_template_kwargs=body.get("chat_template_kwargs") if draft.since((0, 20)) else None,
    )


def _merges(draft: Draft, turns: list[tuple[Any, str]], merge_system: bool | None) -> bool:
    """Whether the texts of later system turns go into the first system message."""
    later = [pointer for turn, pointer in turns if object_of(turn).get("role") == "system"]
    if not later:
        return False
    if not draft.since(v.SYSTEM_TURNS):
        draft.doubt(f"this version refuses a message of role system ({later[0]})")
        return False
    if not draft.since(v.SYSTEM_IN_PLACE):
        return True
    if merge_system is None:
        draft.doubt("whether later system turns go into the first one depends on the server's chat template")
    return bool(merge_system)


def _system(draft: Draft, system: object, later: list[tuple[Any, str]]) -> None:
    texts: list[Text] = []
    if isinstance(system, str):
        texts += [(system, "/system")] if system else []
    elif isinstance(system, list):
        texts += _texts(draft, system, "/system")
        if system and not texts and not draft.since(v.SYSTEM_TURNS):
            texts.append(("", "/system"))
    elif system is not None:
        draft.doubt("/system is neither a text nor a list")
    for turn, pointer in later:
        if object_of(turn).get("role") == "system":
            texts += _system_turn(draft, turn.get("content"), f"{pointer}/content")
    if texts:
        content, place = joined(texts)
        path = draft.add({"role": "system", "content": content}, "/system" if system else place.pointer)
        draft.places[(*path, "content")] = place


def _texts(draft: Draft, blocks: object, pointer: str) -> list[Text]:
    """The texts of system blocks, without the attribution header."""
    texts: list[Text] = []
    for block, at in items(blocks, pointer):
        found = object_of(block)
        text = text_of(found.get("text"))
        if found.get("type") != "text" or text is None:
            if draft.since(v.TOOL_CHANGES) and found.get("type") in ("tool_addition", "tool_removal"):
                continue
            draft.doubt(f"{at} is no text block")
            continue
        uncached(draft, found, at)
        if text.startswith(HEADER) and draft.since(v.HEADER_DROPPED):
            draft.drop(at, "attribution header")
        elif text:
            texts.append((text, f"{at}/text"))
    return texts


def _system_turn(draft: Draft, content: object, pointer: str) -> list[Text]:
    """The texts of a later system turn."""
    if not isinstance(content, str):
        if not isinstance(content, list):
            draft.doubt(f"{pointer} is neither a text nor a list")
        return _texts(draft, content, pointer)
    if content.startswith(HEADER) and draft.since(v.SYSTEM_IN_PLACE):
        draft.drop(pointer, "attribution header")
        return []
    return [(content, pointer)] if content else []


def _turn(draft: Draft, turn: object, pointer: str, merged: bool) -> None:
    found = object_of(turn)
    role = found.get("role")
    if role not in ("user", "assistant", "system"):
        draft.doubt(f"the server refuses {pointer}: its role is not user, assistant or system")
        role = role if isinstance(role, str) else "user"
    said = Place(f"{pointer}/role" if "role" in found else pointer, same=False)
    content = found.get("content")
    if role == "system" and draft.since(v.SYSTEM_TURNS):
        if merged:
            return
        texts = _system_turn(draft, content, f"{pointer}/content")
        if texts:
            whole, place = joined(texts)
            path = draft.add({"role": "system", "content": whole}, pointer)
            draft.places[(*path, "content")] = place
            draft.places[(*path, "role")] = said
        return
    if isinstance(content, str):
        path = draft.add({"role": role, "content": content}, pointer, same=True)
        draft.places[(*path, "role")] = said
        return
    if not isinstance(content, list):
        draft.doubt(f"the server refuses {pointer}: its content is neither a text nor a list")
    _Blocks(draft, role, said, pointer).read(content)


class _Blocks:
    """The blocks of one message: its own parts, and the tool messages that go before it."""

    def __init__(self, draft: Draft, role: str, said: Place, pointer: str) -> None:
        self.draft = draft
        self.role = role
        self.said = said
        self.pointer = pointer
        self.parts: list[tuple[dict[str, Any], _Places]] = []
        """Each with the places of what is in it, by path below it."""
        self.calls: list[tuple[dict[str, Any], _Places]] = []
        self.thoughts: list[Text] = []

    def read(self, content: object) -> None:
        for block, at in items(content, f"{self.pointer}/content"):
            found = object_of(block)
            uncached(self.draft, found, at)
            self._block(found, at)
        self._emit()

    def _block(self, block: dict[str, Any], at: str) -> None:
        kind = block.get("type")
        if kind == "text":
            text = text_of(block.get("text"))
            if text:
                self.parts.append(({"type": "text", "text": text}, {(): Place(at)}))
        elif kind == "image":
            self._image(block, at)
        elif kind == "thinking" and self.draft.since(v.THINKING):
            if (thought := text_of(block.get("thinking"))) is not None:
                self.thoughts.append((thought, f"{at}/thinking"))
        elif kind == "tool_use":
            self._call(block, at)
        elif kind == "tool_result":
            self._result(block, at)
        elif kind in _NO_PROMPT:
            self.draft.drop(at, str(kind).replace("_", " "))
        elif kind == "thinking":
            self.draft.drop(at, "thinking, which this version leaves out")
        else:
            word = printable(kind, 30) if isinstance(kind, str) else "no type"
            self.draft.doubt(f"the server refuses {at}: it knows no block of type {word}")

    def _image(self, block: dict[str, Any], at: str) -> None:
        source = block.get("source")
        if isinstance(source, dict) and source:
            url, place = _url(source, f"{at}/source", self.draft.since(v.THINKING))
            where: _Places = {(): Place(at, same=False), ("image_url",): place, ("type",): Place(f"{at}/type")}
            self.parts.append(({"type": "image_url", "image_url": {"url": url}}, where))
        else:
            self.draft.doubt(f"{at} is an image without a source")

    def _call(self, block: dict[str, Any], at: str) -> None:
        name = text_of(block.get("name")) or ""
        id = text_of(block.get("id"))
        if not id:
            self.draft.doubt(f"the server gives the call at {at} an id of its own, by the clock")
        given = block.get("input")
        if given is not None and not isinstance(given, dict):
            self.draft.doubt(f"the server refuses {at}: its input is no object")
        try:
            arguments = json.dumps(given or {})
        except (ValueError, RecursionError):
            self.draft.doubt(f"{at}/input is nested too deeply")
            arguments = "{}"
        call = {"id": id or "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}
        where: _Places = {
            (): Place(at, same=False),
            ("id",): Place(f"{at}/id" if id else at),
            ("function", "name"): Place(f"{at}/name" if name else at),
            ("function", "arguments"): Place(f"{at}/input" if "input" in block else at),
        }
        self.calls.append((call, where))

    def _result(self, block: dict[str, Any], at: str) -> None:
        content = block.get("content")
        if self.role != "user":
            self.parts.append(({"type": "text", "text": f"Tool result: {self._printed(content, at)}"}, _all_from(at)))
            return
        named = "tool_use_id" if self.draft.since(v.THINKING) else "id"
        id = text_of(block.get(named)) or ""
        texts: list[Text] = []
        images: list[tuple[str, Place]] = []
        tools: list[tuple[str, str]] = []
        if not self.draft.since(v.THINKING):
            texts.append((self._printed(content, at), f"{at}/content" if content else at))
        elif isinstance(content, str):
            texts.append((content, f"{at}/content"))
        for item, there in items(content if self.draft.since(v.THINKING) else None, f"{at}/content"):
            found = object_of(item)
            uncached(self.draft, found, there)
            if found.get("type") == "text":
                text = text_of(found.get("text")) or ""
                texts.append((text, f"{there}/text" if text else there))
            elif found.get("type") == "image" and isinstance(found.get("source"), dict):
                images.append(_url(found["source"], f"{there}/source", True))
            elif found.get("type") == "tool_reference" and self.draft.since(v.TOOL_REFERENCES):
                tools += [(name, there) for key in ("tool_name", "name") if (name := text_of(found.get(key)))][:1]
            else:
                self.draft.drop(there, "a block that the server leaves out of tool results")
        whole, place = joined(texts, "\n") if texts else ("", Place(at, same=False))
        path = self._tool_message(block, at, named, id, whole)
        self.draft.places[(*path, "content")] = place
        if images:
            parts = [{"type": "image_url", "image_url": {"url": url}} for url, _ in images]
            path = self.draft.add({"role": "user", "content": parts}, at)
            for index, (_, place) in enumerate(images):
                self.draft.places[(*path, "content", index)] = Place(place.pointer, same=False)
        if tools:
            references = [{"type": "tool_reference", "name": name} for name, _ in tools]
            path = self._tool_message(block, at, named, id, references)
            for index, (_, there) in enumerate(tools):
                self.draft.places[(*path, "content", index)] = Place(there, same=False)

    def _tool_message(self, block: dict[str, Any], at: str, named: str, id: str, content: object) -> Path:
        path = self.draft.add({"role": "tool", "tool_call_id": id, "content": content}, at)
        self.draft.places[(*path, "tool_call_id")] = Place(f"{at}/{named}" if named in block else at, same=False)
        return path

    def _printed(self, content: object, at: str) -> str:
        """As Python prints it, which is what the server does here."""
        try:
            return str(content) if content else ""
        except (ValueError, RecursionError):
            self.draft.doubt(f"{at}/content is nested too deeply")
            return ""

    def _emit(self) -> None:
        """The message itself, where something of it is left."""
        message: dict[str, Any] = {"role": self.role}
        where: _Places = {("role",): self.said}
        if self.thoughts:
            message["reasoning"], where[("reasoning",)] = joined(self.thoughts)
        if self.calls:
            message["tool_calls"] = [call for call, _ in self.calls]
            where |= _below("tool_calls", self.calls)
        if len(self.parts) == 1 and self.parts[0][0]["type"] == "text":
            part, places = self.parts[0]
            message["content"] = part["text"]
            place = places[()]
            where[("content",)] = Place(f"{place.pointer}/text" if place.same else place.pointer, same=False)
        elif self.parts:
            message["content"] = [part for part, _ in self.parts]
            where[("content",)] = Place(f"{self.pointer}/content", same=False)
            where |= _below("content", self.parts)
        if len(message) == 1 and (self.role == "user" or not self.draft.since(v.THINKING)):
            if self.draft.since(v.EMPTY_USER_DROPPED) or not self.draft.since(v.THINKING):
                return
        elif self.role == "user" and "content" not in message and self.draft.since(v.EMPTY_USER_DROPPED):
            return
        path = self.draft.add(message, self.pointer)
        self.draft.places |= {(*path, *below): place for below, place in where.items()}


def _all_from(at: str) -> _Places:
    return {(): Place(at, same=False)}


def _below(key: str, made: list[tuple[dict[str, Any], _Places]]) -> _Places:
    return {(key, index, *path): place for index, (_, places) in enumerate(made) for path, place in places.items()}


def _url(source: dict[str, Any], pointer: str, either: bool) -> tuple[str, Place]:
    """An image's source as the URL that the server makes of it. `either`: it knows URLs beside base64."""
    kind = source.get("type")
    if kind == "url" and either:
        return text_of(source.get("url")) or "", Place(f"{pointer}/url" if "url" in source else pointer, same=False)
    data = text_of(source.get("data")) or ""
    place = Place(f"{pointer}/data" if "data" in source else pointer, same=False)
    media = text_of(source.get("media_type", "image/jpeg"))
    return (f"data:{media};base64,{data}" if either else data), place


def _effort(draft: Draft, body: dict[str, Any], disabled: str) -> object:
    effort: object = None
    if draft.since(v.SYSTEM_TURNS):
        effort = object_of(body.get("output_config")).get("effort")
        draft.places[("reasoning_effort",)] = Place("/output_config/effort")
    if object_of(body.get("thinking")).get("type") == "disabled" and draft.since(v.DISABLED_THINKING):
        draft.places[("reasoning_effort",)] = draft.places[("thinking",)] = Place("/thinking/type", same=False)
        return disabled
    return effort


def _response_format(draft: Draft, body: dict[str, Any]) -> object:
    wanted = object_of(object_of(body.get("output_config")).get("format"))
    schema = wanted.get("schema")
    if not isinstance(schema, dict) or not schema or not draft.since(v.SYSTEM_TURNS):
        return None
    draft.places[("response_format",)] = Place("/output_config/format", same=False)
    draft.places[("response_format", "json_schema", "schema")] = Place("/output_config/format/schema")
    kind = wanted.get("type", "json_schema")
    return {"type": kind, "json_schema": {"name": kind, "schema": schema}}
