"""Scores of many games: one row per problem and strategy, and paired tests between strategies."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from benchmarks.search.play import Game
from benchmarks.search.problem import Problem

MARKS = (25, 50, 100, 200)
_SURELY_LOST = 10.0  # stands for the gap of a game in which nothing succeeded


def summary(problem: Problem, games: Sequence[Game], trials: int) -> dict[str, Any]:
    """One row; medians over seeds, an unsolved game counts as all its trials and one more."""
    solved = [g.solved_at or trials + 1 for g in games]
    row: dict[str, Any] = {
        "problem": problem.name,
        "strategy": games[0].strategy,
        "seeds": len(games),
        "trials": trials,
        "within": problem.within,
        "median_trials_to_within": statistics.median(solved),
        "mean_trials_to_within": round(statistics.fmean(solved), 1),
        "share_solved": round(sum(g.solved_at is not None for g in games) / len(games), 3),
    }
    for mark in MARKS:
        if mark <= trials:
            row[f"gap_at_{mark}"] = _rounded(statistics.median(g.gap_at(mark) for g in games))
    row |= _against_time(problem, games)
    row["invalid_share"] = round(statistics.fmean(g.invalid_share for g in games), 4)
    row["invalid_share_second_half"] = round(
        statistics.fmean(g.late_invalid_share for g in games), 4
    )
    asked = statistics.median(g.ask_median for g in games)
    row["suggestion_ms"] = round(1000 * asked, 2)
    return row


def _against_time(problem: Problem, games: Sequence[Game]) -> dict[str, Any]:
    """The same against what trials cost; empty where a table does not know it.

    A mark is so many trials at the table's mean cost: whoever tries cheap ones gets further.
    """
    if not problem.typical_seconds:
        return {}
    seconds = [math.inf if g.solved_seconds is None else g.solved_seconds for g in games]
    row: dict[str, Any] = {"median_seconds_to_within": _rounded(statistics.median(seconds))}
    for mark in MARKS:
        at = mark * problem.typical_seconds
        row[f"gap_by_{mark}_mean_costs"] = _rounded(statistics.median(g.gap_by(at) for g in games))
    return row


def compared(
    problem: Problem, first: Sequence[Game], second: Sequence[Game], trials: int
) -> dict[str, Any]:
    """Paired over seeds (Wilcoxon, one-sided): how sure is it that the first is better."""
    row: dict[str, Any] = {
        "problem": problem.name,
        "strategy": first[0].strategy,
        "against": second[0].strategy,
        "seeds": len(first),
    }
    mine = [g.solved_at or trials + 1 for g in first]
    theirs = [g.solved_at or trials + 1 for g in second]
    row["ratio_of_median_trials"] = round(statistics.median(mine) / statistics.median(theirs), 3)
    row["p_trials_to_within"] = _p(mine, theirs)
    for mark in MARKS:
        if mark <= trials:
            row[f"p_gap_at_{mark}"] = _p(
                [min(g.gap_at(mark), _SURELY_LOST) for g in first],
                [min(g.gap_at(mark), _SURELY_LOST) for g in second],
            )
    return row


def _p(first: Sequence[float], second: Sequence[float]) -> float | None:
    """None where every pair is a tie, or there are too few to say anything."""
    differences = np.array(first, dtype=float) - np.array(second, dtype=float)
    if len(differences) < 5 or not np.any(differences):
        return None
    return float(f"{wilcoxon(differences, alternative='less', zero_method='zsplit').pvalue:.3g}")


def _rounded(value: float) -> float | None:
    return round(value, 5) if math.isfinite(value) else None


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Every key of any row is a column."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, columns)
        writer.writeheader()
        writer.writerows(rows)
