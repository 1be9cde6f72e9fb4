"""One row times a weight matrix: a decode step of one sequence is little else.

Each program streams BLOCK_N rows of the weights once; what stands before the product (RMSNorm) and
after it (scales, SwiGLU, residual) is folded in, so nothing else touches device memory. The norm
needs no pass of its own: its scale is one number, applied to the finished sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How a product is cut."""

    block_n: int = 4
    block_k: int = 1024
    warps: int = 4
    pdl: bool = False  # start before the kernel ahead has ended


@triton.jit
def _tile(w_ptr, n, k, n_mask, K: tl.constexpr, EVEN: tl.constexpr):
    place = w_ptr + n[:, None].to(tl.int64) * K + k[None, :]
    if EVEN:
        return tl.load(place, mask=n_mask[:, None], other=0.0, eviction_policy="evict_first")
    mask = n_mask[:, None] & (k < K)[None, :]
    return tl.load(place, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _gemv(
    x_ptr, w_ptr, scale_ptr, norm_ptr, residual_ptr, y_ptr, rows, eps,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SCALED: tl.constexpr,
    NORM: tl.constexpr, RESIDUAL: tl.constexpr, SWIGLU: tl.constexpr, EVEN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_mask = n < rows
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    other = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    squares = tl.zeros([BLOCK_K], tl.float32)
    k = tl.arange(0, BLOCK_K)
    # Weights do not depend on the kernel ahead: their first tile is on its way before the wait.
    w = _tile(w_ptr, n, k, n_mask, K, EVEN)
    if SWIGLU:
        u = _tile(w_ptr, n + rows, k, n_mask, K, EVEN)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    for first in tl.static_range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        if first > 0:
            w = _tile(w_ptr, n, k, n_mask, K, EVEN)
            if SWIGLU:
                u = _tile(w_ptr, n + rows, k, n_mask, K, EVEN)
        if EVEN:
            x = tl.load(x_ptr + k).to(tl.float32)
        else:
            x = tl.load(x_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        if NORM:
            squares += x * x
            if EVEN:
                x = x * tl.load(norm_ptr + k).to(tl.float32)
            else:
                x = x * tl.load(norm_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        acc += w.to(tl.float32) * x[None, :]
        if SWIGLU:
            other += u.to(tl.float32) * x[None, :]
    y = tl.sum(acc, 1)
    if SCALED:
        y = y * tl.load(scale_ptr + n, mask=n_mask, other=0.0)
    if NORM:
        rms = tl.rsqrt(tl.sum(squares, 0) / K + eps)
        y = y * rms
    if SWIGLU:
        z = tl.sum(other, 1)
        if SCALED:
            z = z * tl.load(scale_ptr + rows + n, mask=n_mask, other=0.0)
        if NORM:
            z = z * rms
        y = y * tl.sigmoid(y) * z
    if RESIDUAL:
        y = y + tl.load(residual_ptr + n, mask=n_mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + n, y.to(y_ptr.dtype.element_ty), mask=n_mask)


@triton.jit
def _gemv4(
    x_ptr, w_ptr, scale_ptr, low_ptr, norm_ptr, residual_ptr, y_ptr, rows, eps,
    K: tl.constexpr, GROUP: tl.constexpr, BLOCK_N: tl.constexpr, NORM: tl.constexpr,
    RESIDUAL: tl.constexpr, SWIGLU: tl.constexpr,
):  # fmt: skip
    """Weights of 4 bits; a byte holds an element of the first half of its group and one of the
    second, and a group shares a scale and a lowest value."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_mask = n < rows
    y, squares = _sum4(x_ptr, w_ptr, scale_ptr, low_ptr, norm_ptr, n, n_mask, K, GROUP, BLOCK_N,
                       NORM)  # fmt: skip
    if NORM:
        rms = tl.rsqrt(squares / K + eps)
        y = y * rms
    if SWIGLU:
        z, _ = _sum4(x_ptr, w_ptr, scale_ptr, low_ptr, norm_ptr, n + rows, n_mask, K, GROUP,
                     BLOCK_N, NORM)  # fmt: skip
        if NORM:
            z = z * rms
        y = y * tl.sigmoid(y) * z
    if RESIDUAL:
        y = y + tl.load(residual_ptr + n, mask=n_mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + n, y.to(y_ptr.dtype.element_ty), mask=n_mask)


@triton.jit
def _sum4(
    x_ptr, w_ptr, scale_ptr, low_ptr, norm_ptr, n, n_mask, K: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    half: tl.constexpr = GROUP // 2
    groups: tl.constexpr = (K + GROUP - 1) // GROUP
    acc = tl.zeros([BLOCK_N, half], tl.float32)
    squares = tl.zeros([half], tl.float32)
    wide = n.to(tl.int64)
    j = tl.arange(0, half)
    for group in range(groups):
        place = wide[:, None] * (groups * half) + (group * half + j)[None, :]
        packed = tl.load(w_ptr + place, mask=n_mask[:, None], other=0,
                         eviction_policy="evict_first").to(tl.int32)  # fmt: skip
        scale = tl.load(scale_ptr + wide * groups + group, mask=n_mask, other=0.0).to(tl.float32)
        low = tl.load(low_ptr + wide * groups + group, mask=n_mask, other=0.0).to(tl.float32)
        for side in tl.static_range(2):
            k = group * GROUP + side * half + j
            x = tl.load(x_ptr + k, mask=k < K, other=0.0).to(tl.float32)
            if NORM:
                squares += x * x
                x = x * tl.load(norm_ptr + k, mask=k < K, other=0.0).to(tl.float32)
            q = ((packed >> (4 * side)) & 15).to(tl.float32)
            acc += (q * scale[:, None] + low[:, None]) * x[None, :]
    return tl.sum(acc, 1), tl.sum(squares, 0)


def gemv(
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    tiling: Tiling,
    *,
    norm: tuple[Tensor, float] | None = None,
    residual: Tensor | None = None,
    swiglu: bool = False,
) -> Tensor:
    """(1, K) times (N, K): (1, N), or (1, N / 2) of gate rows first and up rows behind them."""
    rows, size = weight.shape
    rows = rows // 2 if swiglu else rows
    y = torch.empty((1, rows), dtype=x.dtype, device=x.device)
    block_k = min(tiling.block_k, triton.next_power_of_2(size))
    _gemv[(triton.cdiv(rows, tiling.block_n),)](
        x, weight, _or(scale, x), _or(norm and norm[0], x), _or(residual, x), y, rows,
        norm[1] if norm else 0.0, K=size, BLOCK_N=tiling.block_n, BLOCK_K=block_k,
        SCALED=scale is not None, NORM=norm is not None, RESIDUAL=residual is not None,
        SWIGLU=swiglu, EVEN=size % block_k == 0, PDL=tiling.pdl, num_warps=tiling.warps,
        **({"launch_pdl": True} if tiling.pdl else {}),
    )  # fmt: skip
    return y


def gemv4(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    low: Tensor,
    group: int,
    tiling: Tiling,
    *,
    norm: tuple[Tensor, float] | None = None,
    residual: Tensor | None = None,
    swiglu: bool = False,
) -> Tensor:
    """The same with weights of 4 bits: ``packed`` (N, bytes), ``scale`` and ``low`` (N, groups)."""
    rows, size = packed.shape[0], x.shape[1]
    rows = rows // 2 if swiglu else rows
    y = torch.empty((1, rows), dtype=x.dtype, device=x.device)
    block_n = max(tiling.block_n, 4096 // group)
    _gemv4[(triton.cdiv(rows, block_n),)](
        x, packed, scale, low, _or(norm and norm[0], x), _or(residual, x), y, rows,
        norm[1] if norm else 0.0, K=size, GROUP=group, BLOCK_N=block_n, NORM=norm is not None,
        RESIDUAL=residual is not None, SWIGLU=swiglu, num_warps=tiling.warps,
    )  # fmt: skip
    return y


def _or(tensor: Tensor | None, stand_in: Tensor) -> Tensor:
    """A kernel wants a pointer even where it never looks."""
    return stand_in if tensor is None else tensor
