"""Where keys and values lie: pages of either layout, in the model's number format or less."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from trials.serve.block_manager import Copy

DTYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2, "int8": torch.int8}
_TOP = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Shape and number format of a cache."""

    layers: int
    blocks: int
    size: int  # tokens of a block
    kv_heads: int
    dim: int
    stored: torch.dtype
    computed: torch.dtype  # what attention works in
    order: str = "NHD"  # or HND: a head's tokens side by side

    @property
    def block_bytes(self) -> int:
        """Of one block over all layers, keys, values and scales."""
        scale = 4 if self.stored == torch.int8 else 0
        each = self.dim * self.stored.itemsize + scale
        return 2 * self.layers * self.size * self.kv_heads * each


class LayerCache:
    """Keys and values of one layer, (blocks, size, heads, dim) or (blocks, heads, size, dim)."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        self.size, self.kv_heads, self.dim = layout.size, layout.kv_heads, layout.dim
        self.scaled = layout.stored == torch.int8
        blocks = layout.blocks + 1  # the last one takes what nobody wants: rows that fill a batch
        shape = [blocks, layout.size, layout.kv_heads, layout.dim]
        if layout.order == "HND":
            shape[1], shape[2] = shape[2], shape[1]
        # A CPU has no kernels that index fp8; bytes hold the same.
        self._bytes = layout.stored in _TOP
        raw = torch.uint8 if self._bytes else layout.stored
        self.raw = torch.zeros((2, *shape), dtype=raw, device=device)
        typed = self.raw.view(layout.stored) if self._bytes else self.raw
        self.k, self.v = typed[0], typed[1]
        scales = [2, blocks, layout.size, layout.kv_heads] if self.scaled else [2, 1, 1, 1]
        self.scales = torch.ones(scales, dtype=torch.float32, device=device)
        self.k_scale, self.v_scale = self.scales[0], self.scales[1]
        block, slot, head = layout.size * layout.kv_heads * layout.dim, 0, 0
        if layout.order == "HND":
            slot, head = layout.dim, layout.size * layout.dim
        else:
            slot, head = layout.kv_heads * layout.dim, layout.dim
        self.strides = (block, slot, head)

    def write(self, blocks: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
        """Put tokens (T, heads, dim) at offsets (T,) of blocks (T,)."""
        for side, fresh in enumerate((k, v)):
            if self.scaled:
                scale = fresh.float().abs().amax(-1).clamp(min=1e-8) / 127.0
                self.scales[side].index_put_((blocks, offsets), scale)
                fresh = _round(fresh.float() / scale[..., None]).to(torch.int8)
            elif self._bytes:
                top = _TOP[self.layout.stored]
                fresh = fresh.float().clamp(-top, top).to(self.layout.stored).view(torch.uint8)
            place = self.raw[side]
            if self.layout.order == "HND":
                place = place.transpose(1, 2)
            place.index_put_((blocks, offsets), fresh.to(place.dtype))

    def gather(self, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """The first ``length`` keys and values of block tables (B, W): each (B, length, heads,
        dim), widened."""
        return self._gather(0, table, length), self._gather(1, table, length)

    def _gather(self, side: int, table: Tensor, length: int) -> Tensor:
        pool = self.raw[side]
        if self.layout.order == "HND":
            pool = pool.transpose(1, 2)
        found = self._slots(pool, table, length)
        if self._bytes:
            found = found.view(self.layout.stored)
        found = found.to(self.layout.computed)
        if self.scaled:
            scale = self._slots(self.scales[side], table, length)
            found = found * scale[..., None].to(found.dtype)
        return found

    def _slots(self, pool: Tensor, table: Tensor, length: int) -> Tensor:
        """(blocks, size, ...) -> (B, length, ...), reading no block that is not live."""
        if table.shape[1] == 1:
            return pool[:, :length][table[:, 0]]
        pages = pool[table[:, : -(-length // self.size)]]
        return pages.flatten(1, 2)[:, :length].contiguous()


class KVCache:
    """All layers, and their second tier in host memory."""

    def __init__(self, layout: Layout, device: torch.device, host_blocks: int = 0) -> None:
        self.layout, self.device = layout, device
        self.layers = [LayerCache(layout, device) for _ in range(layout.layers)]
        self._host = [_host_like(layer, host_blocks) for layer in self.layers if host_blocks]

    @property
    def scratch(self) -> int:
        """The block that belongs to nobody."""
        return self.layout.blocks

    def move(self, copies: Iterable[Copy]) -> None:
        """Copy blocks between device and host, in order."""
        for copy in copies:
            for layer, (raw, scales) in zip(self.layers, self._host, strict=True):
                pairs = [(layer.raw, raw)]
                if layer.scaled:
                    pairs.append((layer.scales, scales))
                for here, there in pairs:
                    if copy.to_host:
                        there[:, copy.target].copy_(here[:, copy.source], non_blocking=True)
                    else:
                        here[:, copy.target].copy_(there[:, copy.source], non_blocking=True)

    def clear(self) -> None:
        """Forget everything, as between two trials."""
        for layer in self.layers:
            layer.raw.zero_()


def _host_like(layer: LayerCache, blocks: int) -> tuple[Tensor, Tensor]:
    pinned = layer.raw.is_cuda
    raw = torch.empty((2, blocks, *layer.raw.shape[2:]), dtype=layer.raw.dtype, pin_memory=pinned)
    scales = torch.empty(
        (2, blocks if layer.scaled else 1, *layer.scales.shape[2:]), pin_memory=pinned
    )
    return raw, scales


def _round(x: Tensor) -> Tensor:
    """To the nearest, halves away from zero, as the kernel does."""
    return torch.where(x >= 0, (x + 0.5).floor(), (x - 0.5).ceil())
