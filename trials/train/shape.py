"""How many sequences of how many tokens make an optimiser step."""

from __future__ import annotations

from dataclasses import dataclass

from trials.errors import Unsupported
from trials.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of one rank."""

    micro: int
    accumulation: int  # micro-batches of one optimiser step
    length: int

    @property
    def tokens(self) -> int:
        """Of one optimiser step."""
        return self.micro * self.accumulation * self.length


def choose(settings: Settings, ranks: int = 1) -> Shape:
    """From the batch knobs; Unsupported when the micro-batch does not divide the global batch."""
    micro = int(settings.take("train.micro_batch_size", 1))
    whole = int(settings.take("train.global_batch_size", 16))
    length = int(settings.take("train.seq_len", 2048))
    if whole % (micro * ranks):
        each = f"{ranks} ranks of " if ranks > 1 else ""
        raise Unsupported(f"{each}micro-batch {micro} does not divide global batch {whole}")
    settings.effective("train.micro_batch_size", micro)
    settings.effective("train.global_batch_size", whole)
    settings.effective("train.seq_len", length)
    return Shape(micro=micro, accumulation=whole // (micro * ranks), length=length)
