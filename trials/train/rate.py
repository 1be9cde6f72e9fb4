"""What the times of a step come to: rates, shares of the device's ceiling, and whether to believe
them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from trials.errors import TrialError
from trials.settings import Settings
from trials.train.extrapolation import Whole
from trials.train.model import head_dim
from trials.train.timing import Timed
from trials.train.weights import counts

_ABOVE_CEILING = 1.05
_CLOCK_SLACK_MS = 5.0


def flops_per_token(model: Mapping[str, Any], length: int) -> float:
    """6 x parameters that multiply it (the embedding is looked up), plus causal attention:
    6 x layers x width x length, half of what attention without a mask costs."""
    layers = int(model["num_hidden_layers"])
    active, _ = counts(model, layers)
    width = head_dim(model) * int(model["num_attention_heads"])
    return 6.0 * active + 6.0 * layers * width * length


def product_dtype(settings: Settings) -> str:
    """The number format of most products: the one whose ceiling counts."""
    if settings.values.get("float8.enabled"):
        return "fp8"
    dtype = str(settings.values.get("precision.compute_dtype", "fp32"))
    if dtype == "fp32" and settings.values.get("precision.float32_matmul", "highest") != "highest":
        return "tf32"
    return dtype


def metrics(
    whole: Whole, timed: list[Timed], *, tokens: int, per_token: float, ceiling: float
) -> dict[str, float | None]:
    """By metric name. ``tokens`` is what one optimiser step sees."""
    step_ms = statistics.median(whole.step_ms)
    rate = tokens / step_ms * 1e3
    share = rate * per_token / ceiling
    return {
        "tokens_per_second": rate,
        "useful_tokens_per_second": rate * timed[-1].useful_share,
        "step_time_ms": step_ms,
        "peak_memory_bytes": whole.peak_bytes,
        "reserved_memory_bytes": whole.reserved_bytes,
        "model_flops_utilization": share,
        "ceiling_fraction": share,
        "compile_seconds": sum(t.compile_seconds for t in timed),
    }


def check(flops: float, ceiling: float, timed: list[Timed], *, on_gpu: bool) -> None:
    """A rate above what the device was seen to do means that the clock lied; so does a sum of
    steps that is longer, or much shorter, than the time in which they ran."""
    if on_gpu and flops > _ABOVE_CEILING * ceiling:
        raise TrialError(
            f"{flops / 1e12:.0f} TFLOP/s is above the {ceiling / 1e12:.0f} measured on this device"
        )
    for t in timed:
        wall, steps = (t.window[1] - t.window[0]) * 1e3, sum(t.wall_ms)
        if steps > 1.05 * wall + _CLOCK_SLACK_MS or steps < 0.8 * wall - 10 * _CLOCK_SLACK_MS:
            raise TrialError(f"timed steps add up to {steps:.1f} ms within {wall:.1f} ms")
