"""Triton's kernels of serving against plain torch. Run by test_serve_kernels.py in a process of its
own, since Triton decides at import whether it interprets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trials.serve.attention import tiles_of
from trials.serve.kernels import fused, gemv, matmul, paged, sampling
from trials.serve.kv_cache import KVCache, LayerCache, Layout
from trials.serve.linear import Int4, Products, WeightOnly
from trials.serve.parts import turn_real
from trials.serve.step import Chunk

CPU = torch.device("cpu")
TILING = gemv.Tiling(block_n=4, block_k=64)
LENGTHS = (50, 23)
POSITIONS = torch.tensor([n - 1 for n in LENGTHS])
ROWS = torch.tensor([0, 1])
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


WEIGHT, NORM, ROW, FEW = draw(40, 96), draw(96).abs(), draw(1, 96), draw(5, 96)


def test_a_row_times_weights_with_what_stands_around_it() -> None:
    plain = ROW @ WEIGHT.T
    torch.testing.assert_close(gemv.gemv(ROW, WEIGHT, None, TILING), plain, **CLOSE)
    both = gemv.gemv(ROW, WEIGHT, None, TILING, residual=draw(1, 40))
    torch.testing.assert_close(both, plain + draw(1, 40), **CLOSE)
    gate, up = (F.rms_norm(ROW, (96,), NORM, 1e-5) @ WEIGHT.T).chunk(2, 1)
    found = gemv.gemv(ROW, WEIGHT, None, TILING, norm=(NORM, 1e-5), swiglu=True)
    torch.testing.assert_close(found, F.silu(gate) * up, **CLOSE)


def test_quantised_weights() -> None:
    int8 = WeightOnly(WEIGHT, torch.int8, Products())
    wide = int8.widened(torch.float32)
    found = gemv.gemv(ROW, int8.weight, int8.scale, TILING)
    torch.testing.assert_close(found, ROW @ wide.T, **CLOSE)
    for splits in (1, 2):
        tiling = matmul.Tiling(block_k=32, split_k=splits)
        found = matmul.matmul(FEW, int8.weight, int8.scale, tiling)
        torch.testing.assert_close(found, FEW @ wide.T, **CLOSE)
    int4 = Int4(WEIGHT, 32, Products())
    found = gemv.gemv4(ROW, int4.packed, int4.scale, int4.low, 32, TILING)
    torch.testing.assert_close(found, ROW @ int4.widened(torch.float32).T, **CLOSE)


def test_small_operations() -> None:
    total, normed = fused.add_norm(FEW, FEW.flip(0), NORM, 1e-5)
    torch.testing.assert_close(total, FEW + FEW.flip(0), **CLOSE)
    torch.testing.assert_close(normed, F.rms_norm(total, (96,), NORM, 1e-5), **CLOSE)
    found = fused.silu_mul(FEW, FEW.flip(0))
    torch.testing.assert_close(found, F.silu(FEW) * FEW.flip(0), **CLOSE)
    logits = draw(3, 1000)
    assert torch.equal(sampling.sample(logits, 0.0, 0), logits.argmax(-1))


def empty(stored: torch.dtype, order: str) -> LayerCache:
    layout = Layout(
        layers=1, blocks=12, size=16, kv_heads=2, dim=16, stored=stored, computed=torch.float32,
        order=order,
    )  # fmt: skip
    return KVCache(layout, CPU).layers[0]


def filled(stored: torch.dtype, order: str) -> tuple[LayerCache, Tensor]:
    """A cache that holds two sequences, in blocks that lie anywhere."""
    cache = empty(stored, order)
    shuffled = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    table = shuffled[:8].view(2, 4).to(torch.int32)
    for row, length in enumerate(LENGTHS):
        at = torch.arange(length)
        k, v = draw(length, 2, 16), draw(length + 1, 2, 16)[1:]
        cache.write(table[row][at // 16].long(), at % 16, k, v)
    return cache, table


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


CACHES = pytest.mark.parametrize(
    ("stored", "order"),
    [(torch.float32, "NHD"), (torch.float32, "HND"), (torch.int8, "NHD"), (torch.int8, "HND")],
)


@CACHES
def test_decode_reads_the_pages_of_each_sequence(stored: torch.dtype, order: str) -> None:
    cache, table = filled(stored, order)
    q = draw(2, 4, 16)
    k, v = cache.gather(table, max(LENGTHS))
    seen = torch.arange(max(LENGTHS))[None] <= POSITIONS[:, None]
    wanted = plain(q[:, None], k, v, seen[:, None, None])[:, 0]
    for splits in (1, 4):
        found = paged.decode(
            q, cache, table, ROWS, POSITIONS, block_n=16, splits=splits, warps=4, stages=2,
            pdl=False,
        )  # fmt: skip
        torch.testing.assert_close(found.view_as(wanted), wanted, **CLOSE)


@CACHES
def test_chunks_of_prompts_read_what_came_before_them(stored: torch.dtype, order: str) -> None:
    cache, table = filled(stored, order)
    chunks = [Chunk(0, 0, 30, 20), Chunk(1, 20, 0, 23)]
    tiles = torch.tensor(tiles_of(chunks, 16), dtype=torch.int32)
    q = draw(43, 4, 16)
    found = paged.prefill(q, cache, table, tiles, block_m=16, block_n=16, warps=4, stages=2)
    for chunk in chunks:
        end, span = chunk.first + chunk.count, slice(chunk.start, chunk.start + chunk.count)
        k, v = cache.gather(table[chunk.row][None], end)
        mask = torch.ones(chunk.count, end, dtype=torch.bool).tril(chunk.first)
        wanted = plain(q[span][None], k, v, mask)[0]
        torch.testing.assert_close(found.view(43, 4, 16)[span], wanted, **CLOSE)


@CACHES
def test_turning_and_caching_in_one_pass(stored: torch.dtype, order: str) -> None:
    one, two = empty(stored, order), empty(stored, order)
    _, table = filled(stored, order)
    cos, sin = (draw(64, 8 + i)[:, :8].repeat(1, 2) for i in (0, 1))
    q, k, v = draw(2, 64), draw(2, 32), draw(3, 32)[1:]
    found = fused.rope_write(q, k, v, one, cos, sin, table, ROWS, POSITIONS)
    angles = cos[POSITIONS][:, None], sin[POSITIONS][:, None]
    torch.testing.assert_close(found, turn_real(q.view(2, 4, 16), *angles), **CLOSE)
    turned = turn_real(k.view(2, 2, 16), *angles)
    blocks = table[ROWS, POSITIONS // 16].long()
    two.write(blocks, POSITIONS % 16, turned, v.view(2, 2, 16))
    torch.testing.assert_close(one.scales, two.scales, **CLOSE)
    apart = (one.raw.float() - two.raw.float()).abs().max()
    assert apart <= (1 if stored == torch.int8 else 1e-5), "a last bit may fall either way"
