"""Continuous against static batching and paged against contiguous cache, on one trace, in one run.

    python -m benchmarks.serve_baselines [--model tiny] [--requests 48] [--out FILE.csv]

All four arms get the same bytes of KV cache, the same weights and the same requests, of many
lengths, and take turns over the rounds. Ratios are over static batching with a contiguous cache.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from autotune import space_file
from autotune.trial import AppliedKnob, Fidelity, TrialSpec
from trials.serve import building, choices, figures, sampling, trace
from trials.serve.building import Built
from trials.serve.trace import Trace
from trials.settings import Settings

_STATIC = {"serve.batching": "static"}
_CONTIGUOUS = {"kv_cache.kind": "contiguous"}
_PAGED = {"kv_cache.block_size": 16}
ARMS: dict[str, dict[str, Any]] = {
    "static, contiguous": {**_STATIC, **_CONTIGUOUS},
    "static, paged": {**_STATIC, **_PAGED},
    "continuous, contiguous": _CONTIGUOUS,
    "continuous, paged": _PAGED,
}
_WORKLOAD = {"prompt_tokens": 24, "output_tokens": 24, "distribution": "lognormal", "spread": 0.8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one arm showed; everything but the rate is counted and the same in every run."""

    arm: str
    steps: int
    batch_occupancy: float
    kv_cache_waste_fraction: float
    output_tokens: int
    output_tokens_per_second: float  # median over the rounds


def settings_of(model: Mapping[str, Any], knobs: Mapping[str, Any], **options: Any) -> Settings:
    """What a trial with these argument knobs would be handed."""
    applied = tuple(
        AppliedKnob(name=name, value=value, apply={"argument": name}, is_default=False)
        for name, value in knobs.items()
    )
    spec = TrialSpec(
        study="by-hand",
        number=0,
        task="serve",
        runner="torch",
        model=model,
        workload={},
        configuration=dict(knobs),
        applied=applied,
        stage="search",
        fidelity=Fidelity(depths=()),
        seed=0,
        gpus=0,
        timeout_seconds=600.0,
        options=options,
    )
    return Settings(spec)


def built(model: Mapping[str, Any], knobs: Mapping[str, Any], slots: int) -> tuple[Built, Settings]:
    """A model on the CPU with a cache of so many tokens."""
    settings = settings_of(model, knobs)
    chosen = choices.choose(settings, model, torch.device("cpu"))
    found = building.build(
        chosen,
        settings,
        model,
        sampling.Wanted(),
        depth=int(model["num_hidden_layers"]),
        blocks=slots // chosen.cache.size,
    )
    return found, settings


def compare(
    model: Mapping[str, Any], asked: Trace, *, sequences: int, held: int, rounds: int
) -> list[Row]:
    """Serve the trace by every arm; the cache has room for ``held`` of the longest sequence."""
    common = {"serve.max_num_seqs": sequences, "serve.max_model_len": asked.longest}
    engines = {
        arm: built(model, {**common, **knobs}, held * asked.longest)[0]
        for arm, knobs in ARMS.items()
    }
    seen: dict[str, list[Row]] = {arm: [] for arm in ARMS}
    with torch.inference_mode():
        for _ in range(rounds):
            for arm, made in engines.items():
                seen[arm].append(_served(arm, made, asked, sequences))
    return [_median(rows) for rows in seen.values()]


def _served(arm: str, made: Built, asked: Trace, sequences: int) -> Row:
    served = made.engine().serve(asked.requests)
    found, _ = figures.metrics(served, asked.workload, max_num_seqs=sequences, preemptions=0)
    return Row(
        arm=arm,
        steps=served.steps,
        batch_occupancy=found["batch_occupancy"] or 0.0,
        kv_cache_waste_fraction=found["kv_cache_waste_fraction"] or 0.0,
        output_tokens=sum(line.received for line in served.timelines),
        output_tokens_per_second=found["output_tokens_per_second"] or 0.0,
    )


def _median(rows: Sequence[Row]) -> Row:
    rate = statistics.median(row.output_tokens_per_second for row in rows)
    return dataclasses.replace(rows[0], output_tokens_per_second=rate)


def _table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    first = rows[0]
    return [
        {
            **{name: getattr(row, name) for name in Row.__slots__},
            "steps_ratio": row.steps / first.steps,
            "rate_ratio": row.output_tokens_per_second / first.output_tokens_per_second,
        }
        for row in rows
    ]


def main() -> None:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--held", type=int, default=6, help="longest sequences the cache holds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("serve_baselines.csv"))
    asked = parser.parse_args()
    model = space_file.load_model(asked.model)
    workload = {**_WORKLOAD, "requests": asked.requests}
    requests = trace.make(workload, int(model["vocab_size"]))
    rows = compare(model, requests, sequences=asked.sequences, held=asked.held, rounds=asked.rounds)
    table = _table(rows)
    with asked.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    for row in table:
        print(
            f"{row['arm']:<24} {row['steps']:>5} steps ({row['steps_ratio']:.2f} x)  "
            f"KV waste {row['kv_cache_waste_fraction']:>6.1%}  "
            f"occupancy {row['batch_occupancy']:>6.1%}  "
            f"{row['output_tokens_per_second']:>8.1f} output tokens/s ({row['rate_ratio']:.2f} x)"
        )


if __name__ == "__main__":
    main()
