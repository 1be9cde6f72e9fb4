"""The trial: build, measure one depth or two, judge, and say what was seen."""

from __future__ import annotations

import gc
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from autotune.trial import KnobValue, Measurement, TrialSpec
from trials import apply
from trials.errors import TrialError
from trials.settings import Settings
from trials.train import ceiling, process, quality
from trials.train.compiling import limit_was_hit
from trials.train.model import parameter_count
from trials.train.timing import Timed, extrapolate, time_depth
from trials.train.trainer import Trainer


def run(spec: TrialSpec, folder: Path, settings: Settings) -> Measurement:
    """Measure one training configuration."""
    device = torch.device("cuda" if spec.gpus and torch.cuda.is_available() else "cpu")
    begun = time.perf_counter()
    apply.apply(spec, settings)
    process.prepare(settings)
    trainer = Trainer(dict(spec.model), settings, device, spec.seed)
    layers = int(spec.model["num_hidden_layers"])
    depths = spec.fidelity.depths or (layers,)
    timed: list[Timed] = []
    build = 0.0
    for depth in depths:
        trainer.grow(depth)
        _wait(device)
        build += time.perf_counter() - begun
        timed.append(
            time_depth(
                trainer,
                depth=depth,
                steps=spec.fidelity.timed_steps,
                whole=not spec.fidelity.depths,
            )
        )
        begun = time.perf_counter()
    judged = quality.gate(trainer, spec, settings) if spec.fidelity.quality else {}
    profile = None
    if spec.fidelity.profile:
        from trials.train.profile import profile_step

        profile = profile_step(trainer)
    apply.read_back(spec, settings)
    if limit_was_hit():
        settings.notice("dynamo hit its recompile limit and fell back to eager")
    return _measurement(spec, folder, settings, trainer, timed, build, judged, profile)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _measurement(
    spec: TrialSpec,
    folder: Path,
    settings: Settings,
    trainer: Trainer,
    timed: list[Timed],
    build: float,
    judged: dict[str, float],
    profile: dict[str, Any] | None,
) -> Measurement:
    layers = int(spec.model["num_hidden_layers"])
    if len(timed) == 2:
        steps, peak, reserved = extrapolate(timed[0], timed[1], layers)
    else:
        steps = list(timed[0].step_ms)
        peak, reserved = timed[0].peak_bytes, timed[0].reserved_bytes
    step_ms = statistics.median(steps)
    rate = trainer.shape.tokens / step_ms * 1e3
    flops = _flops_per_token(spec, trainer.shape.length, layers) * rate
    dtype = _matmul_dtype(settings)
    limit = ceiling.matmul_flops(trainer.device, dtype, folder.parent / "ceilings.json")
    _check_plausible(flops, limit, timed, trainer)
    metrics: dict[str, float | None] = {
        "tokens_per_second": rate,
        "step_time_ms": step_ms,
        "peak_memory_bytes": peak,
        "reserved_memory_bytes": reserved,
        "model_flops_utilization": flops / limit,
        "ceiling_fraction": flops / limit,
        "build_seconds": build,
        "compile_seconds": sum(t.warm_up_seconds for t in timed)
        if trainer.compiler.enabled
        else 0.0,
        **judged,
    }
    return Measurement(
        metrics=metrics,
        samples={"step_time_ms": tuple(steps)},
        effective=dict(settings.read_back),
        phases={
            "build": build,
            "warm_up": sum(t.warm_up_seconds for t in timed),
            "measure": sum(t.window[1] - t.window[0] for t in timed),
        },
        telemetry=_telemetry(spec, trainer, timed, limit, dtype, flops),
        profile=profile,
        notices=tuple(settings.notices),
    )


def _telemetry(
    spec: TrialSpec, trainer: Trainer, timed: list[Timed], limit: float, dtype: str, flops: float
) -> dict[str, Any]:
    last = timed[-1]
    whole = trainer.shape.accumulation * trainer.shape.micro * trainer.shape.length
    return {
        "device": trainer.device.type,
        "extrapolated": bool(spec.fidelity.depths),
        "depths": {
            str(t.depth): {
                "step_ms": list(t.step_ms),
                "wall_ms": list(t.wall_ms),
                "peak_bytes": t.peak_bytes,
            }
            for t in timed
        },
        "window": list(last.window),
        "window_tokens": last.tokens_run,
        "tokens_per_step": whole,
        "memory_source": last.memory_source,
        "matmul_ceiling_flops": limit,
        "matmul_ceiling_dtype": dtype,
        "model_flops_per_second": flops,
        "losses": list(last.losses),
        "torch": torch.__version__,
    }


def _flops_per_token(spec: TrialSpec, length: int, layers: int) -> float:
    """6 x parameters without the embedding, plus causal attention: 6 x layers x width x length."""
    body, _ = parameter_count(spec.model, layers)
    width = int(spec.model.get("head_dim") or 0) * int(spec.model["num_attention_heads"])
    width = width or int(spec.model["hidden_size"])
    return 6.0 * body + 6.0 * layers * width * length


def _matmul_dtype(settings: Settings) -> str:
    if settings.values.get("float8.enabled"):
        return "fp8"
    dtype: KnobValue = settings.values.get("precision.compute_dtype", "fp32")
    if dtype == "fp32" and settings.values.get("precision.float32_matmul", "highest") != "highest":
        return "tf32"
    return str(dtype)


def _check_plausible(flops: float, limit: float, timed: list[Timed], trainer: Trainer) -> None:
    """A rate above what the device was seen to do means that the clock lied."""
    if trainer.device.type == "cuda" and flops > 1.05 * limit:
        raise TrialError(
            f"{flops / 1e12:.0f} TFLOP/s is above the {limit / 1e12:.0f} measured on this device"
        )
    for t in timed:
        wall = (t.window[1] - t.window[0]) * 1e3
        if sum(t.wall_ms) > 1.05 * wall + 5:
            raise TrialError(f"timed steps add up to {sum(t.wall_ms):.1f} ms within {wall:.1f} ms")


def collect() -> None:
    """Free what a measurement left."""
    gc.collect()
