"""The simulated cards and host agree with the box they belong to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtop.sim.hardware import SimGpus, SimHost
from kvtop.sim.scenarios import BOX, NO_TIER
from kvtop.sim.server import Vitals

BUSY = Vitals(100.0, busy_share=1.0, prefilling=True, store_bytes_per_s=1e8, tier_bytes=BOX.tier_bytes, uptime_s=50.0)


def test_memory_is_weights_and_pool() -> None:
    gpus = SimGpus(BOX, lambda: BUSY).read().gpus
    pool = BOX.blocks * BOX.block_bytes
    assert len(gpus) == BOX.cards == 2
    for gpu in gpus:
        assert gpu.memory_used_bytes is not None and gpu.memory_total_bytes is not None
        assert (pool + BOX.weights_bytes) / 2 < gpu.memory_used_bytes < 0.92 * gpu.memory_total_bytes


def test_busy_cards_meet_the_power_cap_and_idle_ones_do_not() -> None:
    now = [BUSY]
    gpus = SimGpus(BOX, lambda: now[0])
    hot = gpus.read().gpus[0]
    assert hot.util_share is not None and hot.util_share > 0.95
    assert hot.throttle == ("power cap",)
    assert hot.power_w is not None and hot.power_limit_w is not None and 330 < hot.power_w <= hot.power_limit_w
    now[0] = replace(BUSY, at=200.0, busy_share=0.0, prefilling=False, store_bytes_per_s=0.0)
    cold = gpus.read().gpus[0]
    assert (cold.util_share, cold.throttle, cold.pcie_tx_bytes_per_s) == (0.0, (), 0)
    assert cold.power_w == pytest.approx(28.0)
    assert hot.temperature_c is not None and cold.temperature_c is not None and cold.temperature_c < hot.temperature_c


def test_pcie_carries_the_stores_and_is_kept_between_samples() -> None:
    gpus = SimGpus(BOX, lambda: BUSY)
    assert gpus.read(pcie=False).gpus[0].pcie_tx_bytes_per_s is None
    sampled = gpus.read().gpus[0]
    assert sampled.pcie_tx_bytes_per_s is not None and sampled.pcie_rx_bytes_per_s is not None
    assert sampled.pcie_tx_bytes_per_s - sampled.pcie_rx_bytes_per_s == pytest.approx(BUSY.store_bytes_per_s / 2)
    assert gpus.read(pcie=False).gpus[0].pcie_tx_bytes_per_s == sampled.pcie_tx_bytes_per_s


def test_host_maps_the_tier_and_knows_the_port() -> None:
    reading = SimHost(BOX, lambda: BUSY, lambda: 1234).read()
    (file,) = reading.offload_files
    assert (file.bytes, file.unlinked, file.stale) == (BOX.tier_bytes, True, False)
    assert reading.shm_used_bytes is not None and reading.shm_used_bytes >= file.bytes
    assert set(file.mapped_by) <= {p.pid for p in reading.processes}
    assert [p.role for p in reading.processes] == ["api", "engine", "worker", "worker"]
    assert reading.processes[0].ports == (1234,)
    assert reading.memory_available_bytes is not None and reading.memory_total_bytes is not None
    assert reading.memory_available_bytes + file.bytes < reading.memory_total_bytes


def test_host_without_tier_and_while_restarting() -> None:
    plain = SimHost(NO_TIER, lambda: replace(BUSY, tier_bytes=None), lambda: 1).read()
    assert plain.offload_files == ()
    down = SimHost(BOX, lambda: replace(BUSY, up=False), lambda: 1).read()
    assert down.offload_files == ()
    (api,) = down.processes
    assert (api.port, api.ports) == (1, ())
    assert SimGpus(BOX, lambda: replace(BUSY, up=False)).read().gpus[0].processes == ()
