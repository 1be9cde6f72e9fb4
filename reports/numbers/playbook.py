"""A playbook.json, checked, for the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reports.numbers.study import BadStudy


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One arm; ratios are over the first, above 1 is better."""

    label: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    repeats: int = 0
    median: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    over_previous: float | None = None
    also: Mapping[str, float] = field(default_factory=dict)
    bound: str = ""
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A claim, its verdict and its arms."""

    id: str
    technique: str
    says: str
    claimed: str
    metric: str
    verdict: str
    reason: str = ""
    arms: tuple[Arm, ...] = ()
    study: str = ""
    command: str = ""
    ladder: bool = False

    @property
    def is_measured(self) -> bool:
        """Whether any arm has a value."""
        return any(a.median is not None for a in self.arms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    """Everything that the page shows."""

    model: str
    date: str
    command: str
    host: Mapping[str, Any]
    entries: tuple[Entry, ...]


def load(path: Path) -> Playbook:
    """Read and check; BadStudy says what is wrong in one line."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        entries = tuple(
            Entry(**{**e, "arms": tuple(Arm(**a) for a in e["arms"])}) for e in data["entries"]
        )
        return Playbook(
            model=str(data["model"]),
            date=str(data["date"]),
            command=str(data["command"]),
            host=dict(data["host"]),
            entries=entries,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadStudy(f"{path}: not a playbook.json: {error!r}") from error
