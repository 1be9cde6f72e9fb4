"""Faults of the toy runner: everything that goes wrong in real trials, on demand.

A fault reads ``ACTION`` or ``ACTION if CONDITION``; the condition may name knobs, ``number`` (of
the trial) and ``chance`` (0 to 1, drawn for the trial).
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.requirement import parse
from autotune.space import nearest
from autotune.trial import KnobValue, Measurement, Status, TrialSpec, to_json
from trials.errors import (
    BadOutput,
    HostOutOfMemory,
    NonFinite,
    OutOfMemory,
    StoppedEarly,
    Unsupported,
)

# What libraries write when the device is full, and one that means the host.
STDERR = {
    "cublas alloc": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
    "`cublasCreate(handle)`",
    "cudnn alloc": "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "nccl oom": "torch.distributed.DistBackendError: NCCL error: unhandled cuda error, "
    "Cuda failure 2 'out of memory'",
    "torch oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "no kv cache": "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine.",
    "memoryerror": "MemoryError",
    "illegal access": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "xid": "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
}
_METRICS = {
    "tok_s": "tokens_per_second",
    "p99_ms": "request_latency_ms_p99",
    "mem_mb": "peak_memory_bytes",
}
_SIGNALS = {"segfault": signal.SIGSEGV, "abort": signal.SIGABRT, "bus error": signal.SIGBUS}
_MOST_CHILDREN = 500


def active(spec: TrialSpec, knobs: Mapping[str, KnobValue], chance: float) -> list[str]:
    """The actions of the faults whose condition holds; ValueError for one that is unknown."""
    values = {**knobs, "number": spec.number, "chance": chance}
    found = []
    for text in spec.options.get("faults", ()):
        action, _, condition = str(text).partition(" if ")
        action = action.strip()
        _check(action)
        if not condition or parse(condition).holds(values):
            found.append(action)
    return found


def _check(action: str) -> None:
    if not any(p.fullmatch(action) for p in (*_BEFORE, _SPOIL, _TYPE, *_AFTER)):
        known = sorted({_plain_name(p) for p in (*_DONE_BEFORE, *_DONE_AFTER)})
        raise ValueError(f"unknown fault {action!r}; known are {', '.join(known)}, METRIC=VALUE")


def _plain_name(pattern: str) -> str:
    """A pattern's first words, as a person would write them."""
    return re.split(r"[(\[:\\]", pattern)[0].strip() or "segfault, abort, bus error"


def check(faults: Sequence[str], knobs: Sequence[str]) -> str:
    """Why one of these faults could never be meant; empty when all can."""
    for text in faults:
        action, _, condition = text.partition(" if ")
        try:
            _check(action.strip())
            names = parse(condition).names if condition else frozenset()
        except ValueError as error:
            return f"{text!r}: {error}"
        if unknown := sorted(names - {*knobs, "number", "chance"}):
            return f"{text!r}: no knob {unknown[0]}{nearest(unknown[0], knobs)}"
    return ""


def before(faults: Sequence[str], folder: Path) -> None:
    """Do those that come before a measurement; most do not return."""
    del folder
    for action in faults:
        for pattern, fault in _BEFORE.items():
            if match := pattern.fullmatch(action):
                fault(*match.groups())


