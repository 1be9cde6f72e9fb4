"""Files of this host that knobs stand for by a word: libraries to preload, and lists of cores."""

from __future__ import annotations

import ctypes.util
import functools
import os
import sys
from pathlib import Path

# Word -> names of the library, the likeliest first.
LIBRARIES = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so.1"),
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4"),
    "libiomp5": ("libiomp5.so",),
}
_TOPOLOGY = Path("/sys/devices/system/cpu")


@functools.cache
def library(word: str) -> str | None:
    """Where the library lies that a word stands for; None when it is not installed.

    Looked for in the environment's own lib folder (where wheels put it) and in the system's.
    """
    for name in LIBRARIES.get(word, ()):
        for folder in (Path(sys.prefix) / "lib", *_system_folders()):
            if (folder / name).is_file():
                return str(folder / name)
    stem = word.removeprefix("lib")
    return ctypes.util.find_library(stem) if word in LIBRARIES else None


def _system_folders() -> list[Path]:
    return [*sorted(Path("/usr/lib").glob("*-linux-gnu")), Path("/usr/lib64"), Path("/usr/lib")]


def cores(word: str) -> str:
    """A list of cores for OpenMP: ``physical_only`` has one hardware thread of each core."""
    mine = sorted(os.sched_getaffinity(0))
    if word != "physical_only":
        return " ".join(map(str, mine))
    seen: set[str] = set()
    chosen = []
    for core in mine:
        siblings = _siblings(core)
        if siblings not in seen:
            seen.add(siblings)
            chosen.append(core)
    return " ".join(map(str, chosen))


def _siblings(core: int) -> str:
    try:
        return (_TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(core)
