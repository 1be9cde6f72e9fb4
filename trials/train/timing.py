"""Warm-up until it is over, then whole steps; what a slice leaves out is said, not hidden."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass

from trials.errors import NonFinite
from trials.train import memory
from trials.train.clock import Clock, wait
from trials.train.compiling import counts
from trials.train.trainer import Trainer

_LONGEST_WARM_UP = 12
_STATIONARY = 0.08  # two steps within this share of each other
_SLICE_MICRO_BATCHES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Steps at one depth."""

    depth: int
    step_ms: tuple[float, ...]  # whole optimiser steps, composed where micro-batches were capped
    wall_ms: tuple[float, ...]  # what was really run
    peak_bytes: int
    reserved_bytes: int | None
    memory_source: str
    warm_up_seconds: float
    warm_up_steps: int
    window: tuple[float, float]  # epoch seconds around the timed steps
    tokens_run: int
    losses: tuple[float, ...]


def time_depth(trainer: Trainer, *, depth: int, steps: int, whole: bool) -> Timed:
    """Time ``steps`` optimiser steps of the model as deep as it is now."""
    micro = trainer.shape.accumulation
    run = micro if whole else min(micro, _SLICE_MICRO_BATCHES)
    memory.reset(trainer.device)
    begun = time.perf_counter()
    warmed = _warm_up(trainer, run)
    warm_seconds = time.perf_counter() - begun
    clock = Clock(trainer.device)
    clock.mark()
    start = time.time()
    losses = [trainer.step(run, clock) for _ in range(steps)]
    gaps = clock.gaps_ms()
    end = time.time()
    values = tuple(float(x) for x in losses)
    if not all(map(math.isfinite, values)):
        raise NonFinite(f"the loss became {values[-1]} within {steps} steps")
    per_step = [gaps[i * (run + 1) : (i + 1) * (run + 1)] for i in range(steps)]
    peak, reserved, source = memory.peak_bytes(trainer.device)
    return Timed(
        depth=depth,
        step_ms=tuple(_composed(g, micro) for g in per_step),
        wall_ms=tuple(sum(g) for g in per_step),
        peak_bytes=peak,
        reserved_bytes=reserved,
        memory_source=source,
        warm_up_seconds=warm_seconds,
        warm_up_steps=warmed,
        window=(start, end),
        tokens_run=trainer.shape.micro * run * trainer.shape.length * steps,
        losses=values,
    )


def _composed(gaps: list[float], micro: int) -> float:
    """Whole step from marks after each micro-batch and after the optimizer.

    The first micro-batch allocates gradients, later ones add to them; beyond those that ran, each
    costs what the last one did.
    """
    *batches, update = gaps
    return sum(batches) + (micro - len(batches)) * batches[-1] + update


def _warm_up(trainer: Trainer, run: int) -> int:
    """Steps until one neither compiled anything nor differed much from the one before."""
    before, graphs = math.inf, -1
    for count in range(1, _LONGEST_WARM_UP + 1):
        begun = time.perf_counter()
        trainer.step(run)
        wait(trainer.device)
        took, now = time.perf_counter() - begun, counts()["graphs"]
        steady = abs(took - before) <= _STATIONARY * max(took, before)
        if now == graphs and steady:
            return count
        if trainer.device.type == "cpu" and count >= 2 and now == graphs:
            return count  # a CPU step is dear and its jitter larger than the bound
        before, graphs = took, now
    trainer.settings.notice(f"step time was not stationary after {_LONGEST_WARM_UP} warm-up steps")
    return _LONGEST_WARM_UP


def extrapolate(low: Timed, high: Timed, layers: int) -> tuple[list[float], float, float | None]:
    """Step times (ms), peak and reserved bytes at full depth: all are linear in depth."""

    def line(a: float, b: float) -> float:
        return a + (b - a) / (high.depth - low.depth) * (layers - low.depth)

    base = statistics.median(low.step_ms)
    steps = [line(base, value) for value in high.step_ms]
    reserved = None
    if low.reserved_bytes is not None and high.reserved_bytes is not None:
        reserved = line(low.reserved_bytes, high.reserved_bytes)
    return steps, line(low.peak_bytes, high.peak_bytes), reserved
