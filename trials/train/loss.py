"""The language-model head and its loss, together, since the good ways fuse them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trials.errors import Unsupported
from trials.settings import Settings

Loss = Callable[[Tensor, nn.Linear, Tensor], Tensor]  # hidden (N, H), head, targets (N,) -> mean


def make(settings: Settings) -> Loss:
    """A loss of that implementation, in nats per token."""
    impl = settings.take("loss.impl", "eager")
    upcast = bool(settings.take("loss.upcast_logits_fp32", True))
    z_weight = float(settings.take("loss.z_loss_coeff", 0.0))
    settings.effective("loss.impl", impl)
    settings.effective("loss.upcast_logits_fp32", upcast)
    settings.effective("loss.z_loss_coeff", z_weight)

    def plain(hidden: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
        logits = head(hidden)
        if upcast:
            logits = logits.float()
        loss = F.cross_entropy(logits, targets)
        if z_weight:
            loss = loss + z_weight * torch.logsumexp(logits.float(), -1).pow(2).mean()
        return loss

    if impl == "eager":
        return plain
    if impl == "compiled":
        return torch.compile(plain)
    if impl == "chunked":
        count = int(settings.take("loss.num_chunks", 8))
        settings.effective("loss.num_chunks", count)
        return _chunked(plain, count)
    if impl == "linear_cross_entropy":
        if not hasattr(F, "linear_cross_entropy"):
            raise Unsupported(f"torch {torch.__version__} has no linear_cross_entropy")
        return lambda hidden, head, targets: F.linear_cross_entropy(hidden, head.weight, targets)
    if impl == "liger_flce":
        return _liger(z_weight)
    raise Unsupported(f"loss.impl={impl} is not built here")


def _chunked(plain: Loss, count: int) -> Loss:
    """Logits of one chunk of tokens at a time; each chunk is recomputed in backward."""

    def chunked(hidden: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.float32)
        for h, t in zip(hidden.chunk(count), targets.chunk(count), strict=True):
            total = total + checkpoint(plain, h, head, t, use_reentrant=False) * len(t)
        return total / len(targets)

    return chunked


def _liger(z_weight: float) -> Loss:
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    except ImportError as error:
        raise Unsupported(f"loss.impl=liger_flce needs liger-kernel: {error}") from error
    fused = LigerFusedLinearCrossEntropyLoss(lse_square_scale=z_weight)
    return lambda hidden, head, targets: fused(head.weight, hidden, targets)
