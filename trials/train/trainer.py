"""A model with its optimizer, and one whole optimiser step of it."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor, nn

from trials.errors import Unsupported
from trials.settings import Settings
from trials.train import cudagraph, loss, optimizers, precision, shape
from trials.train.building import Builder
from trials.train.clock import Clock
from trials.train.compiling import Compiler
from trials.train.cudagraph import Recorded
from trials.train.data import Batch, Feed
from trials.train.gradients import MasterWeights, Sums
from trials.train.process import GarbageCollection
from trials.train.schedule import Schedule
from trials.train.text import Rows


class Trainer:
    """Builds once and grows deeper; ``step`` is one optimiser step, accumulation included."""

    def __init__(
        self, config: dict[str, Any], settings: Settings, device: torch.device, seed: int
    ) -> None:
        self.settings, self.device, self.seed = settings, device, seed
        self.shape = shape.choose(settings)
        self.precision = precision.choose(settings, device)
        self.compiler = Compiler(settings)
        self.garbage = GarbageCollection(settings)
        self._read_step_knobs()
        self.builder = Builder(config, settings, device, self.precision, self.compiler, seed)
        self.model, self.attention = self.builder.model(self.shape)
        self.loss = self.compiler.loss(loss.make(settings, device))
        self.feed = Feed(settings, self._rows(), self.shape.micro, device)
        self.optimizer: Any = None
        self.master: MasterWeights | None = None
        self.sums: Sums | None = None
        self._recorded: Recorded | None = None
        self.steps_done = self.useful_tokens = 0

    def _read_step_knobs(self) -> None:
        take, effective = self.settings.take, self.settings.effective
        self.clip = float(take("train.grad_clip_norm", 0.0))
        foreach = str(take("train.grad_clip_foreach", "unset"))
        self.clip_foreach = {"unset": None, "true": True, "false": False}[foreach.lower()]
        self.set_to_none = bool(take("train.zero_grad_set_to_none", True))
        self.sync_interval = int(take("train.loss_sync_interval", 0))
        self.graph_mode = str(take("train.cudagraph_step", "none"))
        self._graph_warm_up = int(take("train.cudagraph_warmup_iters", 3))
        effective("train.grad_clip_norm", self.clip)
        effective("train.grad_clip_foreach", foreach)
        effective("train.loss_sync_interval", self.sync_interval)
        effective("train.cudagraph_step", self.graph_mode)
        effective("train.cudagraph_warmup_iters", self._graph_warm_up)
        if self.graph_mode != "none":
            self._check_recordable()
        if self.graph_mode != "none" or self.compiler.uses_cudagraphs:
            self.set_to_none = False  # replayed graphs write into gradients that stay in place
        effective("train.zero_grad_set_to_none", self.set_to_none)

    def _check_recordable(self) -> None:
        if self.device.type != "cuda" or self.graph_mode not in cudagraph.MODES:
            raise Unsupported(f"train.cudagraph_step={self.graph_mode} needs a GPU")
        take = self.settings.take
        for what, found in (
            ("loss scaling", self.precision.scaler is not None),
            ("optim.master_weights", bool(take("optim.master_weights", False))),
            ("train.grad_accum_dtype", self.precision.accumulate is not None),
            ("optim.in_backward", bool(take("optim.in_backward", False))),
            ("optim.cpu_offload", bool(take("optim.cpu_offload", False))),
            ("documents", bool(take("train.document_tokens", 0))),
            ("ac.mode=offload", take("ac.mode", "none") == "offload"),
            ("a compile mode with CUDA graphs", self.compiler.uses_cudagraphs),
            ("autocast's cache", _caches_casts(self.settings)),
        ):
            if found:
                raise Unsupported(f"train.cudagraph_step={self.graph_mode} excludes {what}")

    def _rows(self) -> Rows:
        take, effective = self.settings.take, self.settings.effective
        documents = int(take("train.document_tokens", 0))
        packed = bool(take("train.sequence_packing", False))
        multiple = int(take("train.pad_to_multiple_of", 1))
        effective("train.document_tokens", documents)
        effective("train.sequence_packing", packed)
        effective("train.pad_to_multiple_of", multiple)
        if packed and documents and self.attention.mask is None:
            self.settings.notice("packed documents see each other: this attention has no such mask")
        return Rows(
            split="train",
            seed=self.seed,
            length=self.shape.length,
            document_tokens=documents,
            packed=packed,
            pad_multiple=multiple,
        )

    def grow(self, depth: int) -> None:
        """Deepen the model; the optimizer keeps the states of what was there before."""
        before = self.optimizer
        self.optimizer = self.master = self._recorded = None
        self.model.zero_grad(set_to_none=True)
        self._collect()
        self.builder.grow(self.model, depth)
        self._collect()  # what filling the weights took is not the model's
        self.reset_optimizer()
        if isinstance(before, torch.optim.Optimizer) and self.master is None:
            held = getattr(before, "state", None)
            if held:
                self.optimizer.state.update(held)

    def _collect(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def reset_optimizer(self) -> None:
        """A fresh optimizer over the weights as they are now."""
        self.optimizer = self.master = self.sums = self._recorded = None
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        for _, weight in named:
            _forget_hooks(weight)
        keep = bool(self.settings.take("optim.master_weights", False))
        self.settings.effective("optim.master_weights", keep)
        if self.precision.accumulate is not None:
            self.sums = Sums((p for _, p in named), self.precision.accumulate)
        if keep and self.precision.weights != torch.float32:
            self.master = MasterWeights(p for _, p in named)
            copies = self.master.master
            named = [(n, m) for (n, _), m in zip(named, copies, strict=True)]
        full = self.graph_mode == "full_step"
        self.optimizer = optimizers.make(named, self.settings, capturable=full)
        self.schedule = Schedule(self.settings, self.optimizer.param_groups)
        self._step = self.compiler.optimizer(self.optimizer.step)
        in_backward = bool(self.settings.take("optim.in_backward", False))
        self.settings.effective("optim.in_backward", in_backward)
        if in_backward:
            self._step_in_backward(named)
        if not self.set_to_none and self.sums is None:
            for weight in self.model.parameters():
                weight.grad = torch.zeros_like(weight)

    def _step_in_backward(self, named: list[tuple[str, nn.Parameter]]) -> None:
        """One optimizer per parameter, run as soon as its gradient is there and then freed."""
        if self.shape.accumulation > 1 or self.clip or self.precision.scaler or self.master:
            raise Unsupported(
                "optim.in_backward excludes accumulation, clipping, loss scaling and master weights"
            )
        own = {weight: optimizers.make([(n, weight)], self.settings) for n, weight in named}
        self.schedule = Schedule(self.settings, [g for o in own.values() for g in o.param_groups])

        def update(weight: Tensor) -> None:
            assert isinstance(weight, nn.Parameter)
            own[weight].step()
            weight.grad = None

        for weight in own:
            weight.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]
        self._step = lambda: None

    def step(self, micro_batches: int | None = None, clock: Clock | None = None) -> Tensor:
        """One optimiser step of so many micro-batches (all of them by default); mean loss on the
        device. Marks the clock after every micro-batch and after the optimizer."""
        count = micro_batches or self.shape.accumulation
        self.schedule.advance()
        total: Tensor | None = None
        for _ in range(count):
            batch = self.feed.next()
            self.useful_tokens += batch.useful
            part = self._micro(batch, count)
            total = part if total is None else total + part
            if clock is not None:
                clock.mark()
        if self._recorded is None or not self._recorded.update():
            self.update()
        self.garbage.after_step()
        assert total is not None
        self.steps_done += 1
        if self.sync_interval and self.steps_done % self.sync_interval == 0:
            total.item()
        if clock is not None:
            clock.mark()
        return total

    def _micro(self, batch: Batch, count: int) -> Tensor:
        if self.graph_mode == "none":
            return self.forward_backward(batch, 1 / count)
        if self._recorded is None:
            self._recorded = Recorded(
                lambda inputs, targets, share: self.forward_backward(
                    Batch(inputs=inputs, targets=targets, documents=None, useful=0), share
                ),
                self.update if self.graph_mode == "full_step" else None,
                (self.shape.micro, self.shape.length),
                self._graph_warm_up,
            )
        return self._recorded.micro(batch.inputs, batch.targets, count)

    def forward_backward(self, batch: Batch, share: float | Tensor) -> Tensor:
        """Gradients of one micro-batch; its share of the mean loss."""
        self.compiler.new_iteration()
        value = self.forward(batch) * share
        scaler = self.precision.scaler
        scaled = value if scaler is None else scaler.scale(value)
        scaled.backward()  # type: ignore[no-untyped-call]
        kept = value.detach()
        return kept.clone() if self.compiler.uses_cudagraphs else kept

    def forward(self, batch: Batch) -> Tensor:
        """The mean loss of a micro-batch, in nats per token."""
        mask = None
        if self.attention.mask is not None:
            mask = self.attention.mask(batch.documents, *batch.inputs.shape)
        with self.precision.autocast():
            hidden = self.model(batch.inputs, mask)
            found = self.loss(hidden.flatten(0, 1), self.model.head, batch.targets.flatten())
        assert isinstance(found, Tensor)
        return found

    def update(self) -> None:
        """The optimizer's step over the gradients there are, which are dropped."""
        scaler = self.precision.scaler
        if self.master is not None:
            self.master.gather_gradients(self.sums)
        elif self.sums is not None:
            self.sums.release()
        if scaler is not None and self.clip:
            scaler.unscale_(self.optimizer)
        if self.clip:
            weights = self.master.master if self.master else self.model.parameters()
            nn.utils.clip_grad_norm_(weights, self.clip, foreach=self.clip_foreach)
        if scaler is None:
            self._step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        if self.master is not None:
            self.master.spread()
            self.model.zero_grad(set_to_none=self.set_to_none)
        if self.sums is not None:
            self.sums.clear()

    def restart(self, layers: int) -> None:
        """From the first weights, the first rows and a fresh optimizer, with so many layers."""
        self.model.active = layers
        self.model.zero_grad(set_to_none=True)
        self.optimizer = self.master = self._recorded = None
        self._collect()
        self.builder.refill(self.model)
        self.reset_optimizer()
        self.feed.restart()
        if self.precision.scaler is not None:
            self.precision = precision.choose(self.settings, self.device)

    def close(self) -> None:
        """End what runs beside the training."""
        self.feed.close()


def _caches_casts(settings: Settings) -> bool:
    """Whether autocast would keep casts of weights made outside the graph."""
    return bool(
        settings.take("precision.compute_dtype", "fp32") != "fp32"
        and settings.take("precision.mode", "autocast") == "autocast"
        and settings.take("precision.autocast_cache_enabled", True)
    )


def _forget_hooks(weight: Any) -> None:
    """Those of an optimizer that is gone; some libraries keep no handle to remove theirs by."""
    weight._post_accumulate_grad_hooks = None
