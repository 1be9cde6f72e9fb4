"""Activation checkpointing: which activations are kept, recomputed or moved to the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from trials.errors import Unsupported
from trials.settings import Settings

_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
_MATMUL = ("mm", "addmm", "bmm", "_scaled_mm")


def make(settings: Settings) -> Callable[..., Any] | None:
    """A function (index, block, *inputs) -> output, or None when nothing is checkpointed."""
    mode = settings.take("ac.mode", "none")
    settings.effective("ac.mode", mode)
    if mode in ("none", "memory_budget"):
        return None
    if mode == "offload":
        pinned = bool(settings.take("ac.offload_pin_memory", False))
        settings.effective("ac.offload_pin_memory", pinned)
        return partial(_offloaded, pinned)
    options: dict[str, Any] = {"use_reentrant": bool(settings.take("ac.use_reentrant", False))}
    settings.effective("ac.use_reentrant", options["use_reentrant"])
    if mode in ("full", "selective_layer"):
        options["preserve_rng_state"] = bool(settings.take("ac.preserve_rng_state", True))
        settings.effective("ac.preserve_rng_state", options["preserve_rng_state"])
    if not options["use_reentrant"]:
        options["early_stop"] = bool(settings.take("ac.early_stop", True))
        settings.effective("ac.early_stop", options["early_stop"])
    stride = 1
    if mode == "selective_layer":
        stride = int(settings.take("ac.layer_stride", 2))
        settings.effective("ac.layer_stride", stride)
    elif mode == "selective_op":
        policy = settings.take("ac.op_save_policy", "attention_and_half_matmul")
        settings.effective("ac.op_save_policy", policy)
        options["context_fn"] = partial(_contexts, policy)
    elif mode != "full":
        raise Unsupported(f"ac.mode={mode} is not built here")

    def run(index: int, block: Any, *inputs: Any) -> Any:
        if index % stride:
            return block(*inputs)
        return checkpoint(block, *inputs, **options)

    return run


def _offloaded(pinned: bool, _index: int, block: Any, *inputs: Any) -> Any:
    with torch.autograd.graph.save_on_cpu(pin_memory=pinned):
        return block(*inputs)


def _contexts(policy: str) -> Any:
    seen = {False: 0, True: 0}  # products in forward, and again in recomputation

    def decide(context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        again = bool(context.is_recompute)
        name = str(getattr(op, "__name__", op)).split(".")[0]
        if name in _ATTENTION:
            return CheckpointPolicy.MUST_SAVE
        if name in _MATMUL and policy != "attention_only":
            seen[again] += 1
            if policy == "all_matmul" or seen[again] % 2 == 0:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(decide)  # type: ignore[no-untyped-call]
