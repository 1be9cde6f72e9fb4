"""A micro-batch and the optimizer's step, recorded once and replayed without the launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MODES = ("none", "model_only", "full_step")


class Recorded:
    """Graphs over inputs that stay in place; gradients stay in place too."""

    def __init__(
        self,
        micro: Callable[[Tensor, Tensor, Tensor], Tensor],  # inputs, targets, share -> loss
        update: Callable[[], None] | None,  # None leaves the optimizer outside
        shape: tuple[int, int],
        warm_up: int,
    ) -> None:
        device = torch.device("cuda")
        self._inputs = torch.zeros(shape, dtype=torch.int64, device=device)
        self._targets = torch.zeros(shape, dtype=torch.int64, device=device)
        self._share = torch.zeros((), device=device)  # a share of 0 leaves gradients as they are
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(warm_up):
                micro(self._inputs, self._targets, self._share)
            if update is not None:
                update()  # makes the optimizer's states
        torch.cuda.current_stream().wait_stream(stream)
        pool = torch.cuda.graph_pool_handle()
        self._micro = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._micro, pool=pool):
            self._loss = micro(self._inputs, self._targets, self._share)
        self._update: Any = None
        if update is not None:
            self._update = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._update, pool=pool):
                update()

    def micro(self, inputs: Tensor, targets: Tensor, count: int) -> Tensor:
        """Forward and backward of one micro-batch of ``count``; its share of the mean loss."""
        self._inputs.copy_(inputs)
        self._targets.copy_(targets)
        self._share.fill_(1 / count)
        self._micro.replay()
        return self._loss.clone()

    def update(self) -> bool:
        """Replay the optimizer's step; False when it was left outside."""
        if self._update is None:
            return False
        self._update.replay()
        return True
