"""Telemetry against a binding that says what a test wants: errors, and known numbers.

There is no GPU where these tests run; what a real one says is measured in benchmarks/h200.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune import hardware, telemetry
from autotune.process_tree import Tree
from autotune.slot import Slot
from autotune.telemetry import NvmlWatch, Sample, summarize, with_others
from autotune.trial import Measurement, Status
from tests.toy_trials import toy

_GIB = 1 << 30


class NVMLError(Exception):
    """As the binding's own, whose subclasses are named NVMLError_NotSupported and so on."""


def error(name: str) -> NVMLError:
    return type(f"NVMLError_{name}", (NVMLError,), {})(name)


class FakeNvml:
    """One device: 100 W, an energy counter to match, 5 GiB in use. ``broken`` maps a function's
    ending to the error that it raises."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1

    def __init__(self, **broken: str) -> None:
        self.broken, self.calls, self.fails_from = broken, 0, 10**9
        self.asked: list[str] = []
        self.pids: dict[int, int] = {}
        self.used = 5 * _GIB

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*words: Any) -> Any:
            self.calls += name == "nvmlInit"
            if self.calls >= self.fails_from:
                raise error("GpuIsLost")
            for ending, kind in self.broken.items():
                if name.endswith(ending):
                    raise error(kind)
            return self._value(name, words)

        return call

    def _value(self, name: str, words: tuple[Any, ...]) -> Any:
        if name == "nvmlDeviceGetHandleByUUID":
            self.asked.append(words[0])
        values: dict[str, Any] = {
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "device",
            "nvmlDeviceGetHandleByUUID": "device",
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetUUID": "GPU-12345678-aaaa",
            "nvmlDeviceGetName": "Fake H200",
            "nvmlDeviceGetPowerUsage": 100_000,
            "nvmlDeviceGetTotalEnergyConsumption": int(time.time() * 100_000),
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=40),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=140 * _GIB, used=self.used),
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
            "nvmlDeviceGetComputeRunningProcesses": [
                SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.pids.items()
            ],
            "nvmlSystemGetCudaDriverVersion": 13000,
            "nvmlSystemGetDriverVersion": "580.0",
        }
        return values.get(name)


@contextmanager
def standing_in(fake: object) -> Iterator[None]:
    before = sys.modules.get("pynvml")
    sys.modules["pynvml"] = fake  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is None:
            del sys.modules["pynvml"]
        else:
            sys.modules["pynvml"] = before


@pytest.fixture
def on_a_gpu(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Runs toy trials in a slot that has a GPU, by what the binding says; the measurements."""

    def call(fake: object, trials: int = 1) -> list[Measurement]:
        with standing_in(fake):
            slot = Slot("toy")
            try:
                records = [
                    slot.run(toy("sleep 0.05", gpus=1), tmp_path / f"{n:04d}")
                    for n in range(trials)
                ]
            finally:
                slot.close()
        assert [r.status for r in records] == [Status.COMPLETE] * trials
        return [r.measurement for r in records if r.measurement is not None]

    return call


def test_power_clock_and_memory_of_a_trial_are_kept(on_a_gpu) -> None:
    (found,) = on_a_gpu(FakeNvml())
    assert found.metrics["average_power_watts"] == pytest.approx(100, rel=0.01)
    seen = found.telemetry["nvml"]
    assert seen["sm_clock_mhz"] == 1980
    assert seen["utilization_percent"] == 97
    assert seen["used_bytes"] == 5 * _GIB
    assert seen["throttled_by"] == ["power cap"]


def test_nvml01_power_that_is_not_supported_is_null_with_one_notice_per_run(on_a_gpu) -> None:
    fake = FakeNvml(PowerUsage="NotSupported", TotalEnergyConsumption="NotSupported")
    found = on_a_gpu(fake, trials=5)
    assert [m.metrics.get("average_power_watts") for m in found] == [None] * 5
    assert [m.metrics.get("energy_joules_per_token") for m in found] == [None] * 5
    about_power = [t for m in found for t in m.notices if t.startswith("power is unknown")]
    assert len(about_power) == 1


