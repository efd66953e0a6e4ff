"""A stand-in for the recorder: appends what it gets to a file, each life after a line of its own.

With --dies-after N it exits when it has N bytes.
"""

import argparse
import socket
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--fd", type=int, required=True)
parser.add_argument("--to", required=True)
parser.add_argument("--dies-after", type=int)
arguments = parser.parse_args()
sock = socket.socket(fileno=arguments.fd)
got = 0
lives = sum(1 for _ in Path(arguments.to).parent.glob(Path(arguments.to).name + ".*"))
with Path(f"{arguments.to}.{lives}").open("wb", buffering=0) as out:
    while data := sock.recv(1 << 18):
        out.write(data)
        got += len(data)
        if arguments.dies_after is not None and got >= arguments.dies_after:
            break
