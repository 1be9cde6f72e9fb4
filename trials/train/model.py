"""A Llama-family decoder whose pieces are chosen by knobs; grows by layers, so that one build
serves two depths."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trials.train.attention import Attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Implementations to build with."""

    attention: Attention
    norm: str = "f_rms_norm"  # eager | f_rms_norm | compiled | triton
    rope: str = "real_cached"  # complex | real_cached | compiled | fused_triton
    swiglu: str = "eager"  # eager | compiled | fused_triton
    fused_qkv: bool = False
    fused_gate_up: bool = False
    vocab_multiple: int = 1


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension."""

    def __init__(self, size: int, eps: float, impl: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.impl = eps, impl
        self._compiled = torch.compile(_rms_norm) if impl == "compiled" else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) -> (..., size)"""
        if self.impl == "f_rms_norm":
            return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)
        if self.impl == "triton":
            from liger_kernel.transformers.functional import liger_rms_norm

            return liger_rms_norm(x, self.weight, self.eps)  # type: ignore[no-any-return]
        return (self._compiled or _rms_norm)(x, self.weight, self.eps)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight.to(x.dtype)


def rope_table(length: int, dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, each (length, dim)."""
    inverse = 1.0 / theta ** (torch.arange(0, dim, 2, device=device).float() / dim)
    angles = torch.outer(torch.arange(length, device=device).float(), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _rope_complex(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turn = torch.complex(cos[:, :half].float(), sin[:, :half].float())
    pairs = torch.complex(x[..., :half].float(), x[..., half:].float()) * turn
    return torch.cat((pairs.real, pairs.imag), dim=-1).to(x.dtype)


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, config: Mapping[str, Any], parts: Parts) -> None:
        super().__init__()
        self.parts = parts
        hidden, eps = int(config["hidden_size"]), float(config["rms_norm_eps"])
        self.heads = int(config["num_attention_heads"])
        self.kv_heads = int(config["num_key_value_heads"])
        self.dim = int(config.get("head_dim") or hidden // self.heads)
        self.sizes = [self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim]
        self.norm1 = RMSNorm(hidden, eps, parts.norm)
        self.norm2 = RMSNorm(hidden, eps, parts.norm)
        if parts.fused_qkv:
            self.qkv = nn.Linear(hidden, sum(self.sizes), bias=False)
        else:
            self.q = nn.Linear(hidden, self.sizes[0], bias=False)
            self.k = nn.Linear(hidden, self.sizes[1], bias=False)
            self.v = nn.Linear(hidden, self.sizes[2], bias=False)
        self.o = nn.Linear(self.sizes[0], hidden, bias=False)
        self.mlp = MLP(hidden, int(config["intermediate_size"]), parts)
        compiled = parts.rope == "compiled"
        turn = _rope_complex if parts.rope == "complex" else _rope
        self._turn = torch.compile(turn) if compiled else turn

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(B, T, hidden) -> (B, T, hidden)"""
        x = x + self._attend(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        if self.parts.fused_qkv:
            q, k, v = self.qkv(x).split(self.sizes, dim=-1)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        q = q.view(batch, length, self.heads, self.dim).transpose(1, 2)
        k = k.view(batch, length, self.kv_heads, self.dim).transpose(1, 2)
        v = v.view(batch, length, self.kv_heads, self.dim).transpose(1, 2)
        cos, sin = cos[:length].to(q.dtype), sin[:length].to(q.dtype)
        if self.parts.rope == "fused_triton":
            from liger_kernel.transformers.functional import liger_rope

            q, k = liger_rope(q, k, cos[None], sin[None])
        else:
            q, k = self._turn(q, cos, sin), self._turn(k, cos, sin)
        out = self.parts.attention(q, k, v).transpose(1, 2).reshape(batch, length, -1)
        return self.o(out)  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Gated feed-forward."""

    def __init__(self, hidden: int, inner: int, parts: Parts) -> None:
        super().__init__()
        self.parts = parts
        if parts.fused_gate_up:
            self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        else:
            self.gate = nn.Linear(hidden, inner, bias=False)
            self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self._act = torch.compile(_swiglu) if parts.swiglu == "compiled" else _swiglu

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, hidden) -> (B, T, hidden)"""
        if self.parts.fused_gate_up:
            gate, up = self.gate_up(x).chunk(2, dim=-1)
        else:
            gate, up = self.gate(x), self.up(x)
        if self.parts.swiglu == "fused_triton":
            from liger_kernel.transformers.functional import liger_swiglu

            return self.down(liger_swiglu(gate.contiguous(), up.contiguous()))  # type: ignore[no-any-return]
        return self.down(self._act(gate, up))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Embedding, layers, norm; the head is kept apart so that losses may fuse with it."""

    def __init__(self, config: Mapping[str, Any], parts: Parts, length: int) -> None:
        super().__init__()
        self.config, self.parts = dict(config), parts
        hidden = int(config["hidden_size"])
        vocab = int(config["vocab_size"])
        self.vocab = -(-vocab // parts.vocab_multiple) * parts.vocab_multiple
        self.embed = nn.Embedding(self.vocab, hidden)
        self.layers = nn.ModuleList()
        self.norm = RMSNorm(hidden, float(config["rms_norm_eps"]), parts.norm)
        self.head = nn.Linear(hidden, self.vocab, bias=False)
        self.tied = bool(config.get("tie_word_embeddings", False))
        if self.tied:
            self.head.weight = self.embed.weight
        dim = int(config.get("head_dim") or hidden // int(config["num_attention_heads"]))
        # Not buffers: a cast of the model must leave the angles in fp32.
        self.cos, self.sin = rope_table(
            length, dim, float(config["rope_theta"]), self.embed.weight.device
        )
        self.checkpoint: Any = None  # (index, block, x, cos, sin) -> x, set by checkpointing

    def grow(self, depth: int) -> list[Block]:
        """Add layers up to ``depth``; the new ones."""
        new = [Block(self.config, self.parts) for _ in range(depth - len(self.layers))]
        self.layers.extend(new)
        return new

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) token ids -> (B, T, hidden) after the last norm."""
        x = self.embed(tokens)
        for index, block in enumerate(self.layers):
            if self.checkpoint is None:
                x = block(x, self.cos, self.sin)
            else:
                x = self.checkpoint(index, block, x, self.cos, self.sin)
        return self.norm(x)  # type: ignore[no-any-return]


@torch.no_grad()
def fill(module: nn.Module, seed: int, scale: float = 0.02) -> None:
    """Plain normal weights, fast: one small random block is tiled over every matrix.

    A real draw for 400 million weights takes longer on a CPU than a step; speed and memory do not
    depend on the values, and learning from this start works as well (residual scale is kept).
    """
    generator = torch.Generator().manual_seed(seed)
    block = torch.randn(1 << 20, generator=generator) * scale
    for name, weight in module.named_parameters():
        if weight.dim() < 2:
            weight.fill_(1.0)
            continue
        if weight.is_cuda:
            weight.normal_(0.0, scale)
            continue
        offset = int(torch.randint(0, 1 << 16, (1,), generator=generator))
        source = block.roll(offset).to(weight.device, weight.dtype)
        flat = weight.view(-1)
        whole = flat.numel() // source.numel() * source.numel()
        flat[:whole].view(-1, source.numel()).copy_(source.expand(whole // source.numel(), -1))
        flat[whole:].copy_(source[: flat.numel() - whole])
        if name.endswith(("o.weight", "down.weight")):
            weight.mul_(1 / math.sqrt(8))


def parameter_count(config: Mapping[str, Any], depth: int) -> tuple[int, int]:
    """(parameters without the embedding, all parameters) of a dense decoder of that depth."""
    hidden, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    dim = int(config.get("head_dim") or hidden // int(config["num_attention_heads"]))
    heads, kv = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
    layer = hidden * dim * (2 * heads + 2 * kv) + 3 * hidden * inner + 2 * hidden
    body = depth * layer + hidden
    table = int(config["vocab_size"]) * hidden
    return body + table, body + table * (1 if config.get("tie_word_embeddings") else 2)
