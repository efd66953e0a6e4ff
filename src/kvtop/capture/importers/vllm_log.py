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

from kvtop.capture.importers.exchange import PATHS, Bad, Exchange, Item, as_json, body_path

CUT = "cut by --max-log-len: the ids at the end are missing"
NO_IDS = "no token ids in the log"

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
_LORA = re.compile(r"lora_request: LoRARequest\(lora_name='([^']+)'")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"^(?:\([^()\n]{1,60}\) )?(?:DEBUG|INFO) \d\d-\d\d \d\d:\d\d:\d\d[^\n\]]{0,80}\] ")
"""What vLLM repeats before each line of a message of several lines."""
_SUFFIX = re.compile(r"-[0-9a-f]{8}$")


def read(data: bytes, written_at: float) -> Iterator[Item]:
    """The requests in the log's order. `written_at`: when the file was last written; the log's times have no year."""
    text = _COLOUR.sub("", data.decode("utf-8", "replace"))
    found = _MODEL.search(text)
    model = found[1] if found else None
    starts = list(_START.finditer(text))
    ends = [*(start.start() for start in starts[1:]), len(text)][: len(starts)]
    detailed: set[str] = set()
    bodies: dict[str, Item] = {}
    items: list[tuple[str, Item]] = []
    finishes: dict[str, str] = {}
    bare: dict[str, int] = {}
    line, last = 1, 0
    for start, end in zip(starts, ends, strict=True):
        line, last = line + text.count("\n", last, start.start()), start.start()
        where, piece = f"line {line}", text[start.end() : end]
        at = _moment(start["time"], written_at)
        if start["answer"]:
            if ending := _FINISH.match(piece):
                finishes[start["answer"]] = ending[1]
        elif start["bare"]:
            bare.setdefault(start["bare"], line)
        elif start["body"]:
            bodies.setdefault(start["body"], _with_body(where, start["body"], piece, at, model))
        else:
            id = start["old"] or start["new"]
            detailed.add(id)
            items.append((id, _with_ids(where, id, piece, at, model)))
    items += [(id, item) for id, item in bodies.items() if id not in detailed]
    known = {_SUFFIX.sub("", id) for id, _ in items} | {id for id, _ in items}
    for id, item in items:
        if isinstance(item, Exchange) and (finish := finishes.get(id) or finishes.get(_SUFFIX.sub("", id))):
            item = _ended(item, finish)
        yield item
    for id, at_line in bare.items():
        if id not in known and _SUFFIX.sub("", id) not in known:
            yield Bad(f"line {at_line}", "no prompt in it: start vLLM with VLLM_LOGGING_LEVEL=DEBUG")


def _with_ids(where: str, id: str, piece: str, at: float | None, model: str | None) -> Item:
    prompt = _PROMPT.match(piece)
    if prompt is None:
        return Bad(where, f"the prompt of {id[:60]} is cut or not as vLLM writes it")
    ids = _IDS.search(piece, prompt.end())
    if ids is None and "prompt_token_ids:" in piece[prompt.end() :]:
        joined = "".join(_PREFIX.sub("", line) for line in piece[prompt.end() :].split("\n"))
        ids = _IDS.search(joined)
    if ids is None:
        return Bad(where, f"the token ids of {id[:60]} are cut or not as vLLM writes them")
    text = _literal(prompt["text"])
    numbers = None if ids["ids"] == "None" else [int(number) for number in re.findall(r"\d+", ids["ids"])]
    if numbers is None and text is None:
        return Bad(where, "neither prompt nor token ids in it")
    # --max-log-len cuts both to the same number, of characters and of ids: whole, a text has more of the former
    cut = numbers is not None and text is not None and len(text) == len(numbers) >= 100
    lora = _LORA.search(piece)
    return Exchange(
        where=where,
        path=PATHS["completions"],
        request=as_json({"prompt": text if numbers is None else numbers}),
        about_at=at,
        model=lora[1] if lora else model,
        hints={"vllm.request_id": id[:200]},
        prompt_tokens=None if cut or numbers is None else len(numbers),
        unproven=CUT if cut else NO_IDS if numbers is None else "",
    )


def _with_body(where: str, id: str, piece: str, at: float | None, model: str | None) -> Item:
    try:
        body, _ = json.JSONDecoder().raw_decode(piece.strip())
    except (ValueError, RecursionError):
        return Bad(where, "its JSON body is cut (--max-log-len)")
    path = body_path(body) if isinstance(body, dict) else None
    if path is None:
        return Bad(where, "no messages, prompt or input in its JSON body")
    hints = {"vllm.request_id": id[:200]}
    return Exchange(where=where, path=path, request=as_json(body), about_at=at, model=model, hints=hints)


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
    year = datetime.fromtimestamp(written_at).year
    for candidate in (year, year - 1):
        try:
            at = datetime.strptime(f"{candidate}-{text}", "%Y-%m-%d %H:%M:%S").timestamp()
        except ValueError:
            continue
        if at <= written_at + 86_400:
            return at
    return None
