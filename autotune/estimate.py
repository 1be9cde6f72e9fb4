"""Predicts memory and step time before a launch: rejects what cannot fit, is corrected by what is
measured, and is not trusted where it is wrong.

The forms are linear in depth, batch and length; the constants are of the kind "bytes kept per
token and unit of width", checked against a table of full-depth runs on one H200 in the tests.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.hardware import Hardware
from autotune.trial import Configuration, Status, TrialRecord

_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
# Elements kept for backward per token and layer: times hidden size, times intermediate size.
_KEPT = {"eager": (11.4, 4.0), "compiled": (10.4, 3.0)}
_EFFICIENCY = 0.82  # of the matmul ceiling, in products of a decoder's shapes
_FLOAT8_EFFICIENCY = 0.67  # casting to fp8 and back is not free
_FLOAT8_KEEPS = 0.70  # of the compiled activations
_STATES = {"adamw": 2.0, "sgd": 1.0, "adafactor": 0.05}  # of the optimizer, per weight, full width
_LOW_BIT_STATES = {"adamw8bit_torchao": 2.1, "adamw4bit_torchao": 1.1, "adamwfp8_torchao": 2.1}
_SERVED_SHARE = 0.7  # of the device, for weights; keys, values and activations need the rest
_SURE = 0.92  # reject only when even this share of the prediction does not fit
_TRUST_ERROR = 0.15
_RECENT = 12
# Matmul FLOP/s by dtype and copy bytes/s, by compute capability: orders of magnitude to start
# from; a study replaces them by what it measures.
_CEILINGS: dict[int, dict[str, float]] = {
    90: {"bf16": 7.9e14, "fp8": 1.45e15, "tf32": 4.3e14, "fp32": 5.0e13, "copy": 4.2e12},
    80: {"bf16": 2.5e14, "fp8": 2.5e14, "tf32": 1.3e14, "fp32": 1.9e13, "copy": 1.4e12},
    89: {"bf16": 1.6e14, "fp8": 3.2e14, "tf32": 8.0e13, "fp32": 6.0e13, "copy": 8.0e11},
}
_CPU_CORE = {"bf16": 4e9, "fp8": 4e9, "tf32": 2.5e10, "fp32": 2.5e10, "fp16": 2e9, "copy": 5e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What measurements of this study say of the predictions: factors, and whether to trust."""

    memory: float = 1.0
    time: float = 1.0
    memory_trusted: bool = True
    time_error: float | None = None
    memory_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Full-depth figures, whatever depth a trial measures."""

    memory_bytes: float
    step_time_ms: float
    tokens_per_step: float
    minimum_bytes: float  # weights, gradients and bf16 AdamW states: below it nothing trains
    parts: Mapping[str, float] = field(default_factory=dict)
    memory_trusted: bool = True
    raw_memory_bytes: float = 0.0
    raw_step_time_ms: float = 0.0
    measured_bytes: float = 0.0  # what this trial itself would need at its depth

    def metrics(self) -> dict[str, float]:
        """By the names of the metrics that they predict."""
        return {
            "peak_memory_bytes": self.memory_bytes,
            "step_time_ms": self.step_time_ms,
            "tokens_per_second": self.tokens_per_step / self.step_time_ms * 1e3,
            # Before calibration, so that the factors can be fitted again from any record.
            "raw_peak_memory_bytes": self.raw_memory_bytes,
            "raw_step_time_ms": self.raw_step_time_ms,
        }


def predict(
    model: Mapping[str, Any],
    configuration: Configuration,
    *,
    task: str,
    workload: Mapping[str, Any],
    hardware: Hardware,
    depths: Sequence[int] = (),
    calibration: Calibration | None = None,
) -> Prediction | None:
    """Memory and time of a training step; None for what the model knows nothing about."""
    del workload
    if task != "train" or not model:
        return None
    fit_ = calibration or Calibration()
    layers = int(model["num_hidden_layers"])
    whole = _memory(model, configuration, layers)
    here = _memory(model, configuration, max(depths)) if depths else whole
    weights = _parameters(model, layers)
    times = _times(model, configuration, layers, hardware)
    return Prediction(
        memory_bytes=sum_peak(whole) * fit_.memory,
        step_time_ms=sum(times.values()) * 1e3 * fit_.time,
        tokens_per_step=_tokens(configuration),
        minimum_bytes=weights * 8.0,
        parts={
            **{f"{k}_bytes": v for k, v in whole.items()},
            **{f"{k}_seconds": v for k, v in times.items()},
        },
        memory_trusted=fit_.memory_trusted,
        raw_memory_bytes=sum_peak(whole),
        raw_step_time_ms=sum(times.values()) * 1e3,
        measured_bytes=sum_peak(here) * fit_.memory,
    )


def check(prediction: Prediction | None, hardware: Hardware) -> str | None:
    """Why a configuration cannot fit, or None. When in doubt it is tried."""
    if prediction is None or not prediction.memory_trusted:
        return None
    room = float(hardware.device_memory_bytes)
    # A model that no setting could make fit is tuned by its slices alone.
    needed = prediction.measured_bytes
    if fits_at_all(prediction, hardware):
        needed = prediction.memory_bytes
    if needed * _SURE <= room:
        return None
    return f"predicted to need {needed / 2**30:.0f} GiB of the {room / 2**30:.0f} GiB here"


def fits_at_all(prediction: Prediction, hardware: Hardware) -> bool:
    """Whether some setting could train the whole model on this device."""
    return hardware.device == "cuda" and prediction.minimum_bytes < hardware.device_memory_bytes


def serves_whole(
    model: Mapping[str, Any], configuration: Configuration, hardware: Hardware
) -> bool:
    """Whether the whole model can be served here, with room for keys and values.

    On a CPU by its weights in fp32 whatever the configuration: all arms of a race are to be
    measured alike.
    """
    width = 4 if hardware.device == "cpu" else _widths(configuration)[1]
    needed = _parameters(model, int(model["num_hidden_layers"])) * width
    return needed <= _SERVED_SHARE * hardware.device_memory_bytes


def fit(records: Sequence[TrialRecord]) -> Calibration | None:
    """Correct the predictions by the recent complete trials; None before there are three."""
    memory = _ratios(records, "peak_memory_bytes")
    time = _ratios(records, "step_time_ms")
    if len(memory) < 3:
        return None
    middle = statistics.median(memory)
    error = statistics.median(abs(r / middle - 1) for r in memory)
    time_middle = statistics.median(time) if time else 1.0
    return Calibration(
        memory=min(1.5, max(0.67, middle)),
        time=time_middle,
        memory_trusted=error < _TRUST_ERROR,
        memory_error=error,
        time_error=statistics.median(abs(r / time_middle - 1) for r in time) if time else None,
    )


def _ratios(records: Sequence[TrialRecord], metric: str) -> list[float]:
    """Measured over predicted before calibration, of the last few complete trials."""
    found = []
    for record in records:
        measured, predicted = record.metric(metric), record.predicted.get(f"raw_{metric}")
        if record.status is Status.COMPLETE and measured and predicted:
            found.append(measured / predicted)
    return found[-_RECENT:]


def sum_peak(parts: Mapping[str, float]) -> float:
    """The higher of the two moments: activations at their most, or the optimizer at work."""
    steady = parts["weights"] + parts["states"] + parts["master"]
    forward = steady + parts["held_gradients"] + parts["activations"] + parts["logits"]
    return max(forward, steady + parts["gradients"] + parts["update"])


def _parameters(model: Mapping[str, Any], layers: int) -> float:
    hidden, inner = float(model["hidden_size"]), float(model["intermediate_size"])
    dim, heads = float(model["head_dim"]), float(model["num_attention_heads"])
    kv = float(model["num_key_value_heads"])
    experts = float(model.get("num_local_experts", 1))
    layer = hidden * dim * (2 * heads + 2 * kv) + 3 * hidden * inner * experts
    tables = 1 if model.get("tie_word_embeddings") else 2
    return layers * layer + tables * float(model["vocab_size"]) * hidden


def _active_parameters(model: Mapping[str, Any], layers: int) -> float:
    """Weights that a token meets in matrix products: chosen experts only, no embedding."""
    share = float(model.get("num_experts_per_tok", 1)) / float(model.get("num_local_experts", 1))
    mlp = 3 * float(model["hidden_size"]) * float(model["intermediate_size"])
    mlp *= float(model.get("num_local_experts", 1))
    table = float(model["vocab_size"]) * float(model["hidden_size"])
    tables = 1 if model.get("tie_word_embeddings") else 2
    return _parameters(model, layers) - tables * table + table - layers * mlp * (1 - share)


def _widths(configuration: Configuration) -> tuple[int, int]:
    """Bytes of a weight and of a computed element."""
    compute = str(configuration.get("precision.compute_dtype", "fp32"))
    weights = str(configuration.get("precision.param_dtype", "fp32"))
    if configuration.get("precision.mode") == "cast_model":
        weights = compute
    return _BYTES.get(weights, 4), _BYTES.get(compute, 4)


def _memory(
    model: Mapping[str, Any], configuration: Configuration, layers: int
) -> dict[str, float]:
    weight, element = _widths(configuration)
    count = _parameters(model, layers)
    master = bool(configuration.get("optim.master_weights", False)) and weight < 4
    state_width = 4 if master else weight
    name = str(configuration.get("optim.name", "adamw"))
    states = _LOW_BIT_STATES.get(name, _STATES.get(name, 2.0) * state_width)
    impl = configuration.get("optim.impl", "unset")
    temporary = count * state_width if name == "adamw" and impl in ("unset", "foreach") else 0.0
    micro = int(configuration.get("train.micro_batch_size", 1))
    accumulates = int(configuration.get("train.global_batch_size", 16)) > micro
    cache = count * element if weight > element else 0.0  # autocast keeps cast weights
    return {
        "weights": count * weight,
        "gradients": count * state_width,
        "held_gradients": count * weight if accumulates else 0.0,
        "states": count * states,
        "master": count * 4.0 if master else 0.0,
        "update": temporary,
        "activations": _activations(model, configuration, layers, element) + cache,
        "logits": _logits(model, configuration, element),
    }


def _activations(
    model: Mapping[str, Any], configuration: Configuration, layers: int, element: int
) -> float:
    compiled = bool(configuration.get("compile.enabled", False))
    by_hidden, by_inner = _KEPT["compiled" if compiled else "eager"]
    hidden = float(model["hidden_size"])
    chosen = float(model.get("num_experts_per_tok", 1))
    per_token = by_hidden * hidden + by_inner * chosen * float(model["intermediate_size"])
    if configuration.get("float8.enabled"):
        per_token *= _FLOAT8_KEEPS if compiled else 1.0
    tokens = float(configuration.get("train.micro_batch_size", 1)) * float(
        configuration.get("train.seq_len", 2048)
    )
    layer = per_token * tokens * element
    edge = hidden * tokens * element
    match configuration.get("ac.mode", "none"):
        case "full":
            return layers * edge + layer
        case "selective_layer":
            stride = int(configuration.get("ac.layer_stride", 2))
            kept = layers - -(-layers // stride)
            return kept * layer + (layers - kept) * edge + layer
        case "selective_op":
            return 0.5 * layers * layer
        case "memory_budget":
            budget = float(configuration.get("ac.memory_budget", 1.0))
            return layers * (edge + budget * (layer - edge))
        case "offload":
            return layer
        case _:
            return layers * layer


def _logits(model: Mapping[str, Any], configuration: Configuration, element: int) -> float:
    tokens = float(configuration.get("train.micro_batch_size", 1)) * float(
        configuration.get("train.seq_len", 2048)
    )
    one = tokens * float(model["vocab_size"])
    match configuration.get("loss.impl", "eager"):
        case "chunked":
            return one * (element + 8) / float(configuration.get("loss.num_chunks", 8))
        case "liger_flce" | "linear_cross_entropy":
            return 0.1 * one * element
        case "compiled":
            return one * (element + 4)
        case _:
            return one * (element + 8)


def _tokens(configuration: Configuration) -> float:
    return float(configuration.get("train.global_batch_size", 16)) * float(
        configuration.get("train.seq_len", 2048)
    )


def _rates(hardware: Hardware) -> Mapping[str, float]:
    if hardware.device == "cpu":
        return {k: v * hardware.cores for k, v in _CPU_CORE.items()}
    sm = min(g.sm for g in hardware.gpus)
    return _CEILINGS[max((k for k in _CEILINGS if k <= sm), default=80)]


def _times(
    model: Mapping[str, Any], configuration: Configuration, layers: int, hardware: Hardware
) -> dict[str, float]:
    """Seconds of one optimiser step, by what they are spent on."""
    rates = _rates(hardware)
    weight, element = _widths(configuration)
    tokens = _tokens(configuration)
    compiled = bool(configuration.get("compile.enabled", False))
    dtype = str(configuration.get("precision.compute_dtype", "fp32"))
    if dtype == "fp32" and configuration.get("precision.float32_matmul", "highest") != "highest":
        dtype = "tf32"
    flops = 6.0 * _active_parameters(model, layers) * tokens
    width = float(model["head_dim"]) * float(model["num_attention_heads"])
    attention = 6.0 * layers * width * float(configuration.get("train.seq_len", 2048)) * tokens
    again = 4 / 3 if configuration.get("ac.mode", "none") == "full" else 1.0
    float8 = bool(configuration.get("float8.enabled"))
    matmul_rate = rates["fp8" if float8 else dtype if dtype in rates else "bf16"]
    matmul_rate *= _FLOAT8_EFFICIENCY if float8 else _EFFICIENCY
    kept = _activations(model, {**configuration, "ac.mode": "none"}, layers, element)
    micro = int(configuration.get("train.micro_batch_size", 1))
    batches = float(configuration.get("train.global_batch_size", 16)) / micro
    passes = 3.0 if compiled else 11.0  # reads and writes of the activations around products
    optimizer = 14.0 if configuration.get("optim.impl") == "fused" else 42.0
    return {
        "matmul": again * flops / matmul_rate,
        "attention": again * attention / (0.4 * rates.get(dtype, rates["bf16"])),
        "elementwise": again * passes * kept * batches / rates["copy"],
        "optimizer": _parameters(model, layers) * optimizer * weight / 2 / rates["copy"],
    }
