"""One step as tensors: which tokens, whose they are, where they stand."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence among the flat tokens of a step."""

    row: int  # in the block table
    start: int  # among the flat tokens
    first: int  # position of the first one
    count: int


@dataclass(frozen=True, slots=True)
class Step:
    """Flat tokens, single ones (decodes) first, chunks of prompts behind them."""

    tokens: Tensor  # (T,) int64
    rows: Tensor  # (T,) int64, into the block table
    positions: Tensor  # (T,) int64
    table: Tensor  # (rows, blocks) int32
    singles: int
    longest: int  # tokens of the longest sequence among the singles; 0 when only the device knows
    chunks: tuple[Chunk, ...] = ()
    tiles: Tensor | None = None  # of the chunks, for the paged prompt kernel
    blocks: Tensor | None = None  # (T,) int64, where keys and values go
    offsets: Tensor | None = None
