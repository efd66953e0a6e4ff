"""Claude Code's raw API bodies (OTEL_LOG_RAW_API_BODIES=file:DIR): UUID.request.json and ID.response.json, and an
index.jsonl that says which belong together and when they were written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvtop.capture.importers import files
from kvtop.capture.importers.exchange import PATHS, Bad, Exchange, Item, LeftOut, taken, words
from kvtop.errors import UsageError, printable

REQUEST, RESPONSE = ".request.json", ".response.json"
INDEX = "index.jsonl"
AGENT = "Claude Code"


def read(path: Path) -> Iterator[Item]:
    """The bodies of a folder, of an index, or one request's, in the order of their times. An answer whose request the
    index does not name stays out."""
    folder = path if path.is_dir() else path.parent
    entries, problems = _index(folder)
    if path.is_dir() or path.name == INDEX:
        yield from problems
        there = list(folder.iterdir())
        found = [file for file in there if file.name.endswith(REQUEST)]
        answers = {file.name for file in there if file.name.endswith(RESPONSE)}
        named = {str(entry.get("response_file")) for entry in entries.values()}
        yield from (LeftOut(name, answer=True) for name in sorted(answers - named))
    else:
        found = [path]
    for file in sorted(found, key=lambda file: (_at(file), file.name)):
        where = printable(file.name, 80)
        yield taken(where, "no request", _pair, where, file, entries.get(file.name, {}))


def is_folder(path: Path) -> bool:
    """Whether a folder looks like one of these."""
    return any(file.name.endswith(REQUEST) for file in path.iterdir())


def _index(folder: Path) -> tuple[dict[str, dict[str, Any]], list[Bad]]:
    """What the index says of each request file, and its lines that say nothing."""
    entries: dict[str, dict[str, Any]] = {}
    problems: list[Bad] = []
    if not (folder / INDEX).is_file():
        return entries, problems
    for found in files.objects(files.Source(folder / INDEX)):
        if isinstance(found, Bad):
            problems.append(Bad(f"{INDEX} {found.where}", found.why))
        elif isinstance(name := found.value.get("request_file"), str):
            entries[name] = found.value
    return entries, problems


def _at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _pair(where: str, file: Path, entry: dict[str, Any]) -> Item:
    try:
        request = files.read(file)
        body = files.parsed(request)
    except (UsageError, ValueError, RecursionError) as error:
        return Bad(where, words(error))
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        return Bad(where, "no messages in it")
    response, ended = None, None
    name = entry.get("response_file")
    if isinstance(name, str) and name == Path(name).name:
        try:
            response = files.read(file.parent / name)
            ended = files.unix_time(entry.get("timestamp"))
        except UsageError:
            ended = None
    written = _at(file)  # when the request was made, unless the file was copied
    betas = body.get("betas")
    hints = {}
    if isinstance(entry.get("query_source"), str):
        hints["query_source"] = printable(entry["query_source"], 80)
    return Exchange(
        where=where,
        path=PATHS["messages"],
        request=request,
        request_headers=[("anthropic-beta", ",".join(map(str, betas)))] if isinstance(betas, list) else [],
        response=response,
        stream=False,  # the answer is written put together
        about_at=min(written, ended) if ended else written,
        ended_at=ended,
        hints=hints,
        agent=AGENT,
    )
