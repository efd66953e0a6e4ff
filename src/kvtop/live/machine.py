"""The machine's own sources: NVML and host. Each reads beside the loop, at its own pace, and may be dead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from kvtop.clock import Clock
from kvtop.config import Poll
from kvtop.live.endpoint import Sleep
from kvtop.live.factories import GpuLike, HostLike
from kvtop.readings import GpuReading, HostReading
from kvtop.worker import Caller, Hangs

READ_S = 5.0
"""A read that takes longer is given up; no second one starts while it hangs."""

NO_GPU_S = 30.0
"""Where there is no driver, it is looked for again this often."""


class GpuWatch:
    """The cards, now. `reading` is None until the first read is over."""

    def __init__(self, made: Callable[[], GpuLike], worker: Caller, poll: Poll, clock: Clock, sleep: Sleep) -> None:
        self.reading: GpuReading | None = None
        self._made = made
        self._worker = worker
        self._poll = poll
        self._clock = clock
        self._sleep = sleep
        self._source: GpuLike | None = None
        self._pcie_at: float | None = None

    async def run(self, changed: Callable[[], None]) -> None:
        while True:
            self.reading = await self._once()
            changed()
            absent = bool(self.reading.error) and not self.reading.gpus
            await self._sleep(NO_GPU_S if absent else self._poll.gpu_s)

    async def _once(self) -> GpuReading:
        now = self._clock.mono()
        pcie = self._pcie_at is None or now - self._pcie_at >= self._poll.pcie_s
        try:
            reading = await self._worker.call(lambda: self._read(pcie), READ_S)
        except (TimeoutError, Hangs):
            return self._failed("the NVIDIA driver does not answer")
        except Exception as error:  # noqa: BLE001  a driver's binding may raise anything; the others go on
            return self._failed(f"kvtop could not read the cards: {type(error).__name__}")
        if pcie:
            self._pcie_at = now
        return reading if reading.at is not None else replace(reading, at=self._clock.wall())

    def _read(self, pcie: bool) -> GpuReading:
        if self._source is None:
            self._source = self._made()
        return self._source.read(pcie)

    def _failed(self, why: str) -> GpuReading:
        """What was read last, with the time it is from, and why there is nothing newer."""
        return replace(self.reading or GpuReading(), error=why)


class HostWatch:
    """Memory, /dev/shm and the vLLM processes. `reading` keeps its time, and says why, where a later read failed."""

    def __init__(self, made: Callable[[], HostLike], worker: Caller, poll: Poll, clock: Clock, sleep: Sleep) -> None:
        self.reading: HostReading | None = None
        self._made = made
        self._worker = worker
        self._poll = poll
        self._clock = clock
        self._sleep = sleep
        self._source: HostLike | None = None
        self.tried = asyncio.Event()
        """The first read is over, or given up."""

    async def run(self, changed: Callable[[], None]) -> None:
        while True:
            reading = await self._once()
            if reading is not None:
                self.reading = reading
                changed()
            self.tried.set()
            await self._sleep(self._poll.host_s)

    async def _once(self) -> HostReading | None:
        try:
            reading = await self._worker.call(self._read, READ_S)
        except (TimeoutError, Hangs):
            return self._failed("/proc does not answer")
        except Exception as error:  # noqa: BLE001  /proc may hold anything; the others go on
            return self._failed(f"kvtop could not read this machine: {type(error).__name__}")
        return reading if reading.at is not None else replace(reading, at=self._clock.wall())

    def _failed(self, why: str) -> HostReading | None:
        return replace(self.reading, error=why) if self.reading is not None else None

    def _read(self) -> HostReading:
        if self._source is None:
            self._source = self._made()
        return self._source.read()


def held(host: HostReading | None, gpu: GpuReading | None) -> object:
    """What a check of a profile hangs on: who runs vLLM here, and memory in steps, so that it is equal for a while."""
    step = 2 << 30
    if host is None:
        return None
    free = (host.memory_available_bytes, host.shm_used_bytes)
    cards = [card.memory_used_bytes for card in gpu.gpus] if gpu is not None else []
    return (
        tuple(process.pid for process in host.processes),
        tuple(None if size is None else round(size / step / 2) for size in free),
        tuple(None if size is None else round(size / step) for size in cards),
    )
