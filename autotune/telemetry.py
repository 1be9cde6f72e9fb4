"""What NVML says of a device while a trial runs: sampled from outside, so that it costs the trial
nothing. Whatever cannot be asked stays None, with one notice; nothing here fails a trial."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from autotune.hardware import Hardware, nvml, why_not
from autotune.process_tree import Tree
from autotune.trial import Measurement

_PERIOD_SECONDS = 0.2
_BACK_BYTES = 300 << 20  # what may differ from the level before a trial
_IDLE_BYTES = 1 << 30  # what a driver keeps for itself, at most
_OTHERS_BYTES = 64 << 20  # of another process, before the device counts as shared
_POWER = ("average_power_watts", "energy_joules_per_token")
_THROTTLING = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}  # idle and chosen clocks are no throttling


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at the devices of a trial; sums over devices, None where it could not be asked."""

    at: float  # epoch seconds, as the trial gives its window
    energy_joules: float | None
    power_watts: float | None
    sm_clock_mhz: float | None
    utilization: float | None
    used_bytes: float | None
    own_bytes: float | None
    throttle: int | None


def device_ids(hardware: Hardware) -> tuple[str, ...]:
    """NVML's names of the devices that trials here see; a MIG slice goes by its own."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    slices = tuple(word.strip() for word in shown if word.strip().startswith("MIG-"))
    return (hardware.gpus and slices) or tuple(gpu.uuid for gpu in hardware.gpus)


class NvmlWatch:
    """Samples devices in a thread while a trial runs; one watch serves all trials of a slot."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = tuple(devices)
        self._told: set[str] = set()  # notices, each once in a run
        self._samples: list[Sample] = []
        self._notices: dict[str, None] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, tree: Tree) -> None:
        """Begin to sample."""
        self._samples, self._notices = [], {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, args=(tree,), daemon=True)
        self._thread.start()

    def finish(self, measurement: Measurement | None) -> Measurement | None:
        """Stop; the measurement with power, energy and clocks of its timed window."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)  # a driver that hangs must not hold up the study
        if measurement is None:
            return None
        metrics, seen = summarize(self._samples, measurement)
        new = [text for text in self._notices if text not in self._told]
        self._told.update(new)
        return dataclasses.replace(
            measurement,
            metrics={**measurement.metrics, **metrics},
            telemetry={**measurement.telemetry, "nvml": seen},
            notices=(*measurement.notices, *new),
        )

    def _loop(self, tree: Tree) -> None:
        try:
            with nvml() as lib:
                handles = [lib.nvmlDeviceGetHandleByUUID(d) for d in self._devices]
                while True:
                    self._samples.append(self._look(lib, handles, tree))
                    if self._stop.wait(_PERIOD_SECONDS):
                        self._samples.append(self._look(lib, handles, tree))
                        return
        except Exception as error:
            self._notices[f"no telemetry: {why_not(error)}"] = None

    def _look(self, lib: Any, handles: list[Any], tree: Tree) -> Sample:
        def ask(what: str, call: Callable[[Any], float]) -> float | None:
            try:
                return sum(call(handle) for handle in handles)
            except Exception as error:
                self._notices[f"{what} is unknown: {why_not(error)}"] = None
                return None

        def throttling(handle: Any) -> int:
            name = "nvmlDeviceGetCurrentClocksEventReasons"  # older bindings say Throttle
            call = getattr(lib, name, None) or lib.nvmlDeviceGetCurrentClocksThrottleReasons
            return int(call(handle))

        count = max(1, len(handles))
        clock = ask("clock", lambda h: lib.nvmlDeviceGetClockInfo(h, lib.NVML_CLOCK_SM))
        busy = ask("utilisation", lambda h: lib.nvmlDeviceGetUtilizationRates(h).gpu)
        reasons = ask("throttling", throttling)
        return Sample(
            at=time.time(),
            energy_joules=ask("energy", lambda h: lib.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3),
            power_watts=ask("power", lambda h: lib.nvmlDeviceGetPowerUsage(h) / 1e3),
            sm_clock_mhz=clock and clock / count,
            utilization=None if busy is None else busy / count,
            used_bytes=ask("memory", lambda h: lib.nvmlDeviceGetMemoryInfo(h).used),
            own_bytes=self._own_bytes(lib, handles, tree),
            throttle=None if reasons is None else int(reasons),
        )

    def _own_bytes(self, lib: Any, handles: list[Any], tree: Tree) -> float | None:
        """Of the trial's own processes; None where the driver counts them in another namespace."""
        with contextlib.suppress(Exception):
            running = [p for h in handles for p in lib.nvmlDeviceGetComputeRunningProcesses(h)]
            mine = tree.members() if running else set()
            own = [p.usedGpuMemory for p in running if p.pid in mine]
            if own and None not in own:
                return float(sum(own))
        return None


