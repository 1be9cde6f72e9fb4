"""Which implementation each piece of the decoder is built with, as its knobs say."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trials.errors import Unsupported
from trials.settings import Settings
from trials.train import layers
from trials.train.attention import Attend

_KNOBS = {
    "norm": ("kernel.rmsnorm.impl", "f_rms_norm"),
    "rope": ("kernel.rope.impl", "real_cached"),
    "swiglu": ("kernel.swiglu.impl", "eager"),
}
_TRITON = ("triton", "fused_triton")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Implementations to build with."""

    attend: Attend
    rotate: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    act: Callable[[Tensor, Tensor], Tensor]
    norm: str
    fused_qkv: bool
    fused_gate_up: bool
    vocab_multiple: int
    experts: str  # loop | grouped_mm
    capacity_factor: float  # of a mixture's experts; 0 keeps every token


def choose(
    settings: Settings, device: torch.device, attend: Attend, *, compile_ops: bool, moe: bool
) -> Parts:
    """Read the knobs; ``compile_ops`` compiles each small operation that is plain torch."""
    chosen = {part: str(settings.take(name, default)) for part, (name, default) in _KNOBS.items()}
    _check_triton(chosen, device)
    for part, (name, _) in _KNOBS.items():
        settings.effective(name, chosen[part])
    built = {p: _compiled(impl) if compile_ops else impl for p, impl in chosen.items()}
    parts = Parts(
        attend=attend,
        rotate=layers.rotation(built["rope"]),
        act=layers.activation(built["swiglu"]),
        norm=built["norm"],
        fused_qkv=bool(settings.take("model.fused_qkv", False)),
        fused_gate_up=bool(settings.take("model.fused_gate_up", False)),
        vocab_multiple=int(settings.take("model.vocab_pad_multiple", 1)),
        experts=str(settings.take("moe.impl", "loop")) if moe else "loop",
        capacity_factor=float(settings.take("moe.capacity_factor", 0.0)) if moe else 0.0,
    )
    if moe:
        settings.effective("moe.impl", parts.experts)
        settings.effective("moe.capacity_factor", parts.capacity_factor)
    return parts


def _compiled(impl: str) -> str:
    return impl if impl in (*_TRITON, "complex") else "compiled"


def _check_triton(chosen: dict[str, str], device: torch.device) -> None:
    wanted = [f"{_KNOBS[p][0]}={impl}" for p, impl in chosen.items() if impl in _TRITON]
    if not wanted:
        return
    if device.type != "cuda":
        raise Unsupported(f"{wanted[0]}: Triton kernels need a GPU")
    if importlib.util.find_spec("liger_kernel") is None:
        raise Unsupported(f"{wanted[0]} needs liger-kernel, which is not installed")
