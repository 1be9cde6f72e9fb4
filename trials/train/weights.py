"""Starting weights, the same whatever the layout and dtype of the model, and how many there are."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from trials.train.model import Block, Decoder, head_dim, is_mixture

_SCALE = 0.02
_RESIDUAL = 1 / math.sqrt(8)  # of the matrices that write into the residual stream
_TILE = 1 << 20


@torch.no_grad()
def fill(module: nn.Module, seed: int, place: str) -> None:
    """Plain normal weights by seed and place: configurations start from the same function.

    On a CPU one small random block is tiled over every matrix, because a real draw of 400 million
    weights takes longer than a step there, and neither speed nor memory depends on the values.
    """
    for name, piece in _pieces(module):
        if piece.dim() < 2:
            piece.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        scale = _SCALE * (_RESIDUAL if name.endswith(("o.weight", "down.weight", "down")) else 1)
        key = zlib.crc32(f"{seed}:{place}:{name}".encode())
        if piece.device.type == "cuda":
            generator = torch.Generator(piece.device).manual_seed(key)
            # Drawn in fp32: the stream of a generator differs by dtype.
            draw = torch.empty(piece.shape, device=piece.device)
            piece.copy_(draw.normal_(0.0, scale, generator=generator))
        else:
            _tile(piece, scale, key)


def _pieces(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters under the names that they have when nothing is fused, in pieces of that size."""
    for name, weight in module.named_parameters():
        owner = module.get_submodule(name.rpartition(".")[0])
        if name in ("qkv.weight", "qkv.bias") and isinstance(module, Block):
            kind = name.rpartition(".")[2]
            pieces = torch.split(weight, module.sizes)
            yield from ((f"{n}.{kind}", p) for n, p in zip("qkv", pieces, strict=True))
        elif name == "mlp.gate_up.weight":
            yield from zip(("mlp.gate.weight", "mlp.up.weight"), weight.chunk(2), strict=True)
        elif isinstance(module, Decoder) and name in ("embed.weight", "head.weight"):
            vocab = int(module.config["vocab_size"])
            weight[vocab:].zero_()
            yield name, weight[:vocab]
        else:
            assert owner is not None
            yield name, weight


@lru_cache(maxsize=1)
def _noise() -> Tensor:
    return torch.randn(_TILE, generator=torch.Generator().manual_seed(0))


def _tile(piece: Tensor, scale: float, key: int) -> None:
    source = _noise().roll(key % _TILE).mul(scale).to(piece.dtype)
    flat = piece.view(-1)
    whole = flat.numel() // _TILE * _TILE
    flat[:whole].view(-1, _TILE).copy_(source.expand(whole // _TILE, -1))
    flat[whole:].copy_(source[: flat.numel() - whole])


def counts(config: Mapping[str, Any], depth: int) -> tuple[int, int]:
    """(parameters that multiply each token, all parameters) at that depth, the head among both.

    Of a mixture only the experts chosen for a token multiply it; an embedding is looked up.
    """
    hidden, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    heads, kv = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
    attention = hidden * head_dim(config) * (2 * heads + 2 * kv)
    expert, used, held = 3 * hidden * inner, 1, 1
    router = 0
    if is_mixture(config):
        used, held = int(config["num_experts_per_tok"]), int(config["num_local_experts"])
        router = hidden * held
    shared = attention + router + 2 * hidden
    table = int(config["vocab_size"]) * hidden
    tables = table * (1 if config.get("tie_word_embeddings") else 2)
    active = depth * (shared + used * expert) + hidden + table
    return active, depth * (shared + held * expert) + hidden + tables
