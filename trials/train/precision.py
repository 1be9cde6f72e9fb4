"""Number formats of a training step: weights, compute, loss scaling, fp8."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

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
    names = {v: k for k, v in DTYPES.items()}
    settings.effective("precision.compute_dtype", names[compute])
    settings.effective("precision.mode", mode)
    settings.effective(
        "precision.param_dtype",
        names[weights] if mode != "cast_model" else settings.take("precision.param_dtype", "fp32"),
    )
    return Precision(weights=weights, compute=compute, autocast=autocast, scaler=scaler)


def to_float8(blocks: list[nn.Module], heads: list[nn.Module], settings: Settings) -> None:
    """Turn the linear layers of some blocks (and the head of a model whose layers are still to
    come) into fp8 ones; Unsupported names a bad dimension."""
    if not settings.take("float8.enabled", False):
        return
    if torch.cuda.get_device_capability() < (8, 9):
        raise Unsupported("float8.enabled needs compute capability 8.9 or newer")
    import dataclasses

    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    recipe = settings.take("float8.recipe", "tensorwise")
    smallest = int(settings.take("float8.filter_min_kn", 0))
    padded = bool(settings.take("float8.pad_inner_dim", False))
    config = Float8LinearConfig.from_recipe_name(recipe)
    fast = bool(settings.take("float8.use_fast_accum_output", True))
    fast_grad_input = bool(settings.take("float8.use_fast_accum_grad_input", False))
    fast_grad_weight = bool(settings.take("float8.use_fast_accum_grad_weight", False))
    config = dataclasses.replace(
        config,
        pad_inner_dim=padded,
        round_scales_to_power_of_2=bool(settings.take("float8.round_scales_to_power_of_2", False))
        or config.round_scales_to_power_of_2,
        gemm_config_output=dataclasses.replace(config.gemm_config_output, use_fast_accum=fast),
        gemm_config_grad_input=dataclasses.replace(
            config.gemm_config_grad_input, use_fast_accum=fast_grad_input
        ),
        gemm_config_grad_weight=dataclasses.replace(
            config.gemm_config_grad_weight, use_fast_accum=fast_grad_weight
        ),
    )
    converted = 0
    with_head = bool(settings.take("float8.include_head", False))
    for module in [*blocks, *heads]:
        is_head = module in heads

        def wanted(linear: nn.Module, name: str, is_head: bool = is_head) -> bool:
            nonlocal converted
            if not isinstance(linear, nn.Linear) or (is_head and name != "head"):
                return False
            if not padded and any(size % 16 for size in linear.weight.shape):
                sizes = " x ".join(map(str, linear.weight.shape))
                raise Unsupported(f"fp8 needs sizes that are multiples of 16; {name} is {sizes}")
            fits = min(linear.weight.shape) >= smallest
            converted += fits
            return fits

        convert_to_float8_training(module, config=config, module_filter_fn=wanted)
    settings.effective("float8.include_head", with_head)
    settings.effective("float8.enabled", converted > 0)
    settings.effective("float8.recipe", recipe)
    settings.effective("float8.filter_min_kn", smallest)
    settings.effective("float8.pad_inner_dim", config.pad_inner_dim)
    settings.effective("float8.use_fast_accum_output", config.gemm_config_output.use_fast_accum)
    for name, gemm in (
        ("grad_input", config.gemm_config_grad_input),
        ("grad_weight", config.gemm_config_grad_weight),
    ):
        settings.effective(f"float8.use_fast_accum_{name}", gemm.use_fast_accum)
    settings.effective("float8.round_scales_to_power_of_2", config.round_scales_to_power_of_2)
