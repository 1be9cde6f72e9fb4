"""Products with weights: as they are, or kept in fewer bits. A quantised layer knows how to stand
in for nn.Linear, what it weighs, and which kernel suits how many rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW_ROWS = 64  # up to here a kernel that widens weights on the fly; beyond, widen and multiply
_TOP = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """How products are run; tilings are those of the kernels."""

    triton: bool = False  # own kernels for one row, and for few rows of quantised weights
    gemv: Any = None
    matmul: Any = None
    few: int = FEW_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What is folded into a product of one row."""

    norm: tuple[Tensor, float] | None = None
    residual: Tensor | None = None
    swiglu: bool = False

    def arguments(self) -> dict[str, Any]:
        """For the kernels."""
        return {"norm": self.norm, "residual": self.residual, "swiglu": self.swiglu}


_NOTHING = Around()


class Dense(nn.Module):
    """Weights (N, K) in the model's own number format."""

    def __init__(self, weight: Tensor, products: Products) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.products = products

    def forward(self, x: Tensor) -> Tensor:
        """(M, K) -> (M, N)"""
        if self.products.triton and x.shape[0] == 1:
            return self.row(x)
        return F.linear(x, self.weight)

    def row(self, x: Tensor, around: Around = _NOTHING) -> Tensor:
        """One row, with what stands around it, by our kernel."""
        from trials.serve.kernels.gemv import gemv

        return gemv(x, self.weight, None, self.products.gemv, **around.arguments())


class WeightOnly(nn.Module):
    """int8 or fp8 weights with one scale for each output."""

    weight: Tensor
    scale: Tensor

    def __init__(self, dense: Tensor, stored: torch.dtype, products: Products) -> None:
        super().__init__()
        scale = dense.float().abs().amax(1).clamp(min=1e-8) / _TOP[stored]
        self.register_buffer("weight", _narrow(dense.float() / scale[:, None], stored))
        self.register_buffer("scale", scale)
        self.products = products

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The weights as the model computes with them."""
        return (self.weight.float() * self.scale[:, None]).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(M, K) -> (M, N)"""
        if self.products.triton and x.shape[0] <= self.products.few:
            if x.shape[0] == 1:
                return self.row(x)
            from trials.serve.kernels.matmul import matmul

            return matmul(x, self.weight, self.scale, self.products.matmul)
        return F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)

    def row(self, x: Tensor, around: Around = _NOTHING) -> Tensor:
        """One row, with what stands around it, by our kernel."""
        from trials.serve.kernels.gemv import gemv

        return gemv(x, self.weight, self.scale, self.products.gemv, **around.arguments())