def summarize(
    samples: Sequence[Sample], measurement: Measurement
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Metrics and telemetry of the timed window that the trial names, in epoch seconds.

    What cannot be measured here keeps the trial's own figure, if it has one.
    """
    start, end = _window(measurement)
    inside = [s for s in samples if start <= s.at <= end] or list(samples)
    power = _median(s.power_watts for s in inside)
    joules = _energy(samples, start, end)
    if joules is not None:
        power = joules / (end - start)  # the counter misses nothing between two looks
    elif power is not None and end < float("inf"):
        joules = power * (end - start)
    tokens = _number(measurement.telemetry.get("window_tokens"))
    found = (power, joules / tokens if joules is not None and tokens else None)
    metrics = {
        name: measurement.metrics.get(name) if value is None else value
        for name, value in zip(_POWER, found, strict=True)
    }
    others = [
        s.used_bytes - s.own_bytes
        for s in inside
        if s.used_bytes is not None and s.own_bytes is not None
    ]
    own = max((s.own_bytes for s in inside if s.own_bytes is not None), default=None)
    return metrics, {
        "samples": len(samples),
        "joules": joules,
        "sm_clock_mhz": _median(s.sm_clock_mhz for s in inside),
        "utilization_percent": _median(s.utilization for s in inside),
        "used_bytes": max((s.used_bytes for s in inside if s.used_bytes is not None), default=None),
        "own_bytes": own,
        "others_bytes": max(others, default=None),
        "memory_source": "framework counters" if own is None else "NVML and framework counters",
        "throttled_by": sorted(
            {text for s in inside for bit, text in _THROTTLING.items() if (s.throttle or 0) & bit}
        ),
    }


def with_others(measurement: Measurement, before: float | None, after: float | None) -> Measurement:
    """With what other processes held, and a notice when that was more than nothing.

    ``before`` and ``after`` are bytes in use without the trial: all there is to go by where the
    driver does not say which process holds what.
    """
    seen = measurement.telemetry.get("nvml")
    if not isinstance(seen, dict):
        return measurement
    idle = max((v for v in (before, after) if v is not None), default=None)
    others = max((v for v in (seen["others_bytes"], idle) if v is not None), default=None)
    shared = others is not None and others > _IDLE_BYTES + _OTHERS_BYTES
    notices = measurement.notices
    if shared and others is not None:
        text = f"the GPU was shared: others held {others / 2**30:.1f} GiB while this trial ran"
        notices = (*notices, text)
    nvml_ = {**seen, "others_bytes": others, "shared": shared}
    telemetry = {**measurement.telemetry, "nvml": nvml_}
    return dataclasses.replace(measurement, telemetry=telemetry, notices=notices)


def _window(measurement: Measurement) -> tuple[float, float]:
    """As the trial gives it, else everything."""
    window = measurement.telemetry.get("window")
    if isinstance(window, list | tuple) and len(window) == 2:
        start, end = _number(window[0]), _number(window[1])
        if start is not None and end is not None and start < end:
            return start, end
    return 0.0, float("inf")


def _number(value: Any) -> float | None:
    """A trial may write anything."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(statistics.median(known)) if known else None


def _energy(samples: Sequence[Sample], start: float, end: float) -> float | None:
    """Joules between two moments, from the counter, interpolated between looks."""
    known = [(s.at, s.energy_joules) for s in samples if s.energy_joules is not None]
    if len(known) < 2 or end > known[-1][0] + 1 or start < known[0][0] - 1:
        return None  # also where the trial names no window
    return _at(known, end) - _at(known, start)


def _at(known: Sequence[tuple[float, float]], moment: float) -> float:
    if moment <= known[0][0]:
        return known[0][1]
    for (t0, e0), (t1, e1) in itertools.pairwise(known):
        if moment <= t1:
            return e0 + (e1 - e0) * (moment - t0) / max(1e-9, t1 - t0)
    return known[-1][1]


def used_bytes(devices: Sequence[str]) -> float | None:
    """Memory in use on these devices by anybody, or None when it cannot be asked."""
    if devices:
        with contextlib.suppress(Exception), nvml() as lib:
            handles = [lib.nvmlDeviceGetHandleByUUID(d) for d in devices]
            return float(sum(lib.nvmlDeviceGetMemoryInfo(h).used for h in handles))
    return None


def wait_until_free(devices: Sequence[str], level: float, seconds: float) -> str | None:
    """Wait for a trial's memory to be back; None when it is, else who holds it."""
    limit = time.monotonic() + seconds
    while (used := used_bytes(devices)) is not None and used > level + _BACK_BYTES:
        if time.monotonic() > limit:
            return f"{(used - level) / 2**30:.1f} GiB are not back: held by {_holders(devices)}"
        time.sleep(0.1)
    return None


def _holders(devices: Sequence[str]) -> str:
    found: dict[str, None] = {}
    with contextlib.suppress(Exception), nvml() as lib:
        for device in devices:
            handle = lib.nvmlDeviceGetHandleByUUID(device)
            for process in lib.nvmlDeviceGetComputeRunningProcesses(handle):
                found[f"process {process.pid}{_name(process.pid)}"] = None
    return ", ".join(found) or "a process that the driver does not name"


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return f" ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    return ""
