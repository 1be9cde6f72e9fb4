"""A Llama-family decoder that grows by layers, so that one build serves two depths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from trials.train.layers import RMSNorm, rope_table
from trials.train.moe import Mixture
from trials.train.parts import Parts


def head_dim(config: Mapping[str, Any]) -> int:
    """Width of one attention head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def is_mixture(config: Mapping[str, Any]) -> bool:
    """Whether its feed-forwards are mixtures of experts."""
    return int(config.get("num_local_experts") or 0) > 1


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, config: Mapping[str, Any], parts: Parts) -> None:
        super().__init__()
        self.parts = parts
        hidden, eps = int(config["hidden_size"]), float(config["rms_norm_eps"])
        self.heads = int(config["num_attention_heads"])
        self.kv_heads = int(config["num_key_value_heads"])
        self.dim = head_dim(config)
        self.sizes = [self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim]
        bias = bool(config.get("attention_bias", False))
        self.norm1 = RMSNorm(hidden, eps, parts.norm)
        self.norm2 = RMSNorm(hidden, eps, parts.norm)
        if parts.fused_qkv:
            self.qkv = nn.Linear(hidden, sum(self.sizes), bias=bias)
        else:
            self.q = nn.Linear(hidden, self.sizes[0], bias=bias)
            self.k = nn.Linear(hidden, self.sizes[1], bias=bias)
            self.v = nn.Linear(hidden, self.sizes[2], bias=bias)
        self.o = nn.Linear(self.sizes[0], hidden, bias=False)
        self.mlp: nn.Module = (
            Mixture(config, parts)
            if is_mixture(config)
            else FeedForward(hidden, int(config["intermediate_size"]), parts)
        )

        self.recompute: Any = None  # (forward, *inputs) -> output, set by checkpointing

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Any) -> Tensor:
        """(B, T, hidden) -> (B, T, hidden)"""
        if self.recompute is None:
            return self._run(x, cos, sin, mask)
        return self.recompute(self._run, x, cos, sin, mask)  # type: ignore[no-any-return]

    def _run(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Any) -> Tensor:
        x = x + self._attend(self.norm1(x), cos, sin, mask)
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Any) -> Tensor:
        batch, length, _ = x.shape
        if self.parts.fused_qkv:
            q, k, v = self.qkv(x).split(self.sizes, dim=-1)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        q = q.view(batch, length, self.heads, self.dim).transpose(1, 2)
        k = k.view(batch, length, self.kv_heads, self.dim).transpose(1, 2)
        v = v.view(batch, length, self.kv_heads, self.dim).transpose(1, 2)
        q, k = self.parts.rotate(q, k, cos[:length].to(q.dtype), sin[:length].to(q.dtype))
        out = self.parts.attend(q, k, v, mask).transpose(1, 2).reshape(batch, length, -1)
        return self.o(out)  # type: ignore[no-any-return]


class FeedForward(nn.Module):
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

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, hidden) -> (B, T, hidden)"""
        if self.parts.fused_gate_up:
            gate, up = self.gate_up(x).chunk(2, dim=-1)
        else:
            gate, up = self.gate(x), self.up(x)
        return self.down(self.parts.act(gate, up))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Embedding, layers, norm; the head is kept apart so that losses may fuse with it."""

    def __init__(self, config: Mapping[str, Any], parts: Parts, length: int) -> None:
        super().__init__()
        self.config, self.parts = dict(config), parts
        hidden = int(config["hidden_size"])
        multiple = parts.vocab_multiple
        self.vocab = -(-int(config["vocab_size"]) // multiple) * multiple
        self.embed = nn.Embedding(self.vocab, hidden)
        self.layers = nn.ModuleList()
        self.norm = RMSNorm(hidden, float(config["rms_norm_eps"]), parts.norm)
        self.head = nn.Linear(hidden, self.vocab, bias=False)
        if config.get("tie_word_embeddings", False):
            self.head.weight = self.embed.weight
        # Not buffers: a cast of the model must leave the angles in fp32.
        self.cos, self.sin = rope_table(
            length, head_dim(config), float(config["rope_theta"]), self.embed.weight.device
        )
        self.around: Any = None  # (layer, *inputs) -> output, set by checkpointing
        self.active: int | None = None  # only so many layers run; None is all of them

    def grow(self, depth: int) -> list[Block]:
        """Add layers up to ``depth``; the new ones."""
        new = [Block(self.config, self.parts) for _ in range(depth - len(self.layers))]
        self.layers.extend(new)
        return new

    def forward(self, tokens: Tensor, mask: Any = None) -> Tensor:
        """(B, T) token ids -> (B, T, hidden) after the last norm."""
        x = self.embed(tokens)
        for block in self.layers[: self.active]:
            if self.around is None:
                x = block(x, self.cos, self.sin, mask)
            else:
                x = self.around(block, x, self.cos, self.sin, mask)
        return self.norm(x)  # type: ignore[no-any-return]
