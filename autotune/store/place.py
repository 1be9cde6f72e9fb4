"""Where a store lies: a SQLite file, or a database server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from autotune.store.fault import StoreError

_SQLITE = "sqlite:///"
_SMALLEST_BYTES = 512  # one page; SQLite itself would overwrite a file of one byte
_IN_MEMORY = "a store in memory forgets everything; give --store a file"
# Write-ahead logging needs memory shared by all writers; between hosts there is none, and some of
# these accept the setting and then lose data.
_NETWORK = ("nfs", "lustre", "gpfs", "cifs", "smb", "9p", "afs", "beegfs", "ceph", "fuse.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The file of a SQLite store, or the URL of any other."""

    url: URL
    path: Path | None = None
    vfs: str = ""  # of SQLite, such as unix-dotfile where a file system has no locks

    @property
    def name(self) -> str:
        """For people: the file, or the URL without its password."""
        return str(self.path) if self.path is not None else self.url.render_as_string()

    def uri(self, mode: str) -> str:
        """The file in SQLite's own notation."""
        vfs = f"&vfs={quote(self.vfs)}" if self.vfs else ""
        return f"file:{quote(str(self.path))}?mode={mode}{vfs}"


def place_of(url: str) -> Place:
    """Read a URL or a plain path; StoreError when it is neither."""
    if "://" not in url or url.startswith(_SQLITE):
        return _file_place(url.removeprefix(_SQLITE))
    try:
        made = make_url(url)
    except ArgumentError:
        raise StoreError("--store should be a file or a URL like postgresql://host/name") from None
    if made.drivername.startswith("sqlite"):
        raise StoreError(_IN_MEMORY)
    if made.drivername in ("postgres", "postgresql"):
        made = made.set(drivername="postgresql+psycopg")
    return Place(url=made)


def _file_place(text: str) -> Place:
    """Everything is the path, question marks too, but for our own ``?vfs=``."""
    option = re.fullmatch(r"(.+)\?vfs=([\w-]+)", text, re.DOTALL)
    path, vfs = (option[1], option[2]) if option else (text, "")
    if path in ("", ":memory:"):
        raise StoreError(_IN_MEMORY)
    absolute = Path(path).absolute()
    url = URL.create("sqlite", database=str(absolute))
    return Place(url=url, path=absolute, vfs=vfs)


def holds_something(path: Path) -> bool:
    """Whether there is anything to read yet; StoreError for what cannot be a database."""
    if path.is_dir():
        raise StoreError(f"{path} is a folder; --store needs a file")
    size = path.stat().st_size if path.exists() else 0
    if 0 < size < _SMALLEST_BYTES:
        raise StoreError(f"{path} is not a database; give --store another file")
    return size > 0


def network_file_system(path: Path) -> str:
    """The kind of a network file system that a path lies on, or an empty string."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    longest, kind = -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = Path(re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), before.split()[4]))
        if len(mount.parts) >= longest and path.resolve().is_relative_to(mount):
            longest, kind = len(mount.parts), after.split()[0]
    return kind if kind.startswith(_NETWORK) else ""
