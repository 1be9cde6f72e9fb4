"""torch.compile: what is compiled, how, and what it took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trials.settings import Settings
from trials.train.model import Decoder


class Compiler:
    """Compiles pieces as the ``compile.*`` knobs say; does nothing when they say no."""

    def __init__(self, settings: Settings) -> None:
        self.enabled = bool(settings.take("compile.enabled", False))
        settings.effective("compile.enabled", self.enabled)
        self.scope = str(settings.take("compile.scope", "block"))
        self.optimizer_too = bool(settings.take("compile.optimizer_step", False))
        self._arguments: dict[str, Any] = {}
        if not self.enabled:
            return
        for name in ("compile.scope", "compile.optimizer_step"):
            settings.effective(name, settings.take(name, False))
        dynamic = settings.take("compile.dynamic", "auto")
        self._arguments["dynamic"] = {"auto": None, "true": True, "false": False}[
            str(dynamic).lower()
        ]
        self._arguments["fullgraph"] = bool(settings.take("compile.fullgraph", False))
        self._arguments |= _mode(settings)
        settings.effective("compile.dynamic", dynamic)
        settings.effective("compile.fullgraph", self._arguments["fullgraph"])

    def blocks(self, blocks: list[nn.Module]) -> None:
        """Compile each decoder layer in place; they share one graph."""
        if self.enabled and self.scope in ("block", "block_and_loss"):
            for block in blocks:
                block.compile(**self._arguments)

    def model(self, model: Decoder) -> None:
        """Compile the decoder as one graph, in place."""
        if self.enabled and self.scope == "model":
            model.compile(**self._arguments)

    def loss(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """Compile the loss where the scope says so."""
        if self.enabled and self.scope in ("model", "block_and_loss"):
            return torch.compile(loss, **self._arguments)
        return loss

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """Compile the optimizer's step where asked for."""
        if self.enabled and self.optimizer_too:
            return torch.compile(step, fullgraph=False)
        return step


def _mode(settings: Settings) -> dict[str, Any]:
    """A mode, or its options with our own inductor settings kept: torch takes one or the other.

    ``torch.compile(mode=...)`` patches only what the mode names, so attributes of
    ``torch._inductor.config`` that knobs have set stay in force beside it.
    """
    mode = str(settings.take("compile.mode", "default"))
    settings.effective("compile.mode", mode)
    return {} if mode == "default" else {"mode": mode}


def counts() -> dict[str, int]:
    """Graphs compiled, recompiles and graph breaks so far in this process."""
    from torch._dynamo.utils import counters

    return {
        "graphs": int(counters["stats"].get("unique_graphs", 0)),
        "calls": int(counters["stats"].get("calls_captured", 0)),
        "breaks": int(sum(counters["graph_break"].values())),
    }


def limit_was_hit() -> bool:
    """Whether dynamo gave up on a frame after too many recompiles and fell back to eager."""
    from torch._dynamo.utils import counters

    text = " ".join(str(key) for key in counters["unimplemented"]) + " ".join(
        str(key) for key in counters["graph_break"]
    )
    return "limit" in text
