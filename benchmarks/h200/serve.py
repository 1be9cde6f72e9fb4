"""What the built-in engine reaches on the card at hand, in one call of bounded length.

    python3 -m benchmarks.h200.serve OUT [--model llama-7b] [--requests 512] [--seconds 520]

First fixed configurations, each a trial of the whole model in a process of its own: decoding alone
(bf16, int8 and fp8 weights) and the trace all at once (upstream defaults, static batching, the
engine's presets). Then, with what time is left, a study of the trace, and one with a limit that the
fastest configuration breaks. Writes serve.csv as it goes, and both studies under OUT/runs.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune import plan, space_file
from autotune.request import Request
from autotune.sampler.protocol import Proposal
from autotune.session import Session, spec_of
from autotune.slot import Slot
from autotune.space import SearchSpace
from autotune.trial import Fidelity, KnobValue, TrialRecord

_ALONE = {"requests": 1, "decode_batch_1": 96}
_STATIC = {"serve.batching": "static"}
_LIMITED = "inter_token_latency_ms_p99"
_TIGHTER = 0.7  # of what the fastest configuration has
_TRIAL_SECONDS = 75.0
_SHARES = (0.6, 1.0)  # of the time that is left, for the study and then for the limited one
COLUMNS = (
    "name", "status", "output_tokens_per_second", "decode_ms_per_token_batch_1",
    "bandwidth_share", "copy_gb_per_second", "weight_gb_per_step", "memory_bandwidth_utilization",
    "time_to_first_token_ms_p99", "inter_token_latency_ms_p99", "request_latency_ms_p99",
    "batch_occupancy", "preemptions", "peak_gib", "seconds", "dropped", "reason",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A configuration that is measured for itself."""

    name: str
    configuration: Mapping[str, KnobValue]
    alone: bool = False
    quality: bool = False


def arms(presets: Mapping[str, Mapping[str, KnobValue]]) -> list[Arm]:
    """In the order of their worth: what time does not suffice for falls off the end."""
    common = presets["common_practice"]
    fused = presets.get("fused_bf16", common)
    int8 = {**presets.get("int8_weights", common), "quant.scheme": "int8_weight_only"}
    fp8 = {**int8, "quant.scheme": "fp8_weight_only"}
    pdl = {**fused, "kernel.gemv.pdl": True}
    dynamic = presets.get("fp8_dynamic", fused)
    return [
        Arm(name="alone, bf16", configuration=fused, alone=True),
        Arm(name="alone, int8 weights", configuration=int8, alone=True, quality=True),
        Arm(name="alone, fp8 weights", configuration=fp8, alone=True, quality=True),
        Arm(name="trace, common practice", configuration=common),
        Arm(name="trace, static batching", configuration={**common, **_STATIC}),
        Arm(name="trace, fused bf16", configuration=fused),
        Arm(name="trace, fp8 products", configuration=dynamic, quality=True),
        Arm(name="alone, bf16, kernels overlapped", configuration=pdl, alone=True),
        Arm(name="alone, common practice", configuration=common, alone=True),
        Arm(name="trace, upstream defaults", configuration={}),
    ]


