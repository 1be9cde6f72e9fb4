"""Settings of the whole process that are calls rather than attributes."""

from __future__ import annotations

import gc
import os

import torch

from trials.errors import Unsupported
from trials.settings import Settings
from trials.train.memory import keep_freed_pages


def prepare(settings: Settings, device: torch.device) -> None:
    """Threads, number formats of products, deterministic algorithms, denormals; each read back."""
    _threads(settings)
    level = str(settings.take("precision.float32_matmul", "highest"))
    if level != "highest":
        torch.set_float32_matmul_precision(level)
    settings.effective("precision.float32_matmul", torch.get_float32_matmul_precision())
    wanted = bool(settings.take("determinism.use_deterministic_algorithms", False))
    if wanted or settings.take("attention.deterministic", False):
        torch.use_deterministic_algorithms(True)
    found = torch.are_deterministic_algorithms_enabled()
    settings.effective("determinism.use_deterministic_algorithms", found and wanted)
    settings.effective("attention.deterministic", found)
    if settings.take("cpu.flush_denormal", False) and not torch.set_flush_denormal(True):
        raise Unsupported("cpu.flush_denormal is not supported by this processor")
    settings.effective("cpu.flush_denormal", bool(settings.take("cpu.flush_denormal", False)))
    if device.type == "cuda":
        _libraries(settings)
    else:
        settings.fact("host_allocator_keeps_pages", keep_freed_pages())


def _threads(settings: Settings) -> None:
    if (threads := settings.take("cpu.intraop_threads", "unset")) != "unset":
        torch.set_num_threads(int(threads))
        settings.effective("cpu.intraop_threads", torch.get_num_threads())
    if (threads := settings.take("cpu.interop_threads", "unset")) != "unset":
        try:
            torch.set_num_interop_threads(int(threads))
        except RuntimeError as error:  # once, before the first parallel work
            raise Unsupported(f"cpu.interop_threads={threads}: {error}") from error
        settings.effective("cpu.interop_threads", torch.get_num_interop_threads())
    if os.environ.get("OMP_NUM_THREADS", "").isdigit() and "cpu.omp_num_threads" in settings.values:
        settings.fact("omp_threads", torch.get_num_threads())


def _libraries(settings: Settings) -> None:
    library = str(settings.take("blas.preferred_library", "default"))
    if library != "default":
        torch.backends.cuda.preferred_blas_library(library)
        found = str(torch.backends.cuda.preferred_blas_library()).lower().rpartition(".")[2]
        if found != library:
            raise Unsupported(f"blas.preferred_library was set to {library!r} but reads {found!r}")
    settings.effective("blas.preferred_library", library)
    if not settings.take("precision.bf16_reduction_split_k", True):
        products = torch.backends.cuda.matmul
        try:
            products.allow_bf16_reduced_precision_reduction = (True, False)
        except (RuntimeError, TypeError) as error:
            raise Unsupported(f"precision.bf16_reduction_split_k=false: {error}") from error
        live = getattr(products, "allow_bf16_reduced_precision_reduction_split_k", False)
        settings.effective("precision.bf16_reduction_split_k", bool(live))


class GarbageCollection:
    """When Python looks for cycles: by itself, every so many steps, or never."""

    def __init__(self, settings: Settings) -> None:
        interval = settings.take("process.gc_interval", "auto")
        self._freeze = bool(settings.take("process.gc_freeze_after_warmup", False))
        self._every = 0
        self._steps = 0
        if interval != "auto":
            gc.disable()
            self._every = 0 if interval == "off" else int(interval)
        settings.effective("process.gc_interval", "auto" if gc.isenabled() else interval)
        settings.effective("process.gc_freeze_after_warmup", self._freeze)

    def after_step(self) -> None:
        """Collect where it is due."""
        self._steps += 1
        if self._every and self._steps % self._every == 0:
            gc.collect(1)

    def after_warm_up(self) -> None:
        """Leave what lives now out of every later look."""
        if self._freeze:
            gc.collect()
            gc.freeze()
