"""The quality gate of training: does a setting still learn what the reference learns?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from autotune.trial import TrialSpec
from trials.errors import BadOutput, NonFinite
from trials.settings import Settings
from trials.train.text import Batches
from trials.train.trainer import Trainer

_SEQUENCES = 8  # of every optimiser step of the gate, whatever the micro-batch
_STEPS = {"cpu": 3, "cuda": 12}
MARGIN = 0.05  # of the reference's loss, relative


def gate(trainer: Trainer, spec: TrialSpec, settings: Settings) -> dict[str, float]:
    """Train a little further and judge; metrics ``loss_at_end`` and ``validation_loss`` in nats.

    Raises BadOutput when weights do not move, when fp16 skipped most steps, or when the loss is
    above the reference's (``spec.options["reference_loss"]``) by more than the margin.
    """
    before = _fingerprint(trainer)
    steps = _STEPS[trainer.device.type]
    losses = [trainer.step(1) for _ in range(steps)]
    values = [float(x) for x in losses]
    if not all(map(math.isfinite, values)):
        raise NonFinite(f"the loss became {values[-1]} in the quality gate")
    if not bool((_fingerprint(trainer) != before).any()):
        raise BadOutput("the weights did not move: updates are below the precision of the weights")
    if trainer.skipped > steps:
        raise BadOutput(f"fp16 loss scaling skipped {trainer.skipped} steps")
    found = {"loss_at_end": values[-1], "validation_loss": _validate(trainer)}
    _compare(found, spec.options, settings)
    return found


def _compare(found: Mapping[str, float], options: Mapping[str, Any], settings: Settings) -> None:
    reference = options.get("reference_loss")
    if reference is None:
        return
    margin = float(options.get("quality_margin", MARGIN))
    excess = found["loss_at_end"] / float(reference) - 1
    if excess > margin:
        raise BadOutput(
            f"loss {found['loss_at_end']:.4f} after the same tokens is {excess:.1%} above the "
            f"reference {float(reference):.4f} (margin {margin:.0%})"
        )
    settings.notice(f"loss is {excess:+.2%} from the reference (margin {margin:.0%})")


def _fingerprint(trainer: Trainer) -> torch.Tensor:
    """A little of every matrix, as stored."""
    parts = [p.detach().flatten()[:64].float() for p in trainer.model.parameters() if p.dim() > 1]
    return torch.cat(parts).cpu()


@torch.no_grad()
def _validate(trainer: Trainer) -> float:
    batches = Batches("validation", trainer.shape, 7, trainer.device)
    inputs, targets = batches.next()
    with trainer.precision.autocast():
        hidden = trainer.model(inputs)
        value = trainer.loss(hidden.flatten(0, 1), trainer.model.head, targets.flatten())
    return float(value)
