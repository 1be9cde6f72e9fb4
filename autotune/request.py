"""What a user asks for, as the command line, a study file and the service all state it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from autotune.metric import METRICS, PERCENTILES, find
from autotune.space import nearest
from autotune.study import Limit, Objective, StudyError, parse_limit

TASKS = ("train", "serve")
RUNNERS = ("torch", "vllm", "command", "toy")
STRATEGIES = ("auto", "tpe", "random", "nsga2", "nsga3", "gp", "qmc", "cmaes")
_DURATION = re.compile(r"^(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?$")
_STUDY_NAME = re.compile(r"^[A-Za-z0-9][\w.-]{0,79}$")

_GOALS: dict[str, dict[str, tuple[str, ...]]] = {
    "train": {
        "throughput": ("tokens_per_second:max",),
        "latency": ("step_time_ms:min",),
        "memory": ("peak_memory_bytes:min", "tokens_per_second:max"),
        "energy": ("energy_joules_per_token:min",),
        "cost": ("dollars_per_million_tokens:min",),
        "balanced": ("tokens_per_second:max", "peak_memory_bytes:min"),
    },
    "serve": {
        "throughput": ("output_tokens_per_second:max",),
        "latency": ("request_latency_ms_p99:min",),
        "memory": ("peak_memory_bytes:min", "output_tokens_per_second:max"),
        "energy": ("energy_joules_per_token:min",),
        "cost": ("dollars_per_million_tokens:min",),
        "balanced": ("output_tokens_per_second:max", "time_to_first_token_ms_p99:min"),
    },
}
GOALS = tuple(_GOALS["train"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One ``tune`` as asked; texts are not yet checked. None means: the default for this host."""

    model: str
    task: str = "train"
    runner: str = "torch"
    goal: str = "throughput"
    objectives: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    budget: str | None = None
    trials: int | None = None
    trial_timeout: str | None = None
    settings: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    space_files: tuple[str, ...] = ()
    strategy: str = "auto"
    study: str | None = None
    warm_start: str | None = None  # another study, used as prior, never as fact
    workers: int | None = None
    gpus_per_trial: int | None = None
    cpus_per_trial: int = 0
    ray_address: str | None = None
    price: float | None = None
    seed: int = 0
    workload: tuple[str, ...] = ()
    environ: tuple[str, ...] = ()
    command: str = ""  # runner command: the argv template, split without a shell
    faults: tuple[str, ...] = ()  # runner toy
    options: tuple[str, ...] = ()  # further options of the runner, KEY=VALUE


def parse_seconds(text: str, what: str) -> float:
    """``90``, ``90s``, ``10m``, ``1h30m`` in seconds; StudyError unless positive and finite."""
    match = _DURATION.match(text.strip())
    parts = [float(p or 0) for p in match.groups()] if match else []
    seconds = sum(p * unit for p, unit in zip(parts, (3600, 60, 1), strict=False))
    if not seconds or not math.isfinite(seconds):
        raise StudyError(f"{what} {text!r} should be a time above 0 such as 90s, 10m or 1h30m")
    return seconds


def check_study_name(name: str) -> str:
    """The name itself; StudyError when it could not also be a folder."""
    if not _STUDY_NAME.match(name):
        raise StudyError(
            f"study name {name!r} may hold letters, digits, '.', '_' and '-' (80 at most), "
            "and starts with a letter or digit"
        )
    return name


def objectives_of(request: Request) -> tuple[Objective, ...]:
    """The objectives asked for, or those of the goal; StudyError names the nearest metric."""
    if request.goal not in _GOALS[request.task]:
        raise StudyError(f"unknown goal {request.goal}{nearest(request.goal, GOALS)}")
    texts = request.objectives or _GOALS[request.task][request.goal]
    found = tuple(_objective(text, request.runner) for text in texts)
    names = [o.metric for o in found]
    if repeated := {n for n in names if names.count(n) > 1}:
        raise StudyError(f"objective {repeated.pop()} is given twice; name each metric once")
    return found


def limits_of(request: Request) -> tuple[Limit, ...]:
    """The limits asked for; StudyError for an unknown metric or limits that exclude each other."""
    limits = tuple(parse_limit(text) for text in request.limits)
    for limit in limits:
        _check_metric(limit.metric, request.runner)
    for low in (x for x in limits if x.op.startswith(">")):
        for high in (x for x in limits if x.op.startswith("<") and x.metric == low.metric):
            touching = low.op == ">=" and high.op == "<="
            if low.value > high.value or (low.value == high.value and not touching):
                raise StudyError(f"limits {low} and {high} contradict each other; drop one")
    return limits


def _objective(text: str, runner: str) -> Objective:
    metric, _, direction = text.partition(":")
    known = _check_metric(metric, runner)
    direction = direction or known
    if direction not in ("max", "min"):
        raise StudyError(f"objective {text!r} should read METRIC:max or METRIC:min")
    return Objective(metric=metric, direction=direction)


def _check_metric(name: str, runner: str) -> str:
    """The better direction of a metric; a command may report any name, then without one."""
    if metric := find(name):
        if name in METRICS and any(find(f"{name}_{p}") for p in PERCENTILES) and "_ms" in name:
            _check_percentile(name)
        return metric.direction
    if runner == "command":
        return ""
    raise StudyError(f"unknown metric {name}{nearest(name, METRICS)}")


def _check_percentile(name: str) -> None:
    if name != "step_time_ms":
        raise StudyError(f"{name} needs a percentile: {name}_p50, {name}_p90 or {name}_p99")
