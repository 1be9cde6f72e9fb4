"""The serving engine on the CPU: whatever the scheduler, the cache and the kernels, it says what
the plain decoder says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.serve_baselines import settings_of
from tests.serve_engine import CPU, TINY, built, requests, save_loud_weights
from trials.errors import Unsupported
from trials.serve import choices, weights
from trials.serve.reference import Reference
from trials.serve.trace import Request

PLENTY = 200


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return save_loud_weights(tmp_path_factory.mktemp("loud"))


@pytest.fixture(scope="module")
def reference(model: dict[str, Any]) -> Reference:
    found = weights.real_weights(model, torch.float32, CPU)
    assert found is not None
    return Reference(model, found)


def said(model: dict[str, Any], knobs: dict[str, Any], blocks: int, asked: list[Request]) -> Any:
    """What the engine answers, and the engine."""
    paged = {} if knobs.get("kv_cache.kind") == "contiguous" else {"kv_cache.block_size": 8}
    made, settings = built(model, {**paged, **knobs}, blocks)
    engine = made.engine()
    with torch.inference_mode():
        served = engine.serve(asked)
    assert settings.mismatches() == []
    assert settings.unread() == []
    return [line.tokens for line in served.timelines], engine


STATIC = {"serve.batching": "static"}
CONTIGUOUS = {"kv_cache.kind": "contiguous"}
PREFIX = {"kv_cache.prefix_caching": True}
SMALL_STEPS = {"serve.max_num_batched_tokens": 16}
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "few sequences": {"serve.max_num_seqs": 2},
    "static batching": {**STATIC, "serve.max_num_seqs": 4},
    "contiguous": CONTIGUOUS,
    "static batching, contiguous": {**STATIC, **CONTIGUOUS, "serve.max_num_seqs": 4},
    "chunks of 3": {"serve.prefill_chunk_tokens": 3},
    "chunks of 16": {**SMALL_STEPS, "serve.prefill_chunk_tokens": 16},
    "no chunks": {"serve.chunked_prefill": False, "serve.max_num_batched_tokens": 64},
    "prompts and decodes apart": {**SMALL_STEPS, "serve.mix_prefill_decode": False},
    "prompts every third step": {**SMALL_STEPS, "serve.prefill_interval": 3},
    "shortest prompt first": {"serve.schedule_policy": "shortest_prompt", "serve.max_num_seqs": 2},
    "by priority": {"serve.schedule_policy": "priority", "serve.max_num_seqs": 2},
    "four decodes at a time": {"serve.multi_step_decode": 4},
    "planned ahead": {"serve.async_scheduling": True},
    "planned ahead, four at a time": {
        "serve.async_scheduling": True,
        "serve.multi_step_decode": 4,
    },
    "streamed by fours": {"serve.stream_interval": 4},
    "waits for a batch": {"serve.batch_wait_ms": 1.0},
    "blocks of 16": {"kv_cache.block_size": 16},
    "blocks of 256": {"kv_cache.block_size": 256},
    "heads first": {"kv_cache.layout": "HND"},
    "heads first, contiguous": {**CONTIGUOUS, "kv_cache.layout": "HND"},
    "logits of every token": {"serve.last_token_logits_only": False},
    "sampled by top-k": {"serve.sampler": "torch_topk"},
    "sampled by argmax": {"serve.sampler": "argmax_only"},
    "fused products": {
        "model.fused_qkv": True,
        "model.fused_gate_up": True,
        "model.vocab_pad_multiple": 64,
    },
    "other small operations": {
        "kernel.rope.impl": "complex",
        "kernel.rmsnorm.impl": "eager",
        "attention.enable_gqa": True,
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_answers_equal_the_plain_decoder_token_for_token(
    name: str, model: dict[str, Any], reference: Reference
) -> None:
    asked = requests()
    answers, _ = said(model, SETTINGS[name], PLENTY, asked)
    assert answers == [reference.greedy(r.prompt, r.output_tokens) for r in asked]


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("ahead", [False, True])
def test_answers_survive_preemption(
    mode: str, ahead: bool, model: dict[str, Any], reference: Reference
) -> None:
    knobs = {
        "serve.preemption_mode": mode,
        "serve.new_token_ratio": 0.05,
        "serve.admission_watermark": 0.0,
        "serve.async_scheduling": ahead,
    }
    asked = requests()
    answers, engine = said(model, knobs, 8, asked)
    assert engine.scheduler.preemptions > 0
    assert answers == [reference.greedy(r.prompt, r.output_tokens) for r in asked]


@pytest.mark.parametrize("policy", ["lru", "lfu", "slru", "fifo"])
@pytest.mark.parametrize("blocks", [PLENTY, 12])
def test_answers_stay_the_same_when_prefixes_are_found_in_the_cache(
    policy: str, blocks: int, model: dict[str, Any], reference: Reference
) -> None:
    knobs = {
        **PREFIX,
        "kv_cache.eviction_policy": policy,
        "serve.max_num_seqs": 3,
        "serve.schedule_policy": "longest_prefix",
    }
    asked = requests(shared=20)
    answers, engine = said(model, knobs, blocks, asked)
    assert engine.scheduler.blocks.hit_tokens > 0
    assert answers == [reference.greedy(r.prompt, r.output_tokens) for r in asked]


def test_answers_stay_the_same_when_drafts_are_verified(
    model: dict[str, Any], reference: Reference
) -> None:
    knobs = {"spec.method": "ngram", "spec.num_tokens": 4, "spec.ngram_min": 1}
    piece = requests()[0].prompt[:4]
    asked = [
        Request(number=n, arrival=0.0, prompt=piece * 5 + (n,), output_tokens=40) for n in range(4)
    ]
    answers, engine = said(model, knobs, PLENTY, asked)
    assert engine.scheduler.drafted > engine.scheduler.accepted > 0
    assert answers == [reference.greedy(r.prompt, r.output_tokens) for r in asked]


def test_a_second_trace_knows_nothing_of_the_first(
    model: dict[str, Any], reference: Reference
) -> None:
    made, _ = built(model, {**PREFIX, "kv_cache.block_size": 8}, PLENTY)
    with torch.inference_mode():
        made.engine().serve(requests(shared=20))
        engine = made.engine()
        asked = requests()
        answers = [line.tokens for line in engine.serve(asked).timelines]
    assert engine.scheduler.blocks.hit_tokens == 0
    assert answers == [reference.greedy(r.prompt, r.output_tokens) for r in asked]


def test_a_wrong_cache_would_be_noticed(model: dict[str, Any], reference: Reference) -> None:
    """Guards the tests above: with blocks mixed up, answers of this model do change."""
    made, _ = built(model, {"kv_cache.block_size": 8}, PLENTY)
    asked = requests()
    engine = made.engine()
    write = made.cache.layers[0].write
    made.cache.layers[0].write = lambda b, o, k, v: write(b, o.flip(0), k, v)  # type: ignore[method-assign]
    with torch.inference_mode():
        answers = [line.tokens for line in engine.serve(asked).timelines]
    assert answers != [reference.greedy(r.prompt, r.output_tokens) for r in asked]


@pytest.mark.parametrize(
    ("knobs", "word"),
    [
        ({"kv_cache.kind": "contiguous", **PREFIX}, "prefix"),
        ({"serve.async_scheduling": True, "spec.method": "ngram"}, "drafts"),
        ({"kernel.rmsnorm.impl": "triton"}, "GPU"),
        ({"attention.backend": "flex"}, "training"),
        ({"spec.method": "ngram", "spec.ngram_min": 5, "spec.ngram_max": 2}, "spec.ngram_max"),
        ({"quant.scheme": "fp8_dynamic"}, "GPU"),
    ],
)
def test_what_cannot_be_here_is_refused_by_name(knobs: dict[str, Any], word: str) -> None:
    with pytest.raises(Unsupported, match=word):
        choices.choose(settings_of(TINY, knobs), TINY, CPU)


@pytest.mark.parametrize(
    ("scheme", "bound"),
    [
        ("int8_weight_only", 0.02),
        ("int8_dynamic", 0.03),
        ("int4_weight_only", 0.12),
        ("fp8_weight_only", 0.05),
    ],
)
@pytest.mark.parametrize("rows", [1, 5])
def test_quantised_products_are_close_to_the_plain_ones(
    scheme: str, bound: float, rows: int
) -> None:
    knobs = {"quant.scheme": scheme, "quant.int4_group_size": 32}
    made = choices.choose(settings_of(TINY, knobs), TINY, CPU).parts.scheme
    generator = torch.Generator().manual_seed(1)
    dense = torch.randn(40, 48, generator=generator)
    x = torch.randn(rows, 48, generator=generator)
    layer = made.layer(dense)
    exact = x @ dense.T
    assert (layer(x) - exact).norm() / exact.norm() < bound
    assert 0 < (layer.widened(torch.float32) - dense).norm() / dense.norm() < bound  # type: ignore[union-attr]
