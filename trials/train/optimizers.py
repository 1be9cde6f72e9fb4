"""Optimizers by name and implementation, read back from the objects that were built."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from trials.errors import Unsupported
from trials.settings import Settings

Named = Sequence[tuple[str, nn.Parameter]]
_LOW_BIT = {
    "adamw8bit_torchao": "AdamW8bit",
    "adamw4bit_torchao": "AdamW4bit",
    "adamwfp8_torchao": "AdamWFp8",
}
_IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "unset": {},  # torch chooses: foreach on CUDA, a loop on a CPU
    "for_loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
_TABLES = ("embed.weight", "head.weight")


def make(parameters: Named, settings: Settings, *, capturable: bool = False) -> Any:
    """An optimizer over the parameters, as the ``optim.*`` knobs say; ``capturable`` when its
    step is to be captured in a graph."""
    name = str(settings.take("optim.name", "adamw"))
    common: dict[str, Any] = {
        "lr": float(settings.take("optim.lr", 3e-4)),
        "weight_decay": float(settings.take("optim.weight_decay", 0.01)),
    }
    chosen = [parameter for _, parameter in parameters]
    if capturable:  # a rate on the device, so that a replayed step can be given another
        common["lr"] = torch.tensor(common["lr"], device=chosen[0].device)
    adam = common | _adam(settings)
    optimizer: Any
    if name == "adamw":
        optimizer = _adamw(chosen, settings, adam, capturable)
    elif name == "sgd":
        optimizer = torch.optim.SGD(chosen, momentum=0.9, **common, **_implementation(settings))
    elif name == "adafactor":
        optimizer = torch.optim.Adafactor(chosen, **common)
    elif name == "muon_adamw":
        optimizer = _muon(parameters, settings, common, adam)
    elif name in _LOW_BIT:
        optimizer = _low_bit(_LOW_BIT[name], chosen, adam, settings)
    elif name == "adamw8bit_bnb":
        optimizer = _bitsandbytes(chosen, adam, settings)
    else:
        raise Unsupported(f"optim.name={name} is not built here")
    _read_back(name, optimizer, settings)
    return optimizer


def _adam(settings: Settings) -> dict[str, Any]:
    betas = (settings.take("optim.beta1", 0.9), settings.take("optim.beta2", 0.999))
    eps = float(settings.take("optim.eps", 1e-8))
    return {"betas": (float(betas[0]), float(betas[1])), "eps": eps}


def _implementation(settings: Settings) -> dict[str, bool]:
    return _IMPLEMENTATIONS[settings.take("optim.impl", "unset")]


def _adamw(
    chosen: list[nn.Parameter], settings: Settings, adam: dict[str, Any], capturable: bool
) -> Any:
    if settings.take("optim.cpu_offload", False):
        return _offloaded(chosen, settings, adam)
    if settings.take("optim.bf16_stochastic_round", False):
        made = _torchao("optim.bf16_stochastic_round")._AdamW(
            chosen, bf16_stochastic_round=True, **adam
        )
        settings.effective("optim.bf16_stochastic_round", made.bf16_stochastic_round)
        return made
    capturable = capturable or bool(settings.take("optim.capturable", False))
    how: dict[str, Any] = _implementation(settings)
    try:
        return torch.optim.AdamW(chosen, capturable=capturable, **adam, **how)
    except RuntimeError as error:  # such as fused over a device that has no such kernel
        raise Unsupported(f"optim.impl={settings.take('optim.impl')}: {error}") from error


def _offloaded(chosen: list[nn.Parameter], settings: Settings, adam: dict[str, Any]) -> Any:
    if not chosen[0].is_cuda:
        raise Unsupported("optim.cpu_offload needs weights on a GPU")
    gradients = bool(settings.take("optim.offload_gradients", False))
    made = _torchao("optim.cpu_offload").CPUOffloadOptimizer(
        chosen, torch.optim.AdamW, offload_gradients=gradients, **adam
    )
    settings.effective("optim.cpu_offload", True)
    settings.effective("optim.offload_gradients", gradients)
    return made


def _low_bit(
    kind: str, chosen: list[nn.Parameter], adam: dict[str, Any], settings: Settings
) -> Any:
    library = _torchao(f"optim.name={settings.take('optim.name')}")
    block = int(settings.take("optim.state_block_size", 128 if kind == "AdamW4bit" else 256))
    rounding = bool(settings.take("optim.bf16_stochastic_round", False))
    made = getattr(library, kind)(chosen, block_size=block, bf16_stochastic_round=rounding, **adam)
    settings.effective("optim.state_block_size", made.block_size)
    settings.effective("optim.bf16_stochastic_round", made.bf16_stochastic_round)
    return made


def _torchao(knob: str) -> Any:
    try:
        return importlib.import_module("torchao.optim")
    except ImportError as error:
        raise Unsupported(f"{knob} needs torchao: {error}") from error


def _bitsandbytes(chosen: list[nn.Parameter], adam: dict[str, Any], settings: Settings) -> Any:
    try:
        library = importlib.import_module("bitsandbytes.optim")
    except ImportError as error:
        raise Unsupported(f"optim.name=adamw8bit_bnb needs bitsandbytes: {error}") from error
    smallest = int(settings.take("optim.bnb_min_8bit_size", 4096))
    settings.effective("optim.bnb_min_8bit_size", smallest)
    return library.AdamW8bit(chosen, min_8bit_size=smallest, **adam)


class Muon:
    """Muon for the matrices of the layers, AdamW for the rest: one optimizer to its users."""

    def __init__(
        self, named: Named, steps: int, common: dict[str, Any], adam: dict[str, Any]
    ) -> None:
        inner = [p for name, p in named if p.dim() == 2 and name not in _TABLES]
        others = [p for name, p in named if p.dim() != 2 or name in _TABLES]
        parts: list[torch.optim.Optimizer] = []
        if inner:
            parts.append(
                torch.optim.Muon(inner, ns_steps=steps, adjust_lr_fn="match_rms_adamw", **common)
            )
        if others:
            parts.append(torch.optim.AdamW(others, **adam))
        self.parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]

    def step(self) -> None:
        """Update every weight."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every gradient."""
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)


