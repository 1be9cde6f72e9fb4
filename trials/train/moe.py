"""A mixture of experts as the feed-forward of a layer: routing, and two ways to run the experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trials.errors import Unsupported
from trials.train.parts import Parts


class Mixture(nn.Module):
    """Top-k routing over stacked experts, as in Mixtral: weights of the chosen ones sum to 1."""

    def __init__(self, config: Mapping[str, Any], parts: Parts) -> None:
        super().__init__()
        hidden, inner = int(config["hidden_size"]), int(config["intermediate_size"])
        self.count = int(config["num_local_experts"])
        self.chosen = int(config["num_experts_per_tok"])
        self.parts = parts
        self.router = nn.Linear(hidden, self.count, bias=False)
        self.gate_up = nn.Parameter(torch.empty(self.count, hidden, 2 * inner))
        self.down = nn.Parameter(torch.empty(self.count, inner, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, hidden) -> (B, T, hidden)"""
        flat = x.reshape(-1, x.shape[-1]).to(_compute_dtype(x))
        scores = F.softmax(self.router(flat).float(), dim=-1)
        weights, experts = scores.topk(self.chosen, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(flat.dtype)
        order = experts.flatten().argsort(stable=True)
        rows = order // self.chosen
        counts = torch.bincount(experts.flatten(), minlength=self.count)
        gathered = flat[rows]
        if self.parts.experts == "grouped_mm":
            out = self._grouped(gathered, counts)
        else:
            out = self._loop(gathered, counts)
        share = weights.flatten()[order]
        if self.parts.capacity_factor:
            share = share * self._within_capacity(experts.flatten()[order], counts, len(flat))
        weighed = (out * share[:, None]).to(x.dtype)
        return torch.zeros_like(flat, dtype=x.dtype).index_add(0, rows, weighed).view_as(x)

    def _loop(self, rows: Tensor, counts: Tensor) -> Tensor:
        """One expert after the other; reads the counts back, so the host waits for the device."""
        pieces = torch.split(rows, counts.tolist())
        return torch.cat([self._expert(piece, i) for i, piece in enumerate(pieces)])

    def _expert(self, rows: Tensor, index: int) -> Tensor:
        gate, up = (rows @ self.gate_up[index].to(rows.dtype)).chunk(2, dim=-1)
        return self.parts.act(gate, up) @ self.down[index].to(rows.dtype)

    def _grouped(self, rows: Tensor, counts: Tensor) -> Tensor:
        """All experts in one call each; the counts stay on the device."""
        ends = counts.cumsum(0).to(torch.int32)
        both = F.grouped_mm(rows, self.gate_up.to(rows.dtype), offs=ends)
        gate, up = both.chunk(2, dim=-1)
        inner = self.parts.act(gate, up).contiguous()
        return F.grouped_mm(inner, self.down.to(rows.dtype), offs=ends)

    def _within_capacity(self, experts: Tensor, counts: Tensor, tokens: int) -> Tensor:
        """1 for rows among the first ``capacity`` of their expert, 0 for those it has to drop."""
        capacity = int(self.parts.capacity_factor * tokens * self.chosen / self.count)
        starts = counts.cumsum(0) - counts
        rank = torch.arange(len(experts), device=experts.device) - starts[experts]
        return (rank < capacity).to(self.down.dtype)


def _compute_dtype(x: Tensor) -> torch.dtype:
    """What products run in: grouped ones are not among those that autocast casts."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def check(device: torch.device, dtype: torch.dtype) -> None:
    """Raises Unsupported when grouped products do not run here in that dtype."""
    rows = torch.zeros(16, 64, device=device, dtype=dtype, requires_grad=True)
    weights = torch.zeros(2, 64, 64, device=device, dtype=dtype, requires_grad=True)
    ends = torch.tensor([8, 16], device=device, dtype=torch.int32)
    try:
        out = F.grouped_mm(rows, weights, offs=ends)
        torch.autograd.grad(out, (rows, weights), torch.ones_like(out))
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        first = str(error).strip().splitlines()[0:1]
        raise Unsupported(
            f"moe.impl=grouped_mm does not run in {str(dtype).removeprefix('torch.')} on this "
            f"device: {''.join(first)[:200]}"
        ) from error
