"""How close the trials come to what the device can do, and what holds the best one back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reports.numbers.study import StudyData, Trial, finite, mapping
from reports.numbers.thinning import Thinned, thin

MOST_POINTS = 1000
_MOST_PROFILED = 5
_APART = 1.05
_BYTES = ("copy", "bytes", "bandwidth")
_BOUNDS = ("bound", "label", "bottleneck")
_CLASSES = (
    "milliseconds",
    "kernel_time_ms",
    "kernel_seconds",
    "kernels",
    "classes",
    "time_by_class",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """A rate measured on this device, in FLOP/s or bytes/s."""

    name: str
    rate: float
    is_bandwidth: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """What a trial reached: FLOP/s, and FLOP per byte where the bytes are known too."""

    number: int
    rate: float
    intensity: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """One profiled trial: its label and the share of time by class of kernel."""

    number: int
    stage: str
    bound: str
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Any part may be empty. Without ceilings both axes are relative to the ridge."""

    ceilings: tuple[Ceiling, ...]
    spots: Thinned[Spot]
    is_relative: bool
    nearest: tuple[int, float] | None  # trial and share of its ceiling
    bottlenecks: tuple[Bottleneck, ...]

    @property
    def has_bytes(self) -> bool:
        """Whether the trials can be put on a roofline, or just under their ceilings."""
        return any(spot.intensity is not None for spot in self.spots.items)


def roofline(study: StudyData) -> Roofline | None:
    """None when no trial was profiled and none says how near a ceiling it came."""
    complete = [t for t in study.trials if t.is_complete and t.stage != "audit"]
    ceilings = _ceilings(study, complete)
    roofs = [c.rate for c in ceilings if not c.is_bandwidth]
    copies = [c.rate for c in ceilings if c.is_bandwidth]
    roof, copy = max(roofs, default=1.0), max(copies, default=None)
    spots = [s for t in complete if (s := _spot(t, roof, copy)) is not None]
    if any(spot.intensity is not None for spot in spots):
        spots = [spot for spot in spots if spot.intensity is not None]
    shares = {t.number: t.metrics["ceiling_fraction"] for t in complete if _has_share(t)}
    bottlenecks = tuple(b for t in complete if (b := _bottleneck(t)) is not None)
    if not spots and not bottlenecks:
        return None
    best = max((spot.rate for spot in spots), default=0.0)
    return Roofline(
        ceilings=tuple(ceilings),
        spots=thin(spots, MOST_POINTS, keep=lambda spot: spot.rate == best),
        is_relative=not roofs,
        nearest=max(shares.items(), key=lambda item: item[1]) if shares else None,
        # The incumbent and the finalists are profiled late.
        bottlenecks=bottlenecks[-_MOST_PROFILED:],
    )


def _has_share(trial: Trial) -> bool:
    return "ceiling_fraction" in trial.metrics


def _ceilings(study: StudyData, complete: list[Trial]) -> list[Ceiling]:
    """From the fingerprint, and from what the trials say of their own number format."""
    found = dict(mapping(mapping(study.spec.get("fingerprint")).get("ceilings")))
    for trial in complete:
        told = trial.telemetry
        found |= mapping(told.get("ceilings"))
        if "matmul_ceiling_flops" in told:
            found[f"{told.get('matmul_ceiling_dtype', '')} matmul"] = told["matmul_ceiling_flops"]
        if "copy_ceiling_bytes_per_second" in told:
            found["copy"] = told["copy_ceiling_bytes_per_second"]
    known = [
        Ceiling(name=str(name), rate=rate, is_bandwidth=any(w in str(name) for w in _BYTES))
        for name, value in found.items()
        if (rate := finite(value)) is not None and rate > 0
    ]
    return _merged(sorted(known, key=lambda c: c.rate))


def _merged(ascending: list[Ceiling]) -> list[Ceiling]:
    """Ceilings of one kind that all but coincide become one: their labels would overlap."""
    kept: list[Ceiling] = []
    for ceiling in ascending:
        last = kept[-1] if kept else None
        alike = last is not None and last.is_bandwidth == ceiling.is_bandwidth
        if last is not None and alike and ceiling.rate < _APART * last.rate:
            name = f"{last.name}, {ceiling.name}"
            kept[-1] = Ceiling(name=name, rate=ceiling.rate, is_bandwidth=last.is_bandwidth)
        else:
            kept.append(ceiling)
    return kept


def _spot(trial: Trial, roof: float, copy: float | None) -> Spot | None:
    """By what the trial counted; by its shares of the ceilings otherwise."""
    told, share = trial.telemetry, trial.metrics.get("ceiling_fraction")
    rate = finite(told.get("model_flops_per_second", told.get("flops_per_second")))
    if rate is None and share is not None:
        rate = share * (finite(told.get("matmul_ceiling_flops")) or roof)
    moved = finite(told.get("bytes_per_second"))
    used = trial.metrics.get("memory_bandwidth_utilization")
    if moved is None and used is not None:
        moved = used * (copy or 1.0)
    if rate is None or rate <= 0:
        return None
    return Spot(number=trial.number, rate=rate, intensity=rate / moved if moved else None)


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
