"""The tensors of a GGUF file, found by its header alone.

The package gguf reads every word of the vocabulary on the way, which takes longer than a trial;
only its arithmetic is used here.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trials.errors import Unsupported

_PLAIN = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = "general.alignment"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies, its shape with the fastest dimension last, and how it is kept."""

    offset: int
    shape: tuple[int, ...]
    kind: int


class _Header:
    def __init__(self, data: mmap.mmap) -> None:
        self._data, self.at = data, 0

    def number(self, code: str) -> int:
        """The next number."""
        (value,) = struct.unpack_from(f"<{code}", self._data, self.at)
        self.at += struct.calcsize(f"<{code}")
        return int(value)

    def text(self) -> str:
        """The next string."""
        size = self.number("Q")
        self.at += size
        return self._data[self.at - size : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> int:
        """The next value where it is a number; 0 for anything longer, which is passed over."""
        if kind in _PLAIN:
            return self.number(_PLAIN[kind])
        if kind == _STRING:
            self.text()
            return 0
        if kind != _ARRAY:
            raise Unsupported(f"GGUF value of unknown type {kind}")
        inner, count = self.number("I"), self.number("Q")
        if inner in _PLAIN:
            self.at += count * struct.calcsize(_PLAIN[inner])
        else:
            for _ in range(count):
                self.value(inner)
        return 0


def reader(file: Path) -> Callable[[str], np.ndarray]:
    """Each tensor in fp32 by its name in the file; Unsupported for what is no GGUF of version 3."""
    from gguf import GGMLQuantizationType, dequantize
    from gguf.quants import quant_shape_to_byte_shape

    with file.open("rb") as opened:
        data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    places = _places(data, file)

    def tensor(name: str) -> np.ndarray:
        if name not in places:
            raise Unsupported(f"{file.name} has no tensor {name}")
        place = places[name]
        kind = GGMLQuantizationType(place.kind)
        if kind is GGMLQuantizationType.F32:
            count = int(np.prod(place.shape))
            return np.frombuffer(data, np.float32, count, place.offset).reshape(place.shape)
        shape = quant_shape_to_byte_shape(place.shape, kind)
        raw = np.frombuffer(data, np.uint8, int(np.prod(shape)), place.offset).reshape(shape)
        found: np.ndarray = dequantize(raw, kind)
        return found

    return tensor


def _places(data: mmap.mmap, file: Path) -> dict[str, _Place]:
    header = _Header(data)
    if data[:4] != b"GGUF":
        raise Unsupported(f"{file} is no GGUF file")
    header.at = 4
    if (version := header.number("I")) != 3:
        raise Unsupported(f"{file.name}: version {version} of GGUF is not read here")
    tensors, fields = header.number("Q"), header.number("Q")
    alignment = 32
    for _ in range(fields):
        name = header.text()
        value = header.value(header.number("I"))
        alignment = value if name == _ALIGNMENT else alignment
    found = []
    for _ in range(tensors):
        name = header.text()
        shape = tuple(header.number("Q") for _ in range(header.number("I")))[::-1]
        kind, offset = header.number("I"), header.number("Q")
        found.append((name, shape, kind, offset))
    start = -(-header.at // alignment) * alignment
    return {
        name: _Place(offset=start + offset, shape=shape, kind=kind)
        for name, shape, kind, offset in found
    }
