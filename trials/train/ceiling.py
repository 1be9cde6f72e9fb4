"""What this very device can do: a short matmul, measured once per host and kept in a file."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path

import torch

_SIZES = {"cuda": 8192, "cpu": 1024}


def matmul_flops(device: torch.device, dtype: str, cache: Path) -> float:
    """FLOP/s of a square matmul on random data in that dtype (fp8: tensorwise scaled)."""
    name = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"cpu-{torch.get_num_threads()}"
    )
    key = f"{name}:{torch.__version__}:{dtype}"
    known: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(cache.read_text())
    if key not in known:
        known[key] = _measure(device, dtype)
        with contextlib.suppress(OSError):
            handle, temporary = tempfile.mkstemp(dir=cache.parent, prefix=".ceilings-")
            with os.fdopen(handle, "w") as file:
                json.dump(known, file)
            os.replace(temporary, cache)
    return known[key]


def _measure(device: torch.device, dtype: str) -> float:
    size = _SIZES[device.type]
    kinds = {
        "fp32": torch.float32,
        "tf32": torch.float32,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
    }
    a = torch.randn(size, size, device=device)
    b = torch.randn(size, size, device=device)
    if dtype == "fp8":
        one = torch.ones((), device=device)
        x, y = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t().contiguous().t()

        def call() -> None:
            torch._scaled_mm(
                x, y, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
            )
    else:
        x, y = a.to(kinds[dtype]), b.to(kinds[dtype])

        def call() -> None:
            torch.mm(x, y)

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else before)
    try:
        rates = [_rate(call, size, device) for _ in range(4)]
    finally:
        torch.set_float32_matmul_precision(before)
    return max(rates[1:])


def _rate(call: object, size: int, device: torch.device) -> float:
    assert callable(call)
    repeats = 20 if device.type == "cuda" else 3
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(repeats):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 2 * size**3 * repeats / (time.perf_counter() - begun)
