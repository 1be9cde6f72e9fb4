"""What watching costs a study: ``python -m benchmarks.watchers``.

One service; studies of the toy runner with and without watchers, in turn, each pair in the other
order than the last. A row per study: seconds per trial from the first start to the last end, and
the median inside a trial, and the processor time of the service, which other work on the machine
hardly changes. Then the ratio watched / alone of both, with its 95 % interval over
pairs. The watchers run on the same machine, so what they cost themselves is counted in.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.client import Client
from autotune.interval import ratio_interval
from tests.services import running

_Row = dict[str, Any]
_KINDS = ("seconds_per_trial", "median_inside_seconds")


def main() -> None:
    """A row per study, then the two ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--watchers", type=int, default=20)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--sleep", default="0.1", help="seconds that each trial waits")
    parser.add_argument("-o", "--out", type=Path, help="CSV file of the rows")
    asked = parser.parse_args()
    print(
        f"{datetime.date.today()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {sys.version.split()[0]}, {asked.trials} trials a study",
        flush=True,
    )
    rows: list[_Row] = []
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "runs") as service:
        for pair in range(asked.pairs):
            arms = (0, asked.watchers)
            for watchers in arms if pair % 2 == 0 else reversed(arms):
                client = Client(service.address)
                used = _cpu_seconds(service.process.pid)
                row = _study(client, f"p{pair}-w{watchers}", watchers, asked.trials, asked.sleep)
                row["service_cpu_seconds"] = round(_cpu_seconds(service.process.pid) - used, 2)
                rows.append({"pair": pair, **row})
                print(rows[-1], flush=True)
                _write(rows, asked.out)
    for kind in _KINDS:
        alone, watched = (
            [r[kind] for r in rows if bool(r["watchers"]) is w] for w in (False, True)
        )
        # Of times the smaller is better: alone over watched is what watching takes.
        ratio = ratio_interval(alone, watched, direction="min")
        print(f"{kind}: watched / alone {ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})")


def _cpu_seconds(pid: int) -> float:
    """What a process has used so far; studies are processes of their own and not in it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _study(client: Client, name: str, watchers: int, trials: int, sleep: str) -> _Row:
    """One study from the queue to its end, with so many clients on its events."""
    client.tune(
        "toy", runner="toy", study=name, trials=trials, strategy="random", faults=[f"sleep {sleep}"]
    )
    counts = [0] * watchers

    def watch(place: int) -> None:
        counts[place] = sum(event["event"] == "trial" for event in client.watch(name))

    begun = time.perf_counter()
    threads = [threading.Thread(target=watch, args=(place,)) for place in range(watchers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _wait(client, name)
    seconds = round(time.perf_counter() - begun, 1)
    records = client.trials(name)
    assert counts == [len(records)] * watchers, counts
    return {"watchers": watchers, "trials": len(records), "seconds": seconds, **_times(records)}


def _wait(client: Client, name: str) -> None:
    """Until it ends, without watching: one small request a second."""
    pause = threading.Event()
    while client.show(name)["state"] in ("queued", "running"):
        pause.wait(1.0)


def _times(records: Sequence[_Row]) -> dict[str, float]:
    starts = [datetime.datetime.fromisoformat(r["started_at"]).timestamp() for r in records]
    ends = [start + r["wall_seconds"] for start, r in zip(starts, records, strict=True)]
    inside = statistics.median(r["wall_seconds"] for r in records)
    took = (max(ends) - min(starts)) / len(records)
    return dict(zip(_KINDS, (round(took, 5), round(inside, 5)), strict=True))


def _write(rows: Sequence[_Row], path: Path | None) -> None:
    if path is None:
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
