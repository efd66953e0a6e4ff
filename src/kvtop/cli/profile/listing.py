"""`kvtop profile list`: every profile in one row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvtop.cli.args import Parser
from kvtop.cli.table import show
from kvtop.errors import printable
from kvtop.profiles import folder
from kvtop.profiles.folder import Entry
from kvtop.profiles.standing import Standing, known, standing
from kvtop.sources.tier_size import GIB

_WIDTH = 40


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop profile list",
        usage="%(prog)s [-h] [--json]",
        description="The profiles of the folder profiles/ beside config.toml. State `foreign`: a server that kvtop did "
        "not start runs with the flags of this profile.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    args = parser.parse_args(argv)
    entries = folder.read_all()
    rows = [_row(one) for one in states(entries)]
    if args.json:
        print(json.dumps(rows, allow_nan=False))
    elif not rows:
        print(f"no profiles in {folder.folder()}")
        print("kvtop profile import makes one of what runs your server today; docs/profiles.md shows the format")
    else:
        _tell(rows)
    return 0


def states(entries: Sequence[Entry]) -> list[Standing]:
    """Each with its server, as it is now."""
    from kvtop.sources.processes import ProcessTable

    return standing([known(entry) for entry in entries], ProcessTable().read().vllm)


def _row(one: Standing) -> dict[str, Any]:
    """A row of the JSON contract. What is not known is None."""
    known = one.known
    since = None if one.since is None else datetime.fromtimestamp(one.since, UTC)
    failed = printable(one.record.why, 600) if one.state == "failed" and one.record is not None else ""
    return {
        "name": known.name,
        "file": str(known.file),
        "runner": known.runner or None,
        "model": known.model or None,
        "port": known.port,
        "gpus": list(known.gpus) or None,
        "cpu_tier_bytes": known.tier_bytes,
        "state": one.state,
        "pid": one.pid,
        "since": None if since is None else since.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "error": known.problem or failed or None,
    }


def _tell(rows: Sequence[dict[str, Any]]) -> None:
    heads = ("name", "runner", "model", "port", "GPU", "tier", "state", "since, or what stands in the way")
    lines = [heads]
    for row in rows:
        tier = row["cpu_tier_bytes"]
        model = (row["model"] or "–").rstrip("/").rpartition("/")[2]
        error = (row["error"] or "").replace(f"{Path(row['file']).parent}/", "")
        told = error or (f"pid {row['pid']}, since {row['since']}" if row["pid"] else "")
        lines.append(
            (
                printable(row["name"], _WIDTH),
                row["runner"] or "–",
                printable(model, _WIDTH),
                str(row["port"] or "–"),
                printable(",".join(row["gpus"] or ["–"]), _WIDTH),
                "–" if tier is None else f"{tier / GIB:.1f} GiB",
                row["state"],
                told,
            )
        )
    show(lines, left=8)
