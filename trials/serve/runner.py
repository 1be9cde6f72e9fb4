"""Runs plans on the device: fills the tensors of a step, replays graphs, brings tokens home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trials.serve.attention import tiles_of
from trials.serve.kv_cache import KVCache
from trials.serve.model import Decoder
from trials.serve.plan import Plan, Work
from trials.serve.sampling import Sampler
from trials.serve.step import Chunk, Step

_RING = 4  # steps whose host buffers may be in flight; the engine overlaps two


@dataclass(frozen=True, slots=True)
class Ticket:
    """A step under way."""

    tokens: Tensor  # on the host once ``done`` has happened
    counts: tuple[int, ...]  # sampled tokens of each work
    steps: int
    done: Any  # an event, or None where everything is done at once


@dataclass(slots=True)
class Lists:
    """A step as plain numbers, a place for each flat token."""

    tokens: list[int] = field(default_factory=list)  # -1: the row's latest
    rows: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)  # places that are sampled
    counts: list[int] = field(default_factory=list)  # how many, for each work that samples
    chunks: list[Chunk] = field(default_factory=list)
    singles: int = 0
    longest: int = 0

    def add(self, work: Work) -> None:
        """Whose a work's tokens are and where they stand."""
        self.rows.extend([work.sequence.row] * work.count)
        self.positions.extend(range(work.first, work.first + work.count))
        if work.samples:
            self.counts.append(1 if self.chunks else work.count)


