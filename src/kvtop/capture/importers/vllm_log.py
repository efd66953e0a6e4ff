"""vLLM's request log (--enable-log-requests): the token ids that the engine was given, exact.

Before 0.11.2 prompt and ids stand on the INFO line `Received request ID: prompt: …, params: …, prompt_token_ids: […]`;
since then on the DEBUG line `Request ID details: prompt: …, prompt_token_ids: […]`; 0.33 also logs the JSON body.
A long line may be broken; what log drivers put before each line (times, pids, colours) is skipped.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from kvtop.capture.importers.exchange import PATHS, Bad, Exchange, Item, as_json, body_path, taken

CUT = "cut by --max-log-len: the ids at the end are missing"
NO_IDS = "no token ids in the log"
MANGLED = "a request, but not as vLLM writes it"

_HEAD = r"(?P<time>\d\d-\d\d \d\d:\d\d:\d\d)[^\n]{0,120}?\] "
_STRING = r"""None|'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*\""""
_START = re.compile(
    rf"(?:{_HEAD})?(?:Received request (?P<old>\S+): (?=prompt: )|Request (?P<new>\S+) details: (?=prompt: )"
    r"|Request (?P<body>\S+) JSON body: |Received request (?P<bare>\S+): (?=params: )"
    r"|Generated response (?P<answer>\S+?)(?: \(streaming complete\))?: output: )"
)
_PROMPT = re.compile(rf"prompt: (?P<text>{_STRING}),\s", re.DOTALL)
_IDS = re.compile(r"prompt_token_ids: (?P<ids>None|\[[\d,\s]*\])")
_FINISH = re.compile(rf"(?:{_STRING}), finish_reason: (\w+)", re.DOTALL)
_MODEL = re.compile(r"served_model_name=['\"]?([^\s,'\")\]]+)")
_MANGLED = re.compile(r"^[^\n]{0,200}?\b(?:INFO|DEBUG)\b[^\n]{0,160}?Received request ", re.MULTILINE)
_LORA = re.compile(r"lora_request: LoRARequest\(lora_name='([^']+)'")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"^(?:\([^()\n]{1,60}\) )?(?:DEBUG|INFO) \d\d-\d\d \d\d:\d\d:\d\d[^\n\]]{0,80}\] ")
"""What vLLM repeats before each line of a message of several lines."""
_SUFFIX = re.compile(r"-[0-9a-f]{8}$")


class _Head(NamedTuple):
    """What is known of a request before its line is read on."""

    where: str
    id: str
    at: float | None
    model: str | None


def read(data: bytes, written_at: float) -> Iterator[Item]:
    """The requests in the log's order. `written_at`: when the file was last written; the log's times have no year."""
    text = _COLOUR.sub("", data.decode("utf-8", "replace"))
    found = _MODEL.search(text)
    model = found[1] if found else None
    bodies: list[tuple[str, Item]] = []
    items: list[tuple[str, Item]] = []
    finishes: dict[str, str] = {}
    bare: dict[str, int] = {}
    line, last, at = 1, 0, 0
    while start := _START.search(text, at):
        for odd in _mangled(text, at, start.start()):
            line, last = line + text.count("\n", last, odd), odd
            yield Bad(f"line {line}", MANGLED)
        line, last = line + text.count("\n", last, start.start()), start.start()
        where, at = f"line {line}", start.end()
        moment = _moment(start["time"], written_at)
        if start["answer"]:
            if ending := _FINISH.match(text, at):
                finishes[start["answer"]], at = ending[1], ending.end()
        elif start["bare"]:
            bare.setdefault(start["bare"], line)
        elif start["body"]:
            item, at = _with_body(_Head(where, start["body"], moment, model), text, at)
            bodies.append((start["body"], item))
        else:
            id = start["old"] or start["new"]
            item, at = _with_ids(_Head(where, id, moment, model), text, at)
            items.append((id, item))
    for odd in _mangled(text, at, len(text)):
        line, last = line + text.count("\n", last, odd), odd
        yield Bad(f"line {line}", MANGLED)
    items = items or bodies  # of one request both stand there, and ids are more exact than a body
    known = {_SUFFIX.sub("", id) for id, _ in items} | {id for id, _ in items}
    for id, item in items:
        if isinstance(item, Exchange) and (finish := finishes.get(id) or finishes.get(_SUFFIX.sub("", id))):
            item = _ended(item, finish)
        yield item
    for id, at_line in bare.items():
        if id not in known and _SUFFIX.sub("", id) not in known:
            yield Bad(f"line {at_line}", "no prompt in it: start vLLM with VLLM_LOGGING_LEVEL=DEBUG")


