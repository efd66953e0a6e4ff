"""A stand-in for the recorder: appends what it gets to a file, each life after a line of its own.

With --dies-after N it exits when it has N bytes.
"""

import argparse
import mmap
import socket
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--fd", type=int, required=True)
parser.add_argument("--done-fd", type=int)
parser.add_argument("--to", required=True)
parser.add_argument("--dies-after", type=int)
arguments = parser.parse_args()
sock = socket.socket(fileno=arguments.fd)
done = mmap.mmap(arguments.done_fd, 8) if arguments.done_fd is not None else bytearray(8)
got = 0
lives = sum(1 for _ in Path(arguments.to).parent.glob(Path(arguments.to).name + ".*"))
with Path(f"{arguments.to}.{lives}").open("wb", buffering=0) as out:
    while data := sock.recv(1 << 18):
        out.write(data)
        got += len(data)
        done[:8] = got.to_bytes(8, sys.byteorder)
        if arguments.dies_after is not None and got >= arguments.dies_after:
            break
