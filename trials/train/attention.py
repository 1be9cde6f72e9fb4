"""Causal self-attention by every backend that the installed torch offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from trials.errors import Unsupported

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # q, k, v (B, H, T, D) -> (B, H, T, D)

_SDPA = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}


def make(backend: str, *, enable_gqa: bool, flex_options: dict[str, Any]) -> Attention:
    """A function of that backend; key and value heads may be fewer than query heads."""
    if backend == "flex":
        return _flex(flex_options)
    if backend not in ("sdpa_auto", *_SDPA):
        raise Unsupported(f"attention.backend={backend} is not built here")

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        grouped = k.shape[1] != q.shape[1]
        if grouped and not enable_gqa:
            repeats = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
            grouped = False
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)

    if backend == "sdpa_auto":
        return attend
    chosen = [_SDPA[backend]]

    def attend_by(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(chosen):
            return attend(q, k, v)

    return attend_by


def _flex(options: dict[str, Any]) -> Attention:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    masks: dict[tuple[int, torch.device], Any] = {}
    size = int(options.pop("MASK_BLOCK_SIZE", 128))
    compiled = torch.compile(flex_attention, dynamic=False)

    def causal(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q >= k

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = (q.shape[2], q.device)
        if place not in masks:
            masks[place] = create_block_mask(
                causal, None, None, q.shape[2], q.shape[2], device=q.device, BLOCK_SIZE=size
            )
        return compiled(
            q,
            k,
            v,
            block_mask=masks[place],
            enable_gqa=k.shape[1] != q.shape[1],
            kernel_options=options or None,  # type: ignore[arg-type]
        )

    return attend
