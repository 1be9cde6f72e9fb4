"""From timelines to metrics. What is undefined is None, with the reason: never 0, never a crash."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from trials.serve.engine import Served, Timeline

PERCENTILES = (50, 90, 99)


def percentile(values: Sequence[float], share: float) -> float | None:
    """By linear interpolation between the two nearest; None of nothing."""
    if not values:
        return None
    ranked = sorted(values)
    place = (len(ranked) - 1) * share / 100
    low = math.floor(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


def first_token_ms(line: Timeline) -> float | None:
    """Sent to first token."""
    return (line.messages[0][0] - line.sent) * 1e3 if line.messages else None


def latency_ms(line: Timeline) -> float | None:
    """Sent to last token."""
    return (line.messages[-1][0] - line.sent) * 1e3 if line.messages else None


def gaps_ms(line: Timeline) -> list[float]:
    """Between successive messages; a message holds ``serve.stream_interval`` tokens."""
    times = [at for at, _ in line.messages]
    return [(b - a) * 1e3 for a, b in itertools.pairwise(times)]


def metrics(
    served: Served, workload: Mapping[str, Any], *, max_num_seqs: int, preemptions: int
) -> tuple[dict[str, float | None], list[str]]:
    """By metric name, and why some are undefined."""
    lines = served.timelines
    finished = [t for t in lines if t.messages]
    notices: list[str] = []
    output = sum(t.received for t in finished)
    everything = output + sum(len(t.request.prompt) for t in finished)
    wall = served.wall_seconds
    if not lines:
        notices.append("the trace holds no request: rates and latencies are undefined")
    elif wall <= 0:
        notices.append("no time passed: rates are undefined")
    found: dict[str, float | None] = {
        "output_tokens_per_second": _rate(output, wall),
        "tokens_per_second": _rate(everything, wall),
        "requests_per_second": _rate(len(finished), wall),
        "goodput_requests_per_second": _goodput(finished, workload, wall),
        "preemptions": float(preemptions),
        "kv_cache_waste_fraction": _share(
            served.allocated_sum - served.live_sum, served.allocated_sum
        ),
        "batch_occupancy": _share(served.running_sum, served.steps * max_num_seqs),
    }
    gaps = [gap for line in finished for gap in gaps_ms(line)]
    if finished and not gaps:
        notices.append("no request got two messages: inter-token latency is undefined")
    series = {
        "time_to_first_token_ms": _known(first_token_ms(t) for t in finished),
        "inter_token_latency_ms": gaps,
        "request_latency_ms": _known(latency_ms(t) for t in finished),
    }
    for name, values in series.items():
        for share in PERCENTILES:
            found[f"{name}_p{share}"] = percentile(values, share)
    return found, notices


def samples(served: Served) -> dict[str, tuple[float, ...]]:
    """Raw values of each request, for intervals and pictures."""
    lines = [t for t in served.timelines if t.messages]
    return {
        "time_to_first_token_ms": tuple(_known(first_token_ms(t) for t in lines)),
        "request_latency_ms": tuple(_known(latency_ms(t) for t in lines)),
    }


def meets(line: Timeline, workload: Mapping[str, Any]) -> bool:
    """Whether a request kept every limit that the workload states (0 is none)."""
    gaps = gaps_ms(line)
    seen = (
        ("goodput_time_to_first_token_ms", first_token_ms(line)),
        ("goodput_inter_token_latency_ms", sum(gaps) / len(gaps) if gaps else 0.0),
        ("goodput_request_latency_ms", latency_ms(line)),
    )
    for key, value in seen:
        limit = float(workload.get(key, 0.0))
        if limit and (value is None or value > limit):
            return False
    return True


def _goodput(lines: list[Timeline], workload: Mapping[str, Any], wall: float) -> float | None:
    """None in good time is a rate of 0, unlike no request at all."""
    good = sum(meets(line, workload) for line in lines)
    return good / wall if lines and wall > 0 else None


def _known(values: Any) -> list[float]:
    return [v for v in values if v is not None]


def _rate(count: float, seconds: float) -> float | None:
    return count / seconds if count and seconds > 0 else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
