"""A Llama decoder for inference: flat tokens of many sequences, their KV in a paged cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trials.serve.attention import Kernels, attend
from trials.serve.kv_cache import KVCache, LayerCache
from trials.serve.linear import Around, Scheme
from trials.serve.step import Step

AddNorm = Callable[[Tensor, Tensor | None, Tensor, float], tuple[Tensor, Tensor]]
Turn = Callable[[Tensor, Tensor, Tensor], Tensor]  # x (T, H, D), cos, sin (T, 1, D)
Act = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Which implementations a decoder is built with."""

    add_norm: AddNorm
    turn: Turn
    act: Act
    kernels: Kernels = field(default_factory=Kernels)
    scheme: Scheme = field(default_factory=Scheme)
    head_scheme: Scheme = field(default_factory=Scheme)
    fused_rope: bool = False  # rotation and cache writes in one kernel
    fused_qkv: bool = False
    fused_gate_up: bool = False
    fused_row: bool = False  # one row: norms, activation and residuals inside the products
    vocab_multiple: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a model's configuration says of its sizes."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    dim: int
    vocab: int
    eps: float
    theta: float
    longest: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """From Hugging Face's names."""
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        return cls(
            hidden=hidden,
            inner=int(config["intermediate_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config["num_key_value_heads"]),
            dim=int(config.get("head_dim") or hidden // heads),
            vocab=int(config["vocab_size"]),
            eps=float(config["rms_norm_eps"]),
            theta=float(config["rope_theta"]),
            longest=int(config["max_position_embeddings"]),
        )


class Layer(nn.Module):
    """One decoder layer; ``weights`` gives each matrix by its plain name when asked."""

    def __init__(self, shape: Shape, parts: Parts, weights: Callable[[str], Tensor]) -> None:
        super().__init__()
        self.shape, self.parts = shape, parts
        make = parts.scheme.layer
        self.norm1 = nn.Parameter(weights("norm1"), requires_grad=False)
        self.norm2 = nn.Parameter(weights("norm2"), requires_grad=False)
        self.sizes = [shape.heads * shape.dim, shape.kv_heads * shape.dim]
        self.sizes.append(self.sizes[1])
        if parts.fused_qkv:
            self.qkv = make(torch.cat([weights(n) for n in ("q", "k", "v")]))
        else:
            self.q, self.k, self.v = (make(weights(n)) for n in ("q", "k", "v"))
        self.o = make(weights("o"))
        if parts.fused_gate_up:
            self.gate_up = make(torch.cat((weights("gate"), weights("up"))))
        else:
            self.gate, self.up = make(weights("gate")), make(weights("up"))
        self.down = make(weights("down"))

    def before(self, x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The sum so far, and q, k, v, each (T, heads x dim), not yet turned."""
        x, y = self.parts.add_norm(x, delta, self.norm1, self.shape.eps)
        if self.parts.fused_qkv:
            q, k, v = torch.split(self.qkv(y), self.sizes, -1)
        else:
            q, k, v = self.q(y), self.k(y), self.v(y)
        return x, q, k, v

    def after(self, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """The sum so far, and what is to be added to it."""
        x, y = self.parts.add_norm(x, self.o(attended), self.norm2, self.shape.eps)
        if self.parts.fused_gate_up:
            gate, up = self.gate_up(y).chunk(2, -1)
        else:
            gate, up = self.gate(y), self.up(y)
        return x, self.down(self.parts.act(gate, up))


class Decoder(nn.Module):
    """Embedding, layers, last norm and head."""

    def __init__(
        self, config: Mapping[str, Any], parts: Parts, weights: Callable[[str], Tensor]
    ) -> None:
        super().__init__()
        self.shape, self.parts = Shape.of(config), parts
        shape = self.shape
        self.embed = nn.Parameter(weights("embed"), requires_grad=False)
        self.layers = nn.ModuleList(
            Layer(shape, parts, lambda name, i=i: weights(f"{i}.{name}"))  # type: ignore[misc]
            for i in range(shape.layers)
        )
        self.norm = nn.Parameter(weights("norm"), requires_grad=False)
        head = self.embed.data if config.get("tie_word_embeddings") else weights("head")
        if extra := -head.shape[0] % parts.vocab_multiple:
            head = F.pad(head, (0, 0, 0, extra))
        self.head = parts.head_scheme.layer(head)
        self.cos, self.sin = rope_table(shape, self.embed.device)

    def forward(self, step: Step, cache: KVCache) -> Tensor:
        """(T,) tokens -> (T, hidden) after the last norm."""
        if self.parts.fused_row and step.tokens.shape[0] == 1 and not step.chunks:
            return self._row(step, cache)
        x, delta = F.embedding(step.tokens, self.embed), None
        turns = self.turns(step)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            assert isinstance(layer, Layer)
            x, q, k, v = layer.before(x, delta)
            attended = self.attention(q, k, v, layer_cache, step, turns)
            x, delta = layer.after(x, attended)
        return self.parts.add_norm(x, delta, self.norm, self.shape.eps)[1]

    def turns(self, step: Step) -> tuple[Tensor, Tensor] | None:
        """Angles of the step's positions, unless a kernel looks them up by itself."""
        kernels = self.parts.kernels
        if self.parts.fused_rope and (not step.chunks or kernels.prefill == "triton"):
            return None
        kind = self.embed.dtype
        return (
            self.cos[step.positions][:, None].to(kind),
            self.sin[step.positions][:, None].to(kind),
        )

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: LayerCache,
        step: Step,
        turns: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Turn, cache, attend: (T, heads x dim)."""
        shape, parts = self.shape, self.parts
        if turns is None:
            from trials.serve.kernels.fused import rope_write

            turned = rope_write(
                q, k, v, cache, self.cos, self.sin, step.table, step.rows, step.positions,
                pdl=parts.kernels.pdl,
            )  # fmt: skip
            fresh = (k, v)  # not turned: only kernels that read the cache may follow
        else:
            turned = parts.turn(q.view(-1, shape.heads, shape.dim), *turns)
            fresh = (
                parts.turn(k.view(-1, shape.kv_heads, shape.dim), *turns),
                v.view(-1, shape.kv_heads, shape.dim),
            )
            assert step.blocks is not None
            assert step.offsets is not None
            cache.write(step.blocks, step.offsets, *fresh)
        return attend(turned, cache, fresh, step, parts.kernels).flatten(1)

    def _row(self, step: Step, cache: KVCache) -> Tensor:
        """One token: five products and the attention of each layer, nothing between them."""
        x, eps = F.embedding(step.tokens, self.embed), self.shape.eps
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            assert isinstance(layer, Layer)
            qkv = layer.qkv.row(x, Around(norm=(layer.norm1, eps)))
            q, k, v = torch.split(qkv, layer.sizes, -1)
            attended = self.attention(q, k, v, layer_cache, step, None)
            x = layer.o.row(attended, Around(residual=x))
            inner = layer.gate_up.row(x, Around(norm=(layer.norm2, eps), swiglu=True))
            x = layer.down.row(inner, Around(residual=x))
        return self.parts.add_norm(x, None, self.norm, eps)[1]

    def logits(self, hidden: Tensor) -> Tensor:
        """(T, hidden) -> (T, vocab)"""
        found: Tensor = self.head(hidden)
        return found[:, : self.shape.vocab]


def rope_table(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, each (longest, dim), fp32."""
    steps = torch.arange(0, shape.dim, 2, device=device).float() / shape.dim
    angles = torch.outer(
        torch.arange(shape.longest, device=device).float(), 1.0 / shape.theta**steps
    )
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()
