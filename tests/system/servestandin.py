"""A stand-in for `vllm serve`: prints the lines of a recorded start at a pace, then answers /health, /v1/models and
/metrics. What it does otherwise is told by variables:

STANDIN_LOG        the recorded log; '{port}' is not replaced, nobody reads it there
STANDIN_PACE_S     how long the log takes (0.5)
STANDIN_FAIL       an exit code, when the log is printed
STANDIN_NEVER      is never ready
STANDIN_EXIT       `CODE` when it has answered /v1/models for the first time and STANDIN_DIE exists
STANDIN_DEAF       ignores SIGINT and SIGTERM
STANDIN_STRAY      leaves a process behind, in a session of its own, that ignores signals
STANDIN_LATE       leaves such a process behind at the moment of its own end
STANDIN_WORKER     has a worker in its own session that outlives it
STANDIN_TIER       maps a file in /dev/shm of that name and does not remove it
STANDIN_SPAM       when ready, writes so many bytes to its output, in lines
STANDIN_FLOOD      writes to its output faster than anybody reads it, and is never ready
STANDIN_MODEL      its model's name
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SLEEPER = "import signal, time\nfor n in (2, 15, 1): signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(60)"


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        model = os.environ.get("STANDIN_MODEL", "tiny")
        bodies = {
            "/health": "",
            "/v1/models": json.dumps({"object": "list", "data": [{"id": model, "owned_by": "vllm"}]}),
            "/metrics": 'vllm:cache_config_info{block_size="128",engine="0"} 1.0\n',
            "/environ": json.dumps(dict(os.environ)),
        }
        body = bodies.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("content-length", str(len((body or "").encode())))
        self.end_headers()
        self.wfile.write((body or "").encode())

    def log_message(self, format: str, *args: object) -> None:
        print(f'INFO:     127.0.0.1:1 - "{args[0]}" {args[1]}', flush=True)


def print_log() -> None:
    name = os.environ.get("STANDIN_LOG")
    if not name:
        return
    pieces = Path(name).read_bytes().splitlines(keepends=True)
    pause = float(os.environ.get("STANDIN_PACE_S", "0.5")) / max(1, len(pieces))
    for piece in pieces:
        os.write(1, piece)
        time.sleep(pause)


def end(code: int) -> None:
    if os.environ.get("STANDIN_LATE"):
        subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True)
    os._exit(code)


def main() -> None:
    env = os.environ
    if any(word.startswith("--help") for word in sys.argv):
        sys.exit("it has no flags of its own")
    if env.get("STANDIN_DEAF"):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    else:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: end(0))
    if env.get("STANDIN_STRAY"):
        subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True)
    if env.get("STANDIN_WORKER"):
        subprocess.Popen([sys.executable, "-c", SLEEPER])
    held = None
    if tier := env.get("STANDIN_TIER"):
        with Path("/dev/shm", tier).open("w+b") as file:
            file.truncate(1 << 20)
            held = mmap.mmap(file.fileno(), 1 << 20)
        print(f"(Worker pid=1) INFO 11-30 12:00:00 [x.py:1] Created mmap file /dev/shm/{tier} (0.0 GB)", flush=True)
    print_log()
    if env.get("STANDIN_FAIL"):
        end(int(env["STANDIN_FAIL"]))
    while env.get("STANDIN_FLOOD"):
        os.write(1, (b"x" * 99 + b"\n") * 600)
        time.sleep(0.001)
    if env.get("STANDIN_NEVER"):
        while True:
            time.sleep(60)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Answers)
    except OSError as error:
        print(f"Traceback (most recent call last):\nOSError: [Errno {error.errno}] {error.strerror}", flush=True)
        os._exit(1)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for _ in range(int(env.get("STANDIN_SPAM", "0")) // 100):
        os.write(1, b"x" * 99 + b"\n")
    die = env.get("STANDIN_DIE")
    while True:
        time.sleep(0.05)
        if die and Path(die).exists():
            print(
                "(APIServer pid=1) ERROR 11-30 12:00:00 [x.py:1] Engine core proc EngineCore died unexpectedly, "
                "shutting down client.",
                flush=True,
            )
            end(int(env.get("STANDIN_EXIT", "0")))
        assert held is None or held.size()


main()
