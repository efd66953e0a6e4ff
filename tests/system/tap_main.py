"""A tap as a process of its own: prints its address when it listens, and what became of the connections at its end."""

import argparse
import json
import resource
from pathlib import Path

from rawtalk import file_recorder

from kvtop.capture.tap.process import Mapping, serve

parser = argparse.ArgumentParser()
parser.add_argument("upstream", type=int)
parser.add_argument("--frames", type=Path)
parser.add_argument("--drain", type=float, default=0.0)
parser.add_argument("--cap", type=int, default=32 << 20)
parser.add_argument("--files", type=int)
arguments = parser.parse_args()
if arguments.files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (arguments.files, arguments.files))
ended = serve(
    [Mapping("127.0.0.1", 0, "127.0.0.1", arguments.upstream, f"http://127.0.0.1:{arguments.upstream}")],
    store=None,
    name="test",
    on_listening=lambda addresses: print(json.dumps(addresses), flush=True),
    drain_s=arguments.drain,
    command=file_recorder(arguments.frames) if arguments.frames else None,
    cap_bytes=arguments.cap,
)
print(json.dumps([ended.cut, ended.served]), flush=True)
