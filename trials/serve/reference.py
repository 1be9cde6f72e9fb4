"""The decoder as plainly as it can be written, without cache or batch: what all must equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trials.serve.model import Shape, rope_table
from trials.serve.parts import add_norm_eager, swiglu, turn_real
from trials.serve.weights import Weights


class Reference:
    """Recomputes the whole sequence for every token."""

    def __init__(self, config: Mapping[str, Any], weights: Weights) -> None:
        self.shape, self._weights = Shape.of(config), weights
        tied = bool(config.get("tie_word_embeddings"))
        self._kept = {name: weights(name) for name in ("embed", "norm")}
        self._head = self._kept["embed"] if tied else weights("head")
        self._layers: list[dict[str, Tensor]] = []
        names = ("norm1", "q", "k", "v", "o", "norm2", "gate", "up", "down")
        for i in range(self.shape.layers):
            self._layers.append({n: weights(f"{i}.{n}") for n in names})

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """(T, vocab) in fp32, of every position."""
        shape = self.shape
        x = self._kept["embed"][torch.tensor(tokens, device=self._kept["embed"].device)]
        cos, sin = (t[: len(tokens), None].to(x.dtype) for t in rope_table(shape, x.device))
        for w in self._layers:
            _, y = add_norm_eager(x, None, w["norm1"], shape.eps)
            q = turn_real(F.linear(y, w["q"]).view(-1, shape.heads, shape.dim), cos, sin)
            k = turn_real(F.linear(y, w["k"]).view(-1, shape.kv_heads, shape.dim), cos, sin)
            v = F.linear(y, w["v"]).view(-1, shape.kv_heads, shape.dim)
            repeats = shape.heads // shape.kv_heads
            k, v = (t.repeat_interleave(repeats, 1) for t in (k, v))
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + F.linear(attended.transpose(0, 1).flatten(1), w["o"])
            _, y = add_norm_eager(x, None, w["norm2"], shape.eps)
            x = x + F.linear(swiglu(F.linear(y, w["gate"]), F.linear(y, w["up"])), w["down"])
        _, x = add_norm_eager(x, None, self._kept["norm"], shape.eps)
        return F.linear(x, self._head).float()

    def greedy(self, prompt: Sequence[int], count: int) -> tuple[int, ...]:
        """The most likely ``count`` tokens after the prompt, one by one."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tuple(tokens[len(prompt) :])
