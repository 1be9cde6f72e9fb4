"""How much memory a step takes, on whichever device, and what to say when there is none left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
from pathlib import Path

import torch

from trials.errors import HostOutOfMemory, OutOfMemory, TrialError

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # malloc.h
_NEVER, _TOP_PAD_BYTES = (1 << 31) - 1, 64 << 20
_IN_PIECES = 0.1  # share of the device reserved but unused that speaks of fragmentation

_DEVICE_WORDS = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION)|NCCL.*out of memory"
    r"|cudaErrorMemoryAllocation|CUDA driver error: out of memory",
    re.IGNORECASE,
)
_HOST_WORDS = re.compile(
    r"DefaultCPUAllocator|Cannot allocate memory|std::bad_alloc|not enough memory: you tried",
    re.IGNORECASE,
)


def keep_freed_pages() -> bool:
    """Let glibc keep what is freed, as the device's allocator does; False with another malloc.

    A gradient is allocated, summed and freed in every micro-batch. By default each of them is
    given back to the kernel and faulted in again, page by page, which takes longer than the
    products and varies with everything else on the host.
    """
    if os.environ.get("LD_PRELOAD") or os.environ.get("THP_MEM_ALLOC_ENABLE") == "1":
        return False
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    done = [
        mallopt(_M_MMAP_MAX, 0),
        mallopt(_M_TRIM_THRESHOLD, _NEVER),
        mallopt(_M_TOP_PAD, _TOP_PAD_BYTES),
    ]
    return all(done)


def reset(device: torch.device) -> None:
    """Start a new peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark of the resident set


def peak_bytes(device: torch.device) -> tuple[int, int | None, str]:
    """(peak in use, peak reserved or None, where the numbers come from)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), "torch.cuda"
    return _high_water(), None, "resident set of the process"


def _high_water() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def explained(error: BaseException) -> TrialError | None:
    """The same failure as one of ours when it says, in any library's words, that memory is out."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or _DEVICE_WORDS.search(text):
        return _device_full(text)
    if isinstance(error, MemoryError) or _HOST_WORDS.search(text):
        first = text.strip().splitlines()[0:1]
        return HostOutOfMemory(f"the host has no room: {''.join(first)[:300]}")
    return None


def _device_full(text: str) -> OutOfMemory:
    first = (text.strip().splitlines() or ["out of memory"])[0].split(" GPU 0 has")[0]
    if not torch.cuda.is_available():
        return OutOfMemory(first[:300])
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    total = torch.cuda.get_device_properties(0).total_memory
    return device_full(first[:200], allocated, reserved, total, _allocator_options())


def device_full(first: str, allocated: int, reserved: int, total: int, options: str) -> OutOfMemory:
    """The reason with both peaks, and a word on fragmentation where they lie far apart."""
    gib = 2.0**30
    failure = OutOfMemory(
        f"{first} Peak allocated {allocated / gib:.1f} GiB, peak reserved {reserved / gib:.1f} GiB "
        f"of {total / gib:.1f} GiB."
    )
    if reserved - allocated > _IN_PIECES * total:
        failure.hint = "much was reserved but not in use: fragmentation is likely"
        if "expandable_segments:True" not in options:
            failure.hint += "; try alloc.expandable_segments=true"
    return failure


def _allocator_options() -> str:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    return ",".join(os.environ.get(name, "") for name in names)
