"""A long study of the toy under fire: ``python -m benchmarks.soak``.

One trial in ten fails at random, and its driver is killed (SIGKILL) at random moments and resumed.
At the end: is a record lost or doubled, is anything left behind, does the driver's memory grow, and
does a trial cost more the more there are? Writes JSON, and CSV with the driver's memory over time.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import datetime
import itertools
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from autotune import conduct, plan, process_tree
from autotune.local_cluster import threads_for_plan
from autotune.request import Request
from autotune.store import Store

_ROOT = Path(__file__).parents[1]
_STUDY = "soak"
_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 300.0  # without a new record
FAULTS = (  # one trial in ten, of every kind
    "oom if chance<0.02",
    "crash if chance>=0.02 and chance<0.035",
    "segfault if chance>=0.035 and chance<0.045",
    "kill -9 self if chance>=0.045 and chance<0.055",
    "exit 3 if chance>=0.055 and chance<0.065",
    "tok_s=nan if chance>=0.065 and chance<0.075",
    "type list if chance>=0.075 and chance<0.08",
    "stderr: cudnn alloc if chance>=0.08 and chance<0.088",
    "half an answer if chance>=0.088 and chance<0.094",
    "grandchild orphan if chance>=0.094 and chance<0.097",
    "hang ignoring sigterm if chance>=0.097 and chance<0.1",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The driver at one moment."""

    seconds: float  # since the beginning
    trials: int  # stored by then
    driver: int  # how many drivers there were before it
    memory_bytes: int  # resident
    cpu_seconds: float  # that it has used


def main() -> None:
    """Run it, check it, write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", action="store_true", help="slots in threads, without Ray")
    parser.add_argument("--out", type=Path, help="stem of the .json and .csv to write")
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.drive:
        _drive(asked.drive, asked)
        return
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        samples = soak(Path(folder), asked)
        found = judged(Path(folder), asked, samples)
    text = json.dumps(found, indent=1)
    print(text)
    if asked.out:
        asked.out.with_suffix(".json").write_text(text + "\n")
        with asked.out.with_suffix(".csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([f.name for f in dataclasses.fields(Sample)])
            writer.writerows(dataclasses.astuple(s) for s in samples)
    sys.exit(0 if found["ok"] else 1)


def soak(folder: Path, asked: argparse.Namespace) -> list[Sample]:
    """Kill and resume drivers until the study is whole; what the drivers looked like."""
    luck = random.Random(asked.seed)
    samples: list[Sample] = []
    begun = time.monotonic()
    # Moments spread over the study; where kills are many, some come before a driver's first trial.
    due = sorted(luck.randrange(1, asked.trials) for _ in range(asked.kills))
    for number in range(asked.kills + 1):
        driver = _start(folder, asked)
        kill_at = due[number] if number < len(due) else None
        _watch(driver, folder, begun, number, kill_at, luck.random() * 2, samples)
        code = driver.wait()
        if number == asked.kills and code:
            raise RuntimeError(f"the last driver ended with {code}: {_log(folder)}")
    return samples


def _start(folder: Path, asked: argparse.Namespace) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "benchmarks.soak", "--drive", str(folder)]
    words += ["--trials", str(asked.trials), "--workers", str(asked.workers)]
    words += ["--threads"] if asked.threads else []
    with (folder / "driver.log").open("ab") as log:
        environ = {**os.environ, "PYTHONPATH": str(_ROOT)}
        return subprocess.Popen(words, cwd=folder, env=environ, stdout=log, stderr=log)


def _watch(
    driver: subprocess.Popen[bytes],
    folder: Path,
    begun: float,
    number: int,
    kill_at: int | None,
    later: float,
    samples: list[Sample],
) -> None:
    """Until the driver ends, or until so many trials are there and a moment has passed."""
    stored, changed = -1, time.monotonic()
    while driver.poll() is None:
        if (count := _count(folder)) != stored:
            stored, changed = count, time.monotonic()
            with contextlib.suppress(OSError, IndexError):
                memory, cpu = _used(driver.pid)
                samples.append(
                    Sample(
                        seconds=round(time.monotonic() - begun, 2),
                        trials=stored,
                        driver=number,
                        memory_bytes=memory,
                        cpu_seconds=cpu,
                    )
                )
        if time.monotonic() - changed > _PATIENCE_SECONDS:
            driver.kill()
            raise RuntimeError(f"no record for {_PATIENCE_SECONDS:g} s: {_log(folder)}")
        if kill_at is not None and stored >= kill_at:
            time.sleep(later)
            driver.kill()
            return
        time.sleep(_POLL_SECONDS)


def _used(pid: int) -> tuple[int, float]:
    """Resident memory and processor seconds of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return pages * os.sysconf("SC_PAGE_SIZE"), ticks / os.sysconf("SC_CLK_TCK")


