"""NVML against a stand-in library: degrade by field, by card, and as a whole."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from fixed_clock import FixedClock
from kvtop.sources.nvml import RETRY_FIRST_S, NvmlSource, reasons

TWO = "gpu 98 23000 24576 71 341000 4 0\ngpu 0 400 24576 40 22000 1 0\n"


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("no gcc here to build the stand-in for libnvidia-ml")
    out = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).parents[1] / "fixtures" / "fake_nvml.c"
    subprocess.run([gcc, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(out), str(source)], check=True)
    return out


@pytest.fixture
def world(fake_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`world(text)` sets what the driver sees."""
    file = tmp_path / "world"
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(fake_library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setenv("FAKE_NVML", str(file))

    def write(text: str) -> None:
        file.write_text(text, encoding="utf-8")

    return write


def test_all_fields(world: Callable[[str], None]) -> None:
    world(TWO)
    source = NvmlSource(FixedClock(5.0))
    reading = source.read()
    assert reading.error is None
    assert reading.driver == "580.65.06"
    assert reading.at == 5.0
    busy, idle = reading.gpus
    assert busy.name == "NVIDIA Made-up 3090 no 0"
    assert busy.util_share == pytest.approx(0.98)
    assert (busy.memory_used_bytes, busy.memory_total_bytes) == (23000 << 20, 24576 << 20)
    assert (busy.power_w, busy.power_limit_w, busy.temperature_c) == (341.0, 350.0, 71)
    assert (busy.pcie_tx_bytes_per_s, busy.pcie_rx_bytes_per_s) == (1_098_000, 2_098_000)
    assert busy.throttle == ("power cap",)
    assert (busy.uuid, idle.uuid) == ("GPU-00000000-made-up-0", "GPU-00000000-made-up-1")
    assert idle.throttle == ()
    assert [(p.pid, p.memory_used_bytes) for p in busy.processes] == [(4242, 23000 << 20), (4243, None)]
    assert "\x1b" not in (busy.processes[0].name or "")
    source.close()


def test_pcie_is_sampled_only_when_asked(world: Callable[[str], None]) -> None:
    world(TWO)
    source = NvmlSource(FixedClock())
    assert source.read(pcie=False).gpus[0].pcie_tx_bytes_per_s is None
    source.read(pcie=True)
    world(TWO.replace("gpu 98", "gpu 50"))
    kept = source.read(pcie=False).gpus[0]
    assert (kept.util_share, kept.pcie_tx_bytes_per_s) == (0.5, 1_098_000)
    source.close()


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("util", "util_share"),
        ("memory", "memory_used_bytes"),
        ("temperature", "temperature_c"),
        ("power", "power_w"),
        ("limit", "power_limit_w"),
        ("pcie", "pcie_rx_bytes_per_s"),
    ],
)
def test_a_field_that_is_not_supported_is_none_and_the_others_stay(
    world: Callable[[str], None], function: str, field: str
) -> None:
    world(f"{TWO}no {function}\n")
    source = NvmlSource(FixedClock())
    gpu = source.read().gpus[0]
    fields = ("util_share", "memory_used_bytes", "temperature_c", "power_w", "power_limit_w", "pcie_rx_bytes_per_s")
    assert [name for name in fields if getattr(gpu, name) is None] == [field]
    source.close()


def test_a_lost_card_keeps_its_name_and_the_other_card_its_numbers(world: Callable[[str], None]) -> None:
    world(TWO)
    source = NvmlSource(FixedClock())
    source.read()
    world("gpu 98 23000 24576 71 341000 4 15\ngpu 7 400 24576 40 22000 1 0\n")
    lost, good = source.read().gpus
    assert lost.lost is not None and "lost" in lost.lost
    assert (lost.name, lost.util_share, lost.pcie_tx_bytes_per_s) == ("NVIDIA Made-up 3090 no 0", None, None)
    assert (good.lost, good.util_share) == (None, 0.07)
    world(TWO)
    assert source.read().gpus[0].lost is None
    source.close()


def test_the_driver_goes_and_comes_back(world: Callable[[str], None]) -> None:
    clock = FixedClock()
    world(TWO)
    source = NvmlSource(clock)
    assert len(source.read().gpus) == 2
    world(f"init 9\n{TWO}")
    gone = source.read()
    assert gone.gpus == ()
    assert gone.error == "the NVIDIA driver is not loaded"
    world(TWO)
    assert source.read().error is not None  # not asked again before the pause is over
    clock.tick(RETRY_FIRST_S)
    back = source.read()
    assert (back.error, len(back.gpus)) == (None, 2)
    source.close()


@pytest.mark.parametrize("function", ["nvmlDeviceGetCount", "nvmlSystemGetDriverVersion"])
def test_a_driver_that_answers_for_no_card_any_more_is_a_line(
    world: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    world(TWO)

    def lost() -> None:
        raise pynvml.NVMLError(15)

    monkeypatch.setattr(pynvml, function, lost)
    source = NvmlSource(FixedClock())
    assert source.read().error == "GPU is lost: it fell off the bus"
    source.close()


def test_the_pauses_between_tries_grow(world: Callable[[str], None]) -> None:
    clock = FixedClock()
    world("init 9\n")
    source = NvmlSource(clock)
    source.read()
    clock.tick(RETRY_FIRST_S)
    source.read()
    world(TWO)
    clock.tick(RETRY_FIRST_S)
    assert source.read().error is not None
    clock.tick(RETRY_FIRST_S)
    assert source.read().error is None
    source.close()


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", missing)
    assert NvmlSource(FixedClock()).read().error == "no NVIDIA driver here: libnvidia-ml.so.1 not found"


def test_no_cards(world: Callable[[str], None]) -> None:
    world("init 0\n")
    source = NvmlSource(FixedClock())
    assert source.read().error == "the NVIDIA driver sees no card"
    source.close()


def test_reasons_in_words() -> None:
    assert reasons(0) == reasons(1) == ()
    assert reasons(0x04) == ("power cap",)
    assert reasons(0x20) == reasons(0x40) == reasons(0x48) == ("thermal",)
    assert reasons(0x08) == ("hardware slowdown",)
    assert reasons(0x88) == ("power brake",)
    assert reasons(0x25) == ("power cap", "thermal")
