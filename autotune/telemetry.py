"""What NVML says of a device while a trial runs: sampled from outside, so that it costs the trial
nothing. Whatever cannot be asked stays None, with one notice; nothing here fails a trial."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from autotune.hardware import nvml, why_not
from autotune.trial import Measurement

_PERIOD_SECONDS = 0.2
_BACK_BYTES = 300 << 20  # what may differ from the idle level
_OTHERS_BYTES = 64 << 20  # of another process, before the device counts as shared


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at the devices of a trial; sums over devices, None where it could not be asked."""

    at: float  # epoch seconds
    energy_joules: float | None
    power_watts: float | None
    sm_clock_mhz: float | None
    utilization: float | None
    used_bytes: float | None
    own_bytes: float | None
    throttle: int | None


class NvmlWatch:
    """Samples the devices with these UUIDs in a thread while a trial runs."""

    def __init__(self, uuids: Sequence[str], own: Callable[[int], set[int]]) -> None:
        self._uuids, self._own = tuple(uuids), own
        self._samples: list[Sample] = []
        self._notices: dict[str, None] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, pid: int) -> None:
        """Begin to sample."""
        self._samples, self._notices = [], {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, args=(pid,), daemon=True)
        self._thread.start()

    def finish(self, measurement: Measurement | None) -> Measurement | None:
        """Stop; the measurement with power, energy and clocks of its timed window."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)
        if measurement is None:
            return None
        metrics, seen = summarize(self._samples, measurement)
        return dataclasses.replace(
            measurement,
            metrics={**measurement.metrics, **metrics},
            telemetry={**measurement.telemetry, "nvml": seen},
            notices=(*measurement.notices, *self._notices),
        )

    def _loop(self, pid: int) -> None:
        try:
            with nvml() as lib:
                handles = [lib.nvmlDeviceGetHandleByUUID(u) for u in self._uuids]
                while True:
                    self._samples.append(self._look(lib, handles, pid))
                    if self._stop.wait(_PERIOD_SECONDS):
                        self._samples.append(self._look(lib, handles, pid))
                        return
        except Exception as error:
            self._notices[f"telemetry lost: {why_not(error)}"] = None

    def _look(self, lib: Any, handles: list[Any], pid: int) -> Sample:
        def ask(what: str, call: Callable[[Any], float]) -> float | None:
            try:
                return sum(call(handle) for handle in handles)
            except Exception as error:
                self._notices[f"{what} is unknown: {why_not(error)}"] = None
                return None

        mine = self._own(pid)

        def owned(handle: Any) -> float:
            running = lib.nvmlDeviceGetComputeRunningProcesses(handle)
            return float(sum(p.usedGpuMemory or 0 for p in running if p.pid in mine))

        return Sample(
            at=time.time(),
            energy_joules=ask("energy", lambda h: lib.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3),
            power_watts=ask("power", lambda h: lib.nvmlDeviceGetPowerUsage(h) / 1e3),
            sm_clock_mhz=ask("clock", lambda h: lib.nvmlDeviceGetClockInfo(h, lib.NVML_CLOCK_SM)),
            utilization=ask("utilisation", lambda h: lib.nvmlDeviceGetUtilizationRates(h).gpu),
            used_bytes=ask("memory", lambda h: lib.nvmlDeviceGetMemoryInfo(h).used),
            own_bytes=ask("own memory", owned),
            throttle=_whole(
                ask("throttling", lib.nvmlDeviceGetCurrentClocksEventReasons)
                if hasattr(lib, "nvmlDeviceGetCurrentClocksEventReasons")
                else ask("throttling", lib.nvmlDeviceGetCurrentClocksThrottleReasons)
            ),
        )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def summarize(
    samples: Sequence[Sample], measurement: Measurement
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Metrics and telemetry of the timed window that the trial names, in epoch seconds."""
    window = measurement.telemetry.get("window")
    tokens = measurement.telemetry.get("window_tokens")
    start, end = (float(window[0]), float(window[1])) if window else (0.0, float("inf"))
    inside = [s for s in samples if start <= s.at <= end] or list(samples)
    power = _median(s.power_watts for s in inside)
    metrics: dict[str, float | None] = {"average_power_watts": power}
    joules = _energy(samples, start, end) if window else None
    if joules is None and power is not None and window:
        joules = power * (end - start)
    metrics["energy_joules_per_token"] = joules / tokens if joules and tokens else None
    others = [
        s.used_bytes - s.own_bytes
        for s in inside
        if s.used_bytes is not None and s.own_bytes  # drivers in containers report no owners
    ]
    return metrics, {
        "samples": len(samples),
        "joules": joules,
        "sm_clock_mhz": _median(s.sm_clock_mhz for s in inside),
        "utilization_percent": _median(s.utilization for s in inside),
        "used_bytes": max((s.used_bytes for s in inside if s.used_bytes is not None), default=None),
        "own_bytes": max((s.own_bytes for s in inside if s.own_bytes is not None), default=None),
        "others_bytes": max(others, default=None),
        "shared": max(others, default=0.0) > _OTHERS_BYTES + (1 << 30),
        "throttle_reasons": sorted({s.throttle for s in inside if s.throttle}),
    }


def _median(values: Any) -> float | None:
    known = [v for v in values if v is not None]
    return float(statistics.median(known)) if known else None


def _energy(samples: Sequence[Sample], start: float, end: float) -> float | None:
    """Joules between two moments, from the counter, interpolated between looks."""
    known = [(s.at, s.energy_joules) for s in samples if s.energy_joules is not None]
    if len(known) < 2 or end > known[-1][0] + 1 or start < known[0][0] - 1:
        return None
    return _at(known, end) - _at(known, start)


def _at(known: Sequence[tuple[float, float]], moment: float) -> float:
    if moment <= known[0][0]:
        return known[0][1]
    for (t0, e0), (t1, e1) in zip(known, known[1:], strict=False):
        if moment <= t1:
            return e0 + (e1 - e0) * (moment - t0) / max(1e-9, t1 - t0)
    return known[-1][1]


def used_bytes(uuids: Sequence[str]) -> int | None:
    """Memory in use on these devices by anybody, or None when it cannot be asked."""
    with contextlib.suppress(Exception), nvml() as lib:
        handles = [lib.nvmlDeviceGetHandleByUUID(u) for u in uuids]
        return int(sum(lib.nvmlDeviceGetMemoryInfo(h).used for h in handles))
    return None


def wait_until_free(uuids: Sequence[str], idle_bytes: int, seconds: float) -> str | None:
    """Wait for a trial's memory to be back; None when it is, else who holds it."""
    limit = time.monotonic() + seconds
    while (used := used_bytes(uuids)) is not None and used > idle_bytes + _BACK_BYTES:
        if time.monotonic() > limit:
            return f"{(used - idle_bytes) / 2**30:.1f} GiB are not back: held by {_holders(uuids)}"
        time.sleep(0.1)
    return None


def _holders(uuids: Sequence[str]) -> str:
    found: list[str] = []
    with contextlib.suppress(Exception), nvml() as lib:
        for uuid in uuids:
            handle = lib.nvmlDeviceGetHandleByUUID(uuid)
            for process in lib.nvmlDeviceGetComputeRunningProcesses(handle):
                found.append(f"process {process.pid}")
    return ", ".join(found) or "an unknown process"
