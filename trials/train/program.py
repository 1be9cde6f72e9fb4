"""The trial: build, measure one depth or two, profile, judge, and say what was seen."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from autotune.metric import find
from autotune.trial import Measurement, TrialSpec
from trials import apply, variables
from trials.errors import StoppedEarly
from trials.settings import Settings
from trials.train import ceiling, extrapolation, memory, process, quality, rate, timing
from trials.train.clock import wait
from trials.train.compiling import counts, limit_was_hit
from trials.train.extrapolation import Whole
from trials.train.timing import Timed
from trials.train.trainer import Trainer

_BEHIND = 0.85  # share of the front's value below which a trial is clearly behind it


def run(spec: TrialSpec, folder: Path, settings: Settings) -> Measurement:
    """Measure one training configuration."""
    try:
        return _Trial(spec, folder, settings).measured()
    except (RuntimeError, MemoryError, OSError) as error:
        if (failure := memory.explained(error)) is not None:
            raise failure from error
        raise


class _Trial:
    """One configuration on one device; its phases in the order in which they run."""

    def __init__(self, spec: TrialSpec, folder: Path, settings: Settings) -> None:
        self.spec, self.folder, self.settings = spec, folder, settings
        self.device = torch.device("cuda" if spec.gpus and torch.cuda.is_available() else "cpu")
        self.layers = int(spec.model["num_hidden_layers"])
        self.phases: dict[str, float] = {}
        self.timed: list[Timed] = []

    def measured(self) -> Measurement:
        """From nothing to a measurement."""
        begun = time.perf_counter()
        apply.apply(self.spec, self.settings)
        process.prepare(self.settings, self.device)
        self.dtype = rate.product_dtype(self.settings)
        # Before the model fills the device.
        kept = self.folder.parent / "ceilings.json"
        self.ceiling = ceiling.matmul_flops(self.device, self.dtype, kept)
        self.trainer = Trainer(dict(self.spec.model), self.settings, self.device, self.spec.seed)
        self._spent("build", begun)
        try:
            self._time()
            profile = self._profile() if self.spec.fidelity.profile else None
            judged = self._judge() if self.spec.fidelity.quality else {}
        finally:
            self.trainer.close()
        apply.read_back(self.spec, self.settings)
        variables.read_back_by_torch(self.spec, self.settings)
        if limit_was_hit():
            self.settings.notice("dynamo hit its recompile limit and fell back to eager")
        return self._measurement(judged, profile)

    def _time(self) -> None:
        fidelity = self.spec.fidelity
        on_cpu = self.device.type == "cpu"
        for plan in timing.plans(fidelity.depths, self.layers, fidelity.timed_steps, on_cpu):
            begun = time.perf_counter()
            self.trainer.grow(plan.depth)
            wait(self.device)
            self._spent("build", begun)
            is_last = not fidelity.depths or plan.depth == fidelity.depths[-1]
            behind = self._behind if self.spec.front and is_last else None
            self.timed.append(timing.time_depth(self.trainer, plan, behind))
        self._repeat_if_noisy()
        run, whole_step = self.timed[-1].micro_batches, self.trainer.shape.accumulation
        if run < whole_step:
            self.settings.notice(
                f"{run} of {whole_step} micro-batches of a step were run in the slices; "
                "each of the others counts as the last one"
            )

    def _repeat_if_noisy(self) -> None:
        """Once more where a deeper slice took no longer: something else was at work meanwhile."""
        if len(self.timed) != 2 or extrapolation.is_sound(*self.timed):
            return
        self.settings.notice("timing was repeated: the deeper slice had been the faster one")
        for index, first in enumerate(self.timed):
            self.trainer.model.active = first.depth
            again = timing.Plan(depth=first.depth, steps=5, whole=False, fewest=len(first.step_ms))
            new = timing.time_depth(self.trainer, again)
            self.timed[index] = dataclasses.replace(
                first,
                step_ms=new.step_ms,
                wall_ms=new.wall_ms,
                update_ms=new.update_ms,
                window=new.window,
                tokens_run=new.tokens_run,
            )
        self.trainer.model.active = None

    def _behind(self, step_ms: float, peak_bytes: float) -> None:
        """Stop when a point of the front beats this trial clearly in everything it names.

        Near the end of the last depth, so a step of the whole can be told.
        """
        if self.timed:
            low = self.timed[0]
            base, layers = statistics.median(low.step_ms), self.layers - low.depth
            deep = self.spec.fidelity.depths[-1] - low.depth
            step_ms = base + (step_ms - base) / deep * layers
            peak_bytes = low.peak_bytes + (peak_bytes - low.peak_bytes) / deep * layers
        here: dict[str, float] = {
            "tokens_per_second": self.trainer.shape.tokens / step_ms * 1e3,
            "step_time_ms": step_ms,
            "peak_memory_bytes": peak_bytes,
        }
        for point in self.spec.front:
            if point and point.keys() <= here.keys() and _is_beaten(here, point):
                seen = Measurement(metrics=here, phases=self.phases)
                raise StoppedEarly(f"clearly behind {dict(point)}: {here}", seen)

    def _profile(self) -> dict[str, Any]:
        from trials.train.profile import profile_step

        begun = time.perf_counter()
        found = profile_step(self.trainer)
        self._spent("profile", begun)
        return found

    def _judge(self) -> dict[str, float]:
        begun = time.perf_counter()
        found = quality.gate(self.trainer, self.spec, self.settings)
        self._spent("quality", begun)
        return found

    def _spent(self, phase: str, since: float) -> None:
        self.phases[phase] = self.phases.get(phase, 0.0) + time.perf_counter() - since

    def _measurement(self, judged: dict[str, float], profile: dict[str, Any] | None) -> Measurement:
        result = extrapolation.whole(self.timed, self.layers)
        tokens = self.trainer.shape.tokens
        per_token = rate.flops_per_token(self.spec.model, self.trainer.shape.length)
        found = rate.metrics(
            result, self.timed, tokens=tokens, per_token=per_token, ceiling=self.ceiling
        )
        speed = found["tokens_per_second"] or 0.0
        rate.check(speed * per_token, self.ceiling, self.timed, on_gpu=self.device.type == "cuda")
        found |= {"build_seconds": self.phases["build"], **judged}
        self.phases["compile"] = sum(t.compile_seconds for t in self.timed)
        self.phases["warmup"] = sum(t.warm_up_seconds for t in self.timed)
        self.phases["measure"] = sum(t.window[1] - t.window[0] for t in self.timed)
        told = self._told(result, speed) | {
            "matmul_ceiling_flops": self.ceiling,
            "matmul_ceiling_dtype": self.dtype,
            "model_flops_per_second": speed * per_token,
            "model_flops_convention": "6 N without the embedding + 6 layers width length (causal)",
        }
        return Measurement(
            metrics=found,
            samples={"step_time_ms": result.step_ms},
            effective=dict(self.settings.read_back),
            phases=self.phases,
            telemetry=told,
            profile=profile,
            notices=tuple(self.settings.notices),
        )

    def _told(self, result: Whole, speed: float) -> dict[str, Any]:
        last = self.timed[-1]
        seconds = last.window[1] - last.window[0]
        return {
            "device": self.device.type,
            "torch": torch.__version__,
            "extrapolated": result.extrapolated,
            "depths": {str(t.depth): _depth(t) for t in self.timed},
            "window": list(last.window),
            # What the device's time in the window is worth at full depth, for energy per token.
            "window_tokens": seconds * speed if result.extrapolated else last.tokens_run,
            "tokens_per_step": self.trainer.shape.tokens,
            "accumulation": self.trainer.shape.accumulation,
            "memory_source": last.memory_source,
            "graphs": counts(),
            "losses": list(last.losses),
            **self.settings.facts,
        }


def _depth(t: Timed) -> dict[str, Any]:
    return {
        "step_ms": list(t.step_ms),
        "wall_ms": list(t.wall_ms),
        "update_ms": list(t.update_ms),
        "micro_batches": t.micro_batches,
        "peak_bytes": t.peak_bytes,
        "reserved_bytes": t.reserved_bytes,
        "warm_up_steps": t.warm_up_steps,
    }


def _is_beaten(here: Mapping[str, float], point: Mapping[str, float]) -> bool:
    for name, value in point.items():
        metric = find(name)
        assert metric is not None
        better = here[name] < _BEHIND * value
        if metric.direction == "min":
            better = here[name] * _BEHIND > value
        if not better:
            return False
    return True
