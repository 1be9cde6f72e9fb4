"""Knobs that are environment variables: set before this process began, read back from inside it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.trial import AppliedKnob, KnobValue, TrialSpec
from trials.errors import Unsupported
from trials.settings import Settings, same

_COMPOSITE = re.compile(r"^(\w+)\[([\w.]+)\]$")  # NAME[key], where NAME holds key:value,key:value
_LISTS = ("GOMP_CPU_AFFINITY",)  # written by the launcher from what the host has
_MEBI = 1 << 20
# Allocator option -> the key and the unit under which a memory snapshot shows it.
_LIVE_ALLOCATOR: Mapping[str, tuple[str, int]] = {
    "expandable_segments": ("expandable_segments", 1),
    "garbage_collection_threshold": ("garbage_collection_threshold", 1),
    "max_split_size_mb": ("max_split_size", _MEBI),
    "pinned_num_register_threads": ("pinned_num_register_threads", 1),
    "pinned_use_cuda_host_register": ("pinned_use_cuda_host_register", 1),
    "release_lock_on_cudamalloc": ("release_lock_on_cudamalloc", 1),
}


def read_back(spec: TrialSpec, settings: Settings) -> None:
    """Record every such knob; Unsupported when the process has not got what was asked for."""
    for knob in spec.applied:
        if "env" not in knob.apply:
            continue
        live = _live(knob)
        if knob.is_default or knob.value == "unset":
            settings.effective(knob.name, knob.value if live is None else live)
            continue
        if live is None or not same(live, knob.value):
            raise Unsupported(f"{knob.name} was set to {knob.value!r} but reads back {live!r}")
        settings.effective(knob.name, knob.value)


def read_back_by_torch(spec: TrialSpec, settings: Settings) -> None:
    """What torch made of some of them, once it has used its device; Unsupported on a mismatch."""
    for knob in spec.applied:
        if "env" not in knob.apply or knob.is_default or knob.value == "unset":
            continue
        live = _by_torch(knob.apply["env"], settings)
        if live is not None and not same(live, knob.value):
            raise Unsupported(f"{knob.name} was set to {knob.value!r} but torch has {live!r}")


def _live(knob: AppliedKnob) -> KnobValue | None:
    target = knob.apply["env"]
    if match := _COMPOSITE.match(target):
        pairs = dict(p.partition(":")[::2] for p in os.environ.get(match[1], "").split(",") if p)
        return pairs.get(match[2])
    value = os.environ.get(target)
    if target == "LD_PRELOAD":
        return knob.value if not knob.is_default and _is_loaded(str(knob.value)) else None
    if target in _LISTS and value:
        return knob.value
    return value


def _is_loaded(library: str) -> bool:
    """Whether a library of that name is mapped into this process: the loader only warns."""
    try:
        return library.removeprefix("lib") in Path("/proc/self/maps").read_text()
    except OSError:
        return False


def _by_torch(target: str, settings: Settings) -> Any:
    import torch

    if target == "ATEN_CPU_CAPABILITY":
        return torch.backends.cpu.get_cpu_capability()
    if target == "OMP_NUM_THREADS" and "cpu.intraop_threads" not in settings.read_back:
        return torch.get_num_threads()
    match = _COMPOSITE.match(target)
    if match is None or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    if match[2] == "backend":
        return torch.cuda.get_allocator_backend()
    if match[2] not in _LIVE_ALLOCATOR:
        return None
    key, unit = _LIVE_ALLOCATOR[match[2]]
    value = torch.cuda.memory._snapshot().get("allocator_settings", {}).get(key)
    return value / unit if unit > 1 and value is not None else value
