"""Small operations of a layer, each in one pass over its data."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_FP8_TOP = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


@triton.jit
def _add_norm(
    x_ptr, delta_ptr, weight_ptr, sum_ptr, out_ptr, size, eps, BLOCK: tl.constexpr,
    HAS_DELTA: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    mask = i < size
    x = tl.load(x_ptr + row * size + i, mask=mask, other=0.0)
    if HAS_DELTA:
        x = x + tl.load(delta_ptr + row * size + i, mask=mask, other=0.0)
        tl.store(sum_ptr + row * size + i, x, mask=mask)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    weight = tl.load(weight_ptr + i, mask=mask, other=0.0)
    tl.store(out_ptr + row * size + i, (wide * scale).to(x.dtype) * weight, mask=mask)


@triton.jit
def _silu_mul(gate_ptr, up_ptr, out_ptr, size, gate_stride, up_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = i < size
    gate = tl.load(gate_ptr + row * gate_stride + i, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + i, mask=mask, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * size + i, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _rope_write(
    q_ptr, k_ptr, v_ptr, out_ptr, k_cache_ptr, v_cache_ptr, k_scale_ptr, v_scale_ptr,
    cos_ptr, sin_ptr, table_ptr, rows_ptr, positions_ptr,
    q_stride, k_stride, v_stride, kv_block, kv_slot, kv_head, table_stride, top,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    PAGE: tl.constexpr, SCALED: tl.constexpr, CLAMP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token and one head of q, k or v: turned, and k and v put into the cache."""
    token, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    position = tl.load(positions_ptr + token).to(tl.int64)
    i = tl.arange(0, BLOCK)
    mask = i < HALF
    cos = tl.load(cos_ptr + position * 2 * HALF + i, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + position * 2 * HALF + i, mask=mask, other=0.0)
    if h < HEADS:
        source = q_ptr + token * q_stride + h * 2 * HALF
        a = tl.load(source + i, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(source + HALF + i, mask=mask, other=0.0).to(tl.float32)
        target = out_ptr + (token * HEADS + h) * 2 * HALF
        kind = out_ptr.dtype.element_ty
        tl.store(target + i, (a * cos - b * sin).to(kind), mask=mask)
        tl.store(target + HALF + i, (b * cos + a * sin).to(kind), mask=mask)
    else:
        row = tl.load(rows_ptr + token).to(tl.int64)
        block = tl.load(table_ptr + row * table_stride + position // PAGE).to(tl.int64)
        slot = position % PAGE
        if h < HEADS + KV:
            kv = h - HEADS
            source = k_ptr + token * k_stride + kv * 2 * HALF
            a = tl.load(source + i, mask=mask, other=0.0).to(tl.float32)
            b = tl.load(source + HALF + i, mask=mask, other=0.0).to(tl.float32)
            _store_kv(
                k_cache_ptr + block * kv_block + slot * kv_slot + kv * kv_head,
                k_scale_ptr + (block * PAGE + slot) * KV + kv,
                a * cos - b * sin, b * cos + a * sin, i, mask, top, HALF, SCALED, CLAMP,
            )  # fmt: skip
        else:
            kv = h - HEADS - KV
            source = v_ptr + token * v_stride + kv * 2 * HALF
            a = tl.load(source + i, mask=mask, other=0.0).to(tl.float32)
            b = tl.load(source + HALF + i, mask=mask, other=0.0).to(tl.float32)
            _store_kv(
                v_cache_ptr + block * kv_block + slot * kv_slot + kv * kv_head,
                v_scale_ptr + (block * PAGE + slot) * KV + kv,
                a, b, i, mask, top, HALF, SCALED, CLAMP,
            )  # fmt: skip


@triton.jit
def _store_kv(
    target, scale_target, a, b, i, mask, top,
    HALF: tl.constexpr, SCALED: tl.constexpr, CLAMP: tl.constexpr,
):  # fmt: skip
    if SCALED:
        most = tl.maximum(tl.max(tl.abs(a), 0), tl.max(tl.abs(b), 0))
        scale = tl.maximum(most, 1e-8) / 127.0
        tl.store(scale_target, scale)
        a = _round(a / scale)
        b = _round(b / scale)
    if CLAMP:
        a = tl.minimum(tl.maximum(a, -top), top)
        b = tl.minimum(tl.maximum(b, -top), top)
    kind = target.dtype.element_ty
    tl.store(target + i, a.to(kind), mask=mask)
    tl.store(target + HALF + i, b.to(kind), mask=mask)


@triton.jit
def _round(x):
    """To the nearest, halves away from zero; a cast to an integer cuts off."""
    return tl.where(x >= 0, tl.floor(x + 0.5), tl.ceil(x - 0.5))


@triton.jit
def _row_top(x_ptr, top_ptr, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    most = tl.zeros([BLOCK], tl.float32)
    for first in range(0, size, BLOCK):
        i = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * size + i, mask=i < size, other=0.0).to(tl.float32)
        most = tl.maximum(most, tl.abs(x))
    tl.store(top_ptr + row, tl.max(most, 0))


@triton.jit
def _cast(
    x_ptr, top_ptr, out_ptr, scale_ptr, size, rows, top,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, PER_ROW: tl.constexpr, INTEGER: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if PER_ROW:
        most = tl.load(top_ptr + row)
    else:
        r = tl.arange(0, ROWS)
        found = tl.zeros([ROWS], tl.float32)
        for first in range(0, rows, ROWS):
            found = tl.maximum(found, tl.load(top_ptr + first + r, mask=first + r < rows, other=0))
        most = tl.max(found, 0)
    scale = tl.maximum(most, 1e-8) / top
    if PER_ROW:
        tl.store(scale_ptr + row, scale)
    elif tl.program_id(0) == 0:
        tl.store(scale_ptr, scale)
    for first in range(0, size, BLOCK):
        i = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * size + i, mask=i < size, other=0.0).to(tl.float32) / scale
        x = tl.minimum(tl.maximum(x, -top), top)
        if INTEGER:
            x = _round(x)
        tl.store(out_ptr + row * size + i, x.to(out_ptr.dtype.element_ty), mask=i < size)


@triton.jit
def _rescale(acc_ptr, row_ptr, col_ptr, out_ptr, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = i < size
    acc = tl.load(acc_ptr + row * size + i, mask=mask, other=0).to(tl.float32)
    out = acc * tl.load(row_ptr + row) * tl.load(col_ptr + i, mask=mask, other=0.0)
    tl.store(out_ptr + row * size + i, out.to(out_ptr.dtype.element_ty), mask=mask)


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x + delta, its normalisation), both (T, size)."""
    rows, size = x.shape
    out = torch.empty_like(x)
    total = torch.empty_like(x) if delta is not None else x
    block = triton.next_power_of_2(size)
    _add_norm[(rows,)](
        x, delta if delta is not None else x, weight, total, out, size, eps, BLOCK=block,
        HAS_DELTA=delta is not None, num_warps=min(16, max(1, block // 512)),
    )  # fmt: skip
    return total, out


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, each (T, size) with rows anywhere."""
    rows, size = gate.shape
    out = torch.empty((rows, size), dtype=gate.dtype, device=gate.device)
    block = 1024
    _silu_mul[(rows, triton.cdiv(size, block))](
        gate, up, out, size, gate.stride(0), up.stride(0), BLOCK=block
    )
    return out


def rope_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Any,
    cos: Tensor,
    sin: Tensor,
    table: Tensor,
    rows: Tensor,
    positions: Tensor,
    *,
    pdl: bool = False,
) -> Tensor:
    """Turned queries (T, H, D); keys and values, (T, heads x dim), go into the cache."""
    dim, kv = cache.dim, cache.kv_heads
    heads = q.shape[1] // dim
    out = torch.empty((q.shape[0], heads, dim), dtype=q.dtype, device=q.device)
    top = _FP8_TOP.get(cache.k.dtype, 0.0)
    _rope_write[(q.shape[0], heads + 2 * kv)](
        q, k, v, out, cache.k, cache.v, cache.k_scale, cache.v_scale, cos, sin, table, rows,
        positions, q.stride(0), k.stride(0), v.stride(0), *cache.strides, table.stride(0), top,
        HEADS=heads, KV=kv, HALF=dim // 2, BLOCK=triton.next_power_of_2(dim // 2),
        PAGE=cache.size, SCALED=cache.scaled, CLAMP=top > 0, PDL=pdl, num_warps=1,
        **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip
    return out


def cast_rows(x: Tensor, dtype: torch.dtype, *, per_row: bool) -> tuple[Tensor, Tensor]:
    """(T, size) in int8 or fp8, and its scales: (T, 1), or () for one of all."""
    rows, size = x.shape
    tops = torch.empty(rows, dtype=torch.float32, device=x.device)
    out = torch.empty((rows, size), dtype=dtype, device=x.device)
    shape = (rows, 1) if per_row else ()
    scale = torch.empty(shape, dtype=torch.float32, device=x.device)
    _row_top[(rows,)](x, tops, size, BLOCK=2048, num_warps=8)
    _cast[(rows,)](
        x, tops, out, scale, size, rows, _FP8_TOP.get(dtype, 127.0), BLOCK=2048, ROWS=1024,
        PER_ROW=per_row, INTEGER=dtype == torch.int8, num_warps=8,
    )  # fmt: skip
    return out, scale


def rescale(acc: Tensor, row: Tensor, col: Tensor, dtype: torch.dtype) -> Tensor:
    """An int32 product times its scales of rows and columns."""
    rows, size = acc.shape
    out = torch.empty((rows, size), dtype=dtype, device=acc.device)
    block = 1024
    _rescale[(rows, triton.cdiv(size, block))](acc, row, col, out, size, BLOCK=block)
    return out
