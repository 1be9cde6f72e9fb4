"""Batches on their way to the device: loader processes, pinned memory, copies ahead of use."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trials.settings import Settings
from trials.train.text import Rows

_MANY = 1 << 40  # batches: more than any trial reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch. ``documents`` is None for running text."""

    inputs: Tensor
    targets: Tensor
    documents: Tensor | None
    useful: int  # targets that are no padding


class _Micro(Dataset[Any]):
    """Micro-batches by number."""

    def __init__(self, rows: Rows, micro: int) -> None:
        self.rows, self.micro = rows, micro

    def __len__(self) -> int:
        return _MANY

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor | None, int]:
        return self.rows.batch(index * self.micro, self.micro)


class Feed:
    """Endless micro-batches on the device, as the ``data.*`` knobs say."""

    def __init__(self, settings: Settings, rows: Rows, micro: int, device: torch.device) -> None:
        self._device = device
        self._data = _Micro(rows, micro)
        self._non_blocking = bool(settings.take("train.h2d_non_blocking", True))
        self._pin = bool(settings.take("data.pin_memory", False)) and device.type == "cuda"
        workers = int(settings.take("data.num_workers", 0))
        ahead = int(settings.take("data.device_prefetch", 0)) if device.type == "cuda" else 0
        settings.effective("train.h2d_non_blocking", self._non_blocking)
        settings.effective("data.pin_memory", self._pin)
        settings.effective("data.num_workers", workers)
        settings.effective("data.device_prefetch", ahead)
        self._loader = _loader(settings, self._data, workers, self._pin) if workers else None
        self._host = iter(self._loader) if self._loader else self._inline()
        self._stream = torch.cuda.Stream() if ahead else None  # type: ignore[no-untyped-call]
        self._ready: deque[Batch] = deque()
        self._ahead = ahead

    def next(self) -> Batch:
        """The next micro-batch."""
        if self._stream is None:
            return self._moved(next(self._host))
        while len(self._ready) <= self._ahead:
            with torch.cuda.stream(self._stream):
                self._ready.append(self._moved(next(self._host)))
        torch.cuda.current_stream().wait_stream(self._stream)
        batch = self._ready.popleft()
        for part in (batch.inputs, batch.targets, batch.documents):
            if part is not None:
                part.record_stream(torch.cuda.current_stream())
        return batch

    def restart(self) -> None:
        """From the first row again (not with loader processes, which run ahead)."""
        if self._loader is None:
            self._host = self._inline()
            self._ready.clear()

    def _inline(self) -> Iterator[Any]:
        for index in itertools.count():
            parts = self._data[index]
            if self._pin:
                parts = tuple(p.pin_memory() if isinstance(p, Tensor) else p for p in parts)  # type: ignore[assignment]
            yield parts

    def _moved(self, parts: Any) -> Batch:
        inputs, targets, documents, useful = (
            p.to(self._device, non_blocking=self._non_blocking) if isinstance(p, Tensor) else p
            for p in parts
        )
        return Batch(
            inputs=inputs.contiguous(),
            targets=targets.contiguous(),
            documents=documents,
            useful=int(useful),
        )

    def close(self) -> None:
        """End the loader's processes."""
        self._host = iter(())
        self._loader = None
        self._ready.clear()


def _loader(settings: Settings, data: _Micro, workers: int, pin: bool) -> DataLoader[Any]:
    context = settings.take("data.mp_context", "fork")
    loader: DataLoader[Any] = DataLoader(
        data,
        batch_size=None,
        num_workers=workers,
        pin_memory=pin,
        prefetch_factor=int(settings.take("data.prefetch_factor", 2)),
        persistent_workers=bool(settings.take("data.persistent_workers", False)),
        in_order=bool(settings.take("data.in_order", True)),
        multiprocessing_context=context,
    )
    settings.effective("data.prefetch_factor", loader.prefetch_factor or 0)
    settings.effective("data.persistent_workers", loader.persistent_workers)
    settings.effective("data.in_order", loader.in_order)
    settings.effective("data.mp_context", context)
    return loader
