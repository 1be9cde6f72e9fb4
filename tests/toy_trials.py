"""Specs of toy and command trials, for tests that run them."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune import process_tree
from autotune.trial import AppliedKnob, Fidelity, KnobValue, TrialSpec

_SPEC = TrialSpec(
    study="tests",
    number=0,
    task="train",
    runner="toy",
    model={},
    workload={},
    configuration={},
    applied=(),
    stage="search",
    fidelity=Fidelity(),
    seed=0,
    gpus=0,
    timeout_seconds=60.0,
)


def toy(
    faults: str | Sequence[str] = (),
    *,
    knobs: Mapping[str, KnobValue] | None = None,
    options: Mapping[str, Any] | None = None,
    **changes: Any,
) -> TrialSpec:
    """A toy trial with these faults."""
    texts = [faults] if isinstance(faults, str) else list(faults)
    configuration = dict(knobs or {"batch": 16})
    changes = {"applied": arguments(configuration), **changes}
    return dataclasses.replace(
        _SPEC,
        configuration=configuration,
        options={"faults": texts, **(options or {})},
        **changes,
    )


def program(
    code: str, *words: str, knobs: Mapping[str, KnobValue] | None = None, **changes: Any
) -> TrialSpec:
    """A trial of runner command: Python code that finds its words (a template) in sys.argv."""
    options = {"argv": [sys.executable, "-c", literal(code), *words], "model": "mine"}
    configuration = dict(knobs or {})
    changes = {"applied": arguments(configuration), **changes}
    return dataclasses.replace(
        _SPEC, runner="command", configuration=configuration, options=options, **changes
    )


def literal(text: str) -> str:
    """A text in which braces are braces."""
    return text.replace("{", "{{").replace("}", "}}")


def arguments(configuration: Mapping[str, KnobValue]) -> tuple[AppliedKnob, ...]:
    """Knobs that the trial program reads, all away from their defaults."""
    return tuple(
        AppliedKnob(name=name, value=value, apply={"argument": name}, is_default=False)
        for name, value in configuration.items()
    )


def variable(name: str, target: str, value: KnobValue) -> AppliedKnob:
    """A knob that is a variable."""
    return AppliedKnob(name=name, value=value, apply={"env": target}, is_default=False)


def left_over(folder: Path) -> set[int]:
    """Processes that still know of a folder: a trial's command line or variables name it."""
    wanted = str(folder).encode()
    found = set()
    for pid, *_ in process_tree.processes():
        for name in ("cmdline", "environ"):
            try:
                if wanted in Path(f"/proc/{pid}/{name}").read_bytes():
                    found.add(pid)
            except OSError:
                continue
    return found


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Wait for something; whether it came."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True
