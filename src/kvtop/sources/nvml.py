"""The NVIDIA cards of this machine, by NVML.

A field that a card or driver does not tell is None; a card that fell off the bus says so while the others stay; without
a driver the reading says why in words, and the driver is looked for again with growing pauses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from kvtop.clock import Clock, SystemClock
from kvtop.errors import printable
from kvtop.readings import Gpu, GpuProcess, GpuReading

RETRY_FIRST_S = 2.0
RETRY_LAST_S = 60.0

_T = TypeVar("_T")

_KILO = 1000
"""NVML gives PCIe traffic in KB/s."""

_REASONS: tuple[tuple[int, str], ...] = (
    (0x04, "power cap"),
    (0x60, "thermal"),
    (0x80, "power brake"),
    (0x10, "sync boost"),
    (0x02, "clock limit set"),
    (0x100, "display clock"),
    (0x200, "board limit"),
    (0x400, "reliability"),
)
"""Bits of the clock event reasons (formerly throttle reasons). Not named: 0x01, the card is idle."""
_HW_SLOWDOWN = 0x08
"""Thermal or power brake, said more generally: a reason of its own only without those."""

_NO_DRIVER = {
    9: "the NVIDIA driver is not loaded",
    12: "no NVIDIA driver here: libnvidia-ml.so.1 not found",
    18: "the NVIDIA driver and its library are of different versions: restart kvtop, or the machine",
    4: "no permission to ask the NVIDIA driver",
}
_LOST = {15: "GPU is lost: it fell off the bus", 16: "GPU needs a reset"}
_GONE = (1, 9, 18)
"""Uninitialized, driver not loaded, version mismatch: nothing can be asked any more."""


class _DriverGone(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _CardLost(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class _Known:
    """What is remembered of a card between two readings."""

    name: str
    uuid: str | None = None
    pcie_tx: int | None = None
    pcie_rx: int | None = None


class NvmlSource:
    """Reads all cards. `read` blocks: about 1 ms a card, and 40 ms more a card where PCIe is sampled."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._nvml: Any = None
        """The pynvml module while NVML is initialised."""
        self._driver: str | None = None
        self._error = ""
        self._retry_at = float("-inf")
        self._pause_s = RETRY_FIRST_S
        self._cards: dict[int, _Known] = {}
        self._names: dict[int, str | None] = {}

    def read(self, pcie: bool = True) -> GpuReading:
        """All cards now. Without `pcie` the PCIe numbers are those of the last reading that sampled them."""
        at = self._clock.wall()
        try:
            if self._nvml is None and not self._start():
                return GpuReading(error=self._error, at=at)
            count = self._strict(self._nvml.nvmlDeviceGetCount)
            gpus = tuple(self._card(index, pcie) for index in range(count))
        except (_DriverGone, _CardLost) as gone:  # one lost card may answer for all of them
            known = _NO_DRIVER | _LOST
            self._stop(known.get(gone.code, f"the NVIDIA driver does not answer (NVML error {gone.code})"))
            return GpuReading(error=self._error, at=at)
        pids = {process.pid for gpu in gpus for process in gpu.processes}
        self._names = {pid: name for pid, name in self._names.items() if pid in pids}
        error = None if gpus else "the NVIDIA driver sees no card"
        return GpuReading(gpus=gpus, error=error, driver=self._driver, at=at)

    def close(self) -> None:
        if self._nvml is not None:
            self._shutdown()

    def _start(self) -> bool:
        """Initialise NVML, not more often than the pause allows."""
        now = self._clock.mono()
        if now < self._retry_at:
            return False
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            code = int(error.value)
            self._error = _NO_DRIVER.get(code, f"NVML does not start: {printable(str(error), 60)}")
            self._wait(now)
            return False
        self._nvml = pynvml
        self._pause_s = RETRY_FIRST_S
        driver = self._ask(pynvml.nvmlSystemGetDriverVersion)
        self._driver = printable(driver, 40) if driver else None
        return True

    def _wait(self, now: float) -> None:
        self._retry_at = now + self._pause_s
        self._pause_s = min(self._pause_s * 2, RETRY_LAST_S)

    def _stop(self, error: str) -> None:
        self._shutdown()
        self._error = error
        self._wait(self._clock.mono())

    def _shutdown(self) -> None:
        # With the driver gone there is nothing left to give back.
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()
        self._nvml = None

    def _strict(self, call: Callable[..., _T], *args: object) -> _T:
        """A call without which nothing can be read."""
        try:
            return call(*args)
        except self._nvml.NVMLError as error:
            if error.value in _LOST:
                raise _CardLost(error.value) from None
            raise _DriverGone(error.value) from None

    def _ask(self, call: Callable[..., _T], *args: object) -> _T | None:
        """One field: None where this card or driver does not tell."""
        try:
            return call(*args)
        except UnicodeDecodeError:
            return None
        except self._nvml.NVMLError as error:
            if error.value in _LOST:
                raise _CardLost(error.value) from None
            if error.value in _GONE:
                raise _DriverGone(error.value) from None
            return None

    def _card(self, index: int, pcie: bool) -> Gpu:
        known = self._cards.setdefault(index, _Known(f"GPU {index}"))
        try:
            return self._fields(index, known, pcie)
        except _CardLost as lost:
            known.pcie_tx = known.pcie_rx = None
            return Gpu(index=index, name=known.name, lost=_LOST[lost.code])

    def _fields(self, index: int, known: _Known, pcie: bool) -> Gpu:
        nvml = self._nvml
        try:
            handle = self._strict(nvml.nvmlDeviceGetHandleByIndex, index)
        except _DriverGone as gone:
            if gone.code in _GONE:
                raise
            return Gpu(index=index, name=known.name, lost=f"cannot be opened (NVML error {gone.code})")
        name = self._ask(nvml.nvmlDeviceGetName, handle)
        if name:
            known.name = printable(name, 60)
        util = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        # The second version does not count what the driver keeps for itself as used.
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        if memory is None:
            memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        if pcie:
            known.pcie_tx = self._pcie(handle, nvml.NVML_PCIE_UTIL_TX_BYTES)
            known.pcie_rx = self._pcie(handle, nvml.NVML_PCIE_UTIL_RX_BYTES)
        return Gpu(
            index=index,
            name=known.name,
            util_share=util.gpu / 100 if util is not None else None,
            memory_used_bytes=int(memory.used) if memory is not None else None,
            memory_total_bytes=int(memory.total) if memory is not None else None,
            power_w=_watts(self._ask(nvml.nvmlDeviceGetPowerUsage, handle)),
            power_limit_w=_watts(self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
            temperature_c=self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            pcie_tx_bytes_per_s=known.pcie_tx,
            pcie_rx_bytes_per_s=known.pcie_rx,
            throttle=self._throttle(handle),
            processes=self._processes(handle),
            uuid=self._uuid(known, handle),
        )

    def _uuid(self, known: _Known, handle: object) -> str | None:
        """It never changes: asked until it was told once."""
        if known.uuid is None:
            told = self._ask(self._nvml.nvmlDeviceGetUUID, handle)
            known.uuid = printable(told, 80) if told else None
        return known.uuid

    def _pcie(self, handle: object, counter: int) -> int | None:
        kilobytes = self._ask(self._nvml.nvmlDeviceGetPcieThroughput, handle, counter)
        return None if kilobytes is None else int(kilobytes) * _KILO

    def _throttle(self, handle: object) -> tuple[str, ...]:
        mask = self._ask(self._nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if mask is None:
            # The name up to driver 530.
            mask = self._ask(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        return reasons(mask or 0)

    def _processes(self, handle: object) -> tuple[GpuProcess, ...]:
        # Drivers up to 510 have the second version of this call only.
        rows: Iterable[Any] | None = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
        if rows is None:
            rows = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses_v2, handle)
        return tuple(
            GpuProcess(
                pid=int(row.pid),
                memory_used_bytes=None if row.usedGpuMemory is None else int(row.usedGpuMemory),
                name=self._process_name(int(row.pid)),
            )
            for row in rows or ()
        )

    def _process_name(self, pid: int) -> str | None:
        if pid not in self._names:
            name = self._ask(self._nvml.nvmlSystemGetProcessName, pid)
            self._names[pid] = printable(name, 60) if name else None
        return self._names[pid]


def reasons(mask: int) -> tuple[str, ...]:
    """Why the clock is held back, in words; idleness is no reason."""
    words = [word for bits, word in _REASONS if mask & bits]
    if mask & _HW_SLOWDOWN and not {"thermal", "power brake"} & set(words):
        words.append("hardware slowdown")
    return tuple(words)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
