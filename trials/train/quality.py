"""The quality gate of training: does a setting still learn what the reference learns?

A short run of its own, from the first weights over the first rows of the text, on a shallow slice:
whatever the micro-batch, the depth measured or the number of timed steps, the same tokens are seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from autotune.trial import TrialSpec
from trials.errors import BadOutput
from trials.settings import Settings
from trials.train.data import Batch
from trials.train.text import IGNORED, Rows
from trials.train.timing import finite
from trials.train.trainer import Trainer

_DEPTH = {"cpu": 1, "cuda": 2}
_STEPS = {"cpu": 2, "cuda": 6}
_SEQUENCES = {"cpu": 2, "cuda": 8}  # of a step
MARGIN = 0.1  # of what the reference's loss fell
_LEAST_SHARE = 0.3  # of the weights that must have changed,
_LEAST_MOVEMENT = 0.2  # unless they moved by this much of what Adam set out to


def gate(trainer: Trainer, spec: TrialSpec, settings: Settings) -> dict[str, float]:
    """Train a little and judge; metrics ``loss_at_end`` and ``validation_loss`` in nats.

    Raises BadOutput when the weights hardly move, when loss scaling skips most steps, or when the
    loss falls less than the reference's (``spec.options["reference_loss"]``) by more than the
    margin. Raises NonFinite when the loss is no number.
    """
    kind = trainer.device.type
    depth = min(_DEPTH[kind], len(trainer.model.layers))
    trainer.restart(depth)
    before = _sample(trainer)
    run = _Run(trainer, _SEQUENCES[kind])
    steps = _STEPS[kind]
    losses = finite([run.step(i, (i + 1) / steps) for i in range(steps)])
    end = finite([run.held_out(steps, split="train")])[0]
    _check_movement(trainer, before, _sample(trainer), steps, settings)
    found = {
        "loss_at_end": end,
        "validation_loss": finite([run.held_out(0, split="validation")])[0],
    }
    settings.fact("quality", {"losses": list(losses), "layers": depth, "tokens": run.tokens(steps)})
    _compare(losses[0], end, spec.options, settings)
    return found


class _Run:
    """Steps of a fixed number of sequences, whatever the micro-batch."""

    def __init__(self, trainer: Trainer, sequences: int) -> None:
        self.trainer = trainer
        self.sequences = sequences
        self.length = trainer.shape.length

    def tokens(self, steps: int) -> int:
        """Seen in so many steps."""
        return steps * self.sequences * self.length

    def step(self, number: int, rate: float) -> Tensor:
        """One optimiser step at that share of the learning rate, which a short run must ramp."""
        self.trainer.schedule.scale(rate)
        batches = self._batches("train", number)
        total: Tensor | None = None
        for batch, share in batches:
            part = self.trainer.forward_backward(batch, share)
            total = part if total is None else total + part
        self.trainer.update()
        assert total is not None
        return total

    def held_out(self, number: int, split: str) -> Tensor:
        """The loss over sequences that were not trained on yet.

        Forward as in training, gradients and all: without them it would be compiled anew.
        """
        parts = [
            self.trainer.forward(batch).detach() * share
            for batch, share in self._batches(split, number)
        ]
        return torch.stack(parts).sum()

    def _batches(self, split: str, number: int) -> list[tuple[Batch, float]]:
        """Micro-batches in the shape that was compiled; what is too much counts as padding."""
        trainer, micro = self.trainer, self.trainer.shape.micro
        rows = Rows(split=split, seed=trainer.seed, length=self.length)
        found = []
        for first in range(0, self.sequences, micro):
            count = min(micro, self.sequences - first)
            inputs, targets, _, useful = rows.batch(number * self.sequences + first, count)
            if count < micro and trainer.compiler.enabled:
                inputs = torch.cat((inputs, inputs[:1].expand(micro - count, -1)))
                blank = torch.full((micro - count, self.length), IGNORED)
                targets = torch.cat((targets, blank))
            batch = Batch(
                inputs=inputs.to(trainer.device).contiguous(),
                targets=targets.to(trainer.device).contiguous(),
                documents=None,
                useful=useful,
            )
            found.append((batch, count / self.sequences))
        return found


def _sample(trainer: Trainer) -> Tensor:
    """A little of every matrix of the layers that train, as stored."""
    layers = trainer.model.layers[: trainer.model.active]
    parts = [p.detach().flatten()[:4096].float() for p in layers.parameters() if p.dim() > 1]
    return torch.cat(parts).cpu()


def _check_movement(
    trainer: Trainer, before: Tensor, after: Tensor, steps: int, settings: Settings
) -> None:
    """Weights kept in few bits swallow updates that are smaller than half their last bit.

    Stochastic rounding moves few weights, but those far: Adam's first steps move a weight by about
    the learning rate, whatever its gradient, so the mean movement tells them apart.
    """
    moved = (after - before).abs()
    share = float((moved > 0).float().mean())
    settings.fact("weights_moved_share", share)
    reached = 0.0
    if str(settings.take("optim.name", "adamw")).startswith("adamw"):
        rate = float(settings.take("optim.lr", 3e-4))
        asked = rate * sum((i + 1) / steps for i in range(steps))
        reached = float(moved.mean()) / asked if asked else 0.0
        settings.fact("weights_moved_of_asked", reached)
    if share == 0 and trainer.precision.scaler is not None:
        raise BadOutput(f"loss scaling skipped all {steps} steps of the quality gate")
    if share < _LEAST_SHARE and reached < _LEAST_MOVEMENT:
        raise BadOutput(
            f"not learning: {share:.0%} of the weights changed in {steps} steps, since updates "
            "are below the precision of the weights; fp32 master weights or stochastic rounding "
            "keep them"
        )


def _compare(first: float, end: float, options: Mapping[str, Any], settings: Settings) -> None:
    reference = options.get("reference_loss")
    if reference is None:
        return
    margin = float(options.get("quality_margin", MARGIN))
    wanted = first - float(reference)
    missing = (end - float(reference)) / wanted if wanted > 0 else 0.0
    if not math.isfinite(missing) or missing > margin:
        raise BadOutput(
            f"loss fell from {first:.4f} to {end:.4f} over the same tokens, to "
            f"{float(reference):.4f} in the reference: {missing:.1%} less (margin {margin:.0%})"
        )
    settings.notice(f"loss fell {-missing:+.2%} against the reference (margin {margin:.0%})")
