"""The environment of a trial: what it gets, what it must not, and what is shown of it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from autotune import host_files
from autotune.rooms import child_environ
from autotune.trial import AppliedKnob, TrialSpec

_COMPOSITE = re.compile(r"^(\w+)\[([\w.]+)\]$")
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_?KEY|_KEY$|^KEY$", re.I
)
# A fork with torch imported and no CUDA context still takes these (read back on an H200); every
# other variable that a knob sets gets a fresh interpreter.
_FORK_TAKES = ("TORCHINDUCTOR_", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_FORK_REFUSES = ("backend:cudaMallocAsync",)
# Held off on every host: misuse of NVLink multicast can take a host's GPUs out of service.
_SAFETY = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}


def knob_variables(applied: tuple[AppliedKnob, ...]) -> tuple[dict[str, str], list[str]]:
    """Variables that knobs set, and those that they want absent.

    Several knobs may share one variable as ``NAME[key]``; they become ``key:value,key:value``.
    Words that stand for files or cores of this host are looked up here, where the trial runs.
    """
    plain: dict[str, str] = {}
    preloads: list[str] = []
    composite: dict[str, list[str]] = {}
    absent: list[str] = []
    for knob in applied:
        target = knob.apply.get("env")
        if target is None:
            continue
        match = _COMPOSITE.match(target)
        if match is None and knob.value == "unset":
            absent.append(target)
        elif knob.is_default or knob.value == "unset":
            continue
        elif target == "LD_PRELOAD":
            preloads.append(host_files.library(str(knob.value)) or str(knob.value))
        elif target == "GOMP_CPU_AFFINITY":
            plain[target] = host_files.cores(str(knob.value))
        elif match is None:
            plain[target] = text_of(knob.value)
        else:
            composite.setdefault(match[1], []).append(f"{match[2]}:{text_of(knob.value)}")
    plain |= {name: ",".join(parts) for name, parts in composite.items()}
    if preloads:
        plain["LD_PRELOAD"] = ":".join(preloads)
    return plain, [name for name in absent if name not in plain]


def text_of(value: object) -> str:
    """A knob's value as a variable holds it: booleans as Python and C++ parsers both read them."""
    return str(value) if not isinstance(value, bool) else ("True" if value else "False")


def of_trial(spec: TrialSpec, extra: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a trial's process."""
    variables, absent = knob_variables(spec.applied)
    environ = child_environ({**_SAFETY, **spec.environ, **variables, **extra})
    for name in absent:
        if name not in spec.environ:
            environ.pop(name, None)
    return environ


def needs_fresh_interpreter(spec: TrialSpec) -> bool:
    """Whether something set here acts only when an interpreter starts."""
    if spec.fidelity.fresh_process:
        return True
    variables, _ = knob_variables(spec.applied)
    return any(
        not name.startswith(_FORK_TAKES) or any(word in value for word in _FORK_REFUSES)
        for name, value in {**variables, **spec.environ}.items()
        if name in variables or name.startswith(("OMP_", "MKL_", "LD_", "CUDA_", "MALLOC_"))
    )


def mask(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables with secrets unreadable, as records and reports may show them."""
    return {name: "***" if _SECRET.search(name) else value for name, value in environ.items()}