def spoiled(faults: Sequence[str], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics with other values, or values of other types."""
    found = dict(metrics)
    for action in faults:
        if match := _SPOIL.fullmatch(action):
            found[_METRICS.get(match[1], match[1])] = float(match[2])
        elif match := _TYPE.fullmatch(action):
            name = _METRICS.get(match[2], match[2]) if match[2] else "tokens_per_second"
            found[name] = _TYPES[match[1]](found.get(name) or 1.0)
    return found


def after(faults: Sequence[str], folder: Path, measurement: Measurement) -> None:
    """Do those that come when all is measured."""
    for action in faults:
        for pattern, fault in _AFTER.items():
            if match := pattern.fullmatch(action):
                fault(folder, measurement, *match.groups())


def _raise(kind: type[Exception], text: str) -> Callable[[], None]:
    def fault() -> None:
        raise kind(text)

    return fault


def _crash(text: str | None) -> None:
    raise RuntimeError((text or "").strip() or "the toy was told to crash")


def _exit(code: str) -> None:
    os._exit(int(code))


def _sleep(seconds: str) -> None:
    time.sleep(float(seconds))


def _kill(number: str, _who: str | None) -> None:
    os.kill(os.getpid(), int(number))
    time.sleep(60)


def _signal(name: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), _SIGNALS[name])


def _hang(how: str | None) -> None:
    if how:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(60)


def _grandchild(how: str | None) -> None:
    """Leave a process in a session of its own; orphaned and without our variables, if asked."""
    if how is None:
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        return
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)
    os.wait()


def _fork_bomb(count: str | None) -> None:
    """Children that fork children, up to a number, and then live on."""
    left = min(int(count or 100), _MOST_CHILDREN)
    while left > 0:
        half = (left + 1) // 2
        if os.fork() == 0:
            os.setsid()
            left = half - 1
        else:
            left -= half
    time.sleep(600)


def _huge_log(megabytes: str | None) -> None:
    line = "all work and no play makes a dull log\n" * 1000
    for _ in range(int(megabytes or 100) * 2**20 // len(line)):
        sys.stdout.write(line)
    sys.stdout.flush()


def _stderr(text: str) -> None:
    print(STDERR.get(text.strip(), text.strip()), file=sys.stderr, flush=True)
    os._exit(1)


def _print(name: str) -> None:
    print(f"{name}={os.environ.get(name)}", flush=True)


def _disk_full() -> None:
    raise OSError(28, "No space left on device")


def _numpy(name: str) -> Callable[[float], Any]:
    def convert(value: float) -> Any:
        import numpy

        return getattr(numpy, name)(value)

    return convert


def _tensor(value: float) -> Any:
    import torch

    return torch.tensor(value)


def _decimal(value: float) -> Any:
    from decimal import Decimal

    return Decimal(value)


def _write_and(
    folder: Path, measurement: Measurement, status: Status = Status.COMPLETE, cut: int | None = None
) -> None:
    data = {"status": status, "measurement": to_json(measurement), "failure": None}
    (folder / "measurement.json").write_text(json.dumps(data)[:cut])


def _hang_at_exit(folder: Path, measurement: Measurement) -> None:
    _write_and(folder, measurement)
    _hang("ignoring sigterm")


def _die_at_exit(folder: Path, measurement: Measurement) -> None:
    _write_and(folder, measurement)
    _signal("segfault")


def _half(folder: Path, measurement: Measurement) -> None:
    _write_and(folder, measurement, cut=40)
    os._exit(0)


def _no_answer(_folder: Path, _measurement: Measurement) -> None:
    os._exit(0)


_TYPES: dict[str, Callable[[float], Any]] = {
    "list": lambda value: [value],
    "string": str,
    "dict": lambda value: {"value": value},
    "object": lambda _value: object(),
    "none": lambda _value: None,
    "bool": lambda value: value > 0,
    "decimal": _decimal,
    "tensor": _tensor,
    **{name: _numpy(name) for name in ("float32", "float64", "int64", "bool_")},
    "array": lambda value: _numpy("array")([value, value]),  # type: ignore[arg-type]
}
_SPOIL = re.compile(r"([A-Za-z_]\w*)=([-+]?(?:nan|inf|[\d.]+(?:e[-+]?\d+)?))", re.I)
_TYPE = re.compile(rf"(?:bad )?type ({'|'.join(_TYPES)})(?: of (\w+))?")
_DONE_BEFORE: dict[str, Callable[..., None]] = {
    r"oom": _raise(OutOfMemory, "CUDA out of memory (the toy was told to say so)"),
    r"host oom": _raise(HostOutOfMemory, "the host is out of memory (so the toy was told)"),
    r"memoryerror": _raise(MemoryError, "the toy was told to raise it"),
    r"nonfinite": _raise(NonFinite, "the loss is nan (so the toy was told)"),
    r"bad output": _raise(BadOutput, "the output differs (so the toy was told)"),
    r"unsupported": _raise(Unsupported, "not on this device (so the toy was told)"),
    r"stop early": _raise(StoppedEarly, "clearly behind the front (so the toy was told)"),
    r"crash( .+)?": _crash,
    r"exit (\d+)": _exit,
    r"sleep ([\d.]+)": _sleep,
    r"kill -(\d+)( self)?": _kill,
    r"(segfault|abort|bus error)": _signal,
    r"hang( ignoring sigterm)?": _hang,
    r"grandchild( orphan)?": _grandchild,
    r"fork bomb(?: (\d+))?": _fork_bomb,
    r"huge log(?: (\d+))?": _huge_log,
    r"stderr: ?(.+)": _stderr,
    r"print (\w+)": _print,
    r"disk full": _disk_full,
}
_DONE_AFTER: dict[str, Callable[..., None]] = {
    r"hang at exit": _hang_at_exit,
    r"segfault at exit": _die_at_exit,
    r"half an answer": _half,
    r"no answer": _no_answer,
}
_BEFORE = {re.compile(pattern): fault for pattern, fault in _DONE_BEFORE.items()}
_AFTER = {re.compile(pattern): fault for pattern, fault in _DONE_AFTER.items()}


if __name__ == "__main__":
    _split = sys.argv.index("--")
    _problem = check(sys.argv[_split + 1 :], sys.argv[1:_split])
    print(_problem)
    sys.exit(2 if _problem else 0)
