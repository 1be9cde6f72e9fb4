"""Causal self-attention by every backend that the installed torch offers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from trials.errors import Unsupported
from trials.settings import Settings
from trials.train import flex, varlen

Attend = Callable[[Tensor, Tensor, Tensor, Any], Tensor]  # q, k, v, mask -> all (B, H, T, D)
# Document number of every token (B, T) or None for one a row, B, T -> what ``Attend`` takes.
Mask = Callable[[Tensor | None, int, int], Any]

_SDPA = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}
_FAST_FIRST = [_SDPA[name] for name in ("sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "sdpa_math")]
_held = ExitStack()  # what stays entered for the life of the process


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A backend, and how it is told which tokens belong together."""

    attend: Attend
    mask: Mask | None  # None: documents in one row see each other


def make(settings: Settings, config: dict[str, Any], probe: Tensor) -> Attention:
    """The backend that the knobs ask for; ``probe`` is a query (1, H, T, D) as training has it.

    Raises Unsupported when this device, version or shape has no such kernel.
    """
    backend = str(settings.take("attention.backend", "sdpa_auto"))
    gqa = bool(settings.take("attention.enable_gqa", False))
    settings.effective("attention.enable_gqa", gqa)
    window = settings.take("attention.sliding_window", "none")
    settings.effective("attention.sliding_window", window)
    width = None if window == "none" else int(window)
    if backend == "flex":
        settings.effective("attention.backend", backend)
        return Attention(**flex.make(settings, probe.device, width))
    if backend == "varlen":
        settings.effective("attention.backend", backend)
        return Attention(**varlen.make(probe, width))
    if backend not in ("sdpa_auto", *_SDPA):
        raise Unsupported(f"attention.backend={backend} is not built here")
    if width is not None:
        raise Unsupported(f"attention.sliding_window={window} needs flex or varlen attention")
    allow(settings, backend)
    _check(settings, backend, probe, int(config["num_key_value_heads"]), gqa)
    return Attention(attend=_sdpa(gqa), mask=None)


def _sdpa(gqa: bool) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor, _mask: Any) -> Tensor:
        grouped = k.shape[1] != q.shape[1]
        if grouped and not gqa:
            repeats = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
            grouped = False
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)

    return attend


def allow(settings: Settings, backend: str) -> None:
    """For the whole process, not per call: recomputation in backward must choose alike, and a
    context inside a compiled layer would break its graph."""
    if settings.take("attention.sdpa_set_priority", False):
        _held.enter_context(sdpa_kernel(_FAST_FIRST, set_priority=True))
        settings.effective("attention.sdpa_set_priority", True)
    if (impl := settings.take("attention.flash_impl", "default")) != "default":
        _activate(str(impl))
        settings.effective("attention.flash_impl", impl)
    _tag_caches(settings, backend)
    if backend == "sdpa_auto":
        return
    torch.backends.cuda.enable_flash_sdp(backend == "sdpa_flash")
    torch.backends.cuda.enable_cudnn_sdp(backend == "sdpa_cudnn")
    torch.backends.cuda.enable_mem_efficient_sdp(backend == "sdpa_efficient")
    torch.backends.cuda.enable_math_sdp(backend == "sdpa_math")


def _tag_caches(settings: Settings, backend: str) -> None:
    """Which kernels are allowed is part of no key of torch's compile caches: without a tag, a trial
    would run what an earlier one with another backend had compiled."""
    priority = bool(settings.take("attention.sdpa_set_priority", False))
    impl = settings.take("attention.flash_impl", "default")
    torch.compiler.config.cache_key_tag = f"{backend}:{priority}:{impl}"


def _activate(impl: str) -> None:
    try:
        torch.nn.attention.activate_flash_attention_impl(impl)
    except Exception as error:  # a missing package shows as one of several kinds
        raise Unsupported(f"attention.flash_impl={impl} is not installed: {error}") from error


def _check(settings: Settings, backend: str, q: Tensor, kv_heads: int, gqa: bool) -> None:
    """Ask torch which kernel it would take, and record it."""
    heads = kv_heads if gqa else q.shape[1]
    k = q[:, :heads].detach().contiguous().requires_grad_()
    asked = q.detach().requires_grad_()
    try:
        number = torch._fused_sdp_choice(
            asked, k, k, is_causal=True, enable_gqa=gqa and heads != q.shape[1]
        )
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise Unsupported(
            f"attention.backend={backend} has no kernel for heads of {q.shape[-1]} in "
            f"{str(q.dtype).removeprefix('torch.')} on this device: {first}"
        ) from error
    names = {int(kernel): name for name, kernel in _kernels().items()}
    found = names.get(int(number), str(number))
    if backend not in ("sdpa_auto", found):
        raise Unsupported(f"attention.backend was set to {backend!r} but reads back {found!r}")
    settings.effective("attention.backend", backend)
    settings.fact("attention_kernel", found)


def _kernels() -> dict[str, int]:
    return {name: int(kernel.value) for name, kernel in _SDPA.items()}
