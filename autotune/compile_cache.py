"""Folders for compiled kernels: kept with the study so that they are warm, one per slot so that
no two trials write to the same."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO

_MOST = 4096  # slots on one host


class CompileCache:
    """The lowest folder ``N`` under a home that no other process holds, held until closed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._lock, self.folder = _claim(home)

    def variables(self) -> dict[str, str]:
        """For the environment of a trial; what the user has set stays."""
        found = {
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
            "TRITON_CACHE_DIR": str(self.folder / "triton"),
            "CUDA_CACHE_PATH": str(self.folder / "cuda"),
        }
        found = {name: value for name, value in found.items() if name not in os.environ}
        if not os.access(os.path.expanduser("~"), os.W_OK):  # a bare user id, in a container
            found |= {"HOME": str(self.folder), "USER": "autotune"}
        return found

    def is_warm(self) -> bool:
        """Whether anything was compiled into it before."""
        with contextlib.suppress(OSError):
            return any((self.folder / "inductor").iterdir())
        return False

    def close(self) -> None:
        """Let another process have it."""
        if self._lock is not None:
            self._lock.close()


def _claim(home: Path) -> tuple[IO[bytes] | None, Path]:
    """A lock of the kernel's, so that it goes with its holder however that dies."""
    for number in range(_MOST):
        folder = home / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        except OSError:  # a file system without locks
            lock.close()
            return None, home / f"{number}-{os.getpid()}"
        else:
            return lock, folder
    raise OSError(f"all {_MOST} folders under {home} are in use")
