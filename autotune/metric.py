"""The metric names that a measurement may carry: unit, better direction and meaning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's better direction (``max`` or ``min``) and what it means."""

    direction: str
    summary: str


METRICS: dict[str, Metric] = {
    "tokens_per_second": Metric("max", "tokens of whole steps or requests over their wall time"),
    "tokens_per_second_per_gpu": Metric("max", "tokens_per_second over the GPUs of the trial"),
    "useful_tokens_per_second": Metric("max", "the same without padding"),
    "step_time_ms": Metric("min", "whole optimiser step, accumulation included"),
    "output_tokens_per_second": Metric("max", "generated tokens over wall time"),
    "requests_per_second": Metric("max", "finished requests over wall time"),
    "goodput_requests_per_second": Metric("max", "requests that met every latency limit"),
    "time_to_first_token_ms": Metric("min", "arrival to first token"),
    "inter_token_latency_ms": Metric("min", "between two tokens of one request"),
    "request_latency_ms": Metric("min", "arrival to last token"),
    "peak_memory_bytes": Metric("min", "peak allocated device memory"),
    "reserved_memory_bytes": Metric("min", "peak reserved device memory"),
    "model_flops_utilization": Metric("max", "model FLOP/s over the device's peak"),
    "memory_bandwidth_utilization": Metric("max", "bytes that must move over the copy ceiling"),
    "ceiling_fraction": Metric("max", "share of the matmul rate measured on this device"),
    "energy_joules_per_token": Metric("min", "energy over the timed window per token"),
    "average_power_watts": Metric("min", "mean power over the timed window"),
    "dollars_per_million_tokens": Metric("min", "GPU hours at the stated price"),
    "compile_seconds": Metric("min", "compilation, apart from timed steps"),
    "build_seconds": Metric("min", "building model, optimizer or engine"),
    "validation_loss": Metric("min", "mean cross entropy in nats on held-out text"),
    "loss_at_end": Metric("min", "training loss after the fixed number of tokens"),
    "output_divergence": Metric("min", "mean KL divergence of next-token distributions, nats"),
    "perplexity": Metric("min", "on fixed real text"),
    "communication_bytes_per_step": Metric("min", "bytes sent by one rank per step"),
    "kv_cache_waste_fraction": Metric("min", "allocated KV slots that hold no token"),
    "preemptions": Metric("min", "requests put back during the trace"),
    "batch_occupancy": Metric("max", "mean running sequences over the limit"),
}
PERCENTILES = ("p50", "p90", "p99")


def find(name: str) -> Metric | None:
    """The metric of that name; latency names may end in a percentile. None when unknown."""
    base, _, tail = name.rpartition("_")
    if tail in PERCENTILES and base in METRICS:
        return METRICS[base]
    return METRICS.get(name)
