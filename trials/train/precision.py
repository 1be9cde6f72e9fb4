"""Number formats of a training step: weights, compute, loss scaling."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from trials.errors import Unsupported
from trials.settings import Settings

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What the knobs came to."""

    weights: torch.dtype
    compute: torch.dtype
    autocast: Callable[[], AbstractContextManager[Any]]
    scaler: torch.amp.GradScaler | None
    accumulate: torch.dtype | None  # of gradients summed over micro-batches; None: as the weights


def choose(settings: Settings, device: torch.device) -> Precision:
    """Read the precision knobs; raises Unsupported for what cannot train."""
    compute = DTYPES[settings.take("precision.compute_dtype", "fp32")]
    mode = settings.take("precision.mode", "autocast")
    weights = DTYPES[settings.take("precision.param_dtype", "fp32")]
    if mode == "cast_model":
        weights = compute
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    if compute != torch.float32 and mode == "autocast":
        cache = settings.take("precision.autocast_cache_enabled", True)
        settings.effective("precision.autocast_cache_enabled", cache)

        def autocast() -> AbstractContextManager[Any]:
            return torch.autocast(device.type, dtype=compute, cache_enabled=cache)

    scaler = None
    if compute == torch.float16:
        if weights == torch.float16:
            raise Unsupported("fp16 weights cannot be unscaled; use precision.mode=autocast")
        init = settings.take("precision.grad_scaler_init", 65536.0)
        interval = int(settings.take("precision.grad_scaler_growth_interval", 2000))
        scaler = torch.amp.GradScaler(device.type, init_scale=init, growth_interval=interval)
        settings.effective("precision.grad_scaler_init", scaler.get_scale())
        settings.effective("precision.grad_scaler_growth_interval", scaler.get_growth_interval())
    gradients = settings.take("train.grad_accum_dtype", "param")
    settings.effective("train.grad_accum_dtype", gradients)
    accumulate = None if gradients == "param" else DTYPES[gradients]
    names = {v: k for k, v in DTYPES.items()}
    settings.effective("precision.compute_dtype", names[compute])
    settings.effective("precision.mode", mode)
    settings.effective(
        "precision.param_dtype",
        names[weights] if mode != "cast_model" else settings.take("precision.param_dtype", "fp32"),
    )
    return Precision(
        weights=weights,
        compute=compute,
        autocast=autocast,
        scaler=scaler,
        accumulate=None if accumulate == weights else accumulate,
    )
