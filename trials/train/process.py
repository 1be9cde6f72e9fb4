"""Settings of the whole process that are calls rather than attributes."""

from __future__ import annotations

import gc
import os

import torch

from trials.settings import Settings


def prepare(settings: Settings) -> None:
    """Threads, deterministic algorithms, denormals, garbage collection; each read back."""
    if (threads := settings.take("cpu.intraop_threads", "unset")) != "unset":
        torch.set_num_threads(int(threads))
        settings.effective("cpu.intraop_threads", torch.get_num_threads())
    if "cpu.omp_num_threads" in settings.values:
        settings.effective("cpu.omp_num_threads", os.environ.get("OMP_NUM_THREADS", "unset"))
    if (level := settings.take("precision.float32_matmul", "highest")) != "highest":
        torch.set_float32_matmul_precision(level)
    settings.effective("precision.float32_matmul", torch.get_float32_matmul_precision())
    if settings.take("determinism.use_deterministic_algorithms", False):
        torch.use_deterministic_algorithms(True)
    settings.effective(
        "determinism.use_deterministic_algorithms", torch.are_deterministic_algorithms_enabled()
    )
    if (threads := settings.take("cpu.interop_threads", "unset")) != "unset":
        torch.set_num_interop_threads(int(threads))
        settings.effective("cpu.interop_threads", torch.get_num_interop_threads())
    if (library := settings.take("blas.preferred_library", "default")) != "default":
        torch.backends.cuda.preferred_blas_library(library)
    settings.effective("blas.preferred_library", library)
    if not settings.take("precision.bf16_reduction_split_k", True):
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (True, False)
        settings.effective("precision.bf16_reduction_split_k", False)
    if settings.take("cpu.flush_denormal", False):
        settings.effective("cpu.flush_denormal", torch.set_flush_denormal(True))
    interval = settings.take("process.gc_interval", "auto")
    if interval == "off":
        gc.disable()
    elif interval != "auto":
        gc.set_threshold(int(interval) * 100)
    settings.effective("process.gc_interval", interval)