def _mangled(text: str, at: int, end: int) -> Iterator[int]:
    """Where lines begin that tell of a request, as no vLLM does."""
    return (found.start() for found in _MANGLED.finditer(text, at, end))


def _with_ids(head: _Head, text: str, at: int) -> tuple[Item, int]:
    """The exchange that stands from here, and where to look on: behind its prompt, which may itself be a log."""
    prompt = _PROMPT.match(text, at)
    if prompt is None:
        return Bad(head.where, f"the prompt of {head.id[:60]} is cut or not as vLLM writes it"), at
    return taken(head.where, "not as vLLM writes it", _exchange, head, text, prompt), prompt.end()


def _exchange(head: _Head, text: str, prompt: re.Match[str]) -> Item:
    at = prompt.end()
    following = _START.search(text, at)
    piece = text[at : following.start() if following else len(text)]
    ids = _IDS.search(piece)
    if ids is None and "prompt_token_ids:" in piece:
        ids = _IDS.search("".join(_PREFIX.sub("", line) for line in piece.split("\n")))
    if ids is None:
        return Bad(head.where, f"the token ids of {head.id[:60]} are cut or not as vLLM writes them")
    said = _literal(prompt["text"])
    numbers = None if ids["ids"] == "None" else [int(number) for number in re.findall(r"\d+", ids["ids"])]
    if numbers is None and said is None:
        return Bad(head.where, "neither prompt nor token ids in it")
    # --max-log-len cuts both to the same number, of characters and of ids: whole, a text has more of the former
    cut = numbers is not None and said is not None and len(said) == len(numbers) >= 100
    lora = _LORA.search(piece)
    return Exchange(
        where=head.where,
        path=PATHS["completions"],
        request=as_json({"prompt": said if numbers is None else numbers}),
        about_at=head.at,
        model=lora[1] if lora else head.model,
        hints={"vllm.request_id": head.id[:200]},
        prompt_tokens=None if cut or numbers is None else len(numbers),
        unproven=CUT if cut else NO_IDS if numbers is None else "",
    )


def _with_body(head: _Head, text: str, at: int) -> tuple[Item, int]:
    try:
        body, at = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        return Bad(head.where, "its JSON body is cut (--max-log-len)"), at
    return taken(head.where, "not as vLLM writes it", _of_body, head, body), at


def _of_body(head: _Head, body: Any) -> Item:
    path = body_path(body) if isinstance(body, dict) else None
    if path is None:
        return Bad(head.where, "no messages, prompt or input in its JSON body")
    hints = {"vllm.request_id": head.id[:200]}
    return Exchange(where=head.where, path=path, request=as_json(body), about_at=head.at, model=head.model, hints=hints)


def _ended(item: Exchange, finish: str) -> Exchange:
    item.finish_reason = finish
    return item


def _literal(text: str) -> str | None:
    """A Python literal as text. One that was broken by a log driver stays as it stands."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = text[1:-1]
    return value if isinstance(value, str) else None


def _moment(text: str | None, written_at: float) -> float | None:
    """A log's time, of the year that makes it the latest not after the file's."""
    if not text:
        return None
    try:
        year = datetime.fromtimestamp(written_at).year
    except (ValueError, OverflowError, OSError):  # a file whose time is no date
        return None
    for candidate in (year, year - 1):
        try:
            at = datetime.strptime(f"{candidate}-{text}", "%Y-%m-%d %H:%M:%S").timestamp()
        except (ValueError, OverflowError, OSError):
            continue
        if at <= written_at + 86_400:
            return at
    return None
