"""What following KV events costs: a server with 64 streams, over ZMQ, in the thread that the dashboard keeps for it.

`benchmarks/kv_events.py [--seconds S] [--streams N]`. A publisher in a process of its own says what vLLM would: 40
steps a second, each stream writing a token a step, a turn of 2,000 new tokens for each of them every 30 seconds, and
a full pool that loses a block for each one that it stores. Then the same as fast as it can be read, and what a full
index holds in memory. A tick of 10 ms on the main loop shows what it costs the screen.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import resource
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import zmq

from kvtop.clock import SystemClock
from kvtop.live.endpoint import Endpoint
from kvtop.live.kv_watch import MAX_BLOCKS, MAX_CHANGES, KvWatch
from kvtop.live.named import Named
from kvtop.readings import KvPublisher
from kvtop.sources.kv_places import KvPlaces
from kvtop.triage.kv_events import decode
from kvtop.triage.residency import Residency

BLOCK = 16
STEPS = 40
EVERY_S = 30
NEW_TOKENS = 2_000
POOL = 100_000
"""Blocks."""
TICK_S = 0.01


def steps(streams: int) -> Iterator[bytes]:
    """One payload a step, without end."""
    dice = random.Random(1)
    ends: list[int | None] = [None] * streams
    pool: deque[int] = deque()
    at = time.time()

    def stored(stream: int, blocks: int) -> dict[str, Any]:
        hashes = [dice.getrandbits(63) for _ in range(blocks)]
        pool.extend(hashes)
        event = {
            "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": ends[stream], "block_size": BLOCK,
            "token_ids": [dice.randrange(150_000) for _ in range(blocks * BLOCK)], "lora_id": None, "medium": "GPU",
        }  # fmt: skip
        ends[stream] = hashes[-1]
        return event

    for step in range(1 << 60):
        events = [stored(one, 1) for one in range(streams) if (step + one) % BLOCK == 0]
        events += [
            stored(one, NEW_TOKENS // BLOCK)
            for one in range(streams)
            if (step + one * STEPS * EVERY_S // streams) % (STEPS * EVERY_S) == 0
        ]
        if len(pool) > POOL:
            gone = [pool.popleft() for _ in range(len(pool) - POOL)]
            events.append({"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"})
        at += 1 / STEPS
        yield msgspec.msgpack.encode([at, events])


def publish(port: Any, streams: int) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.bind("tcp://127.0.0.1:*")
    port.send(socket.getsockopt_string(zmq.LAST_ENDPOINT))
    socket.recv()
    began = time.monotonic()
    for number, payload in enumerate(steps(streams)):
        time.sleep(max(0.0, began + number / STEPS - time.monotonic()))
        socket.send_multipart([b"", number.to_bytes(8, "big"), payload])


@dataclass
class History:
    url: str = "http://127.0.0.1:8000"
    started_at: float | None = 1.0
    pid: int | None = None


@dataclass
class Watched:
    history: History = field(default_factory=History)
    good: bool = True


async def followed(endpoint: str | None, seconds: float) -> tuple[float, list[float], int]:
    """CPU seconds, how late each tick was, blocks that are known."""

    async def find(*_: object) -> KvPlaces:
        return KvPlaces((KvPublisher(0, endpoint),)) if endpoint else KvPlaces()

    watch = KvWatch(find, Named([]), SystemClock())
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    watch.follow([cast(Endpoint, Watched())], None)
    await asyncio.sleep(1.0)
    cpu, late, end = time.process_time(), [], time.monotonic() + seconds
    while time.monotonic() < end:
        before = time.monotonic()
        await asyncio.sleep(TICK_S)
        late.append(time.monotonic() - before - TICK_S)
    cpu = time.process_time() - cpu
    engine = watch._followed[History.url].events.engines.get(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    if engine is not None and engine.index.lost:
        print(f"lost {engine.index.lost} messages")
    return cpu, sorted(late), engine.index.blocks if engine is not None else 0


def flat_out(streams: int, count: int) -> tuple[float, int]:
    """Seconds for so many steps, and the blocks that they told of."""
    told = [payload for payload, _ in zip(steps(streams), range(count), strict=False)]
    index, changes = Residency(max_blocks=MAX_BLOCKS, max_changes=MAX_CHANGES), 0
    began = time.process_time()
    for number, payload in enumerate(told):
        batch = decode(number, payload)
        index.feed(batch)
        changes += sum(len(getattr(event, "hashes", ())) for event in batch.events)
    return time.process_time() - began, changes


def full() -> tuple[int, float]:
    """Blocks of an index that can hold no more, and the MB that it takes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    index = Residency(max_blocks=MAX_BLOCKS, max_changes=MAX_CHANGES)
    dice, number = random.Random(2), 0
    while number < 3 * MAX_BLOCKS // 125:
        hashes = [dice.getrandbits(63) for _ in range(125)]
        tokens = [dice.randrange(150_000) for _ in range(125 * BLOCK)]
        event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": tokens}
        raw = msgspec.msgpack.encode([100.0 + number, [event | {"block_size": BLOCK, "medium": "GPU"}]])
        index.feed(decode(number, raw))
        number += 1
    return index.blocks, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--streams", type=int, default=64)
    wanted = parser.parse_args()
    blocks, mb = full()
    print(f"a full index of {blocks:,} blocks takes {mb:.0f} MB")
    for endpoint in (False, True):
        mine, theirs = multiprocessing.get_context("spawn").Pipe()
        if endpoint:
            child = multiprocessing.get_context("spawn").Process(target=publish, args=(theirs, wanted.streams))
            child.start()
        cpu, late, known = asyncio.run(followed(mine.recv() if endpoint else None, wanted.seconds))
        if endpoint:
            child.terminate()
            child.join()
        what = f"{wanted.streams} streams" if endpoint else "nothing published"
        p99, most = late[int(len(late) * 0.99)] * 1000, late[-1] * 1000
        print(f"{what}: {cpu / wanted.seconds:.2%} of a core; {known:,} blocks known")
        print(f"  a tick of 10 ms was {p99:.2f} ms late (p99, n={len(late)}), {most:.2f} ms at most")
    took, changes = flat_out(wanted.streams, 20_000)
    print(f"as fast as it can be read: {took / changes * 1e6:.1f} us a block stored or removed (n={changes:,})")


if __name__ == "__main__":
    main()
