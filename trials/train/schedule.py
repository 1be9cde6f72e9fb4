"""Learning rate by step, as a factor of the rate that was set."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from trials.settings import Settings

HORIZON_STEPS = 1000  # of a training run, unless the workload says otherwise


class Schedule:
    """Sets the rate of every parameter group before a step."""

    def __init__(self, settings: Settings, groups: list[dict[str, Any]]) -> None:
        self.kind = str(settings.take("optim.schedule", "constant"))
        self.warm_up = int(settings.take("optim.warmup_steps", 0))
        self.least = float(settings.take("optim.min_lr_ratio", 0.0))
        self.horizon = int(settings.spec.workload.get("schedule_steps", HORIZON_STEPS))
        self._groups = groups
        self._rates = [float(group["lr"]) for group in groups]
        self._done = 0
        settings.effective("optim.schedule", self.kind)
        settings.effective("optim.warmup_steps", self.warm_up)
        settings.effective("optim.min_lr_ratio", self.least)

    def advance(self) -> None:
        """The rate of the next step."""
        if self.kind != "constant" or self.warm_up:
            self.scale(self.factor(self._done))
        self._done += 1

    def scale(self, factor: float) -> None:
        """Set every rate to that share of its full value."""
        for group, rate in zip(self._groups, self._rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor

    def factor(self, step: int) -> float:
        """Share of the full rate at a step, warm-up included."""
        if step < self.warm_up:
            return (step + 1) / self.warm_up
        progress = min(1.0, (step - self.warm_up) / max(1, self.horizon - self.warm_up))
        shape = {
            "constant": 1.0,
            "linear": 1 - progress,
            "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
            "wsd": min(1.0, (1 - progress) / 0.2),
            "inverse_sqrt": math.sqrt(max(1, self.warm_up) / max(1, self.warm_up, step)),
        }[self.kind]
        return max(self.least, shape)
