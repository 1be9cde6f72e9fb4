"""Attention of a step over the paged cache, by the kernels that knobs choose."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trials.serve.kv_cache import LayerCache
from trials.serve.step import Chunk, Step

_FEW = 16  # shares of the keys at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What runs decodes and prompts, and its tiles."""

    decode: str = "gather"  # gather | triton
    prefill: str = "sdpa"  # sdpa | varlen | triton
    block_n: int = 64
    splits: int = 0  # 0: as many as fill the device
    warps: int = 4
    stages: int = 3
    prefill_block_m: int = 128
    prefill_block_n: int = 64
    prefill_warps: int = 8
    gqa: bool = True  # leave it to SDPA to share KV heads, instead of repeating them
    pdl: bool = False
    processors: int = 132
    varlen: Callable[..., Any] | None = None  # variable-length attention, told to be causal


def attend(q: Tensor, cache: LayerCache, fresh: tuple[Tensor, Tensor], step: Step,
           kernels: Kernels) -> Tensor:  # fmt: skip
    """(T, H, D) -> (T, H, D). ``fresh``: keys and values of these very tokens, already cached."""
    if not step.chunks:
        return _decode(q, cache, step, kernels)
    prompts = _prefill(q, cache, fresh, step, kernels)
    if not step.singles:
        return prompts
    single = _decode(q[: step.singles], cache, step, kernels)
    return torch.cat((single, prompts))


def _decode(q: Tensor, cache: LayerCache, step: Step, kernels: Kernels) -> Tensor:
    rows, positions = step.rows[: step.singles], step.positions[: step.singles]
    if kernels.decode == "triton":
        from trials.serve.kernels import paged

        splits = kernels.splits or paged.splits_for(q.shape[0], cache.kv_heads, kernels.processors)
        if step.longest:
            splits = min(splits, _power_below(-(-step.longest // kernels.block_n)))
        return paged.decode(
            q, cache, step.table, rows, positions, block_n=kernels.block_n, splits=splits,
            warps=kernels.warps, stages=kernels.stages, pdl=kernels.pdl,
        )  # fmt: skip
    k, v = cache.gather(step.table[rows], step.longest)
    seen = torch.arange(step.longest, device=q.device)[None] <= positions[:, None]
    return _sdpa(q[:, None], k, v, kernels, seen[:, None, None])[:, 0]


def _prefill(
    q: Tensor, cache: LayerCache, fresh: tuple[Tensor, Tensor], step: Step, kernels: Kernels
) -> Tensor:
    """Only of the chunks."""
    if kernels.prefill == "triton":
        from trials.serve.kernels import paged

        assert step.tiles is not None
        # Tiles count tokens from the start of the step.
        return paged.prefill(
            q, cache, step.table, step.tiles, block_m=kernels.prefill_block_m,
            block_n=kernels.prefill_block_n, warps=kernels.prefill_warps, stages=kernels.stages,
        )[step.singles :]  # fmt: skip
    if kernels.prefill == "varlen" and not any(c.first for c in step.chunks):
        return _varlen(q[step.singles :], fresh, step, kernels)
    return torch.cat(
        [_group(q, cache, fresh, step, group, kernels) for group in _alike(step.chunks)]
    )


def _alike(chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    """Neighbours that start their sequences and are equally long can share one call."""
    groups: list[list[Chunk]] = []
    for chunk in chunks:
        last = groups[-1][-1] if groups else None
        if last and not (chunk.first or last.first) and chunk.count == last.count:
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return groups


def _group(
    q: Tensor,
    cache: LayerCache,
    fresh: tuple[Tensor, Tensor],
    step: Step,
    group: Sequence[Chunk],
    kernels: Kernels,
) -> Tensor:
    head, count = group[0], group[0].count
    span = slice(head.start, head.start + count * len(group))
    queries = q[span].view(len(group), count, *q.shape[1:])
    if head.first == 0:
        k, v = (x[span].view(len(group), count, *x.shape[1:]) for x in fresh)
        return _sdpa(queries, k, v, kernels, None).flatten(0, 1)
    end = head.first + count
    k, v = cache.gather(step.table[head.row][None], end)
    if q.is_cuda:
        from torch.nn.attention.bias import causal_lower_right

        mask: Tensor = causal_lower_right(count, end)
    else:
        mask = torch.ones(count, end, dtype=torch.bool).tril(head.first)
    return _sdpa(queries, k, v, kernels, mask).flatten(0, 1)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, kernels: Kernels, mask: Tensor | None) -> Tensor:
    """All (B, T, H, D); without a mask causal."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    shared = q.shape[1] != k.shape[1]
    if shared and not kernels.gqa:
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        shared = False
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=shared
    )
    return out.transpose(1, 2)


def _varlen(q: Tensor, fresh: tuple[Tensor, Tensor], step: Step, kernels: Kernels) -> Tensor:
    assert kernels.varlen is not None
    counts = [c.count for c in step.chunks]
    ends = torch.tensor([0, *counts], device=q.device).cumsum(0).to(torch.int32)
    k, v = (x[step.singles :] for x in fresh)
    if k.shape[1] != q.shape[1]:
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    most = max(counts)
    out: Tensor = kernels.varlen(
        q.contiguous(), k.contiguous(), v.contiguous(), ends, ends, most, most
    )
    return out


def causal_varlen() -> Callable[..., Any]:
    """Variable-length attention of the installed torch, told to look back only; ImportError."""
    from torch.nn.attention.varlen import varlen_attn

    if "window_size" in inspect.signature(varlen_attn).parameters:
        return functools.partial(varlen_attn, window_size=(-1, 0))
    return functools.partial(varlen_attn, is_causal=True)  # type: ignore[call-arg]


def tiles_of(chunks: Sequence[Chunk], size: int) -> list[tuple[int, int, int, int]]:
    """Chunks cut into pieces of ``size`` tokens: table row, first token, its position, count."""
    return [
        (c.row, c.start + at, c.first + at, min(size, c.count - at))
        for c in chunks
        for at in range(0, c.count, size)
    ]


def _power_below(number: int) -> int:
    return min(_FEW, 1 << (max(1, number).bit_length() - 1))
