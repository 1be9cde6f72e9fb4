"""Which kernels and number formats the knobs ask for; Unsupported for what cannot be here."""

from __future__ import annotations

import torch

from trials.errors import Unsupported
from trials.serve import parts
from trials.serve.attention import Kernels, causal_varlen
from trials.serve.linear import Products, Scheme
from trials.serve.model import Parts
from trials.settings import Settings
from trials.train.attention import allow


def parts_of(settings: Settings, device: torch.device, dtype: torch.dtype) -> Parts:
    chosen = _small_operations(settings, device)
    kernels = _kernels(settings, device, dtype)
    rows = str(settings.take("kernel.gemv.impl", "library"))
    if rows != "library" and device.type != "cuda":
        raise Unsupported(f"kernel.gemv.impl={rows}: Triton kernels need a GPU")
    fused_row = rows == "triton_fused"
    scheme, head = _schemes(settings, device, rows != "library", kernels.pdl)
    if fused_row and (kernels.decode != "triton" or scheme.name.endswith("_dynamic")):
        raise Unsupported(
            "kernel.gemv.impl=triton_fused needs the Triton decode kernel and weights that are "
            "not multiplied by narrowed activations"
        )
    found = Parts(
        add_norm=parts.norm_of(chosen["kernel.rmsnorm.impl"]),
        turn=parts.turn_of(chosen["kernel.rope.impl"]),
        act=parts.act_of(chosen["kernel.swiglu.impl"]),
        kernels=kernels,
        scheme=scheme,
        head_scheme=head,
        fused_rope=chosen["kernel.rope.impl"] == "fused_triton",
        fused_qkv=bool(settings.take("model.fused_qkv", False)) or fused_row,
        fused_gate_up=bool(settings.take("model.fused_gate_up", False)) or fused_row,
        fused_row=fused_row,
        vocab_multiple=int(settings.take("model.vocab_pad_multiple", 1)),
    )
    settings.effective("kernel.gemv.impl", rows)
    settings.effective("model.fused_qkv", found.fused_qkv)
    settings.effective("model.fused_gate_up", found.fused_gate_up)
    settings.effective("model.vocab_pad_multiple", found.vocab_multiple)
    return found


def _small_operations(settings: Settings, device: torch.device) -> dict[str, str]:
    chosen = {
        name: str(settings.take(name, default))
        for name, default in (
            ("kernel.rmsnorm.impl", "f_rms_norm"),
            ("kernel.rope.impl", "real_cached"),
            ("kernel.swiglu.impl", "eager"),
        )
    }
    for name, impl in chosen.items():
        if impl in ("triton", "fused_triton") and device.type != "cuda":
            raise Unsupported(f"{name}={impl}: Triton kernels need a GPU")
        settings.effective(name, impl)
    return chosen


def _kernels(settings: Settings, device: torch.device, dtype: torch.dtype) -> Kernels:
    on_gpu = device.type == "cuda"
    decode = str(settings.take("kernel.paged_attn.impl", "triton" if on_gpu else "gather"))
    prefill = str(settings.take("kernel.paged_attn.prefill", "sdpa"))
    backend = str(settings.take("attention.backend", "sdpa_auto"))
    if "triton" in (decode, prefill) and not on_gpu:
        raise Unsupported("kernel.paged_attn: Triton kernels need a GPU")
    varlen = None
    if backend == "varlen":
        if not on_gpu or dtype == torch.float32:
            raise Unsupported("attention.backend=varlen needs a GPU and half precision")
        varlen, prefill = causal_varlen(), "varlen" if prefill == "sdpa" else prefill
    elif backend == "flex":
        raise Unsupported("attention.backend=flex is for training here")
    else:
        allow(settings, backend)
    splits = settings.take("kernel.paged_attn.num_kv_splits", "auto")
    processors = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 1
    found = Kernels(
        decode=decode,
        prefill=prefill,
        block_n=int(settings.take("kernel.paged_attn.block_n", 64)),
        splits=0 if splits == "auto" else int(splits),
        warps=int(settings.take("kernel.paged_attn.num_warps", 4)),
        stages=int(settings.take("kernel.paged_attn.num_stages", 3)),
        gqa=bool(settings.take("attention.enable_gqa", False)),
        pdl=bool(settings.take("kernel.gemv.pdl", False)),
        processors=processors,
        varlen=varlen,
    )
    settings.effective("attention.backend", backend)
    settings.effective("attention.enable_gqa", found.gqa)
    settings.effective("kernel.paged_attn.impl", found.decode)
    settings.effective("kernel.paged_attn.prefill", "sdpa" if prefill == "varlen" else prefill)
    settings.effective("kernel.paged_attn.block_n", found.block_n)
    settings.effective("kernel.paged_attn.num_kv_splits", found.splits or "auto")
    settings.effective("kernel.paged_attn.num_warps", found.warps)
    settings.effective("kernel.paged_attn.num_stages", found.stages)
    return found


