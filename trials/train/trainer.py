"""A model with its optimizer, and one whole optimiser step of it."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor

from trials.errors import Unsupported
from trials.settings import Settings
from trials.train import checkpointing, loss, optimizers, precision
from trials.train.attention import make as make_attention
from trials.train.clock import Clock
from trials.train.compiling import Compiler
from trials.train.model import Decoder, Parts, fill
from trials.train.text import Batches, Shape


def shape_of(settings: Settings, ranks: int = 1) -> Shape:
    """From the batch knobs; Unsupported when the micro-batch does not divide the global batch."""
    micro = int(settings.take("train.micro_batch_size", 1))
    whole = int(settings.take("train.global_batch_size", 16))
    length = int(settings.take("train.seq_len", 2048))
    if whole % (micro * ranks):
        raise Unsupported(
            f"{ranks} ranks of micro-batch {micro} do not divide global batch {whole}"
        )
    for name, value in (
        ("micro_batch_size", micro),
        ("global_batch_size", whole),
        ("seq_len", length),
    ):
        settings.effective(f"train.{name}", value)
    return Shape(micro=micro, accumulation=whole // (micro * ranks), length=length)


class Trainer:
    """Builds once and grows deeper; ``step`` is one optimiser step, accumulation included."""

    def __init__(
        self, config: dict[str, Any], settings: Settings, device: torch.device, seed: int
    ) -> None:
        self.settings, self.device, self.seed = settings, device, seed
        self.shape = shape_of(settings)
        self.precision = precision.choose(settings, device)
        self.compiler = Compiler(settings)
        self.clip = float(settings.take("train.grad_clip_norm", 0.0))
        foreach = str(settings.take("train.grad_clip_foreach", "unset"))
        self.clip_foreach = {"unset": None, "true": True, "false": False}[foreach]
        settings.effective("train.grad_clip_foreach", foreach)
        self.set_to_none = bool(settings.take("train.zero_grad_set_to_none", True))
        settings.effective("train.grad_clip_norm", self.clip)
        settings.effective("train.zero_grad_set_to_none", self.set_to_none)
        with torch.device(device):
            self.model = Decoder(config, _parts(settings, self), self.shape.length)
        self._place(self.model)
        self.model.checkpoint = checkpointing.make(settings)
        self.loss = self.compiler.loss(loss.make(settings))
        self.compiler.model(self.model)
        non_blocking = bool(settings.take("train.h2d_non_blocking", True))
        pinned = bool(settings.take("data.pin_memory", False))
        settings.effective("train.h2d_non_blocking", non_blocking)
        settings.effective("data.pin_memory", pinned and device.type == "cuda")
        self.batches = Batches(
            "train", self.shape, seed, device, pinned=pinned, non_blocking=non_blocking
        )
        self.optimizer: Any = None
        self.master: optimizers.MasterWeights | None = None
        self.skipped = 0

    def grow(self, depth: int) -> None:
        """Deepen the model and start its optimizer anew."""
        self.optimizer = self.master = None
        self.model.zero_grad(set_to_none=True)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        with torch.device(self.device):
            before = torch.get_default_dtype()
            torch.set_default_dtype(self.precision.weights)
            try:
                new = self.model.grow(depth)
            finally:
                torch.set_default_dtype(before)
        for index, block in enumerate(new):
            fill(block, self.seed + 1 + len(self.model.layers) - len(new) + index)
        first = len(self.model.layers) == len(new)
        head = [self.model] if first and self.settings.take("float8.include_head", False) else []
        precision.to_float8(list(new), head, self.settings)
        self.compiler.blocks(list(new))
        self._make_optimizer()

    def _place(self, model: Decoder) -> None:
        model.to(self.precision.weights)
        fill(model, self.seed)

    def _make_optimizer(self) -> None:
        weights = [p for p in self.model.parameters() if p.requires_grad]
        keep = self.settings.take("optim.master_weights", False)
        self.settings.effective("optim.master_weights", bool(keep))
        if keep and self.precision.weights != torch.float32:
            self.master = optimizers.MasterWeights(weights)
            weights = self.master.master
        self.optimizer = optimizers.make(weights, self.settings)
        self._step = self.compiler.optimizer(self.optimizer.step)
        in_backward = bool(self.settings.take("optim.in_backward", False))
        self.settings.effective("optim.in_backward", in_backward)
        if in_backward:
            self._step_in_backward(weights)

    def _step_in_backward(self, weights: list[torch.nn.Parameter]) -> None:
        """One optimizer per parameter, run as soon as its gradient is there and then freed."""
        if self.shape.accumulation > 1 or self.clip or self.precision.scaler or self.master:
            raise Unsupported(
                "optim.in_backward excludes accumulation, clipping, loss scaling and master weights"
            )
        own = {w: optimizers.make([w], self.settings) for w in weights}

        def update(weight: torch.nn.Parameter) -> None:
            own[weight].step()
            weight.grad = None

        for weight in weights:
            weight.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]
        self._step = lambda: None

    def step(self, micro_batches: int | None = None, clock: Clock | None = None) -> Tensor:
        """One optimiser step of so many micro-batches (all of them by default); mean loss on the
        device. Marks the clock after every micro-batch and after the optimizer."""
        count = micro_batches or self.shape.accumulation
        total: Tensor | None = None
        for _ in range(count):
            part = self._micro(count)
            total = part if total is None else total + part
            if clock is not None:
                clock.mark()
        self._update()
        if clock is not None:
            clock.mark()
        assert total is not None
        return total

    def _micro(self, count: int) -> Tensor:
        inputs, targets = self.batches.next()
        with self.precision.autocast():
            hidden = self.model(inputs)
            value = self.loss(hidden.flatten(0, 1), self.model.head, targets.flatten()) / count
        scaler = self.precision.scaler
        (value if scaler is None else scaler.scale(value)).backward()
        return value.detach()  # type: ignore[no-any-return]

    def _update(self) -> None:
        scaler = self.precision.scaler
        if self.master is not None:
            self.master.gather_gradients()
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        if self.clip:
            weights = self.master.master if self.master else self.model.parameters()
            torch.nn.utils.clip_grad_norm_(weights, self.clip, foreach=self.clip_foreach)
        if scaler is None:
            self._step()
        else:
            before = scaler.get_scale()
            scaler.step(self.optimizer)
            scaler.update()
            self.skipped += scaler.get_scale() < before
        if self.master is not None:
            self.master.spread()
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        if self.master is None:
            return
        self.model.zero_grad(set_to_none=self.set_to_none)


_FLEX = {
    "block_m": "BLOCK_M",
    "block_n": "BLOCK_N",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
    "bwd_block_m1": "BLOCK_M1",
    "bwd_block_n1": "BLOCK_N1",
    "bwd_block_m2": "BLOCK_M2",
    "bwd_block_n2": "BLOCK_N2",
    "prescale_qk": "PRESCALE_QK",
    "rows_guaranteed_safe": "ROWS_GUARANTEED_SAFE",
    "blocks_are_contiguous": "BLOCKS_ARE_CONTIGUOUS",
    "write_dq": "WRITE_DQ",
    "use_tma": "USE_TMA",
    "kernel_backend": "BACKEND",
    "mask_block_size": "MASK_BLOCK_SIZE",
}


def _flex_options(settings: Settings) -> dict[str, int | bool | str]:
    """Kernel options of flex attention away from their defaults, by torch's own names."""
    found: dict[str, int | bool | str] = {}
    defaults = {k.name for k in settings.spec.applied if k.is_default}
    for short, key in _FLEX.items():
        name = f"attention.flex.{short}"
        value = settings.take(name)
        if value is not None:
            settings.effective(name, value)
        if value not in (None, "auto") and name not in defaults:
            found[key] = value
    return found


