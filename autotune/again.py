"""Running something that was measured before once more: a promise in best.yaml, or one trial."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import export, interval, launch, plan
from autotune.request import Request
from autotune.sampler.protocol import Proposal
from autotune.session import Session, completed, spec_of
from autotune.space import SpaceError
from autotune.study import Interval
from autotune.summary import interval_text
from autotune.trial import Status, TrialRecord, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A promise beside what was measured now, metric by metric."""

    promised: Mapping[str, Interval]
    measured: Mapping[str, Interval]
    failures: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data; ``kept`` is None for a metric that could not be measured again."""
        return {
            name: {
                "promised": to_json(promise),
                "measured": to_json(self.measured.get(name)),
                "kept": self._kept(name),
                "misses_by": self._miss(name),
            }
            for name, promise in self.promised.items()
        } | ({"failures": list(self.failures)} if self.failures else {})

    def text(self) -> str:
        """A line per metric, then each failure."""
        lines = []
        for name, promise in self.promised.items():
            now = self.measured.get(name)
            if now is None:
                lines.append(f"{name}: promised {interval_text(promise)}, not measured now")
                continue
            miss = self._miss(name)
            judged = "kept" if self._kept(name) else f"missed by {miss:+.1%}"
            lines.append(
                f"{name}: promised {interval_text(promise)}, now {interval_text(now)}: {judged}"
            )
        return "\n".join([*lines, *self.failures])

    def _kept(self, name: str) -> bool | None:
        """Whether the two intervals overlap."""
        now, promise = self.measured.get(name), self.promised[name]
        if now is None:
            return None
        return now.low <= promise.high and promise.low <= now.high

    def _miss(self, name: str) -> float | None:
        """Relative distance of the medians."""
        now, promise = self.measured.get(name), self.promised[name]
        return None if now is None or not promise.median else now.median / promise.median - 1


def measure(path: Path, repeats: int, out: Path, say: Callable[[str], None]) -> Kept:
    """Run the configuration of a best.yaml afresh; raises SpaceError when the file is not one."""
    try:
        best = export.load_best(path)
    except export.ExportError as error:
        raise SpaceError(str(error)) from None
    made = plan.make(_request(best), ["autotune", *sys.argv[1:]])
    session = Session(
        plan=made, folder=out / "measure", owner="measure", emit=lambda _event: None, deadline=None
    )
    full_depth = not best.get("extrapolated", False)
    proposal = Proposal(configuration=best["configuration"], stage="final", full_depth=full_depth)
    records: list[TrialRecord] = []
    for number in range(repeats):
        spec = spec_of(session, number, proposal, records)
        record = completed(session, launch.run(spec, session.trial_folder(number)), {})
        say(f"repeat {number + 1} of {repeats}: {record.status}")
        records.append(record)
    promised = {name: Interval(**values) for name, values in best["measured"].items()}
    return Kept(
        promised=promised,
        measured={n: i for n in promised if (i := _interval(records, n)) is not None},
        failures=tuple(f"{r.status}: {r.failure.reason}" for r in records if r.failure is not None),
    )


def replay(record: TrialRecord, folder: Path) -> TrialRecord:
    """Run the very spec of a record again, its log copied to the screen."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = dataclasses.replace(
        record.spec, fidelity=dataclasses.replace(record.spec.fidelity, fresh_process=True)
    )
    again = launch.run(spec, folder)
    log = folder / "log.txt"
    if log.exists():
        sys.stdout.write(log.read_text(errors="replace")[-100_000:])
    return again


def _request(best: Mapping[str, Any]) -> Request:
    return Request(
        model=str(best["model"]),
        task=str(best["task"]),
        runner=str(best["runner"]),
        seed=int(best.get("seed", 0)),
        study="measure",
        trials=1,
        command=str(best.get("runner_command", "")),
        workload=tuple(f"{k}={v}" for k, v in best.get("workload", {}).items()),
        faults=tuple(best.get("faults", ())),
        options=tuple(f"{k}={v}" for k, v in best.get("options", {}).items()),
        price=best.get("price_usd_per_gpu_hour"),
    )


def _interval(records: list[TrialRecord], metric: str) -> Interval | None:
    values = [
        v for r in records if r.status is Status.COMPLETE and (v := r.metric(metric)) is not None
    ]
    return interval.median_interval(values) if values else None