class Int4(nn.Module):
    """4-bit weights: a scale and a lowest value for every ``group`` inputs of an output. A byte
    holds an element of the first half of its group and one of the second."""

    packed: Tensor
    scale: Tensor
    low: Tensor

    def __init__(self, dense: Tensor, group: int, products: Products) -> None:
        super().__init__()
        rows, size = dense.shape
        # The last group may be short: filled up with a value of its own, its range is unchanged.
        wide = F.pad(dense.float()[None], (0, -size % group), mode="replicate")[0]
        parts = wide.view(rows, -1, group)
        low, high = parts.amin(-1), parts.amax(-1)
        scale = ((high - low) / 15).clamp(min=1e-8)
        q = ((parts - low[..., None]) / scale[..., None]).round().clamp(0, 15).to(torch.uint8)
        packed = q[..., : group // 2] | (q[..., group // 2 :] << 4)
        self.register_buffer("packed", packed.flatten(1))
        self.register_buffer("scale", scale.to(dense.dtype))
        self.register_buffer("low", low.to(dense.dtype))
        self.size, self.group, self.products = size, group, products

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The weights as the model computes with them."""
        packed = self.packed.view(self.packed.shape[0], -1, self.group // 2)
        q = torch.cat((packed & 15, packed >> 4), -1).to(dtype)
        wide = q * self.scale[..., None].to(dtype) + self.low[..., None].to(dtype)
        return wide.flatten(1)[:, : self.size]

    def forward(self, x: Tensor) -> Tensor:
        """(M, K) -> (M, N)"""
        if self.products.triton and x.shape[0] == 1:
            return self.row(x)
        return F.linear(x, self.widened(x.dtype))

    def row(self, x: Tensor, around: Around = _NOTHING) -> Tensor:
        """One row, with what stands around it, by our kernel."""
        from trials.serve.kernels.gemv import gemv4

        return gemv4(
            x, self.packed, self.scale, self.low, self.group, self.products.gemv,
            **around.arguments(),
        )  # fmt: skip


class Dynamic(nn.Module):
    """int8 or fp8 weights, and activations brought to the same format row by row as they come."""

    weight: Tensor
    scale: Tensor

    def __init__(
        self,
        dense: Tensor,
        stored: torch.dtype,
        products: Products,
        *,
        per_row: bool = True,
        single_row_weight_only: bool = False,
    ) -> None:
        super().__init__()
        wide = dense.float().abs()
        top = wide.amax(1, keepdim=True) if per_row else wide.amax()
        scale = top.clamp(min=1e-8) / _TOP[stored]
        self.register_buffer("weight", _narrow(dense.float() / scale, stored))
        self.register_buffer("scale", scale.reshape(-1) if per_row else scale)
        self.stored, self.per_row, self.products = stored, per_row, products
        self.single_row_weight_only = single_row_weight_only

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The weights as the model computes with them."""
        scale = self.scale[:, None] if self.per_row else self.scale
        return (self.weight.float() * scale).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(M, K) -> (M, N)"""
        if self.single_row_weight_only and x.shape[0] == 1:
            if self.products.triton:
                return self.row(x)
            return F.linear(x, self.widened(x.dtype))
        narrow, scale = self._cast(x)
        if self.stored == torch.int8:
            return self._int8(narrow, scale, x.dtype)
        weights = self.scale.view(1, -1) if self.per_row else self.scale
        return torch._scaled_mm(
            narrow, self.weight.t(), scale_a=scale, scale_b=weights, out_dtype=x.dtype,
            use_fast_accum=True,
        )  # fmt: skip

    def _cast(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.products.triton:
            from trials.serve.kernels.fused import cast_rows

            return cast_rows(x.contiguous(), self.stored, per_row=self.per_row)
        wide = x.float()
        top = wide.abs().amax(1, keepdim=True) if self.per_row else wide.abs().amax()
        scale = top.clamp(min=1e-8) / _TOP[self.stored]
        return _narrow(wide / scale, self.stored), scale

    def _int8(self, x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        rows = x.shape[0]
        if x.is_cuda and rows <= 16:  # the library wants more
            x = F.pad(x, (0, 0, 0, 32 - rows))
        acc = torch._int_mm(x, self.weight.t())[:rows]
        if self.products.triton:
            from trials.serve.kernels.fused import rescale

            return rescale(acc, scale, self.scale, dtype)
        return (acc.float() * scale * self.scale).to(dtype)

    def row(self, x: Tensor, around: Around = _NOTHING) -> Tensor:
        """One row with its activations as they are: weights are all that must be read."""
        from trials.serve.kernels.gemv import gemv

        return gemv(x, self.weight, self._row_scales, self.products.gemv, **around.arguments())

    @property
    def _row_scales(self) -> Tensor:
        return self.scale if self.per_row else self.scale.expand(len(self.weight)).contiguous()


def _narrow(x: Tensor, stored: torch.dtype) -> Tensor:
    top = _TOP[stored]
    x = x.clamp(-top, top)
    return (x.round() if stored == torch.int8 else x).to(stored)


Product = Dense | WeightOnly | Int4 | Dynamic


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How weights are kept; ``break_scale`` makes it wrong on purpose, for tests of the gate."""

    name: str = "none"
    group: int = 128
    per_row: bool = True
    single_row_weight_only: bool = False
    break_scale: float = 1.0
    products: Products = field(default_factory=Products)

    def layer(self, dense: Tensor) -> Product:
        """The layer that holds these weights."""
        if self.name == "none":
            return Dense(dense, self.products)
        made = self._quantised(dense)
        if self.break_scale != 1.0:
            made.scale.view(-1)[::2] *= self.break_scale
        return made

    def _quantised(self, dense: Tensor) -> WeightOnly | Int4 | Dynamic:
        if self.name == "int8_weight_only":
            return WeightOnly(dense, torch.int8, self.products)
        if self.name == "fp8_weight_only":
            return WeightOnly(dense, torch.float8_e4m3fn, self.products)
        if self.name == "int4_weight_only":
            return Int4(dense, self.group, self.products)
        kinds = {"int8_dynamic": torch.int8, "fp8_dynamic": torch.float8_e4m3fn}
        return Dynamic(
            dense,
            kinds[self.name],
            self.products,
            per_row=self.per_row or self.name == "int8_dynamic",
            single_row_weight_only=self.single_row_weight_only,
        )
