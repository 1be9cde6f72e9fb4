"""One trial from its folder to its exit code; the only place that turns errors into statuses."""

from __future__ import annotations

import importlib
import json
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from autotune.trial import (
    EXIT_CODES,
    Failure,
    Measurement,
    Status,
    TrialSpec,
    spec_from_json,
)
from trials import plain_numbers, result, variables
from trials.errors import NonFinite, StoppedEarly, TrialError, Unsupported
from trials.settings import Settings

Runner = Callable[[TrialSpec, Path, Settings], Measurement]

RUNNERS = {
    ("toy", "train"): "trials.toy:run",
    ("toy", "serve"): "trials.toy:run",
    ("command", "train"): "trials.command:run",
    ("command", "serve"): "trials.command:run",
    ("torch", "train"): "trials.train.program:run",
    ("torch", "serve"): "trials.serve.program:run",
    ("vllm", "serve"): "trials.vllm.program:run",
}


def main(folder: Path) -> int:
    """Run the trial of a folder; writes measurement.json and returns the exit code."""
    spec = spec_from_json(json.loads((folder / "spec.json").read_text()))
    try:
        measurement = _measure(spec, folder)
    except StoppedEarly as error:
        return _failed(folder, error.status, str(error), "", error.seen)
    except TrialError as error:
        return _failed(folder, error.status, str(error), error.hint)
    except MemoryError as error:
        return _failed(folder, Status.HOST_OUT_OF_MEMORY, f"MemoryError: {error}", "")
    except Exception as error:
        traceback.print_exc()
        status = _status_of(error)
        first = str(error).strip().splitlines()[0:1]
        return _failed(folder, status, f"{type(error).__name__}: {''.join(first)}"[:500], "")
    result.write(folder, Status.COMPLETE, measurement, None)
    return EXIT_CODES[Status.COMPLETE]


def _measure(spec: TrialSpec, folder: Path) -> Measurement:
    target = RUNNERS.get((spec.runner, spec.task))
    if target is None:
        raise Unsupported(f"runner {spec.runner} has no task {spec.task}")
    module, _, name = target.partition(":")
    run: Runner = getattr(importlib.import_module(module), name)
    settings = Settings(spec)
    variables.read_back(spec, settings)
    measurement = plain_numbers.measured(run(spec, folder, settings))
    if unread := settings.unread():
        raise Unsupported(f"nothing read {', '.join(unread)}: it had no effect")
    if wrong := settings.mismatches():
        raise Unsupported("; ".join(wrong))
    for name_, value in measurement.metrics.items():
        if value is not None and not math.isfinite(value):
            raise NonFinite(f"{name_} is {value}")
    return measurement


def _status_of(error: Exception) -> Status:
    """By the type alone; the launcher also reads the log for what libraries say in words."""
    if type(error).__name__ == "OutOfMemoryError":
        return Status.OUT_OF_MEMORY
    return Status.CRASHED


def _failed(
    folder: Path, status: Status, reason: str, hint: str, seen: Measurement | None = None
) -> int:
    print(f"{status}: {reason}", file=sys.stderr, flush=True)
    result.write(folder, status, seen, Failure(reason=reason, hint=hint))
    return EXIT_CODES[status]


__all__ = ["RUNNERS", "StoppedEarly", "main"]
