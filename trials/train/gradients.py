"""Between backward and the optimizer: copies of weights, sums of gradients in another dtype."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class MasterWeights:
    """fp32 copies of low-precision weights: the optimizer updates them, the model gets them
    rounded."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.model = [p for p in parameters if p.requires_grad]
        self.master = [nn.Parameter(p.detach().float()) for p in self.model]

    def gather_gradients(self, sums: Sums | None) -> None:
        """Hand the model's gradients over, and free them."""
        for master, parameter in zip(self.master, self.model, strict=True):
            gradient = parameter.grad if sums is None else sums.of(parameter)
            master.grad = None if gradient is None else gradient.float()
            parameter.grad = None

    @torch.no_grad()
    def spread(self) -> None:
        """Round the updated weights into the model."""
        torch._foreach_copy_([p.data for p in self.model], [m.data for m in self.master])


class Sums:
    """Gradients summed over micro-batches in a dtype of their own."""

    def __init__(self, parameters: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._held: dict[nn.Parameter, Tensor] = {}
        self._parameters = list(parameters)
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]

    def _take(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        assert parameter.grad is not None
        if parameter in self._held:
            self._held[parameter].add_(parameter.grad)
        else:
            self._held[parameter] = parameter.grad.to(self._dtype, copy=True)
        parameter.grad = None

    def of(self, parameter: nn.Parameter) -> Tensor | None:
        """The sum for a parameter."""
        return self._held.get(parameter)

    def release(self) -> None:
        """Hand the sums to the parameters, in their own dtype, for an optimizer that wants that."""
        for parameter, total in self._held.items():
            parameter.grad = total.to(parameter.dtype)
        self._held.clear()

    def clear(self) -> None:
        """Forget the sums."""
        self._held.clear()
