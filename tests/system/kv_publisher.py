"""A publisher of KV events as vLLM has it, with its replay; its subscribers are seen, so that a test need not wait."""

from __future__ import annotations

import asyncio
from typing import Self

import zmq
import zmq.asyncio

END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """Binds like vLLM; `keeps` is the replay's buffer."""

    def __init__(self, port: int = 0, replay_port: int = 0, *, replays: bool = True) -> None:
        self.context = zmq.asyncio.Context()
        self.pub = self.context.socket(zmq.XPUB)
        self.pub.setsockopt(zmq.LINGER, 0)
        self.pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.pub.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.endpoint = self.pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay = self.context.socket(zmq.ROUTER)
        self.replay.setsockopt(zmq.LINGER, 0)
        self.replay.bind(f"tcp://127.0.0.1:{replay_port or '*'}")
        self.replay_endpoint = self.replay.getsockopt_string(zmq.LAST_ENDPOINT) if replays else None
        self.kept: list[tuple[int, bytes]] = []
        self.asked: list[int] = []
        self.seq = -1
        self._service = asyncio.create_task(self._serve())

    @property
    def ports(self) -> tuple[int, int]:
        found = [self.endpoint, self.replay.getsockopt_string(zmq.LAST_ENDPOINT)]
        first, second = (int(one.rpartition(":")[2]) for one in found)
        return first, second

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._service.cancel()
        self.context.destroy(linger=0)

    async def subscribed(self) -> None:
        async with asyncio.timeout(20):
            await self.pub.recv()

    async def heard(self) -> bytes:
        """The next subscription (b"\1...") or the end of one (b"\0...")."""
        async with asyncio.timeout(20):
            told: bytes = await self.pub.recv()
            return told

    async def publish(self, payload: bytes, *, lost: bool = False) -> None:
        """`lost`: on the way; the replay has it."""
        self.seq += 1
        self.kept.append((self.seq, payload))
        if not lost:
            await self.pub.send_multipart([b"kv", self.seq.to_bytes(8, "big"), payload])

    async def _serve(self) -> None:
        while True:
            client, _, start = await self.replay.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            for seq, payload in self.kept:
                if seq >= first:
                    await self.replay.send_multipart([client, b"", b"kv", seq.to_bytes(8, "big"), payload])
            await self.replay.send_multipart([client, b"", b"", END, b""])