class Runner:
    """Owns the tables that steps read: blocks of each row, and each row's latest token."""

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        sampler: Sampler,
        *,
        rows: int,
        longest: int,
        step_tokens: int,
        all_logits: bool = False,
    ) -> None:
        self.model, self.cache, self.sampler = model, cache, sampler
        self.device = cache.device
        self.rows, self.size = rows, cache.layout.size
        width = -(-longest // self.size)
        # One row more than sequences: those that only fill up a batch stand in it.
        self.table = torch.full(
            (rows + 1, width), cache.scratch, dtype=torch.int32, device=self.device
        )
        self.latest = torch.zeros(rows + 1, dtype=torch.int64, device=self.device)
        self._filled = [(-1, 0)] * rows  # of each row: whose blocks, and how many
        self._all_logits = all_logits
        self._staging = [self._host(4 * step_tokens + 4096) for _ in range(_RING)]
        self._answers = [self._host(8 * max(rows, 64) + step_tokens) for _ in range(_RING)]
        self._turn = self._sent = 0
        self.graphs: Any = None  # see graphs.py

    def _host(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int64, pin_memory=self.device.type == "cuda")

    def launch(self, plan: Plan) -> Ticket:
        """Start a step; on a GPU it runs while the host goes on."""
        self.cache.move(plan.copies)
        self._turn = (self._turn + 1) % _RING
        self._sent = 0
        works = (*plan.decodes, *plan.prefills)
        if not works:
            return Ticket(self._answers[self._turn][:0], (), 1, None)
        self._update(self._changed_blocks(works))
        lists = self._lists(plan)
        if lists.chunks:
            sampled = self._mixed(lists)[None]
        elif self.graphs is not None and lists.singles <= self.graphs.largest:
            sampled = self._replayed(lists, plan.steps)
        else:
            sampled = self._singles(lists, plan.steps)
        return self._home(sampled, tuple(lists.counts), plan.steps)

    def collect(self, ticket: Ticket) -> list[list[int]]:
        """Wait for a step; the tokens of each work that samples, decodes first."""
        if ticket.done is not None:
            ticket.done.synchronize()
        found: list[list[int]] = []
        values = ticket.tokens.tolist()
        if ticket.steps > 1:
            width = len(ticket.counts)
            return [values[i::width] for i in range(width)]
        at = 0
        for count in ticket.counts:
            found.append(values[at : at + count])
            at += count
        return found

    def forget(self) -> None:
        """Between traces: no row belongs to anyone."""
        self._filled = [(-1, 0)] * self.rows
        self.table.fill_(self.cache.scratch)

    def _lists(self, plan: Plan) -> Lists:
        lists = Lists()
        for work in plan.decodes:
            sequence, first = work.sequence, work.first
            # A token that is still being sampled is taken from the device.
            lists.tokens.append(sequence.token(first) if first < sequence.known else -1)
            lists.tokens.extend(work.drafts)
            lists.add(work)
            lists.longest = max(lists.longest, first + work.count)
        lists.singles = len(lists.tokens)
        lists.last.extend(range(lists.singles))
        for work in plan.prefills:
            sequence, start = work.sequence, len(lists.tokens)
            lists.tokens.extend(sequence.tokens(work.first, work.count))
            lists.chunks.append(Chunk(sequence.row, start, work.first, work.count))
            lists.add(work)
            if work.samples:
                lists.last.append(len(lists.tokens) - 1)
        return lists

    def _changed_blocks(self, works: Sequence[Work]) -> tuple[list[int], list[int], list[int]]:
        """Entries of the block table that are out of date: rows, columns, blocks."""
        rows: list[int] = []
        columns: list[int] = []
        blocks: list[int] = []
        for work in works:
            sequence, row = work.sequence, work.sequence.row
            known = (sequence.admitted, len(sequence.blocks))
            owner, filled = self._filled[row]
            if (owner, filled) == known:
                continue
            start = filled if owner == sequence.admitted else 0
            self._filled[row] = known
            rows.extend([row] * (known[1] - start))
            columns.extend(range(start, known[1]))
            blocks.extend(sequence.blocks[start:])
        return rows, columns, blocks

    def _send(self, parts: Sequence[Sequence[int]], target: Tensor | None = None) -> list[Tensor]:
        """To the device in one copy; into ``target`` where that is where it must lie."""
        sizes = [len(part) for part in parts]
        begin, end = self._sent, self._sent + sum(sizes)
        self._sent = end
        if end > len(self._staging[self._turn]):
            self._staging[self._turn] = self._host(2 * end)
        staging = self._staging[self._turn][begin:end]
        staging.numpy()[:] = np.concatenate([np.asarray(part, np.int64) for part in parts])
        if target is not None:
            target.copy_(staging, non_blocking=True)
            return []
        if self.device.type == "cuda":
            staging = staging.to(self.device, non_blocking=True)
        return list(torch.split(staging, sizes))

    def _update(self, changed: Sequence[Sequence[int]]) -> None:
        if changed[0]:
            rows, columns, blocks = self._send(changed)
            self.table.index_put_((rows, columns), blocks.to(torch.int32))

    def step(
        self,
        tokens: Tensor,
        rows: Tensor,
        positions: Tensor,
        *,
        singles: int,
        longest: int,
        chunks: tuple[Chunk, ...] = (),
        tiles: Tensor | None = None,
    ) -> Step:
        """The tensors of a step, with where its keys and values go."""
        return Step(
            tokens=torch.where(tokens < 0, self.latest[rows], tokens),
            rows=rows,
            positions=positions,
            table=self.table,
            singles=singles,
            longest=longest,
            chunks=chunks,
            tiles=tiles,
            blocks=self.table[rows, positions // self.size].long(),
            offsets=positions % self.size,
        )

    def tiles(self, chunks: Sequence[Chunk]) -> Tensor | None:
        """Chunks cut up for the paged prompt kernel, where that is the one in use."""
        kernels = self.model.parts.kernels
        if kernels.prefill != "triton" or not chunks:
            return None
        tiles = tiles_of(chunks, kernels.prefill_block_m)
        return self._send([[n for tile in tiles for n in tile]])[0].view(-1, 4).to(torch.int32)

    def _mixed(self, lists: Lists) -> Tensor:
        """Prompts, and decodes with them: (sampled tokens,)"""
        parts = (lists.tokens, lists.rows, lists.positions, lists.last)
        tokens, rows, positions, last = self._send(parts)
        step = self.step(
            tokens,
            rows,
            positions,
            singles=lists.singles,
            longest=lists.longest,
            chunks=tuple(lists.chunks),
            tiles=self.tiles(lists.chunks),
        )
        hidden = self.model(step, self.cache)
        if not len(last):
            return last
        if self._all_logits:
            logits = self.model.logits(hidden)[last]
        else:
            logits = self.model.logits(hidden[last])
        sampled = self.sampler(logits)
        self.latest[rows[last]] = sampled
        return sampled

    def _singles(self, lists: Lists, steps: int) -> Tensor:
        """Decodes alone: (steps, sampled tokens)"""
        tokens, rows, positions = self._send((lists.tokens, lists.rows, lists.positions))
        sampled = []
        for number in range(steps):
            longest = lists.longest + number
            sampled.append(self.decode(tokens, rows, positions + number, longest))
            tokens = sampled[-1]
        return torch.stack(sampled)

    def _replayed(self, lists: Lists, steps: int) -> Tensor:
        """The same by a recorded graph, its batch filled up with rows that nobody reads."""
        more = self.graphs.size_for(lists.singles) - lists.singles
        parts = (
            lists.tokens + [0] * more,
            lists.rows + [self.rows] * more,
            lists.positions + [0] * more,
        )
        self._send(parts, self.graphs.inputs(len(parts[0])))
        found: Tensor = self.graphs.replay(lists.singles, steps)
        return found

    def decode(self, tokens: Tensor, rows: Tensor, positions: Tensor, longest: int) -> Tensor:
        """One decode step from tensors to tokens: what a graph records."""
        step = self.step(tokens, rows, positions, singles=len(tokens), longest=longest)
        sampled = self.sampler(self.model.logits(self.model(step, self.cache)))
        self.latest[rows] = sampled
        return sampled

    def _home(self, sampled: Tensor, counts: tuple[int, ...], steps: int) -> Ticket:
        flat = sampled.flatten()
        if self.device.type != "cuda":
            return Ticket(flat, counts, steps, None)
        answers = self._answers[self._turn]
        if len(flat) > len(answers):
            answers = self._answers[self._turn] = self._host(2 * len(flat))
        answers[: len(flat)].copy_(flat, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return Ticket(answers[: len(flat)], counts, steps, done)
