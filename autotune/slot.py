"""One slot: a set of GPUs (or a share of the host) where one trial runs at a time."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from autotune import environment, launch, telemetry
from autotune.compile_cache import CompileCache
from autotune.hardware import detect
from autotune.trial import TrialRecord, TrialSpec
from autotune.zygote import Zygote

# Imported before the fork; none of them makes a CUDA context. What is missing is left out.
_IMPORTS = {
    "torch": (
        "torch",
        "torch._dynamo",
        "torch._inductor.compile_fx",
        "torch.utils.checkpoint",
        "torchao.float8",
    ),
    "toy": ("trials.toy",),
    "command": ("trials.command",),
}
_FREE_SECONDS = 20.0
_MOST_ZYGOTES = 3  # each holds the libraries in memory


class Slot:
    """Runs trials one after the other, forked from a zygote that was started as they need it."""

    def __init__(
        self, runner: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        # Asking NVML, not the driver, whether there is a GPU: a fork could not use CUDA otherwise.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        self._imports = _IMPORTS.get(runner, ())
        self._cwd = cwd or Path.cwd()
        self._cache: CompileCache | None = None
        # By the variables that act at the start; the last used one last.
        self._zygotes: dict[frozenset[tuple[str, str | None]], Zygote] = {}
        self._zygote(environment.at_start(environ or {}))
        self._devices = telemetry.device_ids(detect())
        self._watch = telemetry.NvmlWatch(self._devices) if self._devices else None
        self._level = telemetry.used_bytes(self._devices)  # device memory in use without a trial

    def wait_until_ready(self) -> None:
        """Until the first zygote has its imports done."""
        for zygote in self._zygotes.values():
            zygote.wait_until_ready()

    def run(self, spec: TrialSpec, folder: Path) -> TrialRecord:
        """One trial; its device memory is back before this returns, or the record says who
        holds it."""
        record = launch.run(
            spec,
            folder,
            zygote=self._zygote(environment.at_start(spec.environ, spec.applied)),
            watch=self._watch if spec.gpus else None,
            cache=self._cache_in(folder.parent / "cache"),
            cwd=self._cwd,
        )
        return self._with_memory_back(record) if spec.gpus else record

    def close(self) -> None:
        """End the zygotes and what still runs."""
        for zygote in self._zygotes.values():
            zygote.close()
        self._zygotes.clear()
        if self._cache is not None:
            self._cache.close()

    def _zygote(self, wanted: Mapping[str, str | None]) -> Zygote:
        """A living one that was started with these variables."""
        start = frozenset(wanted.items())
        found = self._zygotes.pop(start, None)
        if found is not None and found.has_died():
            found.close()
            found = None
        if found is None:
            while len(self._zygotes) >= _MOST_ZYGOTES:
                self._zygotes.pop(next(iter(self._zygotes))).close()
            found = Zygote(self._imports, environment.of_interpreter(wanted))
        self._zygotes[start] = found
        return found

    def _cache_in(self, home: Path) -> CompileCache:
        if self._cache is None or self._cache.home != home:
            if self._cache is not None:
                self._cache.close()
            self._cache = CompileCache(home)
        return self._cache

    def _with_memory_back(self, record: TrialRecord) -> TrialRecord:
        """Waits for the device; whoever keeps some of it is part of the level from then on."""
        if self._level is None:
            return record
        holder = telemetry.wait_until_free(self._devices, self._level, _FREE_SECONDS)
        before, self._level = self._level, telemetry.used_bytes(self._devices)
        if record.measurement is None:
            return record
        measurement = telemetry.with_others(record.measurement, before, self._level)
        if holder is not None:
            measurement = dataclasses.replace(measurement, notices=(*measurement.notices, holder))
        return dataclasses.replace(record, measurement=measurement)
