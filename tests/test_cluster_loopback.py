"""A Ray of our own is nobody else's: what it listens on, and what it prints when a worker dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Prints the addresses that this process and all below it listen on, as /proc writes them.
_LISTENING = """
import os, signal, sys
from pathlib import Path
from autotune import process_tree
from autotune.cluster import RayCluster
from tests.toy_trials import toy, until

made = RayCluster(runner="toy", workers=1)
folder = Path(sys.argv[1]) / "0000"
made.submit(toy("sleep 30"), folder)
assert until(lambda: (folder / "environ.json").exists(), 90)
ours = {os.getpid(), *process_tree.Tree(root=-1, keeper=os.getpid()).members()}
sockets = set()
for pid in ours:
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(file))
        except OSError:
            pass
for table in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            print(fields[1].partition(":")[0])
made.close()
"""
_LOOPBACK = {
    "0100007F",
    "0000000000000000FFFF00000100007F",  # the same in IPv6's clothes
    "00000000000000000000000001000000",
}


def driver(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: Ray reads where to listen once in a process."""
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, timeout=200
    )


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's table of sockets")
def test_a_ray_of_our_own_listens_on_loopback_only(tmp_path: Path) -> None:
    done = driver(_LISTENING, str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = done.stdout.split()
    assert len(found) >= 4  # else the look saw nothing
    assert set(found) <= _LOOPBACK


_BESIDE = """
import sys
from pathlib import Path
from ray.cluster_utils import Cluster
from autotune.cluster import RayCluster
from tests.toy_trials import toy

theirs = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
made = RayCluster(runner="toy", workers=1)
made.submit(toy(), Path(sys.argv[1]) / "0000")
record = made.next_finished(60)
assert record.status == "COMPLETE", record
made.close()
theirs.shutdown()
"""


@pytest.mark.slow
def test_a_ray_that_runs_here_already_is_left_alone_unless_asked_for(tmp_path: Path) -> None:
    done = driver(_BESIDE, str(tmp_path))
    assert done.returncode == 0, done.stderr


_DEATH = """
import json, os, signal, sys
from pathlib import Path
from autotune.cluster import RayCluster
from tests.toy_trials import toy, until

made = RayCluster(runner="toy", workers=1)
folder = Path(sys.argv[1]) / "0000"
made.submit(toy("sleep 60"), folder)
assert until(lambda: (folder / "environ.json").exists(), 90)
mark = json.loads((folder / "environ.json").read_text())["AUTOTUNE_TRIAL"]
os.kill(int(mark.rsplit(":", 2)[1]), signal.SIGKILL)
record = made.next_finished(60)
assert record.status == "ABANDONED", record
made.submit(toy(number=1), folder.with_name("0001"))  # time for Ray to have its say
assert made.next_finished(60).status == "COMPLETE"
made.close()
"""


def test_ray_12_a_dead_worker_is_told_by_its_record_and_by_nothing_else(tmp_path: Path) -> None:
    done = driver(_DEATH, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")
