"""A tap in a process of its own for the benchmark: prints its port, and at its end what became of the connections.

usage: tapserve.py UPSTREAM_PORT STORE CAP_BYTES     with - for STORE: no recorder at all

Where there is no recorder module, a stand-in takes the frames apart and drops them.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

from kvtop.capture.tap.process import Mapping, serve

STAND_IN = """
import socket, sys
from kvtop.capture.tap.wire import Frames
sock, frames = socket.socket(fileno=int(sys.argv[1])), Frames()
while data := sock.recv(1 << 18):
    for frame in frames.feed(data):
        pass
"""


def main() -> None:
    port, store, cap = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    command = None
    if store != "-" and importlib.util.find_spec("kvtop.capture.recorder.process") is None:
        command = lambda fd: [sys.executable, "-c", STAND_IN, str(fd)]  # noqa: E731
    ended = serve(
        [Mapping("127.0.0.1", 0, "127.0.0.1", port, f"http://127.0.0.1:{port}")],
        store=None if store == "-" else Path(store),
        name="benchmark",
        on_listening=lambda addresses: print(addresses[0][1], flush=True),
        drain_s=1.0,
        command=command,
        cap_bytes=cap,
    )
    print(json.dumps({"cut": ended.cut, "served": ended.served, "lost_bytes": ended.lost_bytes}), flush=True)


if __name__ == "__main__":
    main()
