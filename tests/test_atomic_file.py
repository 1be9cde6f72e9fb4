"""A file is whole, old or new, whatever happens to its writer."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autotune.atomic_file import write_atomically

_CHECKOUT = Path(__file__).parents[1]
_WRITE_FOR_EVER = """
import sys
from pathlib import Path
from autotune.atomic_file import write_atomically
print("ready", flush=True)
n = 0
while True:
    n += 1
    write_atomically(Path(sys.argv[1]), f"{n}\\n" + f"{n % 10}" * 200_000 + "\\nend\\n")
"""


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "my models (v2) ü" / "best.yaml"
    path.parent.mkdir()
    for text in ("first ü\n", "", "second\n"):
        write_atomically(path, text)
        assert path.read_text() == text
    assert os.listdir(path.parent) == ["best.yaml"]


def test_the_permissions_of_an_existing_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "best.sh"
    write_atomically(path, "old")
    path.chmod(0o750)
    write_atomically(path, "new")
    assert path.stat().st_mode & 0o777 == 0o750


def test_a_new_file_is_as_open_as_any_other(tmp_path: Path) -> None:
    write_atomically(tmp_path / "ours", "x")
    (tmp_path / "theirs").write_text("x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "best.yaml"
    link.symlink_to(tmp_path / "real" / "best.yaml")
    write_atomically(link, "text")
    assert link.is_symlink()
    assert (tmp_path / "real" / "best.yaml").read_text() == "text"


def test_a_device_is_written_to_not_replaced() -> None:
    write_atomically(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OSError, match="No space left"):
        write_atomically(Path("/dev/full"), "text")


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "best.yaml", "text")


@pytest.mark.slow
def test_a_killed_writer_leaves_a_whole_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    write_atomically(path, "0\n" + "0" * 200_000 + "\nend\n")
    luck = random.Random(11)
    strays = 0
    for _ in range(100):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITE_FOR_EVER, str(path)],
            cwd=_CHECKOUT,
            stdout=subprocess.PIPE,
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(luck.random() * 0.05)
        writer.kill()
        writer.communicate()
        number, body, end, rest = path.read_text().split("\n")
        assert (body, end, rest) == (str(int(number) % 10) * 200_000, "end", "")
        strays += len(os.listdir(tmp_path)) - 1
    assert strays <= 10  # a name exists between link and rename only; the next writer sweeps
    write_atomically(path, "last")
    assert os.listdir(tmp_path) == ["best.yaml"]


def test_what_a_dead_writer_left_is_swept_and_a_living_ones_is_not(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    code = """
import os, sys
from pathlib import Path
from autotune import atomic_file
os.replace = lambda *_: os._exit(9)  # killed after the name was given
atomic_file.write_atomically(Path(sys.argv[1]), "half")
"""
    command = [sys.executable, "-c", code, str(path)]
    assert subprocess.run(command, cwd=_CHECKOUT, check=False).returncode == 9
    (stray,) = os.listdir(tmp_path)
    start, _, _ = stray.partition("-")
    living = f"{start}-1-{_start_ticks_of_process_1()}-5.tmp"
    (tmp_path / living).write_text("half of another's")
    (tmp_path / "best.yaml.bak").write_text("the user's own")
    write_atomically(path, "whole")
    assert sorted(os.listdir(tmp_path)) == sorted(["best.yaml", "best.yaml.bak", living])


def _start_ticks_of_process_1() -> str:
    return Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    """A limit on the size of files fails in the middle of a write, as a full disk does."""
    path = tmp_path / "best.yaml"
    write_atomically(path, "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_atomically(path, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["best.yaml"]


def test_a_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk can be mounted by root only")
    try:
        path = disk / "best.yaml"
        write_atomically(path, "old")
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, "x" * 200_000)
        assert path.read_text() == "old"
        assert os.listdir(disk) == ["best.yaml"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_file_system_without_nameless_files_is_written_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")  # as on macOS; network file systems refuse it
    path = tmp_path / "best.yaml"
    for text in ("old", "new"):
        write_atomically(path, text)
        assert path.read_text() == text
    assert os.listdir(tmp_path) == ["best.yaml"]


def test_threads_may_write_the_same_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    texts = [f"{n}" * 50_000 for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: [write_atomically(path, text) for _ in range(10)], texts))
    assert path.read_text() in texts
    assert os.listdir(tmp_path) == ["best.yaml"]
