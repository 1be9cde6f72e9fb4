"""The search in order: every measured trial by stage, and the best so far."""

from __future__ import annotations

from dataclasses import dataclass

from reports.numbers.study import StudyData
from reports.numbers.thinning import Thinned, thin

MOST_POINTS = 2500
STAGES = (
    "default",
    "preset",
    "screening",
    "search",
    "refine",
    "ablation",
    "final",
    "neighbour",
    "canary",
)
_REPEATS = ("final", "ablation", "neighbour", "canary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One trial in the history."""

    number: int
    stage: str
    value: float | None  # of the first objective; None when it has none
    is_feasible: bool
    is_record: bool  # the best so far was beaten here


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Moments to draw, the staircase of the best, and where each stage begins."""

    moments: Thinned[Moment]
    best: tuple[tuple[int, float], ...]
    stages: tuple[tuple[str, int, int], ...]  # name, trials, failed


def history(study: StudyData) -> History:
    """Stages that repeat known settings set no record."""
    moments, staircase = [], []
    best: float | None = None
    goal = study.goal
    for trial in study.trials:
        if trial.stage == "audit":
            continue
        value, able = trial.metric(goal.metric), study.is_feasible(trial)
        beats = able and value is not None and trial.stage not in _REPEATS
        beats = beats and (best is None or goal.sign * value < goal.sign * best)  # type: ignore[operator]
        if beats and value is not None:
            best = value
            staircase.append((trial.number, value))
        moments.append(
            Moment(
                number=trial.number,
                stage=trial.stage,
                value=value,
                is_feasible=able,
                is_record=beats,
            )
        )
    if staircase:
        staircase.append((moments[-1].number, staircase[-1][1]))
    drawn = [m for m in moments if m.value is not None]
    words = "every new best, the default, the presets"
    kept = thin(
        drawn,
        MOST_POINTS,
        keep=lambda m: m.is_record or m.stage in ("default", "preset"),
        kept=words,
    )
    return History(moments=kept, best=tuple(staircase), stages=_stages(study, moments))


def _stages(study: StudyData, moments: list[Moment]) -> tuple[tuple[str, int, int], ...]:
    names = dict.fromkeys(m.stage for m in moments)
    ordered = [*(s for s in STAGES if s in names), *(s for s in names if s not in STAGES)]
    fine = {"COMPLETE", "STOPPED_EARLY"}
    failed = {t.number for t in study.trials if t.status not in fine}
    return tuple(
        (
            name,
            sum(m.stage == name for m in moments),
            sum(m.stage == name and m.number in failed for m in moments),
        )
        for name in ordered
    )
