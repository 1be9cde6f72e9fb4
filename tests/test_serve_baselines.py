"""What continuous batching and pages save, in steps and slots: counted, so the same on any host."""

from __future__ import annotations

from benchmarks.serve_baselines import compare
from tests.serve_engine import TINY
from trials.serve import trace


def test_continuous_batching_and_pages_need_fewer_steps_and_slots() -> None:
    workload = {
        "requests": 24,
        "prompt_tokens": 12,
        "output_tokens": 12,
        "distribution": "lognormal",
        "spread": 0.8,
    }
    asked = trace.make(workload, TINY["vocab_size"])
    rows = {row.arm: row for row in compare(TINY, asked, sequences=8, held=3, rounds=1)}
    plain, static = rows["static, contiguous"], rows["static, paged"]
    contiguous, both = rows["continuous, contiguous"], rows["continuous, paged"]
    assert len({row.output_tokens for row in rows.values()}) == 1, "all served the same"
    assert both.steps < static.steps < plain.steps
    assert both.steps < contiguous.steps < plain.steps
    assert both.steps < 0.5 * plain.steps
    assert both.kv_cache_waste_fraction < 0.5 * contiguous.kv_cache_waste_fraction
    assert both.batch_occupancy > 2 * plain.batch_occupancy
