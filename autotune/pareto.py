"""Fronts of points to be minimised in every coordinate."""

from __future__ import annotations

from collections.abc import Sequence


def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether ``a`` is nowhere worse than ``b`` and somewhere better."""
    return all(x <= y for x, y in zip(a, b, strict=True)) and tuple(a) != tuple(b)


def front(points: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the points that none dominates, in the order given; equal points all stay.

    Sorting first makes a dominator always come before what it dominates, so each point is held
    against the front alone: O(n log n + n * front).
    """
    order = sorted(range(len(points)), key=lambda i: tuple(points[i]))
    kept: list[int] = []
    for i in order:
        if not any(dominates(points[j], points[i]) for j in kept):
            kept.append(i)
    return sorted(kept)
