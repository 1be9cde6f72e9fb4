"""What passes between a strategy and the loop that runs its proposals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from autotune.trial import Configuration, TrialRecord

Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One configuration to try, complete and legal, and how thoroughly to measure it."""

    configuration: Configuration
    stage: str  # default | preset | screening | search | refine | final | ablation | neighbour
    full_depth: bool = False
    profile: bool = False
    repeat_of: int | None = None  # number of the trial that this one measures again
    label: str = ""  # for people: the preset's name, the arm of the final, the proposer


class Strategy(Protocol):
    """Proposes trials and learns from their records, in whatever order they finish."""

    def ask(self) -> Proposal | None:
        """The next proposal; None when there is none before something running is told.

        With nothing running, None means that the space is exhausted.
        """

    def tell(self, record: TrialRecord) -> None:
        """Learn from a record, this driver's or another's; a failed one teaches too."""

    def replay(self, records: Iterable[TrialRecord]) -> None:
        """Rebuild what an earlier session knew."""

    def notices(self) -> tuple[str, ...]:
        """Things a person should know about how the search went, each one line."""


def key(configuration: Configuration) -> Key:
    """A hashable identity; 1, 1.0 and True differ, as they do for the program that reads them."""
    return tuple(sorted((name, repr(value)) for name, value in configuration.items()))
