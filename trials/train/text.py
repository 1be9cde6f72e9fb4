"""Real text as token ids, in an order that depends on the seed alone: whatever the micro-batch or
the loader, a configuration sees the same rows one after the other."""

from __future__ import annotations

import lzma
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

IGNORED = -100  # target of a token that is padding
_CORPUS = Path(__file__).parents[1] / "corpus"
_MASK = (1 << 64) - 1
_SPREAD = 0.8  # of the logarithm of document lengths
_DOCUMENTS_PER_ROW = 1 << 10


@lru_cache(maxsize=2)
def ids(split: str) -> Tensor:
    """All of a split (``train`` or ``validation``), (N,) uint8: the bytes of the text.

    Bytes keep the text exact for every vocabulary of 256 or more.
    """
    data = lzma.decompress((_CORPUS / f"{split}.txt.xz").read_bytes())
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of tokens by number: windows of the running text, or documents padded or packed."""

    split: str
    seed: int
    length: int
    document_tokens: int = 0  # mean length of a document; 0 is running text
    packed: bool = False
    pad_multiple: int = 1

    def batch(self, first: int, count: int) -> tuple[Tensor, Tensor, Tensor | None, int]:
        """Rows ``first`` to ``first + count``: inputs, targets (both int64), document numbers if
        there are documents, and how many targets are no padding."""
        if not self.document_tokens:
            starts = [self._start(first + i) for i in range(count)]
            window = ids(self.split)[torch.tensor(starts)[:, None] + torch.arange(self.length + 1)]
            window = window.long()
            return window[:, :-1], window[:, 1:], None, count * self.length
        make = self._packed if self.packed else self._padded
        rows = [make(first + i) for i in range(count)]
        inputs, targets, documents = (np.stack(part) for part in zip(*rows, strict=True))
        useful = int((targets != IGNORED).sum())
        width = self.length
        if not self.packed:
            longest = int((targets != IGNORED).sum(1).max())
            width = min(width, -(-longest // self.pad_multiple) * self.pad_multiple)
        parts = (torch.from_numpy(p[:, :width].copy()) for p in (inputs, targets, documents))
        tokens, wanted, numbers = parts
        return tokens, wanted, numbers, useful

    def _start(self, number: int) -> int:
        return _scramble(self.seed, number) % (len(ids(self.split)) - self.length - 1)

    def _document(self, number: int) -> np.ndarray:
        """Its tokens and the one after them."""
        bits = _scramble(self.seed + 1, number)
        first, second = (bits >> 32) / 2**32, (bits & 0xFFFFFFFF) / 2**32
        normal = math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)
        mean = math.log(self.document_tokens) - _SPREAD**2 / 2
        length = min(self.length, max(2, round(math.exp(mean + _SPREAD * normal))))
        start = self._start(number)
        found: np.ndarray = ids(self.split)[start : start + length + 1].numpy().astype(np.int64)
        return found

    def _padded(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        text = self._document(number)
        row = _blank(self.length)
        size = len(text) - 1
        row[0][:size], row[1][:size], row[2][:size] = text[:-1], text[1:], 0
        return row

    def _packed(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        row, at = _blank(self.length), 0
        for index in range(_DOCUMENTS_PER_ROW):
            text = self._document(number * _DOCUMENTS_PER_ROW + index)
            size = min(len(text) - 1, self.length - at)
            row[0][at : at + size], row[1][at : at + size] = text[:size], text[1 : size + 1]
            row[2][at:] = index
            at += size
            if at == self.length:
                break
        return row


def _blank(length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets and document numbers of a row that is all padding."""
    documents = np.full(length, _DOCUMENTS_PER_ROW, np.int64)
    return np.zeros(length, np.int64), np.full(length, IGNORED, np.int64), documents


def _scramble(seed: int, number: int) -> int:
    """64 well-mixed bits of two numbers (the finaliser of SplitMix64)."""
    x = (seed * 0x9E3779B97F4A7C15 + (number + 1) * 0xD1B54A32D192ED03) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
