"""The field cases that need a GPU, one after the other on the first card:

    python3 -m benchmarks.h200.field_cases OUT_FOLDER [--only RAY-04 ...] [--on-cpu]

Writes field_cases.csv: id, verdict, what was seen, seconds. ``--on-cpu`` runs the same programs
with host memory in place of the card's and without claims about it, to check the script itself.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune import hardware, plan, telemetry
from autotune.request import Request
from autotune.sampler.protocol import Proposal
from autotune.session import Session, spec_of
from autotune.slot import Slot
from autotune.trial import Fidelity, Status, TrialRecord

_PROGRAM = Path(__file__).with_name("field_program.py")
_MIB = 2**20
_NEAR = 300 * _MIB  # of the idle level
_BF16 = {"precision.compute_dtype": "bf16", "precision.mode": "cast_model"}

Verdict = tuple[bool, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Slots on the first card, and where trials go."""

    session: Session
    train_slot: Slot
    command_slot: Slot
    cuda: bool
    devices: tuple[str, ...]

    def train(self, number: int, changes: dict[str, Any], **more: Any) -> TrialRecord:
        """A training trial at full depth, quick enough for a table."""
        usual = _BF16 if self.cuda else {}  # which a CPU without such units takes minutes for
        configuration = self.session.plan.space.complete({**usual, **changes})
        proposal = Proposal(configuration=configuration, stage="search")
        spec = spec_of(self.session, number, proposal, [])
        depths = (2, 4) if self.cuda else ()
        spec = dataclasses.replace(
            spec, **{"fidelity": Fidelity(depths=depths), "timeout_seconds": 200.0, **more}
        )
        return self.train_slot.run(spec, self.session.trial_folder(number))

    def program(self, number: int, *words: str, **more: Any) -> TrialRecord:
        """A trial of runner command: field_program.py with some words."""
        proposal = Proposal(configuration={}, stage="search")
        argv = [sys.executable, str(_PROGRAM), "{out}", "cuda" if self.cuda else "cpu", *words]
        spec = spec_of(self.session, number, proposal, [])
        wanted = {"runner": "command", "options": {"argv": argv}, "timeout_seconds": 120.0}
        spec = dataclasses.replace(spec, **{**wanted, **more})
        return self.command_slot.run(spec, self.session.trial_folder(number))

    def level(self) -> int:
        """Device memory in use now, in bytes."""
        return int(telemetry.used_bytes(self.devices) or 0)


def ray_04(bench: Bench) -> Verdict:
    """Twenty trials that take 60 % of the card, each ended at a random moment."""
    luck, idle, worst, ends = random.Random(4), bench.level(), 0, []
    for n in range(20 if bench.cuda else 4):
        seconds = 4 + 4 * luck.random()
        record = bench.program(100 + n, "hold", "0.6", timeout_seconds=seconds)
        ends.append(record.status)
        worst = max(worst, bench.level() - idle)
    ok = Status.OUT_OF_MEMORY not in ends and worst <= _NEAR
    return ok, f"{len(ends)} trials, {set(map(str, ends))}, at most {worst / _MIB:.0f} MiB left"


def pt_01(bench: Bench) -> Verdict:
    """A batch that does not fit, then the smallest, five times over."""
    ends = []
    for n in range(5):
        big = bench.program(200 + 2 * n, "oom")
        small = bench.program(201 + 2 * n, "hold", "0.01", "leave")
        ends.append((big.status, small.status))
    good = {(Status.OUT_OF_MEMORY if bench.cuda else Status.HOST_OUT_OF_MEMORY, Status.COMPLETE)}
    return set(ends) == good, str([tuple(map(str, pair)) for pair in ends])


def pt_03(bench: Bench) -> Verdict:
    """Half the card is free, in pieces; then with expandable segments on."""
    first = bench.program(220, "pieces")
    environ = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    second = bench.program(221, "pieces", environ=environ)
    hints = [r.failure.hint if r.failure else "" for r in (first, second)]
    told = "fragmentation likely" in hints[0] and "expandable_segments" in hints[0]
    quiet = "expandable_segments" not in hints[1]
    return (told or not bench.cuda) and quiet, f"{first.status}: {hints[0]} | {second.status}"


def pt_04(bench: Bench) -> Verdict:
    """The clock of the trials beside a stopwatch around a synchronised run."""
    record = bench.program(230, "clock")
    ratio, peak = record.metric("ratio") or 0.0, record.metric("tera") or 0.0
    # A card of this kind does 989 dense bf16 TFLOPS; anything above is a clock that lies.
    return abs(ratio - 1) < 0.05 and peak < 989, f"ratio {ratio:.4f}, {peak:.1f} TFLOPS"