class Bench:
    """One session on one card."""

    def __init__(self, out: Path, asked: argparse.Namespace) -> None:
        self.out, self.asked = out, asked
        self.deadline = time.monotonic() + asked.seconds
        self.workload = (
            f"requests={asked.requests}",
            f"prompt_tokens={asked.prompt}",
            f"output_tokens={asked.output}",
        )
        request = Request(model=asked.model, task="serve", study="arms", trials=1,
                          workload=self.workload)  # fmt: skip
        made = plan.make(request, ["benchmarks.h200.serve"])
        self.session = Session(plan=made, folder=out / "runs/arms", owner="", emit=lambda _e: None)
        self.rows: list[dict[str, Any]] = []

    @property
    def left(self) -> float:
        """Seconds until everything must be written."""
        return self.deadline - time.monotonic()

    def measure_arms(self, until: float) -> None:
        """Every arm for which there is time before ``until`` seconds are left."""
        presets = {
            p["name"]: p["configuration"]
            for p in space_file.load_presets(self.session.plan.space, "serve")
        }
        slot = Slot("torch")
        try:
            for number, arm in enumerate(arms(presets)):
                if self.left < until + _TRIAL_SECONDS / 2:
                    print(f"no time for {arm.name}", flush=True)
                    continue
                self._keep(self._measured(slot, number, arm))
        finally:
            slot.close()

    def _measured(self, slot: Slot, number: int, arm: Arm) -> dict[str, Any]:
        configuration, dropped = _legal(self.session.plan.space, arm.configuration)
        proposal = Proposal(configuration=configuration, stage="search", full_depth=True)
        spec = spec_of(self.session, number, proposal, [])
        workload = {**spec.workload, **(_ALONE if arm.alone else {})}
        spec = dataclasses.replace(
            spec,
            fidelity=Fidelity(depths=(), quality=arm.quality),
            timeout_seconds=_TRIAL_SECONDS,
            workload=workload,
        )
        begun = time.monotonic()
        record = slot.run(spec, self.session.trial_folder(number))
        return _row(arm, record, time.monotonic() - begun, dropped)

    def _keep(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print({name: value for name, value in row.items() if value not in ("", None)}, flush=True)
        with (self.out / "serve.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)

    def study(self, name: str, share: float, *more: str) -> None:
        """A study of the trace by the command line, within a share of the time that is left."""
        budget = (self.left - 15.0) * share - 10.0
        if budget < 20.0:
            print(f"no time for study {name}", flush=True)
            return
        command = [
            sys.executable, "-m", "autotune", "tune", self.asked.model, "--task", "serve",
            "--study", name, "--budget", f"{budget:.0f}s", "--trial-timeout", "60s",
            "--out", str(self.out / "runs"), *more,
            *(word for fact in self.workload for word in ("--workload", fact)),
        ]  # fmt: skip
        print(" ".join(command), flush=True)
        done = subprocess.run(command, check=False)
        print(f"study {name} ended with exit code {done.returncode}", flush=True)

    def limit(self) -> str | None:
        """One that the fastest arm of the trace breaks."""
        traces = [
            r for r in self.rows if r["name"].startswith("trace") and r["status"] == "COMPLETE"
        ]
        fastest = max(traces, key=lambda r: r["output_tokens_per_second"], default=None)
        if fastest is None or not fastest[_LIMITED]:
            return None
        return f"{_LIMITED}<={_TIGHTER * fastest[_LIMITED]:.4g}"


def _legal(
    space: SearchSpace, wanted: Mapping[str, KnobValue]
) -> tuple[dict[str, KnobValue], list[str]]:
    """The configuration without what means nothing on this host, which is named."""
    known = {knob.name: knob for knob in space.knobs}
    kept = {n: v for n, v in wanted.items() if n in known and known[n].accepts(v)}
    # Baselines are facts of the job, which a study never frees by itself.
    free = dataclasses.replace(space, fixed={n: v for n, v in space.fixed.items() if n not in kept})
    found = free.complete(kept)
    return dict(found), sorted(n for n, v in wanted.items() if found.get(n) != v)


def _row(arm: Arm, record: TrialRecord, seconds: float, dropped: list[str]) -> dict[str, Any]:
    told = record.measurement.telemetry if record.measurement else {}
    peak = record.metric("peak_memory_bytes")
    return {
        **{name: record.metric(name) for name in COLUMNS},
        "name": arm.name,
        "status": str(record.status),
        "bandwidth_share": told.get("decode_batch_1_bandwidth_share"),
        "copy_gb_per_second": _in(told.get("copy_ceiling_bytes_per_second"), 1e9),
        "weight_gb_per_step": _in(told.get("weight_bytes_read_per_step"), 1e9),
        "peak_gib": _in(peak, 2**30),
        "seconds": round(seconds, 1),
        "dropped": " ".join(dropped),
        "reason": record.failure.reason[:300] if record.failure else "",
    }


def _in(value: float | None, unit: float) -> float | None:
    return None if value is None else round(value / unit, 4)


def main() -> None:
    """Everything in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="llama-7b")
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=520.0)
    asked = parser.parse_args()
    out = asked.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    bench = Bench(out, asked)
    bench.measure_arms(until=0.5 * asked.seconds)
    bench.study("trace", _SHARES[0])
    if (limit := bench.limit()) is not None:
        bench.study("limited", _SHARES[1], "--limit", limit)


if __name__ == "__main__":
    main()
