"""How close the trials come to what the device can do, and what holds the best one back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reports.numbers.study import StudyData, Trial, finite, mapping
from reports.numbers.thinning import Thinned, thin

MOST_POINTS = 1000
_MOST_PROFILED = 5
_BYTES = ("copy", "bytes", "bandwidth")
_BOUNDS = ("bound", "label", "bottleneck")
_CLASSES = ("kernel_time_ms", "kernel_seconds", "kernels", "classes", "time_by_class")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """A rate measured on this device, in FLOP/s or bytes/s."""

    name: str
    rate: float
    is_bandwidth: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A trial on the roofline. Without ceilings both axes are relative to the ridge."""

    number: int
    intensity: float  # FLOP per byte
    rate: float  # FLOP/s


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """One profiled trial: its label and the share of time by class of kernel."""

    number: int
    stage: str
    bound: str
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Any part may be empty; ``shares`` are ceiling_fraction by trial when bytes are unknown."""

    ceilings: tuple[Ceiling, ...]
    spots: Thinned[Spot]
    is_relative: bool
    shares: tuple[tuple[int, float], ...]
    bottlenecks: tuple[Bottleneck, ...]


def roofline(study: StudyData) -> Roofline | None:
    """None when no trial was profiled and none says how near a ceiling it came."""
    ceilings = _ceilings(study)
    roofs = [c.rate for c in ceilings if not c.is_bandwidth]
    copies = [c.rate for c in ceilings if c.is_bandwidth]
    relative = not roofs or not copies
    scale = (1.0, 1.0) if relative else (max(roofs), max(copies))
    complete = [t for t in study.trials if t.is_complete]
    spots = [s for t in complete if (s := _spot(t, *scale)) is not None]
    shares = tuple(
        (t.number, t.metrics["ceiling_fraction"])
        for t in complete
        if "ceiling_fraction" in t.metrics
    )
    bottlenecks = tuple(b for t in complete if (b := _bottleneck(t)) is not None)
    if not spots and not shares and not bottlenecks:
        return None
    best = max((spot.rate for spot in spots), default=0.0)
    return Roofline(
        ceilings=tuple(ceilings),
        spots=thin(spots, MOST_POINTS, keep=lambda spot: spot.rate == best),
        is_relative=relative,
        shares=shares,
        # The incumbent and the finalists are profiled late.
        bottlenecks=bottlenecks[-_MOST_PROFILED:],
    )


def _ceilings(study: StudyData) -> list[Ceiling]:
    places = [mapping(study.spec.get("fingerprint"))]
    places += [t.telemetry for t in study.trials]
    found = next((mapping(p["ceilings"]) for p in places if mapping(p.get("ceilings"))), {})
    return [
        Ceiling(name=str(name), rate=rate, is_bandwidth=any(w in str(name) for w in _BYTES))
        for name, value in found.items()
        if (rate := finite(value)) is not None and rate > 0
    ]


def _spot(trial: Trial, flops: float, copy: float) -> Spot | None:
    rate = finite(trial.telemetry.get("flops_per_second"))
    moved = finite(trial.telemetry.get("bytes_per_second"))
    if rate is None or moved is None:
        compute = trial.metrics.get("ceiling_fraction")
        memory = trial.metrics.get("memory_bandwidth_utilization")
        if compute is None or memory is None:
            return None
        rate, moved = compute * flops, memory * copy
    if rate <= 0 or moved <= 0:
        return None
    return Spot(number=trial.number, intensity=rate / moved, rate=rate)


def _bottleneck(trial: Trial) -> Bottleneck | None:
    profile = trial.profile
    bound = next((str(profile[k]) for k in _BOUNDS if isinstance(profile.get(k), str)), "")
    classes: Mapping[str, Any] = next(
        (profile[k] for k in _CLASSES if isinstance(profile.get(k), dict)), {}
    )
    amounts = {str(k): v for k, x in classes.items() if (v := finite(x)) is not None and v > 0}
    whole = sum(amounts.values())
    if not bound and not whole:
        return None
    shares = {k: v / whole for k, v in amounts.items()}
    return Bottleneck(number=trial.number, stage=trial.stage, bound=bound, shares=shares)
