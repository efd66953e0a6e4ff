"""The command line of scripts/real-vllm."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import servers
from install import install, usable
from places import Places, Problem


def parser() -> argparse.ArgumentParser:
    kinds = "\n".join(f"  {name:<8} {kind.says}" for name, kind in servers.KINDS.items())
    top = argparse.ArgumentParser(
        prog="real-vllm",
        description="Real vLLM servers without a GPU, with a model of a few MB (2 GiB of memory each).",
        epilog=f"servers:\n{kinds}\n\nKVTOP_VLLM_DIR names the folder (default: kvtop-vllm in the cache folder), "
        "KVTOP_VLLM_VENV an environment that has vLLM already.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True)
    one = commands.add_parser("install", help="install vLLM (about 2.5 GB) and make the models")
    one.add_argument("folder", nargs="?", type=Path, metavar="DIR")
    one = commands.add_parser("start", help="start a server and return at once")
    one.add_argument("name", choices=servers.KINDS)
    one.add_argument("--port", type=int, help="default: any free one")
    one.add_argument("--wait", action="store_true", help="return when it answers")
    one.epilog = "Further arguments go to `vllm serve`."
    one = commands.add_parser("wait", help="wait until a started server answers")
    one.add_argument("name")
    one.add_argument("--timeout", type=float, default=300.0, metavar="S")
    one = commands.add_parser("stop", help="SIGINT, and after 15 s SIGKILL to its process group")
    one.add_argument("name")
    one = commands.add_parser("status", help="what is installed and what runs")
    one.add_argument("--json", action="store_true")
    return top


def status(places: Places) -> dict[str, object]:
    rows = []
    for record in servers.known(places):
        lives = servers.alive(record)
        state = "up" if lives and servers.healthy(record.url) else "starting or hung" if lives else "gone"
        rows.append({"name": record.name, "state": state, "pid": record.pid, "url": record.url, "log": record.log})
    return {"folder": str(places.home), "venv": str(places.venv), "installed": usable(places), "servers": rows}


def show_status(found: dict[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    print(f"vLLM {'is' if found['installed'] else 'is not'} installed in {found['venv']}")
    for row in found["servers"]:  # type: ignore[attr-defined]
        print(f"{row['name']:<8} {row['state']:<16} pid {row['pid']:<8} {row['url']}  {row['log']}")


def run(argv: list[str]) -> None:
    arguments, extra = parser().parse_known_args(argv)
    if extra and arguments.command != "start":
        parser().error(f"unknown arguments: {' '.join(extra)}")
    places = Places.default()
    match arguments.command:
        case "install":
            install(Places(arguments.folder.absolute()) if arguments.folder else places)
        case "start":
            record = servers.start(places, arguments.name, arguments.port, extra)
            if arguments.wait:
                servers.wait(places, arguments.name, 300.0)
            print(f"{record.name}: pid {record.pid}, {record.url}, log {record.log}")
        case "wait":
            print(f"{arguments.name}: answers after {servers.wait(places, arguments.name, arguments.timeout):.0f} s")
        case "stop":
            print(f"{arguments.name}: {servers.stop(places, arguments.name)}")
        case "status":
            show_status(status(places), arguments.json)


def main() -> int:
    try:
        run(sys.argv[1:])
    except Problem as problem:
        print(f"real-vllm: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