def _schemes(
    settings: Settings, device: torch.device, rows: bool, pdl: bool
) -> tuple[Scheme, Scheme]:
    """How the layers keep their weights, and how the head does."""
    name = str(settings.take("quant.scheme", "none"))
    if name == "fp8_dynamic" and device.type != "cuda":
        raise Unsupported("quant.scheme=fp8_dynamic needs a GPU")
    products = _products(settings, rows or (device.type == "cuda" and name != "none"), pdl)
    granularity = str(settings.take("quant.fp8_granularity", "per_tensor"))
    scheme = Scheme(
        name=name,
        group=int(settings.take("quant.int4_group_size", 128)),
        per_row=granularity == "per_row",
        single_row_weight_only=bool(settings.take("quant.int8_weight_only_decode", False)),
        break_scale=float(settings.spec.options.get("break_scale", 1.0)),
        products=products,
    )
    skip = bool(settings.take("quant.skip_lm_head", True))
    for knob, value in (
        ("quant.scheme", scheme.name),
        ("quant.int4_group_size", scheme.group),
        ("quant.fp8_granularity", granularity),
        ("quant.int8_weight_only_decode", scheme.single_row_weight_only),
        ("quant.skip_lm_head", skip),
    ):
        settings.effective(knob, value)
    return scheme, Scheme(products=products) if skip else scheme


def _products(settings: Settings, triton: bool, pdl: bool) -> Products:
    if not triton:
        return Products()
    from trials.serve.kernels import gemv, matmul

    row = gemv.Tiling(
        block_n=int(settings.take("kernel.gemv.block_n", 4)),
        block_k=int(settings.take("kernel.gemv.block_k", 1024)),
        warps=int(settings.take("kernel.gemv.num_warps", 4)),
        pdl=pdl,
    )
    few = matmul.Tiling(
        block_m=int(settings.take("kernel.matmul.block_m", 16)),
        block_n=int(settings.take("kernel.matmul.block_n", 64)),
        block_k=int(settings.take("kernel.matmul.block_k", 128)),
        split_k=int(settings.take("kernel.split_k", 4)),
        warps=int(settings.take("kernel.num_warps", 4)),
        stages=int(settings.take("kernel.num_stages", 3)),
    )
    for name, value in (
        ("kernel.gemv.block_n", row.block_n),
        ("kernel.gemv.block_k", row.block_k),
        ("kernel.gemv.num_warps", row.warps),
        ("kernel.gemv.pdl", pdl),
        ("kernel.matmul.block_m", few.block_m),
        ("kernel.matmul.block_n", few.block_n),
        ("kernel.matmul.block_k", few.block_k),
        ("kernel.split_k", few.split_k),
        ("kernel.num_warps", few.warps),
        ("kernel.num_stages", few.stages),
    ):
        settings.effective(name, value)
    return Products(triton=True, gemv=row, matmul=few)
