"""How fast this very device copies memory: measured once per host and kept in a file."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path

import torch

from trials.train.clock import wait

_BYTES = {"cuda": 2 << 30, "cpu": 128 << 20}


def copy_rate(device: torch.device, cache: Path) -> float:
    """Bytes per second, read and written counted both."""
    name = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"cpu-{torch.get_num_threads()}"
    )
    key = f"{name}:{torch.__version__}:copy"
    known: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(cache.read_text())
    if key not in known:
        known[key] = measure(device)
        with contextlib.suppress(OSError):
            handle, temporary = tempfile.mkstemp(dir=cache.parent, prefix=".ceilings-")
            with os.fdopen(handle, "w") as file:
                json.dump(known, file)
            os.replace(temporary, cache)
    return known[key]


def measure(device: torch.device) -> float:
    """The best of a few rounds, as a ceiling should be."""
    count = _BYTES[device.type] // 4
    source = torch.randn(count, device=device)
    target = torch.empty_like(source)
    repeats = 10 if device.type == "cuda" else 3
    rates = []
    for _ in range(4):
        wait(device)
        begun = time.perf_counter()
        for _ in range(repeats):
            target.copy_(source)
        wait(device)
        rates.append(8.0 * count * repeats / (time.perf_counter() - begun))
    return max(rates[1:])
