"""Layer slices against full depth, side by side, on the card at hand.

    python3 -m benchmarks.h200.slices_vs_full OUT_FOLDER [--model llama-7b] [--only NAME ...]

Writes slices_vs_full.csv: predicted (from slices) and measured step time and peak memory.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
import time
from pathlib import Path

from autotune import plan
from autotune.request import Request
from autotune.sampler.protocol import Proposal
from autotune.session import Session, spec_of
from autotune.slot import Slot
from autotune.trial import Fidelity, TrialRecord

BF16 = {"precision.compute_dtype": "bf16", "precision.mode": "cast_model"}
FUSED = {**BF16, "optim.impl": "fused"}
COMPILED = {**FUSED, "compile.enabled": True}
CUDNN = {**COMPILED, "attention.backend": "sdpa_cudnn"}
WIDE = {"model.fused_qkv": True, "model.fused_gate_up": True}
FP8 = {**CUDNN, "float8.enabled": True, "compile.scope": "block_and_loss"}
CONFIGURATIONS = {
    "common_practice": ({**BF16, "optim.impl": "foreach"}, 4),
    "eager_fused_b2": (FUSED, 2),
    "eager_fused_b4": (FUSED, 4),
    "compiled_b4": (COMPILED, 4),
    "compiled_cudnn_b4": (CUDNN, 4),
    "compiled_cudnn_wide_b8": ({**CUDNN, **WIDE, "ac.mode": "selective_op"}, 8),
    "checkpointed_b8": ({**COMPILED, "ac.mode": "full"}, 8),
    "chunked_loss_b4": ({**COMPILED, "loss.impl": "chunked"}, 4),
    "fp8_tensorwise_b4": (FP8, 4),
    "fp8_tensorwise_b8": (FP8, 8),
    "fp8_tensorwise_wide_b8": ({**FP8, **WIDE}, 8),
    "fp8_rowwise_b4": ({**FP8, "float8.recipe": "rowwise"}, 4),
}
COLUMNS = (
    "name", "status_slices", "status_full", "step_ms_slices", "step_ms_full", "time_error",
    "peak_gib_slices", "peak_gib_full", "memory_error", "tokens_per_second_full",
    "seconds_slices", "seconds_full", "reason",
)  # fmt: skip


def main() -> None:
    """Measure every configuration twice and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="llama-7b")
    parser.add_argument("--only", nargs="*", default=list(CONFIGURATIONS))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    made = plan.make(Request(model=arguments.model, study="slices", trials=1), ["slices_vs_full"])
    session = Session(plan=made, folder=arguments.out / "runs", owner="", emit=lambda _e: None)
    slot = Slot("torch")
    rows = []
    with (arguments.out / "slices_vs_full.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for number, name in enumerate(arguments.only):
            row = _row(session, slot, number, name)
            rows.append(row)
            writer.writerow(row)
            file.flush()
            print(row, flush=True)
    slot.close()
    for column in ("time_error", "memory_error"):
        errors = [abs(float(r[column])) for r in rows if r[column] != ""]
        if errors:
            print(f"median |{column}| {statistics.median(errors):.2%} of {len(errors)}", flush=True)


def _row(session: Session, slot: Slot, number: int, name: str) -> dict[str, object]:
    changes, micro = CONFIGURATIONS[name]
    configuration = session.plan.space.complete({**changes, "train.micro_batch_size": micro})
    records: list[TrialRecord] = []
    seconds = []
    for full in (False, True):
        proposal = Proposal(configuration=configuration, stage="search", full_depth=full)
        spec = spec_of(session, 2 * number + full, proposal, [])
        fidelity = Fidelity(depths=() if full else (2, 4))
        spec = dataclasses.replace(spec, fidelity=fidelity, timeout_seconds=200.0)
        begun = time.monotonic()
        records.append(slot.run(spec, session.trial_folder(spec.number)))
        seconds.append(round(time.monotonic() - begun, 1))
    step = [r.metric("step_time_ms") for r in records]
    peak = [r.metric("peak_memory_bytes") for r in records]
    failures = [r.failure.reason for r in records if r.failure]
    return {
        "name": name,
        "status_slices": records[0].status,
        "status_full": records[1].status,
        "step_ms_slices": _rounded(step[0]),
        "step_ms_full": _rounded(step[1]),
        "time_error": _error(step),
        "peak_gib_slices": _rounded(peak[0], 2**30),
        "peak_gib_full": _rounded(peak[1], 2**30),
        "memory_error": _error(peak),
        "tokens_per_second_full": _rounded(records[1].metric("tokens_per_second")),
        "seconds_slices": seconds[0],
        "seconds_full": seconds[1],
        "reason": "; ".join(failures)[:300],
    }


def _rounded(value: float | None, unit: float = 1.0) -> float | str:
    return "" if value is None else round(value / unit, 2)


def _error(pair: list[float | None]) -> float | str:
    predicted, measured = pair
    if not predicted or not measured:
        return ""
    return round(predicted / measured - 1, 5)


if __name__ == "__main__":
    main()
