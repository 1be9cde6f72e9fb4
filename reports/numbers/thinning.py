"""Fewer points where a browser could not cope: evenly over the order, what matters kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Thinned(Generic[Item]):
    """What is drawn, and of how many."""

    items: list[Item]
    total: int

    @property
    def note(self) -> str:
        """A sentence for the caption; empty when nothing was left out."""
        if len(self.items) == self.total:
            return ""
        return (
            f"{len(self.items):,} of {self.total:,} points drawn; "
            "the front, the best, the baselines and the failures are always kept."
        )


def thin(items: Sequence[Item], most: int, *, keep: Callable[[Item], bool]) -> Thinned[Item]:
    """At most ``most`` items, unless those to keep are more; order unchanged."""
    if len(items) <= most:
        return Thinned(list(items), len(items))
    kept = {i for i, item in enumerate(items) if keep(item)}
    others = [i for i in range(len(items)) if i not in kept]
    room = max(0, most - len(kept))
    if room and others:
        step = len(others) / min(room, len(others))
        kept |= {others[int(j * step)] for j in range(min(room, len(others)))}
    return Thinned([items[i] for i in sorted(kept)], len(items))
