"""Matrix products in fp8 by torchao; the head stays in the compute dtype unless asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trials.errors import Unsupported
from trials.settings import Settings

_PRODUCTS = {"output": True, "grad_input": False, "grad_weight": False}  # torchao's defaults
_TILE = 16  # inner sizes of an fp8 product must be multiples of it


def convert(blocks: Iterable[nn.Module], model: nn.Module | None, settings: Settings) -> None:
    """Turn the linear layers of decoder layers into fp8 ones; do it before they are compiled.
    ``model`` is given once, for its head.

    Raises Unsupported, before anything is compiled, for a device without fp8 and for a size that
    its kernels cannot take.
    """
    if not settings.take("float8.enabled", False):
        return
    smallest = int(settings.take("float8.filter_min_kn", 0))
    padded = bool(settings.take("float8.pad_inner_dim", False))
    chosen: list[tuple[nn.Module, dict[str, nn.Module]]] = [
        (block, dict(_linears(block, smallest))) for block in blocks
    ]
    with_head = bool(settings.take("float8.include_head", False))
    settings.effective("float8.include_head", with_head)
    if with_head and model is not None:
        chosen.append((model, {"head": model.get_submodule("head")}))
    for name, linear in ((n, m) for _, found in chosen for n, m in found.items()):
        if not padded:
            _check_sizes(name, linear)
    _check_device()
    config = _config(settings, padded=padded)
    converted = sum(_swap(module, set(found), config) for module, found in chosen)
    if chosen and not converted:
        raise Unsupported(f"float8.filter_min_kn={smallest} leaves no layer to convert")
    _read_back(settings, config, smallest)


def _linears(block: nn.Module, smallest: int) -> Iterable[tuple[str, nn.Linear]]:
    for name, linear in block.named_modules():
        fits = isinstance(linear, nn.Linear) and min(linear.weight.shape) >= smallest
        if fits and not name.endswith("router"):
            yield name, linear


def _check_sizes(name: str, linear: nn.Module) -> None:
    assert isinstance(linear, nn.Linear)
    for what, size in (("in", linear.in_features), ("out", linear.out_features)):
        if size % _TILE:
            raise Unsupported(
                f"float8 needs sizes that are multiples of {_TILE}: {name} has {what}_features="
                f"{size}; float8.pad_inner_dim=true or precision without fp8 takes it"
            )


def _check_device() -> None:
    if not torch.cuda.is_available():
        raise Unsupported("float8.enabled needs a GPU of compute capability 8.9 or newer")
    if (found := torch.cuda.get_device_capability()) < (8, 9):
        raise Unsupported(f"float8.enabled needs compute capability 8.9, not {found[0]}.{found[1]}")


def _config(settings: Settings, *, padded: bool) -> Any:
    try:
        from torchao.float8 import Float8LinearConfig
    except ImportError as error:
        raise Unsupported(f"float8.enabled needs torchao: {error}") from error
    config = Float8LinearConfig.from_recipe_name(settings.take("float8.recipe", "tensorwise"))
    products = {
        f"gemm_config_{which}": dataclasses.replace(
            getattr(config, f"gemm_config_{which}"),
            use_fast_accum=bool(settings.take(f"float8.use_fast_accum_{which}", default)),
        )
        for which, default in _PRODUCTS.items()
    }
    powers = bool(settings.take("float8.round_scales_to_power_of_2", False))
    return dataclasses.replace(
        config,
        pad_inner_dim=padded,
        round_scales_to_power_of_2=powers or config.round_scales_to_power_of_2,
        **products,
    )


def _swap(block: nn.Module, names: set[str], config: Any) -> int:
    from torchao.float8 import convert_to_float8_training
    from torchao.float8.float8_linear import Float8Linear

    convert_to_float8_training(
        block, config=config, module_filter_fn=lambda _module, name: name in names
    )
    return sum(isinstance(module, Float8Linear) for module in block.modules())


def _read_back(settings: Settings, config: Any, smallest: int) -> None:
    settings.effective("float8.enabled", True)
    settings.effective("float8.recipe", settings.take("float8.recipe", "tensorwise"))
    settings.effective("float8.filter_min_kn", smallest)
    settings.effective("float8.pad_inner_dim", config.pad_inner_dim)
    for which in _PRODUCTS:
        live = getattr(config, f"gemm_config_{which}").use_fast_accum
        settings.effective(f"float8.use_fast_accum_{which}", live)
    settings.effective("float8.round_scales_to_power_of_2", config.round_scales_to_power_of_2)
