"""Runner toy: a fixed formula over a few knobs, whose best point and front are known, and every
fault that a trial can have (``trials.toy_faults``)."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.trial import KnobValue, Measurement, TrialSpec
from trials import toy_faults
from trials.settings import Settings

PEAK_BATCH = 64
_PRECISION = {"fp32": 1.0, "bf16": 1.6, "fp8": 2.0}
_COMPILED = 1.15
_TOKENS_PER_REQUEST = 32
_WATTS = 100.0


def formula(knobs: Mapping[str, KnobValue]) -> dict[str, float]:
    """What a configuration yields without noise: tokens_per_second has its one peak over batch at
    64; latency and memory grow with batch, so that small batches make the rest of the front."""
    batch = float(knobs.get("batch", 16))
    rate = 1000.0 * math.exp(-((math.log2(batch / PEAK_BATCH)) ** 2) / 8)
    rate *= _PRECISION[str(knobs.get("prec", "fp32"))]
    rate *= _COMPILED if knobs.get("compile", False) is True else 1.0
    return {
        "tokens_per_second": rate,
        "request_latency_ms_p99": 5.0 + 0.7 * batch,
        "peak_memory_bytes": 1e9 + 5e7 * batch,
    }


def run(spec: TrialSpec, folder: Path, settings: Settings) -> Measurement:
    """One trial. Options: ``noise`` (relative, of the rate), ``sleep`` (seconds), ``effects``
    (``knob=value`` to a factor of the rate), ``faults`` (texts), ``requests``, ``elapsed``.
    """
    started = time.monotonic()
    knobs = {name: settings.take(name) for name in settings.values}
    for name, value in knobs.items():
        settings.effective(name, value)
    if not float(knobs.get("batch", 16)) > 0:
        raise ValueError(f"batch={knobs['batch']!r} should be above 0")
    rng = random.Random(f"{spec.seed}:{spec.number}")
    chance, noise = rng.random(), rng.gauss(0, 1)
    faults = toy_faults.active(spec, knobs, chance)
    time.sleep(float(spec.options.get("sleep", 0)))
    toy_faults.before(faults, folder)
    truth = formula(knobs)
    rate = truth["tokens_per_second"] * _planted(spec.options.get("effects", {}), knobs)
    rate *= max(0.01, 1 + float(spec.options.get("noise", 0)) * noise)
    metrics, notices = _measured(rate, truth, spec)
    phases = {"measure": time.monotonic() - started}
    measurement = Measurement(
        metrics=toy_faults.spoiled(faults, metrics),
        effective=dict(settings.read_back),
        phases=phases,
        telemetry={"chance": chance},
        notices=(*settings.notices, *notices),
    )
    toy_faults.after(faults, folder, measurement)
    return measurement


def _planted(effects: Mapping[str, Any] | str, knobs: Mapping[str, KnobValue]) -> float:
    """The product of the gains that somebody planted, to see whether they are found."""
    if isinstance(effects, str):  # from a command line: compile=true:1.03,prec=bf16:1.1
        effects = dict(part.rsplit(":", 1) for part in effects.split(",") if part)
    factor = 1.0
    for name, gain in effects.items():
        knob, equals, value = name.partition("=")
        if not equals:
            raise ValueError(f"effect {name!r} should read knob=value")
        if str(knobs.get(knob)).lower() == value.lower():
            factor *= float(gain)
    return factor


def _measured(
    rate: float, truth: Mapping[str, float], spec: TrialSpec
) -> tuple[dict[str, Any], list[str]]:
    """Metrics of a stretch of requests; what has no value is None, with the reason."""
    requests = int(spec.options.get("requests", 100))
    each = int(spec.options.get("tokens", _TOKENS_PER_REQUEST))
    tokens = requests * each
    elapsed = float(spec.options.get("elapsed", tokens / rate))
    latency = truth["request_latency_ms_p99"] if requests else None
    notices = []
    if not elapsed > 0:
        notices.append("tokens_per_second is null: no time passed")
    if not requests:
        notices.append("request_latency_ms_p99 is null: there was no request")
    if each < 2 or not requests:
        notices.append("inter_token_latency_ms_p50 is null: no request had two tokens")
    metrics: dict[str, Any] = {
        "tokens_per_second": tokens / elapsed if elapsed > 0 else None,
        "request_latency_ms_p99": latency,
        "inter_token_latency_ms_p50": latency / each if latency and each > 1 else None,
        "peak_memory_bytes": truth["peak_memory_bytes"],
    }
    if not spec.gpus:  # where there is a GPU, its own meter has the word
        metrics["average_power_watts"] = _WATTS
        metrics["energy_joules_per_token"] = _WATTS * elapsed / tokens if tokens else None
        if not tokens:
            notices.append("energy_joules_per_token is null: there was no token")
    return metrics, notices
