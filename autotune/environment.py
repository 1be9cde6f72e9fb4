"""The environment of a trial: what it gets, what it must not, and what is shown of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from autotune.rooms import child_environ
from autotune.trial import AppliedKnob, TrialSpec

HIDDEN = "***"
# Variables of the driver, by their beginning, that reach workers on a cluster of somebody else's,
# and that are kept with each trial. Trials on this host inherit everything.
FORWARDED = (
    "AUTOTUNE_", "CUDA_", "GLOO_", "GOMP_", "HF_", "KMP_", "LD_PRELOAD", "MALLOC_", "MKL_", "NCCL_",
    "OMP_", "PYTORCH_", "TOKENIZERS_", "TORCH", "TRANSFORMERS_", "TRITON_", "UCX_", "VLLM_",
)  # fmt: skip
_COMPOSITE = re.compile(r"^(\w+)\[([\w.]+)\]$")
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZER|S(?:_|$))|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY"
    r"|PRIVATE_?KEY|_KEY$|^KEY$|_PAT$|_DSN$|COOKIE|BEARER|(^|_)AUTH($|_)",
    re.I,
)
_SECRET_VALUE = re.compile(
    r"(?P<user>://[^/\s:@]*:)[^/\s@]+(?=@)"  # https://user:password@host
    r"|\b(?:hf|ghp|gho|ghs|github_pat|glpat|xox[abp])[_-][A-Za-z0-9_-]{10,}"
    r"|\bsk-[A-Za-z0-9_-]{16,}|\bAKIA[A-Z0-9]{16}\b"
)
_SHORTEST_SECRET = 6  # a shorter one would be found all over a log
# A fork with torch imported and no CUDA context still takes these (read back on an H200); every
# other variable that a knob sets needs an interpreter that was started with it. TORCHINDUCTOR_*
# too, since the compiler's settings are read when it is imported, which happens before the fork.
_FORK_TAKES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
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
    """
    plain: dict[str, str] = {}
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
        elif match is None:
            plain[target] = text_of(knob.value)
        else:
            composite.setdefault(match[1], []).append(f"{match[2]}:{text_of(knob.value)}")
    plain |= {name: ",".join(parts) for name, parts in composite.items()}
    return plain, [name for name in absent if name not in plain]


def text_of(value: object) -> str:
    """A knob's value as a variable holds it: booleans as Python and C++ parsers both read them."""
    return str(value) if not isinstance(value, bool) else ("True" if value else "False")


def at_start(
    own: Mapping[str, str], applied: tuple[AppliedKnob, ...] = ()
) -> dict[str, str | None]:
    """What tells interpreters apart from which trials can be forked: the study's ``own`` variables,
    and those of knobs that act at the start; None for a variable of ours that must be absent."""
    variables, absent = knob_variables(applied)
    acting = {n: text for n, text in variables.items() if not n.startswith(_FORK_TAKES)}
    return {**{name: None for name in absent if name in os.environ}, **own, **acting}


def of_interpreter(wanted: Mapping[str, str | None]) -> dict[str, str]:
    """The whole environment of an interpreter that starts so."""
    present = {name: text for name, text in wanted.items() if text is not None}
    return _environ({}, present, [name for name, text in wanted.items() if text is None])


def of_trial(spec: TrialSpec, extra: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a trial's process."""
    variables, absent = knob_variables(spec.applied)
    return {**_environ(spec.environ, variables, absent), **extra}


def _environ(
    own: Mapping[str, str], variables: Mapping[str, str], absent: Sequence[str]
) -> dict[str, str]:
    asked = {**_SAFETY, **own, **variables}
    environ = child_environ({n: v for n, v in asked.items() if v != HIDDEN})  # masked: as in ours
    for name in absent:
        if name not in own:
            environ.pop(name, None)
    return environ


def needs_fresh_interpreter(spec: TrialSpec) -> bool:
    """Whether no fork will do: asked for, or set where even a matching zygote was seen to fail."""
    values = knob_variables(spec.applied)[0].values()
    return spec.fidelity.fresh_process or any(w in v for v in values for w in _FORK_REFUSES)


def kept(environ: Mapping[str, str], spec: TrialSpec) -> dict[str, str]:
    """What is written down of a trial's environment: its own variables and those that libraries
    read, secrets unreadable."""
    own = {*spec.environ, *knob_variables(spec.applied)[0]}
    return mask({n: environ[n] for n in sorted(environ) if n in own or n.startswith(FORWARDED)})


def mask(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables with secrets unreadable, as records and reports may show them."""
    return {
        name: HIDDEN if _SECRET_NAME.search(name) else hide(value)
        for name, value in environ.items()
    }


def hide(text: str, environ: Mapping[str, str] | None = None) -> str:
    """A text without what looks like a secret, and without the secrets of an environment."""
    for name, value in (environ or {}).items():
        if len(value) >= _SHORTEST_SECRET and value in text and _SECRET_NAME.search(name):
            text = text.replace(value, HIDDEN)
    return _SECRET_VALUE.sub(lambda m: (m["user"] or "") + HIDDEN, text)


def forwarded() -> dict[str, str]:
    """Variables of this process that reach workers elsewhere; devices are theirs to name."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(FORWARDED) and name not in ("CUDA_VISIBLE_DEVICES", "AUTOTUNE_SLOT")
    }
