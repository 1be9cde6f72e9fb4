"""Configurations for other programs: one function per format, and best.yaml read back."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from autotune.atomic_file import write_atomically
from autotune.export_choice import Choice, ExportError, choose
from autotune.export_yaml import load_best
from autotune.space import nearest
from autotune.study import Study

__all__ = ["FORMATS", "Choice", "ExportError", "choose", "load_best", "text", "write_atomically"]

# Format -> module:function; each is a function of a Choice that returns the text of a file.
FORMATS: dict[str, str] = {
    "yaml": "autotune.export_yaml:best_yaml",
    "env": "autotune.export_script:env",
    "python": "autotune.export_script:python",
    "shell": "autotune.export_script:shell",
    "optuna": "autotune.export_optuna:journal",
    "vllm": "autotune.export_tools:vllm",
    "sglang": "autotune.export_tools:sglang",
    "trtllm": "autotune.export_tools:trtllm",
    "torchrun": "autotune.export_tools:torchrun",
    "deepspeed": "autotune.export_tools:deepspeed",
    "accelerate": "autotune.export_tools:accelerate",
    "megatron": "autotune.export_tools:megatron",
}


def text(study: Study, form: str, trial: int | None = None) -> str:
    """The best configuration (or one trial's) in a format; raises ExportError."""
    if form not in FORMATS:
        known = ", ".join(FORMATS)
        raise ExportError(f"unknown format {form}{nearest(form, FORMATS)} (known: {known})")
    module, _, function = FORMATS[form].partition(":")
    write: Callable[[Choice], str] = getattr(importlib.import_module(module), function)
    return write(choose(study, trial))
