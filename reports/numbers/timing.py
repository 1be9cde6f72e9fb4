"""Where the time went: phases of the trials, by stage, and what was left between them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from reports.numbers.history import STAGES
from reports.numbers.study import StudyData, Trial

# Phase names of the trial programs, in the order in which they happen.
PHASES = ("start", "build", "compile", "warmup", "measure", "profile", "quality", "other")
_PAUSE_SECONDS = 600.0
_ALIASES = {
    "import": "start",
    "spawn": "start",
    "launch": "start",
    "load": "build",
    "warm_up": "warmup",
    "timed": "measure",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Seconds by phase of one stage; ``failed`` is all the time of trials without a result."""

    stage: str
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Device seconds; ``search_seconds`` is what the workers spent between trials."""

    rows: tuple[Row, ...]
    phases: tuple[str, ...]
    trial_seconds: float
    failed_seconds: float
    elapsed_seconds: float | None
    search_seconds: float | None
    workers: int


def timing(study: StudyData) -> Timing | None:
    """None when no trial took time."""
    if not any(t.wall_seconds for t in study.trials):
        return None
    stages = dict.fromkeys(t.stage for t in study.trials)
    ordered = [*(s for s in STAGES if s in stages), *(s for s in stages if s not in STAGES)]
    rows = [_row(stage, [t for t in study.trials if t.stage == stage]) for stage in ordered]
    seen = dict.fromkeys(name for row in rows for name in row.seconds)
    known = [p for p in PHASES if p in seen]
    phases = [*known, *(p for p in seen if p not in PHASES and p != "failed")]
    if "failed" in seen:
        phases.append("failed")
    total = sum(t.wall_seconds for t in study.trials)
    elapsed = _elapsed(study.trials)
    workers = max(1, int(study.spec.get("workers") or 1))
    return Timing(
        rows=tuple(rows),
        phases=tuple(phases),
        trial_seconds=total,
        failed_seconds=sum(row.seconds.get("failed", 0.0) for row in rows),
        elapsed_seconds=elapsed,
        search_seconds=max(0.0, workers * elapsed - total) if elapsed is not None else None,
        workers=workers,
    )


def _row(stage: str, trials: list[Trial]) -> Row:
    seconds: dict[str, float] = {}
    for trial in trials:
        if trial.status not in ("COMPLETE", "STOPPED_EARLY"):
            seconds["failed"] = seconds.get("failed", 0.0) + trial.wall_seconds
            continue
        left = trial.wall_seconds
        for phase, value in _phases(trial).items():
            seconds[phase] = seconds.get(phase, 0.0) + value
            left -= value
        seconds["other"] = seconds.get("other", 0.0) + max(0.0, left)
    return Row(stage=stage, seconds={k: v for k, v in seconds.items() if v > 0})


def _phases(trial: Trial) -> dict[str, float]:
    """Phases under one name each. Warm-up holds the compilation where that is no phase itself."""
    found: dict[str, float] = {}
    for name, value in trial.phases.items():
        plain = name.removesuffix("_seconds")
        phase = _ALIASES.get(plain, plain)
        found[phase] = found.get(phase, 0.0) + value
    if "compile" not in found and "warmup" in found:
        found["compile"] = min(trial.metrics.get("compile_seconds", 0.0), found["warmup"])
        found["warmup"] -= found["compile"]
    return found


def _elapsed(trials: tuple[Trial, ...]) -> float | None:
    """Seconds from the first start to the last end, less long pauses (an interrupted study)."""
    spans = sorted(
        (start, start + t.wall_seconds)
        for t in trials
        if (start := _timestamp(t.started_at)) is not None
    )
    if not spans:
        return None
    elapsed, reached = 0.0, spans[0][0]
    for start, end in spans:
        if start - reached > _PAUSE_SECONDS:
            reached = start
        elapsed += max(0.0, end - reached)
        reached = max(reached, end)
    return elapsed


def _timestamp(text: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