def pt_05(bench: Bench) -> Verdict:
    """Compilation is a metric of its own and not in the steps."""
    eager = bench.train(240, {})
    compiled = bench.train(241, {"compile.enabled": True})
    seconds = compiled.metric("compile_seconds") or 0.0
    steps = [r.metric("step_time_ms") or 0.0 for r in (eager, compiled)]
    ok = seconds > 0.5 and (eager.metric("compile_seconds") or 0.0) < 0.5 and steps[1] > 0
    return ok and steps[1] < 1.5 * steps[0], f"compile {seconds:.1f} s, steps {steps} ms"


def pt_07(bench: Bench) -> Verdict:
    """Both modes of the compiler are measured."""
    modes = ("default", "reduce-overhead")
    ends = [
        bench.train(250 + n, {"compile.enabled": True, "compile.mode": mode})
        for n, mode in enumerate(modes)
    ]
    said = [f"{r.status} {r.failure.reason if r.failure else ''}".strip() for r in ends]
    return all(r.status is Status.COMPLETE for r in ends), str(said)


def pt_11(bench: Bench) -> Verdict:
    """fp8 on a model with a layer that is no multiple of 16 wide: refused with the size named."""
    size = 5503 if bench.cuda else 257
    model = {**bench.session.plan.spec.model, "intermediate_size": size}
    plain = bench.train(260, {}, model=model)
    if not bench.cuda:
        return plain.status is Status.COMPLETE, f"bf16 {plain.status}"
    eighth = bench.train(261, {"float8.enabled": True, "compile.enabled": True}, model=model)
    reason = eighth.failure.reason if eighth.failure else ""
    ok = eighth.status is Status.UNSUPPORTED and str(size) in reason
    return ok and plain.status is Status.COMPLETE, f"bf16 {plain.status}, fp8 {reason}"


def nvml_06(bench: Bench) -> Verdict:
    """Somebody else holds memory throughout, and from half-way on."""
    alone = bench.train(270, {})
    words = [sys.executable, str(_PROGRAM), "/dev/null", "cuda" if bench.cuda else "cpu"]
    with subprocess.Popen([*words, "hold", "0.07"]) as holder:
        time.sleep(10 if bench.cuda else 1)
        shared = bench.train(271, {})
        holder.kill()
    peaks = [r.metric("peak_memory_bytes") or 0.0 for r in (alone, shared)]
    same = abs(peaks[1] / peaks[0] - 1) < 0.02 if peaks[0] else False
    notices = shared.measurement.notices if shared.measurement else ()
    told = any("GPU was shared" in n for n in notices) or not bench.cuda
    return same and told, f"peaks {[round(p / _MIB) for p in peaks]} MiB, {notices[:3]}"


def at_03(bench: Bench) -> Verdict:
    """As many trials at a time as there are GPUs."""
    gpus, spec = len(bench.session.plan.hardware.gpus), bench.session.plan.spec
    return spec.workers == max(1, gpus // max(1, spec.gpus_per_trial)), f"{spec.workers} at a time"


CASES: dict[str, Callable[[Bench], Verdict]] = {
    "AT-03": at_03,
    "NVML-06": nvml_06,
    "PT-01": pt_01,
    "PT-03": pt_03,
    "PT-04": pt_04,
    "PT-05": pt_05,
    "PT-07": pt_07,
    "PT-11": pt_11,
    "RAY-04": ray_04,
}


def main() -> None:
    """Run the cases that were asked for; 1 when one of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--on-cpu", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    model = "tiny" if asked.on_cpu else "llama-7b"
    bench = _bench(asked.out, model, cuda=not asked.on_cpu)
    good = True
    with (asked.out / "field_cases.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "ok", "seen", "seconds"])
        for name in asked.only:
            begun = time.monotonic()
            try:
                ok, seen = CASES[name](bench)
            except Exception as error:
                ok, seen = False, f"the case itself failed: {error!r}"
            good = good and ok
            row = [name, ok, seen, round(time.monotonic() - begun, 1)]
            writer.writerow(row)
            file.flush()
            print(*row, flush=True)
    bench.train_slot.close()
    bench.command_slot.close()
    sys.exit(0 if good else 1)


def _bench(out: Path, model: str, *, cuda: bool) -> Bench:
    made = plan.make(Request(model=model, study="field", trials=1), ["field_cases"])
    if cuda and not made.hardware.gpus:
        sys.exit("there is no GPU here; --on-cpu checks the script")
    return Bench(
        session=Session(plan=made, folder=out / "runs", owner="", emit=lambda _event: None),
        train_slot=Slot("torch"),
        command_slot=Slot("command"),
        cuda=cuda,
        devices=tuple(telemetry.device_ids(hardware.detect())),
    )


if __name__ == "__main__":
    main()
