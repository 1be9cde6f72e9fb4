"""Runner toy: a fixed formula over a few knobs."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path

from autotune.trial import Measurement, TrialSpec
from trials.settings import Settings


def run(spec: TrialSpec, folder: Path, settings: Settings) -> Measurement:
    """tokens_per_second peaks once over batch; latency and memory grow with it."""
    batch = int(settings.take("batch", 16))
    prec = settings.take("prec", "fp32")
    for name in settings.values:
        settings.effective(name, settings.take(name))
    rate = (
        1000.0
        * math.exp(-((math.log2(batch) - 6) ** 2) / 8)
        * {"fp32": 1, "bf16": 1.6, "fp8": 2}[prec]
    )
    rng = random.Random(f"{spec.seed}:{spec.number}")
    rate *= 1 + float(spec.options.get("noise", 0)) * rng.gauss(0, 1)
    time.sleep(float(spec.options.get("sleep", 0)))
    return Measurement(
        metrics={
            "tokens_per_second": rate,
            "request_latency_ms_p99": 5.0 + 0.7 * batch,
            "peak_memory_bytes": 1e9 + 5e7 * batch,
        },
        effective=dict(settings.read_back),
        phases={"measure": 0.001},
    )
