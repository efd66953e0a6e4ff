"""A tap in a process of its own for the benchmark: prints its port, and at its end what became of the connections.

usage: tapserve.py UPSTREAM_PORT STORE CAP_BYTES     with - for STORE: no recorder at all
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kvtop.capture.tap.process import Mapping, serve


def main() -> None:
    port, store, cap = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    ended = serve(
        [Mapping("127.0.0.1", 0, "127.0.0.1", port, f"http://127.0.0.1:{port}")],
        store=None if store == "-" else Path(store),
        name="benchmark",
        on_listening=lambda addresses: print(addresses[0][1], flush=True),
        drain_s=1.0,
        cap_bytes=cap,
    )
    lost_bytes = ended.missed.bytes if ended.missed is not None else 0
    print(json.dumps({"cut": ended.cut, "served": ended.served, "lost_bytes": lost_bytes}), flush=True)


if __name__ == "__main__":
    main()
