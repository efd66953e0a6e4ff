"""Requests of many shapes for the messages and the responses route, by chance but the same each time."""

from __future__ import annotations

import random
from typing import Any

Json = dict[str, Any]


class Maker:
    """Requests of many shapes, most of them valid."""

    def __init__(self, seed: int, *, pictures: bool = True) -> None:
        self.random = random.Random(seed)
        self.pictures = pictures
        self.count = 0

    def text(self) -> str:
        self.count += 1
        return self.random.choice(["", "x", "a line\nand another", "ä€😀", '{"k": [1]}']) + f" t{self.count}"

    def maybe(self, **members: Any) -> Json:
        """Some of the members."""
        return {key: value for key, value in members.items() if self.random.random() < 0.5}

    def some(self, make: Any, most: int = 3) -> list[Any]:
        return [make() for _ in range(self.random.randint(0, most))]

    def schema(self) -> Json:
        fields = {f"f{n}": {"type": "string", "description": self.text()} for n in range(self.random.randint(0, 3))}
        return self.maybe(type="object") | {"properties": fields} | self.maybe(required=list(fields), z={"b": 1})

    # the messages route

    def messages_body(self) -> Json:
        body: Json = {"model": "tiny", "max_tokens": 5000, "messages": [self.turn() for _ in range(5)]}
        body |= self.maybe(system=self.random.choice([self.text(), "", self.some(self.system_block)]))
        body |= self.maybe(tools=[self.messages_tool() for _ in range(self.random.randint(0, 3))])
        body |= self.maybe(thinking=self.random.choice([{"type": "disabled"}, {"type": "adaptive"}]))
        body |= self.maybe(cache_salt="salt", chat_template_kwargs={"a": 1}, metadata={"user_id": "u"})
        body |= self.maybe(tool_choice=self.random.choice([{"type": "auto"}, {"type": "any"}, {"type": "none"}]))
        config = self.maybe(effort="high", format={"type": "json_schema", "schema": self.schema()})
        return body | self.maybe(output_config=config)

    def cached(self) -> Json:
        return self.maybe(cache_control={"type": "ephemeral"})

    def system_block(self) -> Json:
        text = self.random.choice([self.text(), "", "x-anthropic-billing-header: cc_version=1; cch=12345;"])
        return {"type": "text", "text": text} | self.cached()

    def turn(self) -> Json:
        role = self.random.choice(["user", "user", "assistant", "assistant", "system"])
        if self.random.random() < 0.2:
            return {"role": role, "content": self.text()}
        make = {"user": self.user_block, "assistant": self.assistant_block, "system": self.system_block}[role]
        return {"role": role, "content": self.some(make, 4)}

    def image(self) -> Json:
        if not self.pictures:
            return {"type": "text", "text": self.text()}
        data = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
        return {"type": "image", "source": self.random.choice([data, {"type": "url", "url": "http://127.0.0.1/i.png"}])}

    def user_block(self) -> Json:
        kind = self.random.random()
        if kind < 0.4:
            return {"type": "text", "text": self.random.choice([self.text(), ""])} | self.cached()
        if kind < 0.5:
            return self.image()
        result = self.maybe(content=self.random.choice([self.text(), None, self.some(self.result_item, 4)]))
        return {"type": "tool_result", "tool_use_id": "c1"} | result | self.maybe(is_error=True) | self.cached()

    def result_item(self) -> Json:
        return self.random.choice(
            [
                {"type": "text", "text": self.text()},
                {"type": "text"},
                self.image(),
                {"type": "tool_reference", "tool_name": "f"},
                {"type": "other", "value": 1},
            ]
        )

    def assistant_block(self) -> Json:
        return self.random.choice(
            [
                {"type": "text", "text": self.text()} | self.cached(),
                {"type": "thinking", "thinking": self.text(), "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"path": self.text(), "n": [1, 2.5, None]}},
                {"type": "tool_use", "id": "c2", "name": "g", "input": {}},
                {"type": "tool_result", "tool_use_id": "c3", "content": [{"type": "text", "text": self.text()}]},
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            ]
            if self.random.random() < 0.1
            else [
                {"type": "text", "text": self.text()},
                {"type": "thinking", "thinking": self.text(), "signature": "s"},
                {"type": "tool_use", "id": f"c{self.count}", "name": "f", "input": {"path": self.text()}},
            ]
        )

    def messages_tool(self) -> Json:
        self.count += 1
        tool = {"name": f"tool{self.count}", "input_schema": self.schema()}
        return tool | self.maybe(description=self.text(), strict=True, defer_loading=True) | self.cached()

    # the responses route

    def responses_body(self) -> Json:
        body: Json = {"model": "tiny", "input": self.random.choice([self.text(), self.some(self.item, 8)])}
        body |= self.maybe(instructions=self.text(), reasoning={"effort": "low"}, truncation="auto")
        return body | self.maybe(tools=self.some(self.responses_tool), parallel_tool_calls=True)

    def item(self) -> Json:
        self.count += 1
        return self.random.choice(
            [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": self.text()}]},
                {"role": "developer", "content": self.text()},
                {"role": "user", "content": self.text()},
                {"type": "message", "role": "assistant", "content": self.text()},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": self.text()} for _ in range(self.random.randint(1, 2))],
                }
                | self.maybe(id="msg_1", status=self.random.choice(["completed", "incomplete"])),
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": self.text()}]}
                | self.maybe(content=[{"type": "reasoning_text", "text": self.text()}], id="rs_1"),
                {"type": "reasoning", "summary": [], "encrypted_content": "x"},
                {"type": "function_call", "call_id": f"c{self.count}", "name": "f", "arguments": '{"path": 1}'}
                | self.maybe(id="fc_1", status="completed", namespace="space"),
                {"type": "custom_tool_call", "call_id": f"c{self.count}", "name": "patch", "input": self.text()},
                {"type": "function_call_output", "call_id": "c1", "output": self.text()},
                {
                    "type": "function_call_output",
                    "call_id": "c1",
                    "output": [{"type": "input_text", "text": self.text()}, {"type": "input_text", "text": "2"}],
                },
                {"type": "item_reference", "id": "x"},
            ]
        )

    def responses_tool(self) -> Json:
        function = {"type": "function", "name": "f", "parameters": self.schema() | {"type": "object"}}
        function |= self.maybe(description=self.text(), strict=True)
        return self.random.choice(
            [
                function,
                {"type": "custom", "name": "patch", "description": self.text()},
                {"type": "web_search_preview"},
                {"type": "namespace", "name": "space", "description": "d", "tools": [function]},
            ]
        )
