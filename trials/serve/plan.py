"""What a step consists of, and the policy by which steps are planned."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from trials.serve.block_manager import Copy
from trials.serve.sequence import Sequence


class RequestTooLong(ValueError):
    """A request that the KV cache could not hold even alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How to schedule; every field is a knob."""

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    chunked_prefill: bool = True
    prefill_chunk_tokens: int = 2048
    mix_prefill_decode: bool = True
    prefill_interval: int = 1
    order: str = "fcfs"  # shortest_prompt | longest_prefix | priority
    preemption: str = "recompute"  # swap
    watermark: float = 0.01
    new_token_ratio: float = 0.5
    multi_step: int = 1
    batch_wait_ms: float = 0.0
    batching: str = "continuous"  # static: nobody joins until the whole batch is done
    draft_tokens: int = 0
    draft_max_batch: int = 32


@dataclass(frozen=True, slots=True)
class Work:
    """Consecutive tokens of one sequence in a step."""

    sequence: Sequence
    first: int  # position of the first token
    count: int
    drafts: tuple[int, ...] = ()  # guessed tokens behind the first one, among ``count``
    samples: bool = True  # whether its last position is sampled


@dataclass(frozen=True, slots=True)
class Plan:
    """One step; ``steps`` repeats its decodes, each with the token that the one before sampled."""

    decodes: tuple[Work, ...]
    prefills: tuple[Work, ...]
    copies: Items[Copy] = ()
    steps: int = 1

    @property
    def tokens(self) -> int:
        """Computed by the step."""
        return sum(w.count for w in self.prefills) + self.steps * sum(w.count for w in self.decodes)
