"""The most likely token, or a draw, in one pass over the logits: Gumbel noise and a maximum."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _shares(
    logits_ptr, best_ptr, where_ptr, counter_ptr, size, stride, inverse, seed,
    SHARES: tl.constexpr, BLOCK: tl.constexpr, DRAW: tl.constexpr,
):  # fmt: skip
    row, share = tl.program_id(0).to(tl.int64), tl.program_id(1)
    span = tl.cdiv(tl.cdiv(size, SHARES), BLOCK) * BLOCK
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    where = tl.zeros([BLOCK], tl.int32)
    for first in range(share * span, tl.minimum(share * span + span, size), BLOCK):
        i = first + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * stride + i, mask=i < size, other=float("-inf"))
        x = x.to(tl.float32)
        if DRAW:
            step = tl.load(counter_ptr)
            u = tl.rand(seed + step, (row * size + i).to(tl.int32))
            x = x * inverse - tl.log(-tl.log(tl.maximum(u, 1e-20)))
            x = tl.where(i < size, x, float("-inf"))
        better = x > best
        best = tl.where(better, x, best)
        where = tl.where(better, i, where)
    top = tl.max(best, 0)
    # Of equals the first one, as argmax on a host has it.
    index = tl.min(tl.where(best == top, where, 2147483647), 0)
    tl.store(best_ptr + row * SHARES + share, top)
    tl.store(where_ptr + row * SHARES + share, index)


@triton.jit
def _best(best_ptr, where_ptr, out_ptr, counter_ptr, SHARES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, SHARES)
    best = tl.load(best_ptr + row * SHARES + s)
    where = tl.load(where_ptr + row * SHARES + s)
    index = tl.min(tl.where(best == tl.max(best, 0), where, 2147483647), 0)
    tl.store(out_ptr + row, index.to(tl.int64))
    if row == 0:  # so that a replayed graph draws anew
        tl.store(counter_ptr, tl.load(counter_ptr) + 1)


_counters: dict[torch.device, Tensor] = {}


def sample(logits: Tensor, temperature: float, seed: int) -> Tensor:
    """(T, vocab) -> (T,)"""
    rows, size = logits.shape
    if logits.device not in _counters:
        _counters[logits.device] = torch.zeros(1, dtype=torch.int32, device=logits.device)
    counter = _counters[logits.device]
    shares = 16 if rows < 64 else 4
    best = torch.empty((rows, shares), dtype=torch.float32, device=logits.device)
    where = torch.empty((rows, shares), dtype=torch.int32, device=logits.device)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    _shares[(rows, shares)](
        logits, best, where, counter, size, logits.stride(0),
        1 / temperature if temperature else 1.0, seed,
        SHARES=shares, BLOCK=1024, DRAW=temperature > 0,
    )  # fmt: skip
    _best[(rows,)](best, where, out, counter, SHARES=shares, num_warps=1)
    return out
