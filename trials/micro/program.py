"""One operation, timed: ``python program.py OPERATION key=value ... --out FILE``.

A program for runner command, so it stands alone: torch and the standard library. It writes
``bytes_per_second`` or ``flops_per_second`` with the step time in ms and its samples.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

_CUDA = torch.cuda.is_available()
_DEVICE = torch.device("cuda" if _CUDA else "cpu")
_DTYPE = torch.bfloat16 if _CUDA else torch.float32
_SAMPLES = 30
_SECONDS = 0.05 if _CUDA else 0.1  # of work in a sample, so that the clock's grain is nothing
_GATHERED = (1 << 28) if _CUDA else (1 << 24)  # elements, more than any cache holds
_BACKENDS = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
Work = tuple[Callable[[], object], str, float]  # what to time, the metric, its amount per call


def gather(options: Mapping[str, str]) -> Work:
    """Rows read by index, in order or at random; bytes/s read. 4,096 elements are a KV page."""
    width = int(options["row"])
    table = torch.zeros(_GATHERED // width, width, device=_DEVICE, dtype=_DTYPE)
    index = torch.arange(len(table), device=_DEVICE)
    if options["index"] == "random":
        index = index[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    out = torch.empty_like(table)
    amount = float(table.numel() * table.element_size())
    return lambda: torch.index_select(table, 0, index, out=out), "bytes_per_second", amount


def matmul(options: Mapping[str, str]) -> Work:
    """x @ w.T with so many rows, the weight stored by rows or by columns; FLOP/s."""
    tokens = int(options.get("tokens", 4096 if _CUDA else 256))
    width = 4096 if _CUDA else 1024
    x = torch.randn(tokens, width, device=_DEVICE, dtype=_DTYPE)
    w = torch.randn(width, width, device=_DEVICE, dtype=_DTYPE)
    if options.get("layout") == "column_major":
        w = w.T.contiguous().T
    return lambda: functional.linear(x, w), "flops_per_second", 2.0 * tokens * width * width


def read(options: Mapping[str, str]) -> Work:
    """A sum over rows of some width, aligned to 128 bytes or not; bytes/s read."""
    width, rows = int(options["width"]), 32768 if _CUDA else 4096
    x = torch.zeros(rows, width, device=_DEVICE, dtype=_DTYPE)
    return lambda: x.sum(dim=1), "bytes_per_second", float(x.numel() * x.element_size())


def attention(options: Mapping[str, str]) -> Work:
    """Causal attention forward and backward in one backend; FLOP/s by the causal convention."""
    batch, heads, length, width = (4, 32, 4096, 128) if _CUDA else (1, 8, 512, 64)
    shape = (batch, heads, length, width)
    q, k, v = (
        torch.randn(shape, device=_DEVICE, dtype=_DTYPE, requires_grad=True) for _ in range(3)
    )
    backend = _BACKENDS[options["backend"]]

    def step() -> None:
        with sdpa_kernel(backend):
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out.backward(out)  # type: ignore[no-untyped-call]

    # Two products forward, 2.5 times that backward, half of it masked.
    amount = 3.5 * 4.0 * batch * heads * length * length * width / 2
    return step, "flops_per_second", amount


def norm(options: Mapping[str, str]) -> Work:
    """RMS norm; bytes/s of what must move (one read, one write)."""
    rows, width = (32768, 4096) if _CUDA else (2048, 1024)
    x = torch.randn(rows, width, device=_DEVICE, dtype=_DTYPE)
    weight = torch.ones(width, device=_DEVICE, dtype=_DTYPE)

    def eager() -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x) * weight

    def fused() -> Tensor:
        return functional.rms_norm(x, (width,), weight, 1e-5)

    amount = 2.0 * x.numel() * x.element_size()
    return (fused if options["norm"] == "fused" else eager), "bytes_per_second", amount


OPERATIONS: dict[str, Callable[[Mapping[str, str]], Work]] = {
    "gather": gather,
    "matmul": matmul,
    "read": read,
    "attention": attention,
    "norm": norm,
}


def main() -> None:
    """Time the operation and write the metrics."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operation", choices=sorted(OPERATIONS))
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.manual_seed(0)
    call, metric, amount = OPERATIONS[asked.operation](
        dict(option.split("=", 1) for option in asked.options)
    )
    seconds = _timed(call)
    middle = statistics.median(seconds)
    answer = {
        "metrics": {metric: amount / middle, "operation_ms": middle * 1e3},
        "samples": {"operation_ms": [s * 1e3 for s in seconds]},
        "telemetry": {"device": _DEVICE.type, "dtype": str(_DTYPE), "torch": torch.__version__},
    }
    asked.out.write_text(json.dumps(answer))


def _timed(call: Callable[[], object]) -> list[float]:
    """Seconds of one call, many times; each sample is long enough for the clock."""
    for _ in range(3):
        call()
    _wait()
    begun = time.perf_counter()
    call()
    _wait()
    repeats = max(1, round(_SECONDS / (time.perf_counter() - begun)))
    found = []
    for _ in range(_SAMPLES):
        begun = time.perf_counter()
        for _ in range(repeats):
            call()
        _wait()
        found.append((time.perf_counter() - begun) / repeats)
    return found


def _wait() -> None:
    if _CUDA:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
