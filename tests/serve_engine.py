"""A tiny decoder with loud weights, and engines of it with any knobs, for tests of serving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.serve_baselines import settings_of
from trials.serve import building, choices, sampling, weights
from trials.serve.building import Built
from trials.serve.choices import Choices
from trials.serve.trace import Request
from trials.settings import Settings

CPU = torch.device("cpu")
TINY: dict[str, Any] = {
    "name": "tiny-loud",
    "architecture": "llama",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "vocab_size": 61,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def save_loud_weights(folder: Path) -> dict[str, Any]:
    """A model folder whose every token depends on all that went before, unlike the usual faint
    initial weights, which repeat the last token whatever the cache holds."""
    generator = torch.Generator().manual_seed(7)
    made = {}
    faint = weights.random_weights(TINY, torch.float32, CPU, 0)
    names = ["embed", "norm", "head"]
    layers = range(TINY["num_hidden_layers"])
    names += [f"{i}.{short}" for i in layers for short in weights._LAYER_NAMES]
    for name in names:
        like = faint(name)
        drawn = torch.randn(like.shape, generator=generator)
        loud = 1 + drawn / 4 if like.ndim == 1 else drawn * 1.5 / like.shape[1] ** 0.5
        made[weights._name(name, 0, "model.layers")] = loud.contiguous()
    save_file(made, folder / "model.safetensors")
    return {**TINY, "weights": str(folder)}


def built(model: dict[str, Any], knobs: dict[str, Any], blocks: int) -> tuple[Built, Settings]:
    """An engine's model and cache of so many blocks."""
    settings = settings_of(model, knobs)
    chosen: Choices = choices.choose(settings, model, CPU)
    found = building.build(
        chosen,
        settings,
        model,
        sampling.Wanted(),
        depth=int(model["num_hidden_layers"]),
        blocks=blocks,
    )
    return found, settings


def requests(shared: int = 0, count: int = 9) -> list[Request]:
    """Prompts and answers of many lengths; the first ``shared`` tokens are the same in all."""
    generator = torch.Generator().manual_seed(3)

    def draw(high: int, size: int) -> list[int]:
        return torch.randint(0, high, (size,), generator=generator).tolist()

    prefix = draw(TINY["vocab_size"], shared)
    found = []
    for number in range(count):
        size, answer = 1 + draw(24, 1)[0], 1 + draw(20, 1)[0]
        prompt = (prefix + draw(TINY["vocab_size"], size))[:60]
        found.append(
            Request(
                number=number,
                arrival=0.0,
                prompt=tuple(prompt),
                output_tokens=answer,
                priority=number % 3,
            )
        )
    return found
