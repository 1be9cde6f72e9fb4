"""Whole decode steps recorded as CUDA graphs, one a batch size; replayed without the host."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trials.serve.runner import Runner

_WARM_UPS = 3


def sizes_of(step: str, largest: int, rows: int) -> list[int]:
    """Batch sizes to record: powers of two, or 1, 2, 4 and then every so many."""
    largest = min(largest, rows)
    sizes = [s for s in (1, 2, 4, 8) if s <= largest]
    if step == "pow2":
        while sizes[-1] * 2 <= largest:
            sizes.append(sizes[-1] * 2)
    else:
        width = int(step)
        sizes += [s for s in range(width, largest + 1, width) if s > sizes[-1]]
    return sizes if sizes[-1] == largest else [*sizes, largest]


class DecodeGraphs:
    """Records at once; ``inputs`` is where a step's numbers must be put before ``replay``."""

    def __init__(self, runner: Runner, sizes: Sequence[int]) -> None:
        self.sizes = sorted(sizes)
        self.largest = self.sizes[-1]
        self._flat = torch.zeros(3 * self.largest, dtype=torch.int64, device=runner.device)
        self._graphs: dict[int, tuple[Any, Tensor]] = {}
        self._pool: Any = None
        for size in reversed(self.sizes):  # the largest first: the others fit into its memory
            self._graphs[size] = self._record(runner, size)

    def size_for(self, count: int) -> int:
        """The smallest recorded batch that holds so many."""
        return self.sizes[bisect.bisect_left(self.sizes, count)]

    def inputs(self, size: int) -> Tensor:
        """Tokens, rows and positions of a batch, one behind the other."""
        return self._flat[:size]

    def replay(self, count: int, steps: int) -> Tensor:
        """(steps, count) sampled tokens."""
        graph, out = self._graphs[self.size_for(count)]
        if steps == 1:
            graph.replay()
            return out[None, :count]
        found = torch.empty((steps, count), dtype=out.dtype, device=out.device)
        for number in range(steps):
            graph.replay()
            found[number].copy_(out[:count])
        return found

    def _record(self, runner: Runner, size: int) -> tuple[Any, Tensor]:
        tokens, rows, positions = torch.split(self._flat[: 3 * size], size)
        tokens.zero_()
        rows.fill_(runner.rows)
        positions.zero_()

        def step() -> Tensor:
            sampled = runner.decode(tokens, rows, positions, 0)
            # Replayed again, it goes on from here.
            tokens.fill_(-1)
            positions.add_(1)
            return sampled

        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                step()
                positions.zero_()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            out = step()
        self._pool = self._pool or graph.pool()
        return graph, out
