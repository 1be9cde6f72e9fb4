"""The small operations of a layer in plain torch, and which of them the knobs ask for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trials.serve.model import Act, AddNorm, Turn


def add_norm_library(
    x: Tensor, delta: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """By torch's own RMSNorm."""
    x = x if delta is None else x + delta
    return x, F.rms_norm(x, (x.shape[-1],), weight, eps)


def add_norm_eager(
    x: Tensor, delta: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Step by step, in fp32 as Llama does."""
    x = x if delta is None else x + delta
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return x, (wide * scale).to(x.dtype) * weight


def turn_real(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of the last dimension against each other."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def turn_complex(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same as one complex product, in fp32."""
    half = x.shape[-1] // 2
    turn = torch.complex(cos[..., :half].float(), sin[..., :half].float())
    pairs = torch.complex(x[..., :half].float(), x[..., half:].float()) * turn
    return torch.cat((pairs.real, pairs.imag), -1).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """The gated activation."""
    return F.silu(gate) * up


def norm_of(impl: str) -> AddNorm:
    """``add_norm`` in an implementation."""
    if impl == "triton":
        from trials.serve.kernels.fused import add_norm

        return add_norm
    if impl == "compiled":
        return torch.compile(add_norm_eager, dynamic=True)
    return {"f_rms_norm": add_norm_library, "eager": add_norm_eager}[impl]


def turn_of(impl: str) -> Turn:
    """The rotation in an implementation; the fused one is not a function of its own."""
    if impl == "compiled":
        return torch.compile(turn_real, dynamic=True)
    return {"real_cached": turn_real, "complex": turn_complex, "fused_triton": turn_real}[impl]


def act_of(impl: str) -> Act:
    """``swiglu`` in an implementation."""
    if impl == "fused_triton":
        from trials.serve.kernels.fused import silu_mul

        return silu_mul
    if impl == "compiled":
        return torch.compile(swiglu, dynamic=True)
    return swiglu
