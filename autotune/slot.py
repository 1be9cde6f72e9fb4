"""One slot: a set of GPUs (or a share of the host) where one trial runs at a time."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from autotune import launch, process_tree, telemetry
from autotune.hardware import Hardware, detect
from autotune.trial import TrialRecord, TrialSpec
from autotune.zygote import Zygote, ZygoteDied

# Imported before the fork; none of them makes a CUDA context. What is missing is left out.
_IMPORTS = {
    "torch": (
        "torch",
        "torch._dynamo",
        "torch._inductor.compile_fx",
        "torch.utils.checkpoint",
        "torchao.float8",
    )
}
_FREE_SECONDS = 20.0


class Slot:
    """Runs trials one after the other, from a zygote of its own where that is enough."""

    def __init__(self, number: int, runner: str) -> None:
        os.environ["AUTOTUNE_SLOT"] = str(number)
        # Asking NVML, not the driver, whether there is a GPU: a fork could not use CUDA otherwise.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        self._imports = _IMPORTS.get(runner, ())
        self._zygote: Zygote | None = Zygote(self._imports)
        self._hardware: Hardware = detect()
        self._uuids = [g.uuid for g in self._hardware.gpus]
        self._idle = telemetry.used_bytes(self._uuids) if self._uuids else None

    def run(self, spec: TrialSpec, folder: Path) -> TrialRecord:
        """One trial; its device memory is back before this returns, or the record says who
        holds it."""
        watch = None
        if spec.gpus and self._uuids:
            watch = telemetry.NvmlWatch(self._uuids, lambda pid: process_tree.members(pid, "-"))
        try:
            record = launch.run(spec, folder, zygote=self._living_zygote(), watch=watch)
        except ZygoteDied:
            self._zygote = None
            record = launch.run(spec, folder, watch=watch)
        return self._memory_back(record)

    def close(self) -> None:
        """End the zygote and what still runs."""
        launch.kill_everything()
        if self._zygote is not None:
            self._zygote.close()

    def _living_zygote(self) -> Zygote | None:
        if self._zygote is not None and self._zygote.has_died():
            self._zygote.close()
            self._zygote = Zygote(self._imports)
        return self._zygote

    def _memory_back(self, record: TrialRecord) -> TrialRecord:
        if self._idle is None or not record.spec.gpus:
            return record
        holder = telemetry.wait_until_free(self._uuids, self._idle, _FREE_SECONDS)
        if holder is None or record.measurement is None:
            return record
        notices = (*record.measurement.notices, holder)
        measurement = dataclasses.replace(record.measurement, notices=notices)
        return dataclasses.replace(record, measurement=measurement)
