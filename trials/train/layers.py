"""The small operations of a decoder layer, each in the implementations that knobs choose from."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Turn = Callable[[Tensor, Tensor, Tensor], Tensor]  # x (B, H, T, D), cos, sin (T, D) -> x


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension."""

    def __init__(self, size: int, eps: float, impl: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.impl = eps, impl
        self._eager = torch.compile(rms_norm) if impl == "compiled" else rms_norm

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) -> (..., size)"""
        if self.impl == "f_rms_norm":
            return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)
        if self.impl == "triton":
            from liger_kernel.transformers.functional import liger_rms_norm

            return liger_rms_norm(x, self.weight, self.eps)  # type: ignore[no-any-return]
        return self._eager(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In fp32 whatever the dtype of ``x``, as Llama does."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight.to(x.dtype)


def rope_table(length: int, dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, each (length, dim)."""
    inverse = 1.0 / theta ** (torch.arange(0, dim, 2, device=device).float() / dim)
    angles = torch.outer(torch.arange(length, device=device).float(), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def turn_real(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of the last dimension against each other."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def turn_complex(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same as one complex product, in fp32."""
    half = x.shape[-1] // 2
    turn = torch.complex(cos[:, :half].float(), sin[:, :half].float())
    pairs = torch.complex(x[..., :half].float(), x[..., half:].float()) * turn
    return torch.cat((pairs.real, pairs.imag), dim=-1).to(x.dtype)


def rotation(impl: str) -> Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A function (q, k, cos, sin) -> (q, k) of that implementation."""
    if impl == "fused_triton":
        from liger_kernel.transformers.functional import liger_rope

        return lambda q, k, cos, sin: liger_rope(q, k, cos[None], sin[None])
    turn: Turn = turn_complex if impl == "complex" else turn_real

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return turn(q, cos, sin), turn(k, cos, sin)

    return torch.compile(rotate) if impl == "compiled" else rotate


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """The gated activation of a Llama feed-forward."""
    return F.silu(gate) * up


def activation(impl: str) -> Callable[[Tensor, Tensor], Tensor]:
    """``swiglu`` in that implementation."""
    if impl == "fused_triton":
        from liger_kernel.transformers.functional import liger_swiglu

        return lambda gate, up: liger_swiglu(gate.contiguous(), up.contiguous())
    return torch.compile(swiglu) if impl == "compiled" else swiglu
