"""Attention over a paged KV cache: decodes with keys split among programs, and chunks of prompts.

Both read the live tokens of a sequence and nothing else, through its block table, from caches of
shape (block, slot, head, dim) or (block, head, slot, dim): the strides say which. Keys and values
may be stored as fp8, or as int8 with one scale per token and head.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_LOG2E = 1.4426950408889634


@triton.jit
def _load_kv(
    kv_ptr, scale_ptr, base, scale_base, live, d,
    DIM: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """A tile (BLOCK_N, BLOCK_D) of keys or values as fp32."""
    mask = live[:, None] & (d < DIM)[None, :]
    tile = tl.load(kv_ptr + base[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)
    if SCALED:
        tile = tile * tl.load(scale_ptr + scale_base, mask=live, other=0.0)[:, None]
    return tile


@triton.jit
def _decode(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, rows_ptr, positions_ptr,
    out_ptr, lse_ptr, softmax_scale,
    q_stride, kv_block, kv_slot, kv_head, table_stride, heads,
    PAGE: tl.constexpr, GROUP: tl.constexpr, BLOCK_G: tl.constexpr, DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, SCALED: tl.constexpr,
    EXACT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token, one KV head with its query heads, one share of the keys."""
    token, kv, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    kv_heads = tl.num_programs(1)
    row = tl.load(rows_ptr + token).to(tl.int64)
    length = tl.load(positions_ptr + token).to(tl.int32) + 1
    share = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK_N) * BLOCK_N
    start = split * share
    end = tl.minimum(start + share, length)
    g = tl.arange(0, BLOCK_G)
    d = tl.arange(0, BLOCK_D)
    head = kv * GROUP + g
    q_mask = (g < GROUP)[:, None] & (d < DIM)[None, :]
    q = tl.load(q_ptr + token.to(tl.int64) * q_stride + head[:, None] * DIM + d[None, :],
                mask=q_mask, other=0.0)  # fmt: skip
    top = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    for first in range(start, end, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        live = n < end
        block = tl.load(table_ptr + row * table_stride + n // PAGE, mask=live, other=0)
        block = block.to(tl.int64)
        base = block * kv_block + (n % PAGE) * kv_slot + kv * kv_head
        scale_base = (block * PAGE + n % PAGE) * kv_heads + kv
        k = _load_kv(k_ptr, k_scale_ptr, base, scale_base, live, d, DIM, SCALED)
        v = _load_kv(v_ptr, v_scale_ptr, base, scale_base, live, d, DIM, SCALED)
        if BLOCK_G == 1:
            scores = tl.sum(q.to(tl.float32) * k, 1)[None, :]
        elif EXACT:
            scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
        else:
            scores = tl.dot(q, tl.trans(k.to(q.dtype)))
        scores = tl.where(live[None, :], scores * softmax_scale, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weight = tl.exp2(scores - higher[:, None])
        keep = tl.exp2(top - higher)
        total = total * keep + tl.sum(weight, 1)
        if BLOCK_G == 1:
            part = tl.sum(tl.trans(weight) * v, 0)[None, :]
        elif EXACT:
            part = tl.dot(weight.to(q.dtype), v.to(q.dtype), input_precision="ieee")
        else:
            part = tl.dot(weight.to(q.dtype), v.to(q.dtype))
        acc = acc * keep[:, None] + part
        top = higher
    safe = tl.where(total > 0, total, 1.0)
    acc = acc / safe[:, None]
    place = (token.to(tl.int64) * heads + head) * SPLITS + split
    out_type = out_ptr.dtype.element_ty
    tl.store(out_ptr + place[:, None] * DIM + d[None, :], acc.to(out_type), mask=q_mask)
    if SPLITS > 1:
        lse = tl.where(total > 0, top + tl.log2(safe), float("-inf"))
        tl.store(lse_ptr + place, lse, mask=g < GROUP)


@triton.jit
def _combine(
    part_ptr, lse_ptr, out_ptr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The shares of one token and head put together."""
    place = tl.program_id(0).to(tl.int64)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    s = tl.arange(0, SPLITS)
    d = tl.arange(0, BLOCK_D)
    lse = tl.load(lse_ptr + place * SPLITS + s)
    weight = tl.exp2(lse - tl.max(lse, 0))
    parts = tl.load(part_ptr + (place * SPLITS + s)[:, None] * DIM + d[None, :],
                    mask=(d < DIM)[None, :], other=0.0)  # fmt: skip
    out = tl.sum(weight[:, None] * parts, 0) / tl.sum(weight, 0)
    tl.store(out_ptr + place * DIM + d, out.to(out_ptr.dtype.element_ty), mask=d < DIM)


@triton.jit
def _prefill(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, tiles_ptr, out_ptr, softmax_scale,
    q_stride, kv_block, kv_slot, kv_head, table_stride, heads,
    PAGE: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SCALED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """BLOCK_M consecutive tokens of one sequence, one query head."""
    tile, head = tl.program_id(0), tl.program_id(1)
    kv = head // GROUP
    kv_heads = heads // GROUP
    row = tl.load(tiles_ptr + tile * 4).to(tl.int64)
    token = tl.load(tiles_ptr + tile * 4 + 1).to(tl.int64)
    position = tl.load(tiles_ptr + tile * 4 + 2).to(tl.int32)
    count = tl.load(tiles_ptr + tile * 4 + 3).to(tl.int32)
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    q_mask = (m < count)[:, None] & (d < DIM)[None, :]
    q_base = (token + m)[:, None]
    q = tl.load(q_ptr + q_base * q_stride + head * DIM + d[None, :], mask=q_mask, other=0.0)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    end = position + count
    for first in range(0, end, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        live = n < end
        block = tl.load(table_ptr + row * table_stride + n // PAGE, mask=live, other=0)
        block = block.to(tl.int64)
        base = block * kv_block + (n % PAGE) * kv_slot + kv * kv_head
        scale_base = (block * PAGE + n % PAGE) * kv_heads + kv
        k = _load_kv(k_ptr, k_scale_ptr, base, scale_base, live, d, DIM, SCALED).to(q.dtype)
        v = _load_kv(v_ptr, v_scale_ptr, base, scale_base, live, d, DIM, SCALED).to(q.dtype)
        if EXACT:  # noqa: SIM108, Triton compiles one branch or the other
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        else:
            scores = tl.dot(q, tl.trans(k))
        seen = (n[None, :] <= position + m[:, None]) & live[None, :]
        scores = tl.where(seen, scores * softmax_scale, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weight = tl.exp2(scores - higher[:, None])
        keep = tl.exp2(top - higher)
        total = total * keep + tl.sum(weight, 1)
        if EXACT:
            part = tl.dot(weight.to(q.dtype), v, input_precision="ieee")
        else:
            part = tl.dot(weight.to(q.dtype), v)
        acc = acc * keep[:, None] + part
        top = higher
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    out_base = (q_base * heads + head) * DIM
    tl.store(out_ptr + out_base + d[None, :], acc.to(out_ptr.dtype.element_ty), mask=q_mask)


def splits_for(tokens: int, kv_heads: int, processors: int) -> int:
    """Shares of the keys that fill the device, a power of two of at most 16."""
    wanted = 2 * processors // max(1, tokens * kv_heads)
    return 1 << min(4, max(0, wanted.bit_length() - 1))


def decode(
    q: Tensor,
    cache: Any,
    table: Tensor,
    rows: Tensor,
    positions: Tensor,
    *,
    block_n: int,
    splits: int,
    warps: int,
    stages: int,
    pdl: bool = False,
) -> Tensor:
    """(T, H, D) queries of tokens at ``positions`` of table rows ``rows`` -> (T, H, D).

    ``cache`` has ``k``, ``v``, ``k_scale``, ``v_scale`` of one layer, and its strides.
    """
    tokens, heads, dim = q.shape
    kv_heads = cache.kv_heads
    group = heads // kv_heads
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    part, lse = out, out
    if splits > 1:
        part = torch.empty((tokens, heads, splits, dim), dtype=torch.float32, device=q.device)
        lse = torch.empty((tokens, heads, splits), dtype=torch.float32, device=q.device)
    _decode[(tokens, kv_heads, splits)](
        q, cache.k, cache.v, cache.k_scale, cache.v_scale, table, rows, positions, part, lse,
        dim**-0.5 * _LOG2E, q.stride(0), *cache.strides, table.stride(0), heads,
        PAGE=cache.size, GROUP=group, BLOCK_G=1 if group == 1 else max(16, _power(group)),
        DIM=dim, BLOCK_D=_power(dim), BLOCK_N=block_n, SPLITS=splits, SCALED=cache.scaled,
        EXACT=q.dtype == torch.float32, PDL=pdl, num_warps=warps, num_stages=stages,
        **_launch(pdl),
    )  # fmt: skip
    if splits > 1:
        _combine[(tokens * heads,)](
            part, lse, out, DIM=dim, BLOCK_D=_power(dim), SPLITS=splits, PDL=pdl, num_warps=2,
            **_launch(pdl),
        )  # fmt: skip
    return out


def prefill(
    q: Tensor,
    cache: Any,
    table: Tensor,
    tiles: Tensor,
    *,
    block_m: int,
    block_n: int,
    warps: int,
    stages: int,
) -> Tensor:
    """(T, H, D) queries; ``tiles`` (N, 4) int32: table row, first token, its position, count."""
    _, heads, dim = q.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    _prefill[(tiles.shape[0], heads)](
        q, cache.k, cache.v, cache.k_scale, cache.v_scale, table, tiles, out,
        dim**-0.5 * _LOG2E, q.stride(0), *cache.strides, table.stride(0), heads,
        PAGE=cache.size, GROUP=heads // cache.kv_heads, DIM=dim, BLOCK_D=_power(dim),
        BLOCK_M=block_m, BLOCK_N=block_n, SCALED=cache.scaled, EXACT=q.dtype == torch.float32,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _launch(pdl: bool) -> dict[str, bool]:
    return {"launch_pdl": True} if pdl else {}
