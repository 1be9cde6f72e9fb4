"""Marks in time that do not disturb what they time."""

from __future__ import annotations

import time
from typing import Any

import torch


class Clock:
    """CUDA events on a GPU, since kernels return before they finish; perf_counter on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []

    @property
    def is_free_to_read(self) -> bool:
        """Whether reading it does not wait for the device."""
        return self._device.type != "cuda"

    def mark(self) -> None:
        """Remember now, in the order of the device's own work."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def gaps_ms(self) -> list[float]:
        """Milliseconds between successive marks; waits for the device."""
        pairs = list(zip(self._marks, self._marks[1:], strict=False))
        if self._device.type == "cuda":
            torch.cuda.synchronize()
            return [float(a.elapsed_time(b)) for a, b in pairs]
        return [(b - a) * 1e3 for a, b in pairs]

    def clear(self) -> None:
        """Forget every mark."""
        self._marks.clear()


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
