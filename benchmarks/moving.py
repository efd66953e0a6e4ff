"""A /metrics endpoint that moves: consecutive texts of a real server, played over and over with growing counters.

usage: moving.py PORT CAPTURE [NAME=VALUE ...]      NAME=VALUE holds a gauge at a value

The capture is a folder of consecutive texts 0.5 s apart. After the last one it starts again, with what all counters
grew by in a lap added, so that nothing ever falls. Texts are made ahead of time: serving costs next to nothing.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STEP_S = 0.5
LAPS = 12
COUNTS = ("_total", "_sum", "_count")
LINE = re.compile(r"(?P<series>[a-zA-Z_:][^ {]*(?:\{.*\})?) (?P<value>\S+)$")

ANSWERS = {
    "/health": b"",
    "/version": b'{"version": "0.32.0"}',
    "/v1/models": json.dumps(
        {"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "vllm", "max_model_len": 32768}]}
    ).encode(),
}


def values(text: str) -> dict[str, float]:
    found = (LINE.match(line) for line in text.splitlines() if not line.startswith("#"))
    return {match["series"]: float(match["value"]) for match in found if match}


def counts(series: str) -> bool:
    name = series.partition("{")[0]
    return name.startswith(("vllm:", "http_")) and name.endswith((*COUNTS, "_bucket"))


def laps(folder: Path, held: dict[str, float]) -> list[str]:
    """All the texts of LAPS rounds."""
    texts = [path.read_text() for path in sorted(folder.glob("[0-9]*.txt"))]
    first, last = values(texts[0]), values(texts[-1])
    growth = {series: last[series] - first.get(series, 0.0) for series in last if counts(series)}
    moment = [values(text) for text in texts]
    started = f"{time.time():.2f}"

    def line(text: str, now: dict[str, float], lap: int) -> str:
        match = LINE.match(text)
        if match is None or text.startswith("#"):
            return text
        series = match["series"]
        name = series.partition("{")[0]
        if name in held:
            return f"{series} {held[name]}"
        if name == "process_start_time_seconds":
            return f"{series} {started}"
        if not counts(series):
            return text
        return f"{series} {now.get(series, first.get(series, 0.0)) + lap * growth[series]}"

    made = []
    for lap in range(LAPS):
        # A series that appears during the capture stays: later laps have the lines of the last text.
        for n, text in enumerate(texts[:-1] if lap == 0 else [texts[-1]] * (len(texts) - 1)):
            made.append("\n".join(line(row, moment[n], lap) for row in text.splitlines()) + "\n")
    return made


def handler(text_now: Callable[[], bytes]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        scrapes = 0

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                Handler.scrapes += 1
            body = text_now() if path == "/metrics" else ANSWERS.get(path)
            if path == "/scrapes":
                body = str(Handler.scrapes).encode()
            self.send_response(200 if body is not None else 404)
            kind = "text/plain; version=0.0.4" if path == "/metrics" else "application/json"
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


class Quiet(ThreadingHTTPServer):
    """A program that was ended leaves its connection broken: no word about that."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def main(argv: list[str]) -> int:
    port, folder = int(argv[1]), Path(argv[2])
    held = {name: float(value) for name, _, value in (word.partition("=") for word in argv[3:])}
    texts = [text.encode() for text in laps(folder, held)]
    started = time.monotonic()

    def text_now() -> bytes:
        return texts[int((time.monotonic() - started) / STEP_S) % len(texts)]

    server = Quiet(("127.0.0.1", port), handler(text_now))
    print(f"{len(texts)} texts of {len(texts[-1].splitlines())} lines", flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
