"""How much memory a step takes, on whichever device."""

from __future__ import annotations

import resource
from pathlib import Path

import torch


def reset(device: torch.device) -> None:
    """Start a new peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark of RSS
        except OSError:
            return


def peak_bytes(device: torch.device) -> tuple[int, int | None, str]:
    """(peak in use, peak reserved or None, where the numbers come from)."""
    if device.type == "cuda":
        allocated = torch.cuda.max_memory_allocated()
        return allocated, torch.cuda.max_memory_reserved(), "torch.cuda"
    return _high_water(), None, "resident set of the process"


def _high_water() -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
