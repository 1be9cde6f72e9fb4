"""From two depths to the whole model: every moment of a trace is linear in the number of layers, as
long as what is scheduled does not depend on the clock."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from trials.errors import TrialError
from trials.serve.engine import Served, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one depth showed."""

    depth: int
    served: Served
    alone_ms: float | None
    peak_bytes: float
    reserved_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What the whole model would show."""

    served: Served
    alone_ms: float | None
    peak_bytes: float
    reserved_bytes: float | None
    extrapolated: bool


def is_sound(seen: list[Seen]) -> bool:
    """Whether more layers took longer, as they must unless something else was at work."""
    return len(seen) < 2 or seen[-1].served.wall_seconds > seen[0].served.wall_seconds


def whole(seen: list[Seen], layers: int) -> Whole:
    """Straight through at full depth, along a line otherwise.

    Raises TrialError when more layers took no longer, or when the two were scheduled unlike.
    """
    high = seen[-1]
    if high.depth == layers:
        return Whole(
            served=high.served,
            alone_ms=high.alone_ms,
            peak_bytes=high.peak_bytes,
            reserved_bytes=high.reserved_bytes,
            extrapolated=False,
        )
    if len(seen) < 2:
        raise TrialError(f"one slice of {high.depth} layers cannot tell of {layers}")
    low = seen[0]
    if not is_sound(seen):
        raise TrialError(
            f"{high.depth} layers took no longer than {low.depth}: timing was too noisy"
        )
    return _between(low, high, (layers - low.depth) / (high.depth - low.depth))


def _between(low: Seen, high: Seen, factor: float) -> Whole:
    """On the line through both, ``factor`` times as far from the first as the second is."""

    def line(a: float, b: float) -> float:
        return max(b, a + (b - a) * factor)

    def perhaps(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else line(a, b)

    served = dataclasses.replace(
        high.served,
        wall_seconds=line(low.served.wall_seconds, high.served.wall_seconds),
        timelines=[
            _stretched(a, b, factor)
            for a, b in zip(low.served.timelines, high.served.timelines, strict=True)
        ],
    )
    return Whole(
        served=served,
        alone_ms=perhaps(low.alone_ms, high.alone_ms),
        peak_bytes=line(low.peak_bytes, high.peak_bytes),
        reserved_bytes=perhaps(low.reserved_bytes, high.reserved_bytes),
        extrapolated=True,
    )


def _stretched(low: Timeline, high: Timeline, factor: float) -> Timeline:
    """Message by message; a single noisy one may not come before the one ahead of it."""
    if len(low.messages) != len(high.messages):
        raise TrialError("the two slices were scheduled unlike, so nothing follows for the whole")
    at = sent = low.sent + (high.sent - low.sent) * factor
    messages = []
    for (a, _), (b, count) in zip(low.messages, high.messages, strict=True):
        at = max(at, a + (b - a) * factor)
        messages.append((at, count))
    return dataclasses.replace(high, sent=max(0.0, sent), messages=messages)
