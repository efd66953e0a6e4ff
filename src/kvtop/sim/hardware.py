"""The cards and the host of the embedded box: what NVML and the host would say of it at this moment."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

from kvtop.readings import Gpu, GpuProcess, GpuReading, HostReading, OffloadFile, VllmProcess
from kvtop.sim.server import Vitals
from kvtop.sim.spec import EngineSpec

_CARD = "NVIDIA GeForce RTX 3090"
_CARD_BYTES = 24 * 2**30
_LIMIT_W = 350.0
_WORKSPACE_BYTES = 1_700_000_000
"""Context, graphs and activations of one card."""
_FIRST_PID = 41_233
_RAM_BYTES = 128 * 2**30
_SHM_BYTES = 64 * 2**30


def _pids(now: Vitals) -> tuple[int, int, tuple[int, int]]:
    """API, engine and workers; a restart gives them new numbers."""
    api = _FIRST_PID + 1_170 * now.restarts
    return api, api + 187, (api + 278, api + 279)


class SimGpus:
    """Reads like the NVML source. Safe to call from any thread: it looks at one frozen value of the box."""

    def __init__(self, spec: EngineSpec, vitals: Callable[[], Vitals]) -> None:
        self._spec = spec
        self._vitals = vitals
        self._rng = random.Random(3)
        self._heat = [52.0 + 3 * i for i in range(spec.cards)]
        self._at: float | None = None
        self._pcie: tuple[int, int] | None = None

    def read(self, pcie: bool = True) -> GpuReading:
        """All cards now. PCIe rates are None until they were asked for once, as with the real source."""
        now = self._vitals()
        passed = 1.0 if self._at is None else min(max(now.at - self._at, 0.0), 30.0)
        self._at = now.at
        if pcie:
            # Tensor parallelism over PCIe sends activations both ways whenever a step runs.
            between = 9e6 * now.busy_share * (3.0 if now.prefilling else 1.0)
            share = 1 / self._spec.cards
            self._pcie = (int(now.store_bytes_per_s * share + between), int(now.load_bytes_per_s * share + between))
        return GpuReading(tuple(self._card(i, now, passed) for i in range(self._spec.cards)), None, "580.95.05", now.at)

    def close(self) -> None:
        """Nothing to let go of."""

    def _card(self, index: int, now: Vitals, passed: float) -> Gpu:
        busy = now.busy_share if now.up else 0.0
        jitter = self._rng.uniform
        power = 28.0 + busy * ((308.0 if now.prefilling else 262.0) + jitter(-9, 9))
        capped = busy > 0.9 and now.prefilling
        if capped:
            power = _LIMIT_W - jitter(0.5, 6.0)
        goal = 36.0 + power * (0.105 if index == 0 else 0.097)
        self._heat[index] += (goal - self._heat[index]) * (1 - math.exp(-passed / 25.0))
        kv = self._spec.blocks * self._spec.block_bytes // self._spec.cards
        used = kv + self._spec.weights_bytes // self._spec.cards + _WORKSPACE_BYTES if now.up else 412 * 2**20
        worker = GpuProcess(_pids(now)[2][index % 2], used - 380 * 2**20, f"VLLM::Worker_TP{index}")
        return Gpu(
            index=index,
            name=_CARD,
            util_share=round(min(busy * jitter(0.97, 1.0), 1.0), 2),
            memory_used_bytes=min(used, _CARD_BYTES),
            memory_total_bytes=_CARD_BYTES,
            power_w=round(power, 1),
            power_limit_w=_LIMIT_W,
            temperature_c=round(self._heat[index]),
            pcie_tx_bytes_per_s=self._pcie[0] if self._pcie else None,
            pcie_rx_bytes_per_s=self._pcie[1] if self._pcie else None,
            throttle=("power cap",) if capped else (),
            processes=(worker,) if now.up else (),
        )


class SimHost:
    """Reads like the host source: a machine with 128 GiB, whose vLLM maps the tier's file."""

    def __init__(self, spec: EngineSpec, vitals: Callable[[], Vitals], port: Callable[[], int]) -> None:
        self._spec = spec
        self._vitals = vitals
        self._port = port

    def read(self) -> HostReading:
        """Memory, the tier's file (unlinked after mapping, as since 0.30) and the processes of the server."""
        now = self._vitals()
        tier = (now.tier_bytes or 0) if now.up else 0
        reading = HostReading(
            memory_total_bytes=_RAM_BYTES,
            memory_available_bytes=_RAM_BYTES - tier - (21 if now.up else 6) * 2**30,
            shm_total_bytes=_SHM_BYTES,
            shm_used_bytes=tier + 3 * 2**20,
            swap_used_bytes=0,
            pressure=0.0,
            at=now.at,
        )
        if not now.up:
            # A server that is being started again: its process lives, and its port refuses.
            api = VllmProcess(_pids(now)[0], "api", self._command(), self._port(), "127.0.0.1", now.at)
            return replace(reading, processes=(api,))
        files: tuple[OffloadFile, ...] = ()
        if tier:
            _, engine, workers = _pids(now)
            path = f"/dev/shm/vllm_offload_{0x3F2A91C7 + now.restarts:08x}.mmap"
            files = (OffloadFile(path, tier, (engine, *workers), unlinked=True),)
        return replace(reading, offload_files=files, processes=self._processes(now))

    def _command(self) -> tuple[str, ...]:
        cards = ("--tensor-parallel-size", str(self._spec.cards))
        return ("vllm", "serve", self._spec.model, *cards, "--port", str(self._port()))

    def _processes(self, now: Vitals) -> tuple[VllmProcess, ...]:
        port, serve = self._port(), self._command()
        api, engine, pids = _pids(now)
        began = now.at - now.uptime_s
        workers = (
            VllmProcess(pid, "worker", (f"VLLM::Worker_TP{i}",), started_at=began + 9, parent=engine)
            for i, pid in enumerate(pids[: self._spec.cards])
        )
        return (
            VllmProcess(api, "api", serve, port, "127.0.0.1", began, ports=(port,)),
            VllmProcess(engine, "engine", ("VLLM::EngineCore",), started_at=began + 6, parent=api),
            *workers,
        )