def _log(folder: Path) -> str:
    return (folder / "driver.log").read_text(errors="replace")[-2000:]


def _store(folder: Path) -> Store:
    return Store(str(folder / "soak.db"))


def _count(folder: Path) -> int:
    if not (folder / "soak.db").exists():
        return 0
    store = _store(folder)
    try:
        return sum(row.trials for row in store.studies())
    finally:
        store.close()


def _drive(folder: Path, asked: argparse.Namespace) -> None:
    """One driver: starts the study or resumes it, as `tune` and `resume` do."""
    store = _store(folder)
    try:
        known = [row.name for row in store.studies()]
        made = plan.again(store.load(_STUDY).spec) if known else _plan(asked)
        if not known:
            conduct.register(made, store)
        more: dict[str, Any] = {"slots": threads_for_plan} if asked.threads else {}
        conduct.conduct(made, store, folder, lambda _event: None, lambda: False, **more)
    finally:
        store.close()


def _plan(asked: argparse.Namespace) -> plan.Plan:
    request = Request(
        model="toy",
        runner="toy",
        strategy="random",
        study=_STUDY,
        trials=asked.trials,
        trial_timeout="2s",
        workers=asked.workers,
        faults=FAULTS,
    )
    return plan.make(request, sys.argv)


def judged(folder: Path, asked: argparse.Namespace, samples: list[Sample]) -> dict[str, Any]:
    """Everything that was promised, as figures and as one verdict."""
    store = _store(folder)
    try:
        study, claims = store.load(_STUDY), store.claims(_STUDY)
    finally:
        store.close()
    numbers = [r.spec.number for r in study.records]
    memory, cost = _growth(samples, asked.trials), _costs(asked.trials, samples)
    found: dict[str, Any] = {
        "command": f"python -m benchmarks.soak {' '.join(sys.argv[1:])}".strip(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}",
        "date": datetime.date.today().isoformat(),
        "trials": len(numbers),
        "lost": sorted(set(range(asked.trials)) - set(numbers))[:20],
        "doubled": [n for n, count in Counter(numbers).items() if count > 1][:20],
        "left_claims": len(claims),
        "left_processes": len(_left(folder)),
        "state": study.state,
        "kills": asked.kills,
        "by_status": dict(Counter(str(r.status) for r in study.records).most_common()),
        "driver_memory_mib": {str(k): round(v / 2**20, 1) for k, v in memory.items()},
        "growth_mib": round((max(memory.values()) - min(memory.values())) / 2**20, 1),
        "driver_cpu_ms_per_trial_by_quarter": [round(1e3 * c, 1) for c in cost],
        "last_over_first_quarter": round(cost[-1] / cost[0], 3) if cost[0] else None,
    }
    found["ok"] = (
        not found["lost"]
        and not found["doubled"]
        and not found["left_claims"]
        and not found["left_processes"]
        and study.state == "finished"
        and found["growth_mib"] <= 50
        and (asked.trials < 1000 or (found["last_over_first_quarter"] or 9) <= 1.5)
    )
    return found


def _growth(samples: list[Sample], trials: int) -> dict[int, int]:
    """The largest resident memory by eighths of the study, from its first quarter on."""
    step = max(1, trials // 8)
    found: dict[int, int] = {}
    for sample in samples:
        mark = min(sample.trials // step, 7) * step
        if sample.trials >= trials // 4:
            found[mark] = max(found.get(mark, 0), sample.memory_bytes)
    return dict(sorted(found.items())) or {0: 0}


def _costs(trials: int, samples: list[Sample]) -> list[float]:
    """Processor seconds of the driver per trial in each quarter; starts do not count.

    Of the processor, since the clock on a machine that does other things tells of those.
    """
    quarters: list[list[float]] = [[0.0, 0.0] for _ in range(4)]
    started: set[int] = set()  # drivers past their first look, before which they import and start
    for before, after in itertools.pairwise(samples):
        more = after.trials - before.trials
        if before.driver != after.driver or more <= 0:
            continue
        if before.driver not in started:
            started.add(before.driver)
            continue
        quarter = quarters[min(3, 4 * before.trials // trials)]
        quarter[0] += after.cpu_seconds - before.cpu_seconds
        quarter[1] += more
    return [seconds / count if count else 0.0 for seconds, count in quarters]


def _left(folder: Path) -> set[int]:
    """Processes that still know of the folder, a while after the end."""
    limit = time.monotonic() + 30
    while (found := _knowing(folder)) and time.monotonic() < limit:
        time.sleep(0.2)
    return found


def _knowing(folder: Path) -> set[int]:
    found = set()
    for pid, *_ in process_tree.processes():
        try:
            text = Path(f"/proc/{pid}/environ").read_bytes()
            text += Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in text and pid != os.getpid():
            found.add(pid)
    return found


if __name__ == "__main__":
    main()
