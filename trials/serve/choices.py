"""What the knobs decide, before a model is built; each is read here and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trials.errors import Unsupported
from trials.serve.graphs import sizes_of
from trials.serve.kernel_choices import parts_of
from trials.serve.model import Parts, Shape
from trials.serve.plan import Policy
from trials.settings import Settings
from trials.train.compiling import Compiler

COMPUTE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """How keys and values are kept."""

    size: int
    dtype: str
    layout: str
    fraction: float
    contiguous: bool
    prefix_caching: bool
    eviction: str
    host_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Everything that the knobs decide, before a model is built."""

    device: torch.device
    dtype: torch.dtype
    parts: Parts
    policy: Policy
    cache: Cache
    compiler: Compiler
    ngram: tuple[int, int]
    sampler: str
    longest: int  # tokens of a sequence
    overlap: bool
    stream_interval: int
    all_logits: bool
    graphs: str
    graph_sizes: tuple[int, ...]


def choose(settings: Settings, model: Mapping[str, Any], device: torch.device) -> Choices:
    """Read every knob; Unsupported for what cannot be here."""
    shape = Shape.of(model)
    dtype = COMPUTE[str(settings.take("precision.compute_dtype", "fp32"))]
    settings.effective("precision.compute_dtype", _name(dtype))
    compiler = Compiler(settings)
    if compiler.uses_cudagraphs:
        raise Unsupported(
            "compile.mode with CUDA graphs: the engine records whole steps by serve.cudagraph_mode"
        )
    longest = _longest(settings, shape)
    policy = _policy(settings)
    overlap = bool(settings.take("serve.async_scheduling", False))
    if overlap and policy.draft_tokens:
        raise Unsupported("serve.async_scheduling: drafts need the tokens of the step before")
    settings.effective("serve.async_scheduling", overlap)
    mode = str(settings.take("serve.cudagraph_mode", "none"))
    largest = int(settings.take("serve.cudagraph_max_batch", 128))
    step = str(settings.take("serve.cudagraph_size_step", 8))
    made = parts_of(settings, device, dtype)
    interval = int(settings.take("serve.stream_interval", 1))
    settings.effective("serve.stream_interval", interval)
    last_only = bool(settings.take("serve.last_token_logits_only", True))
    settings.effective("serve.last_token_logits_only", last_only)
    return Choices(
        device=device,
        dtype=dtype,
        parts=made,
        policy=policy,
        cache=_cache(settings, longest),
        compiler=compiler,
        ngram=_ngram(settings),
        sampler=str(settings.take("serve.sampler", "torch_sort")),
        longest=longest,
        overlap=overlap,
        stream_interval=interval,
        all_logits=not last_only,
        graphs=mode,
        graph_sizes=tuple(sizes_of(step, largest, policy.max_num_seqs)) if mode != "none" else (),
    )


def _longest(settings: Settings, shape: Shape) -> int:
    """Tokens of a sequence."""
    limit = settings.take("serve.max_model_len", "unset")
    longest = shape.longest if limit == "unset" else min(int(limit), shape.longest)
    settings.effective("serve.max_model_len", "unset" if limit == "unset" else longest)
    return longest


def _policy(settings: Settings) -> Policy:
    method = str(settings.take("spec.method", "none"))
    if method not in ("none", "ngram"):
        raise Unsupported(f"spec.method={method} is not built here")
    settings.effective("spec.method", method)
    drafts = int(settings.take("spec.num_tokens", 3)) if method != "none" else 0
    names = {
        "max_num_seqs": "serve.max_num_seqs",
        "max_num_batched_tokens": "serve.max_num_batched_tokens",
        "chunked_prefill": "serve.chunked_prefill",
        "prefill_chunk_tokens": "serve.prefill_chunk_tokens",
        "mix_prefill_decode": "serve.mix_prefill_decode",
        "prefill_interval": "serve.prefill_interval",
        "order": "serve.schedule_policy",
        "preemption": "serve.preemption_mode",
        "watermark": "serve.admission_watermark",
        "new_token_ratio": "serve.new_token_ratio",
        "multi_step": "serve.multi_step_decode",
        "batch_wait_ms": "serve.batch_wait_ms",
        "batching": "serve.batching",
        "draft_max_batch": "spec.disable_above_batch",
    }
    defaults = Policy()
    asked = {field: settings.take(name, getattr(defaults, field)) for field, name in names.items()}
    policy = Policy(draft_tokens=drafts, **asked)
    for field, name in names.items():
        settings.effective(name, getattr(policy, field))
    if drafts:
        settings.effective("spec.num_tokens", policy.draft_tokens)
    return policy


def _ngram(settings: Settings) -> tuple[int, int]:
    shortest = int(settings.take("spec.ngram_min", 2))
    longest = int(settings.take("spec.ngram_max", 4))
    if shortest > longest:
        raise Unsupported(f"spec.ngram_min={shortest} is above spec.ngram_max={longest}")
    settings.effective("spec.ngram_min", shortest)
    settings.effective("spec.ngram_max", longest)
    return shortest, longest


def _cache(settings: Settings, longest: int) -> Cache:
    kind = str(settings.take("kv_cache.kind", "paged"))
    size = int(settings.take("kv_cache.block_size", 16))
    found = Cache(
        size=longest if kind == "contiguous" else size,
        dtype=str(settings.take("kv_cache.dtype", "model")),
        layout=str(settings.take("kv_cache.layout", "NHD")),
        fraction=float(settings.take("kv_cache.memory_fraction", 0.9)),
        contiguous=kind == "contiguous",
        prefix_caching=bool(settings.take("kv_cache.prefix_caching", False)),
        eviction=str(settings.take("kv_cache.eviction_policy", "lru")),
        host_bytes=int(settings.take("kv_cache.host_offload_gb", 0)) << 30,
    )
    if found.contiguous and found.prefix_caching:
        raise Unsupported("kv_cache.kind=contiguous cannot share blocks: no prefix caching")
    settings.effective("kv_cache.kind", kind)
    settings.effective("kv_cache.memory_fraction", found.fraction)
    settings.effective("kv_cache.prefix_caching", found.prefix_caching)
    settings.effective("kv_cache.eviction_policy", found.eviction)
    return found


def _name(dtype: torch.dtype) -> str:
    return next(name for name, kind in COMPUTE.items() if kind == dtype)
