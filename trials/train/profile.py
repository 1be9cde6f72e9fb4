"""Where a step's time goes: kernels by class, and what binds the step."""

from __future__ import annotations

import re
import time
from typing import Any

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from trials.train.clock import wait
from trials.train.trainer import Trainer

_CLASSES = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("communication", r"nccl|gloo|all_?reduce|all_?gather|reduce_?scatter|broadcast"),
        ("attention", r"flash|attention|fmha|sdpa|cudnn.*mha|cudnn_generated_fort_native_sdpa"),
        ("matmul", r"gemm|matmul|::mm|addmm|bmm|cutlass|cublas|nvjet|wgmma|xmma|scaled_mm"),
        ("normalisation", r"norm|rsqrt"),
        ("copy", r"memcpy|memset|copy|::to\b|cast"),
    )
)  # fmt: skip
_STEPS = {"cpu": 1, "cuda": 2}  # a step of a CPU is dear
_HOST_BOUND = 0.25  # share of the time in which the device had nothing to do


def profile_step(trainer: Trainer) -> dict[str, Any]:
    """Milliseconds of kernels by class over one step, the idle rest, and a label."""
    cuda = trainer.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    steps = _STEPS[trainer.device.type]
    micro = min(trainer.shape.accumulation, steps)
    if cuda:
        trainer.step(micro)
        wait(trainer.device)
    with profile(activities=activities) as seen:
        begun = time.perf_counter()
        for _ in range(steps):
            trainer.step(micro)
        wait(trainer.device)
        wall_ms = (time.perf_counter() - begun) * 1e3 / steps
    times = dict.fromkeys([*(name for name, _ in _CLASSES), "elementwise"], 0.0)
    for event in seen.key_averages():
        spent = event.self_device_time_total if cuda else event.self_cpu_time_total
        if cuda and event.device_type == DeviceType.CPU:
            continue
        times[_class_of(event.key)] += spent / 1e3 / steps
    busy = sum(times.values())
    times["idle"] = max(0.0, wall_ms - busy)
    return {"milliseconds": times, "wall_ms": wall_ms, "label": _label(times, wall_ms)}


def _class_of(kernel: str) -> str:
    return next((name for name, pattern in _CLASSES if pattern.search(kernel)), "elementwise")


def _label(times: dict[str, float], wall_ms: float) -> str:
    if times["idle"] > _HOST_BOUND * wall_ms:
        return "host-bound"
    groups = {
        "compute-bound": times["matmul"] + times["attention"],
        "bandwidth-bound": times["elementwise"] + times["normalisation"] + times["copy"],
        "communication-bound": times["communication"],
    }
    return max(groups, key=lambda name: groups[name])