@pytest.mark.parametrize(
    ("visible", "asked"), [("MIG-8f1c-aa", "MIG-8f1c-aa"), ("GPU-12345678", "GPU-12345678-aaaa")]
)
def test_nvml02_a_slice_without_permissions_is_measured_without_them(
    on_a_gpu, monkeypatch: pytest.MonkeyPatch, visible: str, asked: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    fake = FakeNvml(MemoryInfo="NoPermission", UtilizationRates="NotSupported")
    (found,) = on_a_gpu(fake)
    assert asked in fake.asked
    seen = found.telemetry["nvml"]
    assert seen["utilization_percent"] is None
    assert seen["used_bytes"] is None
    assert seen["memory_source"] == "framework counters"
    assert found.metrics["peak_memory_bytes"] is not None


def test_nvml03_a_driver_that_was_replaced_under_us_is_named_with_its_cure() -> None:
    with standing_in(FakeNvml(Init="LibRmVersionMismatch")):
        found = hardware.detect()
    assert found.device == "cpu"
    assert "driver and library versions differ" in found.trouble
    assert "reboot" in found.trouble
    with standing_in(FakeNvml(Init="LibraryNotFound")):
        assert "no NVIDIA driver library" in hardware.detect().trouble
    with standing_in(None):  # the binding itself is not installed
        assert hardware.detect().device == "cpu"


def test_nvml03_telemetry_that_fails_in_mid_run_fails_no_trial(on_a_gpu) -> None:
    fake = FakeNvml()
    with standing_in(fake):
        hardware.detect()
        fake.fails_from = fake.calls + 6
    found = on_a_gpu(fake, trials=4)
    assert found[0].metrics["average_power_watts"] is not None
    assert found[-1].metrics.get("average_power_watts") is None
    notices = [t for m in found for t in m.notices]
    assert len([t for t in notices if t.startswith("no telemetry")]) == 1


def test_nvml06_memory_of_others_is_shown_apart_and_marked(on_a_gpu) -> None:
    idle = FakeNvml()
    idle.used = 300 << 20  # what the driver keeps for itself
    (alone,) = on_a_gpu(idle)
    assert alone.telemetry["nvml"]["shared"] is False
    (found,) = on_a_gpu(FakeNvml())  # 5 GiB in use before and after the trial
    assert found.telemetry["nvml"]["shared"] is True
    assert found.telemetry["nvml"]["others_bytes"] == 5 * _GIB
    assert any("others held 5.0 GiB" in text for text in found.notices)


def test_nvml06_a_trials_own_memory_is_told_from_that_of_others() -> None:
    sleeper = subprocess.Popen(["sleep", "60"], start_new_session=True)
    fake = FakeNvml()
    fake.pids = {sleeper.pid: 3 * _GIB, 1: 2 * _GIB}
    try:
        with standing_in(fake):
            watch = NvmlWatch(["GPU-1"])
            watch.start(Tree(root=sleeper.pid))
            time.sleep(0.1)
            found = watch.finish(Measurement(metrics={"peak_memory_bytes": 2.5 * _GIB}))
    finally:
        sleeper.kill()
        sleeper.wait()
    assert found is not None
    assert found.telemetry["nvml"]["own_bytes"] == 3 * _GIB
    assert found.telemetry["nvml"]["others_bytes"] == 2 * _GIB
    assert found.metrics["peak_memory_bytes"] == 2.5 * _GIB


def test_memory_that_does_not_come_back_is_waited_for_and_its_holder_named() -> None:
    fake = FakeNvml()
    fake.pids = {os.getpid(): 4 * _GIB}
    with standing_in(fake):
        held = telemetry.wait_until_free(["GPU-1"], 1.0 * _GIB, seconds=0.3)
        assert held is not None
        assert held.startswith("4.0 GiB are not back: held by process ")
        assert str(os.getpid()) in held
        assert telemetry.wait_until_free(["GPU-1"], 4.9 * _GIB, seconds=0.3) is None


def sample(at: float, joules: float | None = None, watts: float | None = None) -> Sample:
    return Sample(
        at=at,
        energy_joules=joules,
        power_watts=watts,
        sm_clock_mhz=None,
        utilization=None,
        used_bytes=None,
        own_bytes=None,
        throttle=None,
    )


def windowed(start: object, end: object, tokens: object) -> Measurement:
    return Measurement(metrics={}, telemetry={"window": [start, end], "window_tokens": tokens})


def test_energy_is_the_counters_difference_over_the_window_alone() -> None:
    samples = [
        sample(t, joules=100.0 * t if t < 10 else 1000 + 700.0 * (t - 10)) for t in range(20)
    ]
    metrics, seen = summarize(samples, windowed(10.5, 12.5, 100))
    assert seen["joules"] == pytest.approx(1400)
    assert metrics["energy_joules_per_token"] == pytest.approx(14)
    assert metrics["average_power_watts"] == pytest.approx(700)


def test_without_a_counter_energy_comes_from_power() -> None:
    metrics, _ = summarize([sample(t, watts=50.0) for t in range(10)], windowed(2, 6, 10))
    assert metrics["energy_joules_per_token"] == pytest.approx(20)


def test_energy_without_tokens_or_without_looks_is_null_not_zero() -> None:
    looks = [sample(t, joules=10.0 * t, watts=10.0) for t in range(10)]
    assert summarize(looks, windowed(2, 6, 0))[0]["energy_joules_per_token"] is None
    assert summarize([], windowed(2, 6, 10))[0]["energy_joules_per_token"] is None
    assert summarize([], windowed(2, 6, 10))[0]["average_power_watts"] is None
    outside = summarize(looks, windowed(100, 200, 10))[1]
    assert outside["joules"] == 1000  # by power: the counter was not seen then


@pytest.mark.parametrize("window", [None, [], [1], ["a", "b"], [5, 2], {"a": 1}, 7])
def test_a_window_that_makes_no_sense_is_no_window(window: object) -> None:
    found = Measurement(metrics={}, telemetry={"window": window, "window_tokens": "many"})
    metrics, seen = summarize([sample(t, joules=10.0 * t, watts=10.0) for t in range(9)], found)
    assert metrics["average_power_watts"] == 10
    assert metrics["energy_joules_per_token"] is None
    assert seen["joules"] is None


def test_a_trials_own_figure_stands_where_nvml_has_none() -> None:
    own = Measurement(metrics={"energy_joules_per_token": 3.0})
    assert summarize([], own)[0]["energy_joules_per_token"] == 3.0


def test_others_are_unknown_where_nothing_was_seen() -> None:
    assert with_others(Measurement(metrics={}), None, None).telemetry == {}
    seen = Measurement(metrics={}, telemetry={"nvml": {"others_bytes": None}})
    assert with_others(seen, None, None).telemetry["nvml"] == {
        "others_bytes": None,
        "shared": False,
    }
