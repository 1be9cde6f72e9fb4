"""From logits to the next token, by several routes to the same distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trials.errors import Unsupported

Sampler = Callable[[Tensor], Tensor]  # (T, vocab) -> (T,) int64
_MOST = 64  # tokens that top-k sampling looks at when no limit is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the requests ask for; temperature 0 is the most likely token."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


def wanted(workload: Mapping[str, Any], seed: int) -> Wanted:
    """What the requests of a workload ask for."""
    return Wanted(
        temperature=float(workload["temperature"]),
        top_p=float(workload["top_p"]),
        top_k=int(workload["top_k"]),
        seed=seed,
    )


def make(impl: str, wanted: Wanted, device: torch.device) -> Sampler:
    """A sampler by one of the routes: torch_sort, torch_topk, triton, argmax_only.

    Raises Unsupported when the route cannot do what is wanted.
    """
    if impl == "argmax_only" and wanted.temperature:
        raise Unsupported("serve.sampler=argmax_only has no temperature; the workload asks for one")
    if impl == "triton":
        if device.type != "cuda":
            raise Unsupported("serve.sampler=triton needs a GPU")
        if wanted.temperature and (wanted.top_k or wanted.top_p < 1):
            raise Unsupported("serve.sampler=triton has no top-k or top-p; the workload wants it")
        from trials.serve.kernels.sampling import sample

        return lambda logits: sample(logits, wanted.temperature, wanted.seed)
    if not wanted.temperature:
        return {"torch_sort": _first_of_sorted, "torch_topk": _top_one}.get(impl, _argmax)
    route = _sorted_nucleus if impl == "torch_sort" else _topk_nucleus
    return lambda logits: route(logits, wanted)


def _argmax(logits: Tensor) -> Tensor:
    return logits.argmax(-1)


def _top_one(logits: Tensor) -> Tensor:
    return logits.topk(1, -1).indices[:, 0]


def _first_of_sorted(logits: Tensor) -> Tensor:
    """The whole vocabulary sorted, as a general sampler does before it looks at the request."""
    return logits.sort(dim=-1, descending=True, stable=True).indices[:, 0]


def _sorted_nucleus(logits: Tensor, wanted: Wanted) -> Tensor:
    ranked, order = (logits.float() / wanted.temperature).sort(-1, descending=True)
    return _nucleus(ranked, order, wanted)


def _topk_nucleus(logits: Tensor, wanted: Wanted) -> Tensor:
    """Exact for top-k; without one, from as many tokens as carry all but a sliver of the mass."""
    count = min(wanted.top_k or _MOST, logits.shape[-1])
    ranked, order = (logits.float() / wanted.temperature).topk(count, -1)
    return _nucleus(ranked, order, wanted)


def _nucleus(ranked: Tensor, order: Tensor, wanted: Wanted) -> Tensor:
    if wanted.top_k:
        ranked, order = ranked[:, : wanted.top_k], order[:, : wanted.top_k]
    chance = ranked.softmax(-1)
    if wanted.top_p < 1:
        before = chance.cumsum(-1) - chance
        chance = chance.masked_fill(before >= wanted.top_p, 0.0)
    # The largest of chance over exponential noise is a draw; no host waits for it.
    place = (chance / torch.empty_like(chance).exponential_()).argmax(-1, keepdim=True)
    return order.gather(-1, place)[:, 0]
