"""best.yaml: the configuration with what was measured, by whom and how to do it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from autotune import environment
from autotune.export_choice import Choice, ExportError
from autotune.plain import NotPlain, yaml_text
from autotune.study import Interval

_VERSIONS = ("driver", "cuda_driver", "git_revision")  # of the fingerprint, beside "versions"
_NOT_HARDWARE = (*_VERSIONS, "versions", "torch", "command")
_OWN_OPTIONS = ("argv", "faults")  # these have a flag of their own
_INTERVAL = {"median", "low", "high", "n"}
_NEEDED = ("model", "task", "runner", "configuration", "measured")


def best_yaml(choice: Choice) -> str:
    """The text of best.yaml."""
    try:
        return yaml_text(_document(choice))
    except NotPlain as error:
        raise ExportError(f"cannot write {choice.study.spec.name} as YAML: {error}") from None


def _document(choice: Choice) -> dict[str, Any]:
    spec, fingerprint = choice.study.spec, choice.study.spec.fingerprint
    document: dict[str, Any] = {
        "model": spec.model_name,
        "task": spec.task,
        "runner": spec.runner,
        "study": spec.name,
        "trial": choice.number,
        "hardware": {k: v for k, v in fingerprint.items() if k not in _NOT_HARDWARE},
        "versions": {
            **fingerprint.get("versions", {}),
            **{k: fingerprint[k] for k in _VERSIONS if k in fingerprint},
        },
        "seed": spec.seed,
        "objectives": [f"{o.metric}:{o.direction}" for o in spec.objectives],
        "limits": [str(limit) for limit in spec.limits],
        "configuration": dict(choice.configuration),
        "changed": dict(choice.changed),
        "measured": _intervals(choice.measured),
        **_comparisons(choice),
        "verdict": choice.verdict,
        "extrapolated": choice.extrapolated,
        "workload": dict(spec.workload),
        "command": _command(choice),
    }
    if argv := spec.options.get("argv"):
        document["runner_command"] = shlex.join(argv)
    if faults := spec.options.get("faults"):
        document["faults"] = list(faults)
    if options := {k: v for k, v in spec.options.items() if k not in _OWN_OPTIONS}:
        document["options"] = options
    if spec.price_usd_per_gpu_hour is not None:
        document["price_usd_per_gpu_hour"] = spec.price_usd_per_gpu_hour
    return document


def _comparisons(choice: Choice) -> dict[str, Any]:
    """The baseline that counts, then every baseline with its own gain."""
    headline, outcome = choice.headline, choice.study.outcome
    if headline is None or outcome is None:
        return {"baseline": {}, "gain": None, "baselines": {}}
    gains = {c.baseline: c for c in outcome.comparisons}
    return {
        "baseline": _intervals(outcome.baselines.get(headline.baseline, {})),
        "gain": {"over": headline.baseline, **_interval(headline.gain)},
        "baselines": {
            name: {
                "measured": _intervals(measured),
                "gain": _interval(gains[name].gain) if name in gains else None,
                "verdict": gains[name].verdict if name in gains else "",
            }
            for name, measured in outcome.baselines.items()
        },
    }


def _interval(interval: Interval) -> dict[str, float]:
    """Unlike JSON, YAML can say that an end is open."""
    return {
        "median": interval.median,
        "low": interval.low,
        "high": interval.high,
        "n": interval.n,
    }


def _intervals(measured: Mapping[str, Interval]) -> dict[str, dict[str, float]]:
    return {name: _interval(interval) for name, interval in measured.items()}


def _command(choice: Choice) -> str:
    """A command line whose first trial is exactly this configuration."""
    spec = choice.study.spec
    words = ["autotune", "tune", spec.model_name, "--task", spec.task, "--runner", spec.runner]
    words += ["--seed", str(spec.seed), "--trials", "1"]
    for name, value in choice.changed.items():
        words += ["--set", f"{name}={_setting(value)}"]
    for name, value in spec.workload.items():
        if isinstance(value, bool | int | float | str):
            words += ["--workload", f"{name}={_setting(value)}"]
    for name, value in spec.options.items():
        if name not in _OWN_OPTIONS:
            words += ["--option", f"{name}={_setting(value)}"]
    for name, text in environment.mask(spec.environ).items():
        words += ["--env", f"{name}={text}"]
    if spec.price_usd_per_gpu_hour is not None:
        words += ["--price", str(spec.price_usd_per_gpu_hour)]
    if argv := spec.options.get("argv"):
        words += ["--command", shlex.join(argv)]
    for fault in spec.options.get("faults", ()):
        words += ["--fault", fault]
    return shlex.join(words)


def _setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def load_best(path: Path) -> dict[str, Any]:
    """Read a best.yaml; ExportError in one line when it is not one."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExportError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ExportError(f"{path} is not YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(document, dict):
        raise ExportError(f"{path} is not a best.yaml: it should be a mapping")
    if missing := [key for key in _NEEDED if key not in document]:
        raise ExportError(f"{path} is not a best.yaml: it lacks {', '.join(missing)}")
    _check(path, document)
    return document


def _check(path: Path, document: dict[str, Any]) -> None:
    for key in ("configuration", "measured"):
        if not isinstance(document[key], dict):
            raise ExportError(f"{path}: {key} should be a mapping")
    for name, value in document["configuration"].items():
        if not isinstance(name, str) or not isinstance(value, bool | int | float | str):
            raise ExportError(f"{path}: configuration.{name} should be a plain value")
    for name, interval in document["measured"].items():
        numbers = interval if isinstance(interval, dict) else {}
        if set(numbers) != _INTERVAL or not all(
            isinstance(number, int | float) for number in numbers.values()
        ):
            raise ExportError(f"{path}: measured.{name} should have median, low, high and n")
