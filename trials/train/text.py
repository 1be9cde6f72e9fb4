"""Real text as token ids: plays of Shakespeare, every tenth held out for validation."""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

_CORPUS = Path(__file__).parents[1] / "corpus"


@lru_cache(maxsize=2)
def tokens(split: str) -> Tensor:
    """All ids of a split (``train`` or ``validation``), (N,) int64, byte-pair-free: bytes.

    Bytes keep the text exact for every vocabulary of 256 or more.
    """
    data = lzma.decompress((_CORPUS / f"{split}.txt.xz").read_bytes())
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many sequences of how many tokens make a step."""

    micro: int
    accumulation: int  # micro-batches of one optimiser step
    length: int

    @property
    def tokens(self) -> int:
        return self.micro * self.accumulation * self.length


class Batches:
    """Deterministic batches of next-byte prediction, chosen by the seed."""

    def __init__(
        self,
        split: str,
        shape: Shape,
        seed: int,
        device: torch.device,
        *,
        pinned: bool = False,
        non_blocking: bool = True,
    ) -> None:
        self._ids = tokens(split)
        self._shape, self._device = shape, device
        self._generator = torch.Generator().manual_seed(seed)
        self._pinned = pinned and device.type == "cuda"
        self._non_blocking = non_blocking

    def next(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets, each (micro, length)."""
        length = self._shape.length
        starts = torch.randint(
            0, len(self._ids) - length - 1, (self._shape.micro, 1), generator=self._generator
        )
        window = self._ids[starts + torch.arange(length + 1)]
        if self._pinned:
            window = window.pin_memory()
        window = window.to(self._device, non_blocking=self._non_blocking)
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()
