"""A few rows times quantised weights, which are widened tile by tile on their way in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How a product is cut."""

    block_m: int = 16
    block_n: int = 64
    block_k: int = 128
    split_k: int = 4
    warps: int = 4
    stages: int = 3


@triton.jit
def _matmul(
    x_ptr, w_ptr, scale_ptr, y_ptr, rows, columns, x_stride,
    K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_mask, n_mask = m < rows, n < columns
    part = tl.program_id(2)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(part * BLOCK_K, K, BLOCK_K * SPLIT_K):
        k = first + tl.arange(0, BLOCK_K)
        k_mask = k < K
        x = tl.load(x_ptr + m[:, None].to(tl.int64) * x_stride + k[None, :],
                    mask=m_mask[:, None] & k_mask[None, :], other=0.0)  # fmt: skip
        w = tl.load(w_ptr + n[:, None].to(tl.int64) * K + k[None, :],
                    mask=n_mask[:, None] & k_mask[None, :], other=0.0)  # fmt: skip
        if EXACT:
            acc += tl.dot(x, tl.trans(w.to(x.dtype)), input_precision="ieee")
        else:
            acc += tl.dot(x, tl.trans(w.to(x.dtype)))
    acc = acc * tl.load(scale_ptr + n, mask=n_mask, other=0.0)[None, :]
    place = (part * rows + m)[:, None].to(tl.int64) * columns + n[None, :]
    tl.store(y_ptr + place, acc.to(y_ptr.dtype.element_ty),
             mask=m_mask[:, None] & n_mask[None, :])  # fmt: skip


def matmul(x: Tensor, weight: Tensor, scale: Tensor, tiling: Tiling) -> Tensor:
    """(M, K) times (N, K) int8 or fp8 with a scale per row of N: (M, N)."""
    rows, columns = x.shape[0], weight.shape[0]
    splits = tiling.split_k
    kind = torch.float32 if splits > 1 else x.dtype
    y = torch.empty((splits, rows, columns), dtype=kind, device=x.device)
    grid = (triton.cdiv(columns, tiling.block_n), triton.cdiv(rows, tiling.block_m), splits)
    _matmul[grid](
        x, weight, scale, y, rows, columns, x.stride(0), K=weight.shape[1],
        BLOCK_M=tiling.block_m, BLOCK_N=tiling.block_n, BLOCK_K=tiling.block_k, SPLIT_K=splits,
        EXACT=x.dtype == torch.float32, num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return y[0] if splits == 1 else y.sum(0).to(x.dtype)
