"""Writing a file so that it is whole, old or new, whatever happens in between."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import stat
import threading
import time
from pathlib import Path

from autotune.driver_file import start_ticks

_DAY_SECONDS = 86_400


def write_atomically(path: Path, text: str) -> None:
    """Replace a file by another, or leave it as it was and raise OSError.

    The new content lies on disk before it gets the name, so neither kill -9 nor a power cut nor a
    full disk leaves half a file. What a killed writer left behind is removed by the next one.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    data = text.encode("utf-8", "surrogateescape")
    if target.exists() and not target.is_file():
        _write_through(target, data)  # /dev/stdout, a pipe: nothing to replace
        return
    _sweep(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _replace(folder, target, data)
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_through(target: Path, data: bytes) -> None:
    with target.open("wb") as file:
        file.write(data)


def _replace(folder: int, target: Path, data: bytes) -> None:
    writer = f"{os.getpid()}-{start_ticks(os.getpid()) or 0}-{threading.get_ident()}"
    half = target.with_name(f"{_prefix(target)}{writer}.tmp")
    try:
        try:
            _make_nameless(folder, half, data)
        except (OSError, AttributeError):
            # Not every file system can; the name is then there while the data is written.
            half.unlink(missing_ok=True)
            _make(half, data)
        _keep_mode(half, target)
        os.replace(half, target)
    except BaseException:
        half.unlink(missing_ok=True)
        raise


def _make_nameless(folder: int, half: Path, data: bytes) -> None:
    """The data gets its name when it is complete: a kill before that leaves nothing at all."""
    file = os.open(half.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)
    try:
        _write_all(file, data)
        os.link(f"/proc/self/fd/{file}", half.name, dst_dir_fd=folder)
    finally:
        os.close(file)


def _make(half: Path, data: bytes) -> None:
    file = os.open(half, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        _write_all(file, data)
    finally:
        os.close(file)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.fsync(file)


def _keep_mode(half: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        half.chmod(stat.S_IMODE(target.stat().st_mode))


def _prefix(target: Path) -> str:
    """Names the host too: on a shared file system a process number says nothing."""
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    return f".{target.name}.{host}-"


def _sweep(target: Path) -> None:
    """Remove what dead writers of this very file left; on other hosts' only when it is old."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}-(\d+)-(\d+)-\d+\.tmp")
    with os.scandir(target.parent) as entries:
        found = [(e.path, m) for e in entries if (m := pattern.fullmatch(e.name))]
    for name, match in found:
        here = Path(name).name.startswith(_prefix(target))
        dead = here and start_ticks(int(match[1])) != int(match[2])
        with contextlib.suppress(OSError):
            if dead or time.time() - os.stat(name).st_mtime > _DAY_SECONDS:
                os.unlink(name)
