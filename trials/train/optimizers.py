"""Optimizers by name and implementation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trials.errors import Unsupported
from trials.settings import Settings


def make(parameters: Iterable[nn.Parameter], settings: Settings) -> Any:
    """An optimizer over the parameters, as the ``optim.*`` knobs say."""
    name = settings.take("optim.name", "adamw")
    lr = float(settings.take("optim.lr", 3e-4))
    decay = float(settings.take("optim.weight_decay", 0.01))
    betas = (float(settings.take("optim.beta1", 0.9)), float(settings.take("optim.beta2", 0.999)))
    eps = float(settings.take("optim.eps", 1e-8))
    common: dict[str, Any] = {"lr": lr, "weight_decay": decay}
    adam: dict[str, Any] = {**common, "betas": betas, "eps": eps}
    chosen = list(parameters)
    if name in ("adamw", "sgd"):
        arguments = _implementation(settings)
        if name == "sgd":
            optimizer: Any = torch.optim.SGD(chosen, momentum=0.9, **common, **arguments)
        else:
            capturable = bool(settings.take("optim.capturable", False))
            optimizer = torch.optim.AdamW(chosen, capturable=capturable, **adam, **arguments)
            settings.effective("optim.capturable", optimizer.param_groups[0]["capturable"])
        _read_implementation(settings, optimizer)
    elif name == "adafactor":
        optimizer = torch.optim.Adafactor(chosen, **common)
    elif name.endswith("_torchao"):
        optimizer = _low_bit(name, chosen, adam, settings)
    else:
        raise Unsupported(f"optim.name={name} is not built here")
    settings.effective("optim.name", name)
    group = optimizer.param_groups[0]
    settings.effective("optim.lr", float(group["lr"]))
    settings.effective("optim.weight_decay", float(group["weight_decay"]))
    if "betas" in group:
        settings.effective("optim.beta1", float(group["betas"][0]))
        settings.effective("optim.beta2", float(group["betas"][1]))
        settings.effective("optim.eps", float(group["eps"]))
    return optimizer


def _implementation(settings: Settings) -> dict[str, Any]:
    """``unset`` lets torch choose, which is foreach on CUDA and a loop on a CPU."""
    impl = settings.take("optim.impl", "unset")
    return {
        "unset": {},
        "for_loop": {"foreach": False, "fused": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }[impl]


def _read_implementation(settings: Settings, optimizer: Any) -> None:
    group = optimizer.param_groups[0]
    live = "unset"
    if group.get("fused"):
        live = "fused"
    elif group.get("foreach"):
        live = "foreach"
    elif group.get("foreach") is False:
        live = "for_loop"
    settings.effective("optim.impl", live)


def _low_bit(
    name: str, parameters: list[nn.Parameter], adam: dict[str, Any], settings: Settings
) -> Any:
    try:
        from torchao import optim
    except ImportError as error:
        raise Unsupported(f"optim.name={name} needs torchao: {error}") from error
    kinds = {
        "adamw8bit_torchao": optim.AdamW8bit,
        "adamw4bit_torchao": optim.AdamW4bit,
        "adamwfp8_torchao": optim.AdamWFp8,
    }
    if name not in kinds:
        raise Unsupported(f"torchao has no {name}")
    block = int(settings.take("optim.state_block_size", 256))
    rounding = bool(settings.take("optim.bf16_stochastic_round", False))
    settings.effective("optim.state_block_size", block)
    settings.effective("optim.bf16_stochastic_round", rounding)
    return kinds[name](parameters, block_size=block, bf16_stochastic_round=rounding, **adam)


class MasterWeights:
    """fp32 copies of low-precision weights: the optimizer updates them, the model gets them
    rounded."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.model = [p for p in parameters if p.requires_grad]
        self.master = [nn.Parameter(p.detach().float()) for p in self.model]

    def gather_gradients(self) -> None:
        """Hand the model's gradients over, and free them."""
        for master, parameter in zip(self.master, self.model, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None

    @torch.no_grad()
    def spread(self) -> None:
        """Round the updated weights into the model."""
        torch._foreach_copy_([p.data for p in self.model], [m.data for m in self.master])
