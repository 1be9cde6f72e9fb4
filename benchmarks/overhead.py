"""What autotune itself costs: ``python -m benchmarks.overhead``.

Two tables: how long a trial takes to start when it is forked from a process with torch in it,
beside a fresh interpreter, in turn; and the cost per trial of a study whose trials take no time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.slot import Slot
from autotune.trial import Fidelity, Status
from tests.toy_trials import toy

_ROOT = Path(__file__).parents[1]


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=9, help="of each kind")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--strategies", default="random,tpe,auto")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    today = datetime.date.today()
    print(f"{today}, {os.cpu_count()} cores, load {load:.1f}, Python {sys.version.split()[0]}\n")
    with tempfile.TemporaryDirectory() as folder:
        starts(asked.starts, Path(folder))
        studies(asked.strategies.split(","), asked.trials, Path(folder))


def starts(count: int, folder: Path) -> None:
    """Milliseconds from the request to the record of a trial that needs torch for one tensor."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    slot = Slot("torch")
    try:
        slot.wait_until_ready()
        for number in range(-1, count):  # the first of each kind warms the disk's cache
            for fresh in (False, True):
                spec = toy("type tensor", fidelity=Fidelity(fresh_process=fresh))
                begun = time.perf_counter()
                record = slot.run(spec, folder / f"{number}-{fresh}")
                took = time.perf_counter() - begun
                assert record.status is Status.COMPLETE, record.failure
                if number >= 0:
                    seconds[fresh].append(took)
    finally:
        slot.close()
    print("| start of a trial that uses torch | median ms | range ms |")
    print("| --- | ---: | ---: |")
    for fresh, name in ((False, "forked"), (True, "fresh interpreter")):
        found = [1000 * s for s in seconds[fresh]]
        print(f"| {name} | {statistics.median(found):.0f} | {min(found):.0f} to {max(found):.0f} |")
    ratio = statistics.median(seconds[False]) / statistics.median(seconds[True])
    print(f"| forked / fresh | {ratio:.3f} | |\n", flush=True)


def studies(strategies: Sequence[str], trials: int, home: Path) -> None:
    """Milliseconds per trial of a whole study, from the first start to the last end."""
    print("| strategy | workers | trials | knobs | ms per trial | of that, inside a trial ms |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for strategy in strategies:
        for workers in (1, 2):
            records = _study(strategy, trials, workers, home / f"{strategy}-{workers}")
            ends = [_epoch(r["started_at"]) + r["wall_seconds"] for r in records]
            took = max(ends) - min(_epoch(r["started_at"]) for r in records)
            inside = statistics.median(r["wall_seconds"] for r in records)
            knobs = len({name for r in records for name in r["spec"]["configuration"]})
            print(
                f"| {strategy} | {workers} | {len(records)} | {knobs} "
                f"| {1000 * took / len(records):.1f} | {1000 * inside:.1f} |",
                flush=True,
            )


def _study(strategy: str, trials: int, workers: int, out: Path) -> list[dict[str, Any]]:
    words = ["tune", "toy", "--runner", "toy", "--study", "s", "--strategy", strategy]
    words += ["--trials", str(trials), "--workers", str(workers), "--out", str(out), "--json"]
    command = [sys.executable, "-m", "autotune", *words]
    subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)
    records: list[dict[str, Any]] = json.loads((out / "s" / "study.json").read_text())["records"]
    return records


def _epoch(iso: str) -> float:
    return datetime.datetime.fromisoformat(iso).timestamp()


if __name__ == "__main__":
    main()
