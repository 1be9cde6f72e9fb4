"""Activation checkpointing: which activations are kept, recomputed or moved to the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """What is done around a decoder layer; None where nothing is.

    Recomputation goes inside the compiled layer, where its graph shows which products to save.
    Moving activations goes around it, since it is the compiled graph that saves them.
    """

    inside: Callable[..., Any] | None  # (forward, *inputs) -> output
    around: Callable[..., Any] | None  # (layer, *inputs) -> output
    stride: int = 1  # of the layers that are recomputed

    def of_layer(self, index: int) -> Callable[..., Any] | None:
        """Recomputation of the layer of that index."""
        return None if index % self.stride else self.inside


def make(settings: Settings) -> Checkpointing:
    """As the ``ac.*`` knobs say."""
    mode = settings.take("ac.mode", "none")
    settings.effective("ac.mode", mode)
    if mode in ("none", "memory_budget"):
        return Checkpointing(inside=None, around=None)
    if mode == "offload":
        pinned = bool(settings.take("ac.offload_pin_memory", False))
        settings.effective("ac.offload_pin_memory", pinned)
        return Checkpointing(inside=None, around=partial(_offloaded, pinned))
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
        policy = str(settings.take("ac.op_save_policy", "attention_and_half_matmul"))
        settings.effective("ac.op_save_policy", policy)
        contexts: Any = partial(_contexts, policy)
        contexts.cache_hash = policy  # lets torch's compile caches tell the policies apart
        options["context_fn"] = contexts
    elif mode != "full":
        raise Unsupported(f"ac.mode={mode} is not built here")
    return Checkpointing(inside=partial(_recomputed, options), around=None, stride=stride)


def _recomputed(options: dict[str, Any], forward: Any, *inputs: Any) -> Any:
    return checkpoint(forward, *inputs, **options)


def _offloaded(pinned: bool, layer: Any, *inputs: Any) -> Any:
    with torch.autograd.graph.save_on_cpu(pin_memory=pinned):
        return layer(*inputs)


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
