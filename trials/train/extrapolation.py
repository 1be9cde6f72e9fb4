"""From two slices to the whole depth: time and memory are linear in the number of layers."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from trials.errors import TrialError
from trials.train.timing import Timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What a step of the model at its full depth takes."""

    step_ms: tuple[float, ...]
    peak_bytes: float
    reserved_bytes: float | None
    extrapolated: bool


def whole(timed: list[Timed], layers: int) -> Whole:
    """Straight through when the full depth was measured; along a line otherwise.

    Raises TrialError when more layers took no longer: noise was larger than a layer.
    """
    high = timed[-1]
    if high.depth == layers:
        return Whole(
            step_ms=high.step_ms,
            peak_bytes=high.peak_bytes,
            reserved_bytes=high.reserved_bytes,
            extrapolated=False,
        )
    if len(timed) < 2:
        raise TrialError(f"one slice of {high.depth} layers cannot tell of {layers}")
    low = timed[0]
    base = statistics.median(low.step_ms)
    line = [_line(low, high, layers, base, value) for value in high.step_ms]
    if not is_sound(low, high):
        raise TrialError(
            f"{high.depth} layers took no longer than {low.depth}: timing was too noisy"
        )
    reserved = None
    if low.reserved_bytes is not None and high.reserved_bytes is not None:
        reserved = _line(low, high, layers, low.reserved_bytes, high.reserved_bytes)
    return Whole(
        # A single noisy sample may fall below what was measured; the whole cannot.
        step_ms=tuple(max(a, b) for a, b in zip(line, high.step_ms, strict=True)),
        peak_bytes=_line(low, high, layers, low.peak_bytes, high.peak_bytes),
        reserved_bytes=reserved,
        extrapolated=True,
    )


def is_sound(low: Timed, high: Timed) -> bool:
    """Whether more layers took longer."""
    return statistics.median(high.step_ms) > statistics.median(low.step_ms)


def _line(low: Timed, high: Timed, layers: int, a: float, b: float) -> float:
    return a + (b - a) / (high.depth - low.depth) * (layers - low.depth)
