"""The language-model head and its loss, together, since the good ways fuse them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trials.errors import Unsupported
from trials.settings import Settings
from trials.train.text import IGNORED

Loss = Callable[[Tensor, nn.Linear, Tensor], Tensor]  # hidden (N, H), head, targets (N,) -> mean


def make(settings: Settings, device: torch.device) -> Loss:
    """A loss of that implementation: the mean over targets that are no padding, in nats."""
    impl = settings.take("loss.impl", "eager")
    upcast = bool(settings.take("loss.upcast_logits_fp32", True))
    z_weight = float(settings.take("loss.z_loss_coeff", 0.0))
    settings.effective("loss.impl", impl)
    settings.effective("loss.upcast_logits_fp32", upcast)
    settings.effective("loss.z_loss_coeff", z_weight)
    if impl == "eager":
        return _plain(upcast, z_weight)
    if impl == "compiled":
        return torch.compile(_plain(upcast, z_weight))
    if impl == "chunked":
        count = int(settings.take("loss.num_chunks", 8))
        settings.effective("loss.num_chunks", count)
        return _chunked(_plain(upcast, z_weight, "sum"), count)
    if impl == "linear_cross_entropy":
        return _fused_by_torch(z_weight)
    if impl == "liger_flce":
        return _liger(z_weight, device)
    raise Unsupported(f"loss.impl={impl} is not built here")


def _plain(upcast: bool, z_weight: float, reduction: str = "mean") -> Loss:
    def plain(hidden: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
        logits = head(hidden)
        if upcast:
            logits = logits.float()
        loss = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction=reduction)
        if z_weight:
            kept = targets != IGNORED
            z = (torch.logsumexp(logits.float(), -1).pow(2) * kept).sum()
            loss = loss + z_weight * (z / kept.sum() if reduction == "mean" else z)
        return loss

    return plain


def _chunked(summed: Loss, count: int) -> Loss:
    """Logits of one chunk of tokens at a time; each chunk is recomputed in backward."""

    def chunked(hidden: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.float32)
        for h, t in zip(hidden.chunk(count), targets.chunk(count), strict=True):
            total = total + checkpoint(summed, h, head, t, use_reentrant=False)
        return total / (targets != IGNORED).sum()

    return chunked


def _fused_by_torch(z_weight: float) -> Loss:
    fused = getattr(F, "linear_cross_entropy", None)
    if fused is None:
        raise Unsupported(f"torch {torch.__version__} has no linear_cross_entropy")
    if z_weight:
        raise Unsupported("loss.impl=linear_cross_entropy has no loss.z_loss_coeff")

    def call(hidden: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
        weight = head.weight.to(hidden.dtype)
        return fused(hidden, weight, targets, ignore_index=IGNORED)  # type: ignore[no-any-return]

    return call


def _liger(z_weight: float, device: torch.device) -> Loss:
    if device.type != "cuda":
        raise Unsupported("loss.impl=liger_flce is a Triton kernel and needs a GPU")
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    except ImportError as error:
        raise Unsupported(f"loss.impl=liger_flce needs liger-kernel: {error}") from error
    fused = LigerFusedLinearCrossEntropyLoss(lse_square_scale=z_weight, ignore_index=IGNORED)

    def call(hidden: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
        return fused(head.weight, hidden, targets)  # type: ignore[no-any-return]

    return call
