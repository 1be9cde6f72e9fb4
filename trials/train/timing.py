"""Warm-up until it is over, then whole steps; what a slice leaves out is said, not hidden."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from trials.errors import NonFinite
from trials.train import memory
from trials.train.clock import Clock, wait
from trials.train.compiling import counts
from trials.train.trainer import Trainer

SLICE_MICRO_BATCHES = 2  # of the accumulation that a slice runs; the rest follows from the last
_LONGEST_WARM_UP = 12
_STATIONARY = 0.08  # two steps within this share of each other
_CPU_SECONDS = 4.0  # of timed steps at one depth of a slice, where a step is dear
_CPU_FEWEST = (2, 2)  # timed steps at the lower and at the higher depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Steps at one depth."""

    depth: int
    step_ms: tuple[float, ...]  # whole optimiser steps, composed where micro-batches were capped
    wall_ms: tuple[float, ...]  # what was really run
    update_ms: tuple[float, ...]  # the optimizer's part of it
    micro_batches: int  # that were run in a step
    peak_bytes: int
    reserved_bytes: int | None
    memory_source: str
    warm_up_seconds: float  # without compilation
    compile_seconds: float
    warm_up_steps: int
    window: tuple[float, float]  # epoch seconds around the timed steps
    tokens_run: int
    useful_share: float  # of the tokens, those that are no padding
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How thoroughly to time one depth."""

    depth: int
    steps: int
    whole: bool  # every micro-batch of the accumulation is run
    fewest: int  # steps after which a CPU slice may stop when its time is used up


def plans(depths: tuple[int, ...], layers: int, steps: int, on_cpu: bool) -> list[Plan]:
    """One plan a depth; without depths the whole model."""
    if not depths:
        return [Plan(depth=layers, steps=steps, whole=True, fewest=steps)]
    return [
        Plan(
            depth=depth,
            steps=steps,
            whole=False,
            fewest=min(steps, _CPU_FEWEST[min(i, 1)]) if on_cpu else steps,
        )
        for i, depth in enumerate(depths)
    ]


def time_depth(
    trainer: Trainer, plan: Plan, behind: Callable[[float, float], None] | None = None
) -> Timed:
    """Time optimiser steps of the model as deep as it is now.

    ``behind`` is told the median whole step (ms) and the peak (bytes) after a few steps, and may
    raise StoppedEarly.
    """
    accumulation = trainer.shape.accumulation
    run = accumulation if plan.whole else min(accumulation, SLICE_MICRO_BATCHES)
    memory.reset(trainer.device)
    on_cpu = trainer.device.type == "cpu"
    warm = _warm_up(trainer, 1 if on_cpu and not plan.whole else run)
    trainer.garbage.after_warm_up()
    clock, gaps = Clock(trainer.device), list[float]()
    losses: list[Tensor] = []
    useful, begun = trainer.useful_tokens, time.perf_counter()
    start = time.time()
    while len(losses) < plan.steps:
        chunk = _chunk(plan, len(losses), early=behind is not None, clock=clock)
        clock.clear()
        clock.mark()
        losses += [trainer.step(run, clock) for _ in range(chunk)]
        gaps += clock.gaps_ms()
        if _out_of_time(plan, len(losses), time.perf_counter() - begun):
            break
        if behind is not None:
            behind(_median(gaps, run, accumulation), memory.peak_bytes(trainer.device)[0])
    end = time.time()
    per_step = [gaps[i : i + run + 1] for i in range(0, len(gaps), run + 1)]
    tokens = trainer.shape.micro * run * trainer.shape.length * len(losses)
    peak, reserved, source = memory.peak_bytes(trainer.device)
    return Timed(
        depth=plan.depth,
        step_ms=tuple(composed(g, accumulation) for g in per_step),
        wall_ms=tuple(sum(g) for g in per_step),
        update_ms=tuple(g[-1] for g in per_step),
        micro_batches=run,
        peak_bytes=peak,
        reserved_bytes=reserved,
        memory_source=source,
        warm_up_seconds=warm.seconds - warm.compile_seconds,
        compile_seconds=warm.compile_seconds,
        warm_up_steps=warm.steps,
        window=(start, end),
        tokens_run=tokens,
        useful_share=min(1.0, (trainer.useful_tokens - useful) / tokens),
        losses=finite(losses),
    )


def finite(losses: Sequence[Tensor]) -> tuple[float, ...]:
    """As numbers; NonFinite when one is not."""
    values = tuple(float(loss) for loss in losses)
    for index, value in enumerate(values):
        if not math.isfinite(value):
            raise NonFinite(f"the loss became {value} in step {index + 1} of {len(values)}")
    return values


def composed(gaps: list[float], accumulation: int) -> float:
    """A whole step from the gaps after each micro-batch and after the optimizer.

    The first micro-batch allocates gradients, later ones add to them; beyond those that ran, each
    costs what the last one did.
    """
    *batches, update = gaps
    return sum(batches) + (accumulation - len(batches)) * batches[-1] + update


def _median(gaps: list[float], run: int, accumulation: int) -> float:
    steps = [gaps[i : i + run + 1] for i in range(0, len(gaps), run + 1)]
    return statistics.median(composed(step, accumulation) for step in steps)


def _chunk(plan: Plan, done: int, *, early: bool, clock: Clock) -> int:
    """Steps until the next look at the clock: looking waits for the device, so all at once unless
    there is something to decide in between."""
    if clock.is_free_to_read:
        return 1
    return min(2, plan.steps - done) if early and not done else plan.steps - done


def _out_of_time(plan: Plan, done: int, seconds: float) -> bool:
    return plan.fewest < plan.steps and done >= plan.fewest and seconds > _CPU_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class _WarmUp:
    steps: int
    seconds: float
    compile_seconds: float


def _warm_up(trainer: Trainer, run: int) -> _WarmUp:
    """Steps until one neither compiled anything nor differed much from the one before."""
    took: list[float] = []
    compiled: list[bool] = []
    graphs = counts()["graphs"]
    on_cpu = trainer.device.type == "cpu"
    for _ in range(_LONGEST_WARM_UP):
        begun = time.perf_counter()
        trainer.step(run)
        wait(trainer.device)
        took.append(time.perf_counter() - begun)
        now = counts()["graphs"]
        compiled.append(now != graphs)
        graphs = now
        if not compiled[-1] and (on_cpu or _steady(took)):
            break  # a CPU step is dear, and its jitter larger than any bound
    else:
        trainer.settings.notice(
            f"step time was not stationary after {_LONGEST_WARM_UP} warm-up steps"
        )
    usual = min(took)
    compiling = sum(t - usual for t, new in zip(took, compiled, strict=True) if new)
    return _WarmUp(steps=len(took), seconds=sum(took), compile_seconds=compiling)


def _steady(took: list[float]) -> bool:
    return len(took) > 1 and abs(took[-1] - took[-2]) <= _STATIONARY * max(took[-2:])