def _parts(settings: Settings, trainer: Trainer) -> Parts:
    flex = _flex_options(settings)
    gqa = bool(settings.take("attention.enable_gqa", False))
    backend = str(settings.take("attention.backend", "sdpa_auto"))
    names = {
        "norm": "kernel.rmsnorm.impl",
        "rope": "kernel.rope.impl",
        "swiglu": "kernel.swiglu.impl",
    }
    defaults = {"norm": "f_rms_norm", "rope": "real_cached", "swiglu": "eager"}
    chosen = {part: settings.take(names[part], defaults[part]) for part in names}
    if trainer.device.type == "cpu" and {"triton", "fused_triton"} & set(chosen.values()):
        raise Unsupported("Triton kernels need a GPU")
    parts = Parts(
        attention=make_attention(backend, enable_gqa=gqa, flex_options=flex),
        fused_qkv=bool(settings.take("model.fused_qkv", False)),
        fused_gate_up=bool(settings.take("model.fused_gate_up", False)),
        vocab_multiple=int(settings.take("model.vocab_pad_multiple", 1)),
        **chosen,
    )
    settings.effective("attention.backend", backend)
    settings.effective("attention.enable_gqa", gqa)
    for part, name in names.items():
        settings.effective(name, getattr(parts, part))
    settings.effective("model.fused_qkv", parts.fused_qkv)
    settings.effective("model.fused_gate_up", parts.fused_gate_up)
    settings.effective("model.vocab_pad_multiple", parts.vocab_multiple)
    return parts
