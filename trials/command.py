"""Runner command: any program of the user's. It gets knobs as arguments or variables, and answers
with a JSON file of metrics. No shell is ever involved."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import autotune
from autotune import argv_template
from autotune.trial import EXIT_CODES, KnobValue, Measurement, Status, TrialSpec
from trials import plain_numbers
from trials.errors import (
    BadOutput,
    HostOutOfMemory,
    NonFinite,
    OutOfMemory,
    StoppedEarly,
    TrialError,
    Unsupported,
)
from trials.settings import Settings

_OUT = "metrics.json"
_LARGEST_BYTES = 16 << 20
_MOST_PORTS = 3
_PORT_TAKEN = (b"ddress already in use", b"EADDRINUSE", b"ddress in use")
_LOG_BYTES = 8192
_KEYS: dict[str, type] = {
    "metrics": dict,
    "samples": dict,
    "phases": dict,
    "telemetry": dict,
    "notices": list,
}
_BY_STATUS: dict[Status, type[TrialError]] = {
    kind.status: kind
    for kind in (OutOfMemory, HostOutOfMemory, Unsupported, NonFinite, BadOutput, StoppedEarly)
}


def run(spec: TrialSpec, folder: Path, settings: Settings) -> Measurement:
    """Run ``options.argv`` and read what it wrote to ``{out}``."""
    out = folder / _OUT
    out.unlink(missing_ok=True)
    log = folder / "log.txt"
    for ports_left in range(_MOST_PORTS - 1, -1, -1):
        arguments = _arguments(spec, folder, out, settings)
        said = log.stat().st_size if log.exists() else 0
        started, begun = time.time(), time.monotonic()
        code = _run(arguments, out)
        seconds = time.monotonic() - begun
        if not (code and ports_left and _lost_its_port(spec, log, said)):
            break
    _check_exit(code)
    answer = _answer(out)
    telemetry = {"window": [started, started + seconds], **answer.get("telemetry", {})}
    return Measurement(
        metrics=answer["metrics"],
        samples={name: tuple(values) for name, values in answer.get("samples", {}).items()},
        effective=dict(settings.read_back),
        phases={"program": seconds, **answer.get("phases", {})},
        telemetry=telemetry,
        notices=(*settings.notices, *answer.get("notices", ())),
    )


def _run(arguments: list[str], out: Path) -> int:
    try:
        return subprocess.run(arguments, env=_environ(out), stdin=subprocess.DEVNULL).returncode
    except OSError as error:
        raise TrialError(f"{arguments[0]!r} cannot be run: {error.strerror}") from None


def _free_port() -> int:
    """One that nobody listens on now; whoever takes it before the program does is no fault of the
    configuration."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _lost_its_port(spec: TrialSpec, log: Path, said: int) -> bool:
    """Whether somebody took the port that we chose before the program did."""
    if "port" not in argv_template.names([str(word) for word in spec.options["argv"]]):
        return False
    with log.open("rb") as file:
        file.seek(max(said, file.seek(0, os.SEEK_END) - _LOG_BYTES))
        text = file.read()
    return any(words in text for words in _PORT_TAKEN)


def _arguments(spec: TrialSpec, folder: Path, out: Path, settings: Settings) -> list[str]:
    argv = spec.options.get("argv")
    if not argv:
        raise Unsupported("there is no program to run; give --command")
    template = [str(word) for word in argv]
    mentioned = argv_template.names(template)
    values: dict[str, KnobValue] = {
        "out": str(out),
        "folder": str(folder),
        "seed": spec.seed,
        "number": spec.number,
        "model": str(spec.options.get("model", spec.model.get("name", ""))),
        "task": spec.task,
        "port": _free_port() if "port" in mentioned else 0,
        **spec.workload,  # facts of the job, such as requests
    }
    for name in settings.values:
        if name in mentioned:
            values[name] = settings.take(name)
            settings.effective(name, values[name])
    try:
        return argv_template.fill(template, values)
    except argv_template.BadTemplate as error:
        raise Unsupported(str(error)) from None


def _environ(out: Path) -> dict[str, str]:
    """The user's own environment again: our way to find modules would get in the program's."""
    environ = dict(os.environ)
    environ.pop("PYTHONSAFEPATH", None)
    ours = {str(Path(module).parents[1]) for module in (__file__, str(autotune.__file__))}
    kept = [p for p in environ.pop("PYTHONPATH", "").split(os.pathsep) if p and p not in ours]
    if kept:
        environ["PYTHONPATH"] = os.pathsep.join(kept)
    return environ | {"AUTOTUNE_OUT": str(out)}


def _check_exit(code: int) -> None:
    """End as the program ended, so that whoever watches us sees the same."""
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (9, 19) else None
        os.kill(os.getpid(), -code)
        time.sleep(10)
    if code:
        status = next((s for s, number in EXIT_CODES.items() if number == code), None)
        kind = _BY_STATUS.get(status, TrialError) if status else TrialError
        raise kind(f"the program ended with exit code {code}")


def _answer(out: Path) -> Mapping[str, Any]:
    """The file as ``{"metrics": {...}, ...}``; a plain object of numbers is taken as metrics."""
    try:
        if out.stat().st_size > _LARGEST_BYTES:
            raise TrialError(f"{_OUT} is larger than {_LARGEST_BYTES >> 20} MiB")
        data = json.loads(out.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "write them as JSON to the file that {out} or $AUTOTUNE_OUT names"
        raise _with_hint("the program wrote no metrics", hint) from None
    except (OSError, ValueError, RecursionError) as error:
        raise TrialError(f"{_OUT} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise TrialError(f"{_OUT} is a {type(data).__name__}, not an object of numbers by name")
    answer = data if isinstance(data.get("metrics"), dict) else {"metrics": data}
    if unknown := sorted(answer.keys() - _KEYS.keys()):
        raise TrialError(f"{_OUT} has an unknown key {unknown[0]}; known: {', '.join(_KEYS)}")
    for key, value in answer.items():
        if not isinstance(value, _KEYS[key]):
            raise TrialError(f"{_OUT}: {key} is a {type(value).__name__}")
    for name, value in answer["metrics"].items():
        number = plain_numbers.plain(value, f"metric {name}")
        if number is not None and not math.isfinite(number):
            raise NonFinite(f"{name} is {number}")
    return answer


def _with_hint(reason: str, hint: str) -> TrialError:
    error = TrialError(reason)
    error.hint = hint
    return error
