"""Attention over sequences of different lengths laid end to end, without padding between them."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from trials.errors import Unsupported


def make(probe: Tensor, window: int | None) -> dict[str, Any]:
    """``attend`` and ``mask`` of an Attention; Unsupported where it does not run."""
    if probe.device.type != "cuda":
        raise Unsupported("attention.backend=varlen needs a GPU")
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise Unsupported(
            f"attention.backend=varlen is not in torch {torch.__version__}"
        ) from error
    extra = _causal(varlen_attn, window)
    starts_of: dict[tuple[int, int], tuple[Tensor, int]] = {}

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        starts, longest = mask
        batch, heads, length, dim = q.shape
        if k.shape[1] != heads:
            repeats = heads // k.shape[1]
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        q, k, v = (x.transpose(1, 2).reshape(batch * length, heads, dim) for x in (q, k, v))
        out: Any = varlen_attn(q, k, v, starts, starts, longest, longest, **extra)
        turned: Tensor = out.view(batch, length, heads, dim).transpose(1, 2)
        return turned

    def mask(documents: Tensor | None, rows: int, length: int) -> tuple[Tensor, int]:
        """First token of every document and the longest length. Rows never share one."""
        if documents is None:
            if (rows, length) not in starts_of:
                starts = torch.arange(0, (rows + 1) * length, length, dtype=torch.int32)
                starts_of[rows, length] = (starts.to(probe.device), length)
            return starts_of[rows, length]
        new = torch.ones_like(documents, dtype=torch.bool)
        new[:, 1:] = documents[:, 1:] != documents[:, :-1]
        starts = new.flatten().nonzero().flatten().to(torch.int32)
        end = torch.tensor([rows * length], dtype=torch.int32, device=documents.device)
        return torch.cat((starts, end)), length

    return {"attend": attend, "mask": mask}


def _causal(function: Any, window: int | None) -> dict[str, Any]:
    """How that version of torch is told to look back only."""
    known = inspect.signature(function).parameters
    if "window_size" in known:
        return {"window_size": (-1 if window is None else window - 1, 0)}
    if window is not None:
        raise Unsupported(f"torch {torch.__version__} has no window for varlen attention")
    return {"is_causal": True}
