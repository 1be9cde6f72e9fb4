"""Fewer points where a browser could not cope: evenly over the order, what matters kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Thinned(Generic[Item]):
    """What is drawn, of how many, and what was kept whatever happened."""

    items: list[Item]
    total: int
    kept: str = ""  # words for the caption

    @property
    def note(self) -> str:
        """A sentence for the caption; empty when nothing was left out."""
        if len(self.items) == self.total:
            return ""
        always = f"; always among them: {self.kept}" if self.kept else ""
        return f"Thinned for the browser: {len(self.items):,} of {self.total:,} drawn{always}."


def thin(
    items: Sequence[Item], most: int, *, keep: Callable[[Item], bool], kept: str = ""
) -> Thinned[Item]:
    """At most ``most`` items, unless those to keep are more; order unchanged."""
    if len(items) <= most:
        return Thinned(list(items), len(items), kept)
    chosen = {i for i, item in enumerate(items) if keep(item)}
    others = [i for i in range(len(items)) if i not in chosen]
    room = min(max(0, most - len(chosen)), len(others))
    if room:
        step = len(others) / room
        chosen |= {others[int(j * step)] for j in range(room)}
    return Thinned([items[i] for i in sorted(chosen)], len(items), kept)
