"""torch.compile: what is compiled, how, and what it took."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from trials.errors import Unsupported
from trials.settings import Settings

SCOPES = ("block", "block_and_loss", "model", "ops")
_INDUCTOR = "torch._inductor.config."
_DYNAMIC = {"auto": None, "true": True, "false": False}


class Compiler:
    """Compiles pieces as the ``compile.*`` knobs say; does nothing when they say no."""

    def __init__(self, settings: Settings) -> None:
        self.enabled = bool(settings.take("compile.enabled", False))
        settings.effective("compile.enabled", self.enabled)
        self.scope = str(settings.take("compile.scope", "block")) if self.enabled else "none"
        self.optimizer_too = self.enabled and bool(settings.take("compile.optimizer_step", False))
        self._arguments: dict[str, Any] = {}
        self.uses_cudagraphs = False
        if not self.enabled:
            return
        if self.scope not in SCOPES:
            raise Unsupported(f"compile.scope={self.scope} is not one of {', '.join(SCOPES)}")
        dynamic = str(settings.take("compile.dynamic", "auto")).lower()
        fullgraph = bool(settings.take("compile.fullgraph", False))
        self._arguments = {"dynamic": _DYNAMIC[dynamic], "fullgraph": fullgraph}
        options = _options(settings)
        if options:
            self._arguments["options"] = options
        self.uses_cudagraphs = bool(
            options.get("triton.cudagraphs", torch._inductor.config.triton.cudagraphs)
        )
        settings.effective("compile.scope", self.scope)
        settings.effective("compile.optimizer_step", self.optimizer_too)
        settings.effective("compile.dynamic", dynamic)
        settings.effective("compile.fullgraph", fullgraph)

    def blocks(self, blocks: Iterable[nn.Module]) -> None:
        """Compile each decoder layer in place; they share one graph."""
        if self.scope in ("block", "block_and_loss"):
            for block in blocks:
                block.compile(**self._arguments)

    def model(self, model: nn.Module) -> None:
        """Compile the decoder as one graph, in place."""
        if self.scope == "model":
            model.compile(**self._arguments)

    def piece(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """One function, compiled like a block."""
        return torch.compile(call, **self._arguments)

    def loss(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """Compile the head and its loss where the scope says so."""
        if self.scope in ("model", "block_and_loss"):
            return torch.compile(loss, **self._arguments)
        return loss

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """Compile the optimizer's step where asked for."""
        return torch.compile(step, fullgraph=False) if self.optimizer_too else step

    def new_iteration(self) -> None:
        """Graphs of an earlier micro-batch may be overwritten from here on."""
        if self.uses_cudagraphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]


def _options(settings: Settings) -> dict[str, Any]:
    """What a mode stands for, as options; an inductor knob that was set wins over its mode.

    torch takes a mode or options, not both. Attributes that knobs have set stay in force beside
    options that do not name them.
    """
    mode = str(settings.take("compile.mode", "default"))
    options: dict[str, Any] = {}
    if mode != "default":
        options = dict(torch._inductor.list_mode_options(mode))
    for knob in settings.spec.applied:
        path = str(knob.apply.get("torch", ""))
        key = path.removeprefix(_INDUCTOR)
        if path.startswith(_INDUCTOR) and key in options and not knob.is_default:
            options[key] = knob.value
    settings.effective("compile.mode", mode)
    return options


def counts() -> dict[str, int]:
    """Graphs compiled and graph breaks so far in this process."""
    from torch._dynamo.utils import counters

    return {
        "graphs": int(counters["stats"].get("unique_graphs", 0)),
        "breaks": int(sum(counters["graph_break"].values())),
    }


def limit_was_hit() -> bool:
    """Whether dynamo gave up on a frame after too many recompiles and fell back to eager."""
    from torch._dynamo.utils import counters

    texts = [str(text).lower() for text in (*counters["unimplemented"], *counters["graph_break"])]
    return any("recompile limit" in t or "cache_size_limit" in t for t in texts)
