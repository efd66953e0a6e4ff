"""What importers need of their neighbours, where those are not there: just enough of outlines, answers and a store."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from kvtop.capture.turn import Captured, Part, Route
from kvtop.paths import data_dir

ROUTES = (
    ("/chat/completions", Route.CHAT),
    ("/completions", Route.COMPLETIONS),
    ("/responses", Route.RESPONSES),
    ("/messages", Route.MESSAGES),
    ("/embeddings", Route.EMBEDDINGS),
)


class Asked(msgspec.Struct):
    route: Route
    model: str | None = None
    stream: bool | None = None
    outline: list[Part] = []
    hints: dict[str, str] = {}


class Answered(msgspec.Struct):
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    usage: dict[str, Any] = {}
    finish_reason: str | None = None
    response_id: str | None = None
    error: str | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    whole: bool = False


def _route(path: str) -> Route:
    return next((route for end, route in ROUTES if path.partition("?")[0].endswith(end)), Route.OTHER)


def _part(kind: str, value: object, **more: str) -> Part:
    data = json.dumps(value, sort_keys=True).encode()
    return Part(kind=kind, size=len(data), digest=hashlib.blake2b(data, digest_size=8).hexdigest(), **more)


def read_request(method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes) -> Asked:
    try:
        found = json.loads(body)
    except ValueError:
        return Asked(_route(path))
    outline = [_part("tool", tool) for tool in found.get("tools") or []]
    outline += [_part("message", given, role=given.get("role", "")) for given in found.get("messages") or []]
    outline += [_part("prompt", found[key]) for key in ("prompt", "input") if key in found]
    return Asked(_route(path), found.get("model"), found.get("stream") is True, outline)


def read_answer(route: Route, status: int | None, headers: object, body: bytes, stream: bool) -> Answered:
    text = body.decode("utf-8", "replace")
    if text.startswith(("data:", "event:")):
        last = text.rfind('"usage":')
        usage = json.JSONDecoder().raw_decode(text[last + 8 :].lstrip())[0] if last >= 0 else {}
        return Answered(prompt_tokens=usage.get("prompt_tokens"), usage=usage, whole="[DONE]" in text)
    try:
        found = json.loads(text)
    except ValueError:
        return Answered()
    usage = found.get("usage") or {}
    error = found.get("error")
    return Answered(
        prompt_tokens=usage.get("prompt_tokens", usage.get("input_tokens")),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        completion_tokens=usage.get("completion_tokens", usage.get("output_tokens")),
        usage=usage,
        response_id=found.get("id"),
        error=str(error["message"]) if error else None,
        whole=True,
    )


def may_be_turn(method: str, path: str) -> bool:
    return method == "POST" and not path.partition("?")[0].endswith(("/tokenize", "/count_tokens"))


def redacted(given: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, "(removed)" if re.search("auth|cookie|key", name, re.I) else value) for name, value in given]


class Unpacker:
    def __init__(self, headers: Sequence[tuple[str, str]]) -> None:
        self._gzip = any(name.lower() == "content-encoding" and "gzip" in value for name, value in headers)

    def feed(self, data: bytes) -> bytes:
        import gzip

        return gzip.decompress(data) if self._gzip else data


class Store:
    files: ClassVar[dict[Path, list[tuple[Captured, bytes, bytes | None]]]] = {}

    def __init__(self, path: Path) -> None:
        self._rows = self.files.setdefault(path, [])

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> Store:
        return cls(path)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, turn: Captured, body: bytes) -> int:
        id = len(self._rows) + 1
        self._rows.append(
            (msgspec.structs.replace(turn, id=id, conversation=turn.conversation or f"c{id}"), body, None)
        )
        return id

    def update(self, turn: Captured) -> None:
        self._rows[turn.id - 1] = (turn, self._rows[turn.id - 1][1], None)

    def finish(self, turn: Captured, body: bytes) -> None:
        self._rows[turn.id - 1] = (turn, self._rows[turn.id - 1][1], body)

    def count(self) -> int:
        return len(self._rows)

    def recent(self, limit: int) -> list[Captured]:
        return [row[0] for row in self._rows][-limit:]

    def turns(self, *, last: int = 100) -> list[Captured]:
        return [row[0] for row in reversed(self._rows)][:last]

    def turn(self, id: int) -> Captured | None:
        return self._rows[id - 1][0]

    def request_body(self, id: int) -> bytes | None:
        return self._rows[id - 1][1]

    def response_body(self, id: int) -> bytes | None:
        return self._rows[id - 1][2]


def install() -> None:
    """Put the stand-ins where the neighbours' modules are missing."""
    made = {
        "routes": {"read_request": read_request, "read_answer": read_answer, "may_be_turn": may_be_turn},
        "redact": {"headers": redacted, "text": lambda text: text, "target": lambda path: path},
        "codings": {"Unpacker": Unpacker},
        "store": {"Store": Store, "default_path": lambda: data_dir() / "turns.db"},
    }
    for name, things in made.items():
        try:
            importlib.import_module(f"kvtop.capture.{name}")
        except ModuleNotFoundError:
            module = types.ModuleType(f"kvtop.capture.{name}")
            module.__dict__.update(things)
            sys.modules[module.__name__] = module
