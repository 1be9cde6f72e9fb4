"""FlexAttention: kernels generated for a mask, with tiles that are knobs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trials.errors import Unsupported
from trials.settings import Settings

# Knob -> torch's own name. Names without a prefix hold for forward and backward.
_OPTIONS = {
    "block_m": "BLOCK_M",
    "block_n": "BLOCK_N",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
    "bwd_block_m1": "BLOCK_M1",
    "bwd_block_n1": "BLOCK_N1",
    "bwd_block_m2": "BLOCK_M2",
    "bwd_block_n2": "BLOCK_N2",
    "prescale_qk": "PRESCALE_QK",
    "rows_guaranteed_safe": "ROWS_GUARANTEED_SAFE",
    "blocks_are_contiguous": "BLOCKS_ARE_CONTIGUOUS",
    "write_dq": "WRITE_DQ",
    "use_tma": "USE_TMA",
    "kernel_backend": "BACKEND",
}


def make(settings: Settings, device: torch.device, window: int | None) -> dict[str, Any]:
    """``attend`` and ``mask`` of an Attention."""
    if device.type != "cuda":
        raise Unsupported("attention.backend=flex has no backward pass on a CPU")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    options: Any = _options(settings)
    size = int(settings.take("attention.flex.mask_block_size", 128))
    settings.effective("attention.flex.mask_block_size", size)
    compiled = torch.compile(flex_attention, dynamic=False)
    causal: dict[int, Any] = {}

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        grouped = k.shape[1] != q.shape[1]
        return compiled(
            q,
            k,
            v,
            block_mask=mask,
            enable_gqa=grouped,
            kernel_options=options or None,
        )

    def mask(documents: Tensor | None, rows: int, length: int) -> Any:
        if documents is not None:
            seen = _seen(window, documents)
            return create_block_mask(seen, rows, None, length, length, device, size)
        if length not in causal:
            seen = _seen(window, None)
            causal[length] = create_block_mask(seen, None, None, length, length, device, size)
        return causal[length]

    return {"attend": attend, "mask": mask}


def _seen(window: int | None, documents: Tensor | None) -> Any:
    def seen(b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        found = q >= k
        if window is not None:
            found = found & (q - k < window)
        if documents is not None:
            found = found & (documents[b, q] == documents[b, k])
        return found

    return seen


def _options(settings: Settings) -> dict[str, int | bool | str]:
    """Kernel options away from their defaults; Unsupported for one that torch does not know."""
    from torch.nn.attention import flex_attention

    known = getattr(flex_attention, "FlexKernelOptions", None)
    defaults = {k.name for k in settings.spec.applied if k.is_default}
    found: dict[str, int | bool | str] = {}
    for short, key in _OPTIONS.items():
        name = f"attention.flex.{short}"
        value = settings.take(name)
        if value is None:
            continue
        if value != "auto" and name not in defaults:
            if known is not None and key not in known.__annotations__:
                raise Unsupported(f"{name}: this torch has no flex option {key}")
            found[key] = value
        settings.effective(name, value)
    return found