def _muon(
    parameters: Named, settings: Settings, common: dict[str, Any], adam: dict[str, Any]
) -> Any:
    if not hasattr(torch.optim, "Muon"):
        raise Unsupported(f"torch {torch.__version__} has no Muon")
    steps = int(settings.take("optim.muon_ns_steps", 5))
    made = Muon(parameters, steps, common, adam)
    settings.effective("optim.muon_ns_steps", made.param_groups[0].get("ns_steps", steps))
    return made


def _read_back(name: str, optimizer: Any, settings: Settings) -> None:
    group = optimizer.param_groups[0]
    settings.effective("optim.name", name)
    settings.effective("optim.lr", _number(group["lr"], settings.take("optim.lr", 3e-4)))
    settings.effective("optim.weight_decay", float(group["weight_decay"]))
    for candidate in optimizer.param_groups[::-1]:
        if "betas" in candidate:
            settings.effective("optim.beta1", float(candidate["betas"][0]))
            settings.effective("optim.beta2", float(candidate["betas"][1]))
            settings.effective("optim.eps", float(candidate["eps"]))
            break
    if name in ("adamw", "sgd"):
        settings.effective("optim.impl", _live_implementation(group))
        settings.effective("optim.capturable", bool(group.get("capturable", False)))


def _number(live: Any, asked: Any) -> float:
    """A rate kept as an fp32 tensor reads back with rounding; that much is no mismatch."""
    value = float(live)
    return float(asked) if abs(value - float(asked)) <= 1e-6 * abs(float(asked)) else value


def _live_implementation(group: dict[str, Any]) -> str:
    if group.get("fused"):
        return "fused"
    if group.get("foreach"):
        return "foreach"
    return "for_loop" if group.get("foreach") is False else "unset"
