"""From a request to a study that can run: every check of the user's input happens here."""

from __future__ import annotations

import dataclasses
import datetime
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import argv_template, runner_words, space_file
from autotune import hardware as hw
from autotune import request as rq
from autotune.hardware import Hardware
from autotune.request import Request
from autotune.space import SearchSpace, SpaceError, nearest
from autotune.study import DEFAULT_TIMEOUT_SECONDS, Budget, Objective, StudyError, StudySpec
from autotune.trial import KnobValue

# Seconds of trials when the user gives neither --budget nor --trials.
DEFAULT_BUDGET_SECONDS = {"cpu": 360.0, "cuda": 900.0}
_ENERGY = ("energy_joules_per_token", "average_power_watts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A checked study together with what only this host and this session know."""

    spec: StudySpec
    space: SearchSpace
    hardware: Hardware
    notices: tuple[str, ...] = ()
    ray_address: str | None = None
    warm_start: str | None = None


def make(request: Request, command: Sequence[str]) -> Plan:
    """Check everything a user can get wrong; raises StudyError or SpaceError, one line each."""
    _check_words(request)
    hardware = _hardware_for(request)
    objectives, limits = rq.objectives_of(request), rq.limits_of(request)
    _check_metrics_can_be_had(request, objectives, hardware)
    model = space_file.load_model(request.model) if request.runner in ("torch", "vllm") else {}
    gpus = _gpus_per_trial(request, hardware)
    space, notices = _space(request, hardware, model, gpus)
    _check_command(request, space)
    _check_words_are_read(request, space)
    presets = space_file.load_presets(space, request.task) if model else []
    spec = StudySpec(
        name=rq.check_study_name(request.study or default_name(request)),
        model_name=str(model.get("name", request.model)),
        model=model,
        task=request.task,
        runner=request.runner,
        workload=_workload(request, hardware),
        objectives=objectives,
        limits=limits,
        budget=_budget(request, hardware),
        strategy=request.strategy,
        seed=request.seed,
        workers=_workers(request, hardware, gpus),
        gpus_per_trial=gpus,
        price_usd_per_gpu_hour=request.price,
        space=space_file.dump(space),
        presets=tuple(presets),
        options=_options(request),
        environ=_pairs(request.environ, "--env"),
        fingerprint=hw.fingerprint(list(command)),
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        cpus_per_trial=request.cpus_per_trial,
    )
    return Plan(
        spec=spec,
        space=space,
        hardware=hardware,
        notices=notices,
        ray_address=request.ray_address,
        warm_start=request.warm_start,
    )


def again(
    spec: StudySpec,
    *,
    trials: int | None = None,
    budget: str | None = None,
    ray_address: str | None = None,
) -> Plan:
    """The plan of a stored study, to go on with; ``budget`` grants more time to one that has one.

    Raises StudyError when this host lacks the devices that the study was made for.
    """
    hardware = hw.detect()
    if spec.gpus_per_trial > len(hardware.gpus) and not ray_address:
        raise StudyError(
            f"{spec.name} was made for {spec.gpus_per_trial} GPUs a trial; "
            f"{len(hardware.gpus)} are here"
        )
    changed = spec.budget
    if trials is not None:
        changed = dataclasses.replace(changed, trials=trials)
    if budget is not None:
        more = rq.parse_seconds(budget, "--budget")
        changed = dataclasses.replace(changed, seconds=(changed.seconds or 0.0) + more)
    return Plan(
        spec=dataclasses.replace(spec, budget=changed),
        space=space_file.restore(spec.space),
        hardware=hardware,
        ray_address=ray_address,
    )


def default_name(request: Request) -> str:
    """``llama-7b-train-20261201-084500``: readable, sortable, new for every run."""
    stem = "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(request.model).name)
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    return f"{stem.strip('._-')[:50] or 'study'}-{request.task}-{stamp}"


def _check_words(request: Request) -> None:
    for what, word, known in (
        ("task", request.task, rq.TASKS),
        ("runner", request.runner, rq.RUNNERS),
        ("strategy", request.strategy, rq.STRATEGIES),
    ):
        if word not in known:
            raise StudyError(f"unknown {what} {word}{nearest(word, known)}")
    if request.trials is not None and request.trials < 1:
        raise StudyError(f"--trials {request.trials} should be at least 1")
    for what, asked in (("gpus", request.gpus_per_trial), ("cpus", request.cpus_per_trial)):
        if asked is not None and asked < 0:
            raise StudyError(f"--{what}-per-trial {asked} should not be below 0")
    if request.price is not None and not 0 < request.price < 1e6:
        raise StudyError(f"--price {request.price} should be dollars per GPU hour, above 0")
    if request.runner == "command" and not request.command:
        raise StudyError("runner command needs --command 'PROGRAM {knob} --out {out}'")
    if request.runner == "vllm" and request.task != "serve":
        raise StudyError("runner vllm serves; add --task serve")


def _hardware_for(request: Request) -> Hardware:
    hardware = hw.detect()
    if (request.gpus_per_trial or 0) > len(hardware.gpus) and not request.ray_address:
        raise StudyError(
            f"--gpus-per-trial {request.gpus_per_trial} asks for more than the "
            f"{len(hardware.gpus)} GPUs here; `autotune doctor` shows what was found"
        )
    if request.cpus_per_trial > hardware.cores and not request.ray_address:
        raise StudyError(
            f"--cpus-per-trial {request.cpus_per_trial} asks for more than the "
            f"{hardware.cores} cores here"
        )
    return hardware


def _gpus_per_trial(request: Request, hardware: Hardware) -> int:
    if request.gpus_per_trial is not None:
        return request.gpus_per_trial
    return 1 if hardware.gpus and request.runner in ("torch", "vllm") else 0


def _workers(request: Request, hardware: Hardware, gpus: int) -> int:
    """One slot per GPU set; on a CPU one torch trial at a time, since a trial uses every core."""
    if request.workers is not None:
        if request.workers < 1:
            raise StudyError(f"--workers {request.workers} should be at least 1")
        return request.workers
    if gpus:
        return max(1, len(hardware.gpus) // gpus)
    if request.cpus_per_trial:
        return max(1, hardware.cores // request.cpus_per_trial)
    return 1 if request.runner in ("torch", "vllm") else max(1, min(hardware.cores, 8))


def _budget(request: Request, hardware: Hardware) -> Budget:
    seconds = rq.parse_seconds(request.budget, "--budget") if request.budget else None
    if seconds is None and request.trials is None:
        seconds = DEFAULT_BUDGET_SECONDS[hardware.device]
    timeout = DEFAULT_TIMEOUT_SECONDS
    if request.trial_timeout:
        timeout = rq.parse_seconds(request.trial_timeout, "--trial-timeout")
    return Budget(seconds=seconds, trials=request.trials, trial_timeout_seconds=timeout)


def _space(
    request: Request, hardware: Hardware, model: Mapping[str, Any], gpus: int
) -> tuple[SearchSpace, tuple[str, ...]]:
    catalogue = space_file.load_catalogue([Path(f) for f in request.space_files])
    context = hw.context(hardware, request.runner)
    context |= {
        f"model.{k}": v for k, v in model.items() if isinstance(v, bool | int | float | str)
    }
    context |= {"task": request.task, "world_size": max(1, gpus)}
    settings: dict[str, KnobValue] = {}
    for text in request.settings:
        name, value = space_file.parse_setting(text, catalogue)
        if name in settings and settings[name] != value:
            raise SpaceError(f"--set {name} is given twice with different values")
        settings[name] = value
    space = space_file.select(
        catalogue,
        task=request.task,
        runner=request.runner,
        context=context,
        settings=settings,
        only=request.only,
        exclude=request.exclude,
        workload=space_file.load_workload(request.task, hardware.device),
    )
    if not space.free():
        raise SpaceError("no knob is left to tune; loosen --only, --exclude or --set")
    return space, ()


def _workload(request: Request, hardware: Hardware) -> dict[str, Any]:
    """Facts of the job that are no knobs (the request trace, say), with the user's own on top."""
    base = space_file.load_workload(request.task, hardware.device)
    facts = {name: value for name, value in base.items() if "." not in name}
    return facts | {k: _number(v) for k, v in _pairs(request.workload, "--workload").items()}


def _options(request: Request) -> dict[str, Any]:
    options: dict[str, Any] = {
        k: _number(v) for k, v in _pairs(request.options, "--option").items()
    }
    if request.command:
        options["model"] = request.model
        try:
            options["argv"] = shlex.split(request.command)
        except ValueError as error:
            raise StudyError(f"--command cannot be split into arguments: {error}") from None
    if request.faults:
        options["faults"] = list(request.faults)
    return options


def _check_command(request: Request, space: SearchSpace) -> None:
    """Refuse a command line that no trial could run, or that leaves a knob out."""
    if request.runner != "command":
        return
    facts = _pairs(request.workload, "--workload")
    by_argument = [k.name for k in space.free() if "argument" in k.apply]
    try:
        argv_template.check(
            _options(request)["argv"], [*(k.name for k in space.knobs), *facts], by_argument
        )
    except argv_template.BadTemplate as error:
        raise StudyError(f"--command: {error}") from None


def _check_words_are_read(request: Request, space: SearchSpace) -> None:
    """Options, facts and faults that nothing reads."""
    runner_words.check_options(request.runner, _pairs(request.options, "--option"))
    argv = _options(request).get("argv", ())
    facts = _pairs(request.workload, "--workload")
    mentioned = argv_template.names(argv)
    runner_words.check_facts(request.runner, request.task, facts, space, mentioned)
    runner_words.check_faults(request.runner, request.faults, space)


def _pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise StudyError(f"{flag} {text!r} should read KEY=VALUE")
        pairs[key] = value
    return pairs


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check_metrics_can_be_had(
    request: Request, objectives: Sequence[Objective], hardware: Hardware
) -> None:
    """Refuse at the start what no trial here could ever report."""
    wanted = {o.metric for o in objectives} | {limit.metric for limit in rq.limits_of(request)}
    if "dollars_per_million_tokens" in wanted and request.price is None:
        raise StudyError("dollars_per_million_tokens needs --price USD_PER_GPU_HOUR")
    needs_power = sorted(wanted & set(_ENERGY))
    if needs_power and request.runner not in ("toy", "command") and (why := hw.no_power(hardware)):
        raise StudyError(f"{needs_power[0]} cannot be measured here: {why}")
