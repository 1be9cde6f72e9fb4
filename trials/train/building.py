"""A model on its device in its dtype, without the slow initialisation that would be overwritten."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trials.settings import Settings
from trials.train import attention, checkpointing, float8, moe, parts
from trials.train.compiling import Compiler
from trials.train.layers import rope_table
from trials.train.model import Decoder, head_dim, is_mixture
from trials.train.precision import Precision
from trials.train.shape import Shape
from trials.train.weights import fill


class Builder:
    """Builds a decoder once, and deepens it."""

    def __init__(
        self,
        config: dict[str, Any],
        settings: Settings,
        device: torch.device,
        precision: Precision,
        compiler: Compiler,
        seed: int,
    ) -> None:
        self._config, self._settings, self._device = config, settings, device
        self._precision, self._compiler, self._seed = precision, compiler, seed

    def model(self, shape: Shape) -> tuple[Decoder, attention.Attention]:
        """A decoder without layers, and the attention that its layers will use."""
        chosen = attention.make(self._settings, self._config, self._probe(shape.length))
        made = parts.choose(
            self._settings,
            self._device,
            chosen.attend,
            compile_ops=self._compiler.scope == "ops",
            moe=is_mixture(self._config),
        )
        if made.experts == "grouped_mm":
            moe.check(self._device, self._precision.compute)
        with _on_paper(self._precision.weights):
            model = Decoder(self._config, made, shape.length)
        model.to_empty(device=self._device)
        if self._config.get("tie_word_embeddings", False):
            model.head.weight = model.embed.weight
        theta = float(self._config["rope_theta"])
        model.cos, model.sin = rope_table(shape.length, head_dim(self._config), theta, self._device)
        fill(model, self._seed, "tables")
        _record(self._settings, model)
        self._checkpointing = checkpointing.make(self._settings)
        model.around = self._checkpointing.around
        self._compiler.model(model)
        return model, chosen

    def grow(self, model: Decoder, depth: int) -> None:
        """Deepen the model: fp8 first, since compilation must see what will run."""
        before = len(model.layers)
        with _on_paper(self._precision.weights):
            new = model.grow(depth)
        for index, block in enumerate(new):
            block.to_empty(device=self._device)
            fill(block, self._seed, f"layer {before + index}")
            block.recompute = self._checkpointing.of_layer(before + index)
        float8.convert(new, None if before else model, self._settings)
        self._compiler.blocks(new)

    def refill(self, model: Decoder) -> None:
        """Every weight that is used as it was at the start."""
        layers, model.layers = model.layers, nn.ModuleList()
        try:
            fill(model, self._seed, "tables")
        finally:
            model.layers = layers
        for index, block in enumerate(layers[: model.active]):
            fill(block, self._seed, f"layer {index}")

    def _probe(self, length: int) -> Tensor:
        heads = int(self._config["num_attention_heads"])
        shape = (1, heads, length, head_dim(self._config))
        return torch.empty(shape, device=self._device, dtype=self._precision.compute)


@contextlib.contextmanager
def _on_paper(dtype: torch.dtype) -> Iterator[None]:
    """New modules have that dtype and no memory yet."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(before)


def _record(settings: Settings, model: Decoder) -> None:
    settings.effective("model.fused_qkv", model.parts.fused_qkv)
    settings.effective("model.fused_gate_up", model.parts.fused_gate_up)
    settings.effective("model.vocab_pad_multiple", model.parts.vocab_multiple)
    settings.fact("vocabulary", model.vocab)
